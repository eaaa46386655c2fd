"""Heart and Cardio: small files in their formats, files that are broken, and the real data where it is."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from dpsweep.datasets import tabular
from dpsweep.datasets.base import MissingData
from dpsweep.datasets.tabular import CARDIO_COLUMNS, Cardio, Heart
from dpsweep.errors import UsageError

HEART_ROW = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0"
CARDIO_ROW = "18393;2;168;62.0;110;80;1;1;0;0;1;0"


def heart_lines(n=20):
    return [HEART_ROW.replace("63.0", f"{30 + k}.0", 1)[:-1] + str(k % 5) for k in range(n)]


def cardio_lines(n=20):
    return [";".join(CARDIO_COLUMNS), *(f"{k};{CARDIO_ROW[:-1]}{k % 2}" for k in range(n))]


def write(folder: Path, reader, lines) -> Path:
    (folder / reader.file).write_text("\n".join(lines) + "\n")
    return folder


def test_heart_is_read_encoded_and_split(tmp_path):
    lines = heart_lines()
    lines[1] = lines[1].replace("0.0,6.0", "?,?")
    d = Heart().load(write(tmp_path, Heart, lines), "dp_rvfl", 1)
    order = np.random.default_rng(1).permutation(20)
    assert d.x_train.shape == (14, 47) and d.x_test.shape == (3, 47) and d.official is False
    assert d.y_train.tolist() == [int(k % 5 > 0) for k in order[:14]]
    assert d.y_test.tolist() == [int(k % 5 > 0) for k in order[17:]]
    ages = 2 * (30.0 + order[:14]) / 120 - 1
    assert d.x_train[:, 0] == pytest.approx(ages, abs=1e-6)
    # cp takes the columns 10-15, restecg 16-19, slope 20-24, ca 25-30, thal 31-37; the last of each is "unknown"
    assert np.array_equal(d.x_train[:, 30] == 1, order[:14] == 1)
    assert np.array_equal(d.x_train[:, 37] == 1, order[:14] == 1)


def test_cardio_filters_and_derives_record_by_record(tmp_path):
    lines = cardio_lines(40)
    lines[1] = "0;18393;2;119;62.0;110;80;1;1;0;0;1;0"  # too short
    lines[2] = "1;18393;2;168;62.0;90;100;1;1;0;0;1;0"  # ap_hi < ap_lo
    lines[3] = "2;18393;2;168;;110;80;1;1;0;0;1;0"  # no weight
    lines[4] = "3;18393;2;0;62;110;80;1;1;0;0;1;0"  # a height of 0 must not warn
    lines[5] = "4;18393;2;120;30;80;80;1;1;0;0;1;0"  # on the bounds: kept
    d = Cardio().load(write(tmp_path, Cardio, lines), "dp_rvfl", 1)
    assert len(d.x_train) == int(0.70 * 36) and len(d.x_test) == 36 - int(0.85 * 36) and d.x_train.shape[1] == 32
    plain = d.x_train[d.x_train[:, 2] == np.float32(2 * 68 / 150 - 1)][0]
    assert plain[0] == pytest.approx(2 * 18393 / 365.25 / 120 - 1, abs=1e-6)
    assert plain[10] == pytest.approx(2 * (62 / 1.68**2 - 5) / 95 - 1, abs=1e-6)
    assert plain[12:15].tolist() == [0, 1, 0]


def test_cardio_columns_are_found_by_name(tmp_path):
    table = [line.split(";") for line in cardio_lines()]
    turned = [";".join(row[::-1]) for row in table]
    (tmp_path / "turned").mkdir()
    straight = Cardio().load(write(tmp_path, Cardio, cardio_lines()), "dp_rvfl", 1)
    assert straight.fingerprint == Cardio().load(write(tmp_path / "turned", Cardio, turned), "dp_rvfl", 1).fingerprint


@pytest.mark.parametrize("reader", [Heart(), Cardio()])
def test_missing_files_are_named_with_folder_and_remedy(tmp_path, reader):
    with pytest.raises(MissingData) as caught:
        reader.check(tmp_path)
    command = f"dpsweep data fetch {type(reader).__name__.lower()}"
    for part in (reader.file, str(tmp_path), "data.dir=", "DPSWEEP_DATA", command):
        assert part in str(caught.value)
    with pytest.raises(MissingData):
        reader.load(tmp_path, "dp_rvfl", 1)


@pytest.mark.parametrize("reader", [Heart(), Cardio()])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n\n", "no records"),
        (b"\x00\xff\xfe\x80binary", "not a text file"),
        (b'"unclosed', "not a text file"),
        (None, "is not a file"),
    ],
)
def test_files_that_are_no_tables(tmp_path, reader, content, said):
    path = tmp_path / reader.file
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(UsageError, match=said) as caught:
        reader.load(tmp_path, "dp_rvfl", 1)
    assert reader.file in str(caught.value) and not isinstance(caught.value, MissingData)


@pytest.mark.parametrize(
    ("reader", "line", "text", "said"),
    [
        (Heart(), 4, HEART_ROW + ",1", "line 5: 15 cells"),
        (Heart(), 4, HEART_ROW.replace("145.0", "high"), "line 5, column trestbps"),
        (Heart(), 0, ",".join(tabular.HEART_COLUMNS), "line 1, column age"),
        (Heart(), 4, HEART_ROW[:-1] + "5", "target.*record 5"),
        (Heart(), 4, HEART_ROW[:-1] + "?", "target.*record 5"),
        (Cardio(), 4, "1;2;3", "line 5: 3 cells"),
        (Cardio(), 4, "7;" + CARDIO_ROW.replace("62.0", "x"), "line 5, column weight"),
        (Cardio(), 4, "7;" + CARDIO_ROW[:-1] + "2", "cardio.*record 4"),
        (Cardio(), 0, ";".join(CARDIO_COLUMNS).replace("ap_hi", "sbp"), "first line"),
    ],
)
def test_broken_lines_are_named(tmp_path, reader, line, text, said):
    lines = heart_lines() if isinstance(reader, Heart) else cardio_lines()
    lines[line] = text
    with pytest.raises(UsageError, match=said) as caught:
        reader.load(write(tmp_path, reader, lines), "dp_rvfl", 1)
    assert str(tmp_path / reader.file) in str(caught.value)


def test_a_heart_file_with_duplicates_is_refused_with_the_reason(tmp_path):
    lines = heart_lines()
    lines[12] = lines[5].replace("0.0,6.0", "?,6.0")
    lines[17] = lines[12]
    with pytest.raises(UsageError, match="record 18 repeats record 13.*depend on another"):
        Heart().load(write(tmp_path, Heart, lines), "dp_rvfl", 1)


def test_a_file_is_too_small_to_split(tmp_path):
    with pytest.raises(UsageError, match="1 usable records"):
        Heart().load(write(tmp_path, Heart, heart_lines(1)), "dp_rvfl", 1)


@pytest.mark.data
@pytest.mark.parametrize(
    ("reader", "train", "test", "majority"),
    [(Heart(), [116, 96], [19, 27], 0.4130), (Cardio(), [24287, 23738], [5177, 5115], 0.5030)],
)
def test_the_official_files(reader, train, test, majority):
    folder = Path(os.environ.get("DPSWEEP_DATA", ""))
    if not (folder / reader.file).is_file():
        pytest.skip(f"{reader.file} is not in the folder that DPSWEEP_DATA names")
    d = reader.load(folder, "dp_rvfl", 2026)
    assert d.official is True
    assert np.bincount(d.y_train).tolist() == train and np.bincount(d.y_test).tolist() == test
    assert np.mean(d.y_test == np.bincount(d.y_train).argmax()) == pytest.approx(majority, abs=5e-5)
    assert d.fingerprint == reader.load(folder, "official", 2026).fingerprint
    assert all(finding.ok for finding in reader.verify(folder))


@pytest.mark.data
@pytest.mark.parametrize(
    ("seed", "train", "test"),
    [(2026, [116, 96], [19, 27]), (2027, [117, 95], [23, 23]), (2028, [111, 101], [28, 18]), (2029, [114, 98], [26, 20])],
)
def test_the_papers_four_splits_of_heart(seed, train, test):
    folder = Path(os.environ.get("DPSWEEP_DATA", ""))
    if not (folder / Heart.file).is_file():
        pytest.skip(f"{Heart.file} is not in the folder that DPSWEEP_DATA names")
    d = Heart().load(folder, "dp_rvfl", seed)
    sick = np.array([line.split(",")[-1] != "0" for line in (folder / Heart.file).read_text().split()])
    order = np.random.default_rng(seed).permutation(303)
    assert np.array_equal(d.y_train, sick[order[:212]]) and np.array_equal(d.y_test, sick[order[257:]])
    assert np.bincount(d.y_train).tolist() == train and np.bincount(d.y_test).tolist() == test


def test_the_checksum_decides_what_is_official(tmp_path, monkeypatch):
    folder = write(tmp_path, Heart, heart_lines())
    monkeypatch.setattr(tabular, "HEART_SHA256", hashlib.sha256((folder / Heart.file).read_bytes()).hexdigest())
    assert Heart().load(folder, "dp_rvfl", 1).official is True
    wrong = {finding.what for finding in Heart().verify(folder) if not finding.ok}
    assert "training, test records" in wrong and "features" not in wrong
