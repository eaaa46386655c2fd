"""The verification report: what is right, what is wrong, what is missing, and which of them fail it."""

from dpsweep.datasets.builtin import Digits
from dpsweep.datasets.tabular import Cardio, Heart
from dpsweep.datasets.verify import verify_report


def rows(text, name):
    return [line for line in text.splitlines() if line.startswith(name + " ")]


def test_a_missing_dataset_is_named_and_fails_only_if_asked_for(tmp_path):
    readers = {"digits": Digits(), "heart": Heart()}
    text, well = verify_report(readers, tmp_path)
    assert well and len(rows(text, "digits")) == 4
    assert "missing" in rows(text, "heart")[0] and "dpsweep data fetch heart" in text and "DPSWEEP_DATA" in text
    assert verify_report(readers, tmp_path, required=["digits"])[1]
    text, well = verify_report(readers, tmp_path, required=["heart"])
    assert not well and rows(text, "heart")[0].endswith("WRONG")


def test_a_broken_file_fails_and_its_reason_is_told(tmp_path):
    (tmp_path / "cardio_train.csv").write_text("a;b\n1;2\n")
    text, well = verify_report({"cardio": Cardio(), "digits": Digits()}, tmp_path)
    assert not well and rows(text, "cardio")[0].endswith("WRONG") and "first line" in text
    assert all(line.endswith("ok") for line in rows(text, "digits"))


def test_another_file_than_the_official_one_fails(tmp_path):
    row = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0"
    (tmp_path / "processed.cleveland.data").write_text("\n".join(row.replace("63", str(k)) for k in range(30, 60)))
    text, well = verify_report({"heart": Heart()}, tmp_path)
    assert not well
    ends = {check: line.split()[-1] for check in ("features", "records", "SHA") for line in rows(text, "heart") if check in line}
    assert ends == {"features": "ok", "records": "WRONG", "SHA": "WRONG"}
