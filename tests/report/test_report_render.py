"""The whole report: its files, its page, its text, its speed, and what it must not import."""

import csv
import itertools
import re
import subprocess
import sys
import time

import pytest
from report_factory import failed, grid, record, seeded, task

from dpsweep.errors import UsageError
from dpsweep.report import render


def build(folder, tasks, records, set_aside=(), spec=None):
    return render.build("A suite", "What it is about.", tasks, records, set_aside, spec or {}, folder)


def test_a_complete_suite(tmp_path):
    tasks = grid(datasets=("digits", "heart"))
    report = build(tmp_path / "new" / "quickstart", tasks, [record(t) for t in tasks])
    folder = report.index.parent
    assert report.complete and report.index.name == "index.html"
    names = ("accuracy", "accuracy_intervals", "f1", "auroc", "auprc", "contrasts", "released", "protocol", "times")
    for name in names:
        for suffix in ("csv", "md", "tex"):
            assert (folder / f"{name}.{suffix}").stat().st_size > 50, name
    assert (folder / "accuracy_by_epsilon.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "accuracy_by_epsilon.svg").read_text()
    assert not (folder / "missing.csv").exists()
    assert "24 of 24 tasks done, 0 failed, 0 missing" in report.text
    assert report.text.rstrip().endswith(str(report.index))
    assert max(map(len, report.text.splitlines()[:-1])) <= 100


def test_the_page_needs_no_network(tmp_path):
    page = build(tmp_path, grid(), [record(t) for t in grid()]).index.read_text()
    sources = re.findall(r"""(?:src|href)=["']([^"']*)""", page)
    assert any(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert all(source.startswith(("data:", "#")) or (tmp_path / source).is_file() for source in sources)
    assert "@import" not in page and "<script" not in page


def test_hostile_names_do_no_harm(tmp_path):
    name = "<script>alert(1)</script>|$x^$&_"
    tasks = [task(model=m, dataset=name, seed=s) for m in (name, "b") for s in (1, 2)]
    records = [record(t, guarantee_text=name, host=name) for t in tasks[:-1]] + [failed(tasks[-1], name, name)]
    report = build(tmp_path, tasks, records, [(name, name)])
    page = report.index.read_text()
    assert "<script" not in page and "&lt;script&gt;alert(1)" in page
    markdown = (tmp_path / "accuracy.md").read_text()
    assert "<script" not in markdown.replace(r"\<script", "") and r"\|$x^$&_" in markdown
    assert r"\textless{}script\textgreater{}" in (tmp_path / "accuracy.tex").read_text()
    assert "<script" not in (tmp_path / "accuracy_by_epsilon.svg").read_text()


def test_an_open_suite_says_what_is_open(tmp_path):
    tasks = grid(models=("rvfl",), budgets=(1.0,))
    records = [record(tasks[0]), failed(tasks[1], message="no space\nleft")]
    report = build(tmp_path, tasks, records, [("torn.json", "no JSON")])
    assert not report.complete
    for words in (
        "1 of 3 tasks done, 1 failed, 1 missing, 1 file set aside",
        f"{tasks[1]['id']}: RuntimeError: no space",
        f"1 missing:\n  {tasks[2]['id']}",
        "torn.json: no JSON",
        "(n=1 of 3)[1]",
    ):
        assert words in report.text
    page = report.index.read_text()
    assert "torn.json" in page and tasks[2]["id"] in page and "no space" in page


def test_nothing_done_yet(tmp_path):
    report = build(tmp_path, grid(), [])
    assert not report.complete
    assert "0 of 12 tasks done, 0 failed, 12 missing" in report.text and "… and 4 more" in report.text
    assert not list(tmp_path.glob("*.png"))
    assert "<img" not in report.index.read_text()


def test_seeded_noise_is_announced(tmp_path):
    report = build(tmp_path, [], [seeded(task(seed=s)) for s in (1, 2)])
    for text in (report.text, report.index.read_text()):
        assert "Noise was seeded" in text and "No cell has a proved ε." in text and "‡" in text


def test_data_that_is_not_official_is_announced(tmp_path):
    assert "did not match the official files" in build(tmp_path, [], [record(task(), data_official=False)]).text


def test_one_model_has_no_contrasts(tmp_path):
    report = build(tmp_path, [], [record(task())])
    assert "paired by seed" not in report.text and not (tmp_path / "contrasts.csv").exists()


def test_the_spec_is_followed(tmp_path):
    spec = {"metrics": ["f1"], "compare": {"by": "model", "reference": "dense"}, "figures": ["auroc", "f1"]}
    report = build(tmp_path, grid(), [record(t) for t in grid()], spec=spec)
    assert "F1 (%)" in report.text and "by model against dense" in report.text
    assert not (tmp_path / "accuracy.csv").exists()
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["auroc_by_epsilon.png", "f1_by_epsilon.png"]


@pytest.mark.parametrize(
    "spec",
    [
        {"metric": ["f1"]}, {"metrics": ["f2"]}, {"metrics": "f1"}, {"figures": ["x"]}, {"compare": "rvfl"},
        {"compare": {"by": "model"}}, {"compare": {"by": "model", "reference": "cnn"}},
    ],
)  # fmt: skip
def test_a_spec_that_asks_for_the_impossible_is_refused(tmp_path, spec):
    with pytest.raises(UsageError):
        build(tmp_path, grid(), [], spec=spec)
    assert not list(tmp_path.iterdir())


def test_records_csv_has_one_row_a_task(tmp_path):
    tasks = grid(models=("rvfl",), budgets=(1.0,))
    build(tmp_path, tasks, [record(tasks[0], 0.5), failed(tasks[1])])
    with (tmp_path / "records.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["done", "failed", "missing"]
    assert (rows[0]["test_accuracy"], rows[0]["label:model"]) == ("0.5", "rvfl")
    assert rows[0]["versions"].startswith("{")
    assert rows[1]["error"] == "RuntimeError: out of memory" and "Traceback" not in str(rows)


def test_the_same_records_give_the_same_page(tmp_path):
    records = [record(t) for t in grid()]
    first, second = (build(tmp_path / name, grid(), records).index.read_bytes() for name in "ab")
    assert first == second


def test_2500_records_take_less_than_ten_seconds(tmp_path):
    keys = itertools.product(("a", "b", "c", "d"), range(10), (None, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0), range(9))
    tasks = [task(d, f"model{m}", e, s) for d, m, e, s in keys]
    records = [record(t, 0.5 + (number * 7919 % 1000) / 2000) for number, t in enumerate(tasks)]
    assert len(records) == 2520
    start = time.process_time()  # not the wall's: the cores may be shared
    build(tmp_path, tasks, records)
    assert time.process_time() - start < 10


def test_no_torch_opacus_or_hydra(tmp_path):
    code = (
        "import sys, pathlib; from dpsweep.report import render; "
        "render.build('t', '', [], [], [], {}, pathlib.Path(sys.argv[1])); "
        "print([name for name in ('torch', 'opacus', 'hydra', 'omegaconf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
