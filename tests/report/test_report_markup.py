"""Tables written as CSV, Markdown, LaTeX and plain text."""

import csv
import io

import pytest

from dpsweep.report.markup import Footnotes, Table, to_csv, to_latex, to_markdown, to_text

NASTY = r"a|b & 50% _x_ <i> $\alpha$ {y} #1 ~^"


def test_csv_reads_back():
    table = Table("t", "c", ["Model", "a,b"], [[NASTY, '1 "x"\n2'], ["m", "2"]])
    assert list(csv.reader(io.StringIO(to_csv(table)))) == [["Model", "a,b"], [NASTY, '1 "x"\n2'], ["m", "2"]]


def test_markdown_keeps_its_columns_whatever_a_cell_holds():
    lines = to_markdown(Table("t", "c", ["Model", "v"], [[NASTY, "1"]], notes=[("†", "a|b")])).splitlines()
    assert lines[4] == r"| a\|b & 50% _x_ \<i\> $\\alpha$ {y} #1 ~^ | 1 |"
    assert lines[-1] == r"† a\|b"


def test_latex_escapes_and_groups():
    header, short = ["Model", "x ε=1", "x ε=2"], ["Model", "ε=1", "ε=2"]
    table = Table("t", "c", header, [[NASTY, "1 ± 2†", "−3"]], 1, [("x_y", 2)], short)
    text = to_latex(table)
    assert r"a\textbar{}b \& 50\% \_x\_ \textless{}i\textgreater{} \$\textbackslash{}alpha\$ \{y\} \#1 " in text
    assert r"1 $\pm$ 2\textdagger{} & $-$3 \\" in text
    assert r" & \multicolumn{2}{c}{x\_y} \\" in text and r"\cmidrule(lr){2-3}" in text
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    assert r"\begin{tabular}{lrr}" in text


def test_blocks_stand_under_headings_in_latex():
    rows = [["d1", "m", "1"], ["d1", "n", "2"], ["d2", "m", "3"]]
    table = Table("t", "c", ["Dataset", "Model", "v"], rows, 2, blocks=True)
    text = to_latex(table)
    assert r"\begin{tabular}{lr}" in text
    assert text.count("textit") == 2 and text.count(r"\addlinespace") == 1


def test_text_is_aligned_and_fits():
    header = ["digits", *(f"ε={k}" for k in range(9))]
    rows = [[name, *["91.23 ± 0.45"] * 9] for name in ("rvfl", "frozen_matched")]
    text = to_text(header, rows, width=100)
    lines = [line for line in text.splitlines() if line]
    assert max(map(len, lines)) <= 100
    assert all(sum(f"ε={k}" in line for line in lines) == 1 for k in range(9))
    assert len(lines) == 6  # two parts, each with the header again
    assert to_text(["a", "b"], [["x", "1 ± 2"]]) == "a      b\nx  1 ± 2\n".rstrip("\n")


def test_a_column_wider_than_the_screen_still_comes_out():
    assert "y" * 120 in to_text(["a", "b"], [["x", "y" * 120]])


def test_footnotes_share_a_mark_for_one_text_and_number_others():
    notes = Footnotes()
    assert notes.mark("†", "leaks", "claimed 1") == notes.mark("†", "leaks", "claimed 2") == "†"
    assert notes.mark("", "missing: a") == "[1]"
    assert notes.mark("†", "other") == "†2"
    assert notes.mark("", "missing: b") == "[2]"
    assert notes.listed() == [
        ("†", "leaks claimed 1, claimed 2"), ("†2", "other"), ("[1]", "missing: a"), ("[2]", "missing: b"),
    ]  # fmt: skip


@pytest.mark.parametrize("write", [to_csv, to_markdown, to_latex])
def test_an_empty_table_is_written(write):
    assert "Model" in write(Table("t", "c", ["Model", "v"], []))
