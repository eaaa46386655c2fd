"""One table, written as CSV, Markdown, LaTeX and plain text. HTML is the template's."""

import csv
import functools
import io
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "ε": r"$\varepsilon$", "δ": r"$\delta$", "σ": r"$\sigma$", "∞": r"$\infty$",
    "†": r"\textdagger{}", "‡": r"\textdaggerdbl{}", "§": r"\S{}", "—": "---", "–": "--", "−": "$-$",
    "×": r"$\times$", "≤": r"$\leq$", "·": r"$\cdot$", "…": r"\dots{}", "\n": " ",
}  # fmt: skip
_FEW = 3
_MARKDOWN = re.compile(r"([\\|<>*`\[\]])")


@dataclass(frozen=True)
class Table:
    """A table of finished text.

    `header` names every column in full; `groups` are (label, span) pairs above `short`, the header's lower line, where
    columns are grouped. The first `stubs` columns are labels. With `blocks` each value of the first column is a block
    of rows under its own heading, wherever a heading can be set. `notes` are (mark, text) pairs; a mark stands at the
    end of a cell.
    """

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    stubs: int = 1
    groups: Sequence[tuple[str, int]] = ()
    short: Sequence[str] = ()
    blocks: bool = False
    notes: Sequence[tuple[str, str]] = ()

    def starts_block(self, index: int) -> bool:
        """Whether row `index` (from 0) opens a block, and so the block's name stands in a line above it."""
        return self.blocks and (index == 0 or self.rows[index][0] != self.rows[index - 1][0])


class Footnotes:
    """The notes of a table in order of appearance: one mark for each distinct text, its details gathered; of a numbered note's
    only the first few are told."""

    def __init__(self) -> None:
        self._details: dict[tuple[str, str], dict[str, None]] = {}
        self._marks: dict[tuple[str, str], str] = {}

    def mark(self, symbol: str, text: str, detail: str = "") -> str:
        """The mark of a note. An empty symbol asks for a number; a symbol with a second text gets a number added."""
        key = (symbol, text)
        if key not in self._marks:
            same = sum(other == symbol for other, _ in self._marks) + 1
            self._marks[key] = f"[{same}]" if not symbol else symbol if same == 1 else f"{symbol}{same}"
            self._details[key] = {}
        if detail:
            self._details[key][detail] = None
        return self._marks[key]

    def listed(self) -> list[tuple[str, str]]:
        # Guarantees first, then the numbered notes.
        keys = sorted(self._marks, key=lambda key: not key[0])
        return [(self._marks[key], f"{key[1]} {self._told(key)}".strip()) for key in keys]

    def _told(self, key: tuple[str, str]) -> str:
        details = list(self._details[key])
        more = 0 if key[0] else len(details) - _FEW
        return ", ".join(details[:_FEW]) + f" and {more} more" if more > 0 else ", ".join(details)


