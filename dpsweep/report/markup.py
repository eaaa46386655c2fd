"""One table, written as CSV, Markdown, LaTeX and plain text. HTML is the template's."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "±": r"$\pm$", "ε": r"$\varepsilon$", "δ": r"$\delta$", "σ": r"$\sigma$", "†": r"\textdagger{}", "‡": r"\textdaggerdbl{}",
    "§": r"\S{}", "—": "---", "–": "--", "−": "$-$", "×": r"$\times$", "≤": r"$\leq$", "·": r"$\cdot$", "…": r"\dots{}",
    "\n": " ",
}  # fmt: skip
_MARKDOWN = re.compile(r"([\\|<>*`\[\]])")


@dataclass(frozen=True)
class Table:
    """A table of finished text.

    `header` names every column in full; `groups` are (label, span) pairs above `short`, the header's lower line, where
    columns are grouped. The first `stubs` columns are labels. With `blocks` a new value in the first column starts a
    block. `notes` are (mark, text) pairs; a mark stands at the end of a cell.
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
        """Whether row `index` (from 0) opens a new block; the first row does not."""
        return self.blocks and index > 0 and self.rows[index][0] != self.rows[index - 1][0]


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
    align = "l" * table.stubs + "r" * (len(table.header) - table.stubs)
    lines = [f"% {escape_latex(table.caption)}", "% needs \\usepackage{booktabs}", rf"\begin{{tabular}}{{{align}}}", r"\toprule"]
    if table.groups:
        cells, rules, column = [""] * table.stubs, "", table.stubs + 1
        for label, span in table.groups:
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{escape_latex(label)}}}")
            rules += rf"\cmidrule(lr){{{column}-{column + span - 1}}}"
            column += span
        lines += [" & ".join(cells) + r" \\", rules]
    lines += [" & ".join(map(escape_latex, table.short or table.header)) + r" \\", r"\midrule"]
    for index, row in enumerate(table.rows):
        if table.starts_block(index):
            lines.append(r"\addlinespace")
        lines.append(" & ".join(map(escape_latex, row)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.notes:
        notes = " ".join(escape_latex(f"{mark} {text}") + "." for mark, text in table.notes)
        lines.append(rf"\par\smallskip{{\footnotesize {notes}\par}}")
    return "\n".join(lines) + "\n"


def to_text(header: Sequence[str], rows: Sequence[Sequence[str]], stubs: int = 1, width: int = 100) -> str:
    """Aligned plain text of at most `width` columns where that can be.

    A table that is too wide first loses the blanks around ±, then continues below itself with its stubs repeated.
    """
    columns = [list(column) for column in zip(header, *rows, strict=True)]
    if sum(max(map(len, column)) + 2 for column in columns) - 2 > width:
        columns = [[text.replace(" ± ", "±") for text in column] for column in columns]
    widths = [max(map(len, column)) for column in columns]
    left = sum(widths[:stubs]) + 2 * (stubs - 1)
    parts: list[list[int]] = [[]]
    used = left
    for index in range(stubs, len(columns)):
        if parts[-1] and used + 2 + widths[index] > width:
            parts.append([])
            used = left
        parts[-1].append(index)
        used += 2 + widths[index]
    lines: list[str] = []
    for part in parts:
        for line in range(len(rows) + 1):
            stub = [columns[index][line].ljust(widths[index]) for index in range(stubs)]
            body = [columns[index][line].rjust(widths[index]) for index in part]
            lines.append("  ".join([*stub, *body]).rstrip())
        lines.append("")
    return "\n".join(lines[:-1])


def escape_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", text).replace("\n", " ")


def escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