def to_csv(table: Table) -> str:
    """The header in full and the rows, without notes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.header, *table.rows])
    return text.getvalue()


def to_markdown(table: Table) -> str:
    """A pipe table between its caption and its notes, with everything that Markdown would read as markup escaped."""
    rule = ["---"] * table.stubs + ["---:"] * (len(table.header) - table.stubs)
    lines = [escape_markdown(table.caption), ""]
    lines += [f"| {' | '.join(line)} |" for line in (map(escape_markdown, table.header), rule)]
    lines += [f"| {' | '.join(map(escape_markdown, row))} |" for row in table.rows]
    lines += [f"\n{escape_markdown(f'{mark} {text}')}" for mark, text in table.notes]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """A `tabular` for booktabs with the caption as a comment and the notes as a paragraph below; no float around it."""
    skip = int(table.blocks)
    stubs, columns = table.stubs - skip, len(table.header) - skip
    lines = [f"% {escape_latex(table.caption)}", r"% needs \usepackage{booktabs}"]
    lines += [rf"\begin{{tabular}}{{{'l' * stubs}{'r' * (columns - stubs)}}}", r"\toprule"]
    if table.groups:
        cells, rules, column = [""] * stubs, "", stubs + 1
        for label, span in table.groups:
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{escape_latex(label)}}}")
            rules += rf"\cmidrule(lr){{{column}-{column + span - 1}}}"
            column += span
        lines += [" & ".join(cells) + r" \\", rules]
    lines += [" & ".join(map(escape_latex, (table.short or table.header)[skip:])) + r" \\", r"\midrule"]
    for index, row in enumerate(table.rows):
        if table.starts_block(index):
            lines += [r"\addlinespace"] * (index > 0)
            lines.append(rf"\multicolumn{{{columns}}}{{l}}{{\textit{{{escape_latex(row[0])}}}}} \\")
        lines.append(" & ".join(map(escape_latex, row[skip:])) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.notes:
        notes = " ".join(escape_latex(f"{mark} {text}") + "." for mark, text in table.notes)
        lines.append(rf"\par\smallskip{{\footnotesize {notes}\par}}")
    return "\n".join(lines) + "\n"


def to_plain(table: Table, width: int = 100) -> str:
    """Caption, rows and notes as plain text; a table that is too wide breaks between its groups of columns."""
    wrap = functools.partial(textwrap.fill, width=width, break_long_words=False)
    parts = [wrap(table.caption)]
    rows = [["" if table.blocks and not index and not table.starts_block(number) else cell for index, cell in enumerate(row)]
            for number, row in enumerate(table.rows)]  # fmt: skip
    if table.groups:
        parts += _grouped(table, rows, width)
    else:
        parts.append(to_text(table.header, rows, table.stubs, width))
    parts += [wrap(f"{mark} {text}") for mark, text in table.notes]
    return "\n".join(parts) + "\n"


def _grouped(table: Table, rows: Sequence[Sequence[str]], width: int) -> list[str]:
    lines = [list(line) for line in (table.short, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = sum(widths[: table.stubs]) + 2 * (table.stubs - 1)
    parts: list[list[tuple[str, range]]] = []
    used, column = width, table.stubs
    for label, span in table.groups:
        columns = range(column, column + span)
        column += span
        needed = sum(widths[index] + 2 for index in columns)
        widths[columns[-1]] += max(0, len(label) + 2 - needed)
        needed = max(needed, len(label) + 2)
        if used + needed > width:
            parts.append([])
            used = left
        parts[-1].append((label, columns))
        used += needed
    texts = []
    for part in parts:
        spans = [sum(widths[index] + 2 for index in columns) for _, columns in part]
        texts.append((" " * left + "".join(label.rjust(span) for (label, _), span in zip(part, spans, strict=True))).rstrip())
        for line in lines:
            stub = "  ".join(line[index].ljust(widths[index]) for index in range(table.stubs))
            body = "".join("  " + line[index].rjust(widths[index]) for _, columns in part for index in columns)
            texts.append((stub + body).rstrip())
        texts.append("")
    return texts[:-1]


def to_text(header: Sequence[str], rows: Sequence[Sequence[str]], stubs: int = 1, width: int = 100) -> str:
    """Aligned plain text of at most `width` columns where that can be.

    A table that is too wide first loses the blanks around ±, then continues below itself with its stubs repeated.
    """
    columns = [list(column) for column in zip(header, *rows, strict=True)]
    if sum(max(map(len, column)) + 2 for column in columns) - 2 > width:
        columns = [[text.replace(" ± ", "±") for text in column] for column in columns]
    widths = [max(map(len, column)) for column in columns]
    left = sum(widths[:stubs]) + 2 * (stubs - 1)
    parts = _split(widths, stubs, left, width, len(columns))
    # As many columns in each part, rather than one alone in the last.
    parts = _split(widths, stubs, left, width, math.ceil((len(columns) - stubs) / max(1, len(parts))))
    lines: list[str] = []
    for part in parts:
        for line in range(len(rows) + 1):
            stub = [columns[index][line].ljust(widths[index]) for index in range(stubs)]
            body = [columns[index][line].rjust(widths[index]) for index in part]
            lines.append("  ".join([*stub, *body]).rstrip())
        lines.append("")
    return "\n".join(lines[:-1])


def _split(widths: Sequence[int], stubs: int, left: int, width: int, most: int) -> list[list[int]]:
    """Columns after the stubs in parts of at most `most` columns that fit into `width`, at least one in each."""
    parts: list[list[int]] = []
    used = width
    for index in range(stubs, len(widths)):
        if used + 2 + widths[index] > width or len(parts[-1]) == most:
            parts.append([])
            used = left
        parts[-1].append(index)
        used += 2 + widths[index]
    return parts


def escape_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", text).replace("\n", " ")


def escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
