import csv
import json
import math
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpsweep.errors import UsageError
from dpsweep.privacy import calibration
from dpsweep.privacy.accounting import SampledGaussian, epsilon, epsilon_rdp
from dpsweep.privacy.calibration import Scaled, calibrate, epsilon_for

PAPER = list(csv.DictReader((Path(__file__).parents[1] / "data" / "calibration_dp_rvfl.csv").open()))
QUICK = (Fraction(1, 4), 120, 1.0, 1e-5)


def arguments(row):
    return Fraction(row["q"]), int(row["T"]), float(row["target_epsilon"]), 1e-5


def test_the_papers_24_noise_multipliers_in_seconds():
    start = time.process_time()
    for row in PAPER:
        found = calibrate(*arguments(row), cache=None)
        assert found.noise_multiplier == pytest.approx(float(row["sigma_rdp"]), abs=1e-5), row
    assert len(PAPER) == 24 and time.process_time() - start < 15


@pytest.mark.parametrize("rate,steps,sigma", [(1, 1, 2.149200439453125), (Fraction(1, 2), 2, 2.0423126220703125)])
def test_the_papers_search_to_the_last_digit(rate, steps, sigma):
    assert calibrate(rate, steps, 2.0, 1e-5, cache=None).noise_multiplier == sigma


@settings(deadline=None, max_examples=12)
@given(
    st.integers(1, 2000),
    st.integers(1, 20_000),
    st.floats(-2, 1.5).map(lambda x: 10**x),
    st.floats(-9, -2).map(lambda x: 10**x),
)
def test_rdp_calibration_is_conservative_and_tight(batches, steps, target, delta):
    rate = Fraction(1, batches)
    try:
        found = calibrate(rate, steps, target, delta, cache=None)
    except UsageError as error:
        assume("largest" not in str(error))
        raise
    assert found.epsilon <= target
    assert epsilon_for(rate, steps, found.noise_multiplier, delta).epsilon == found.epsilon
    less = calibration._spent([Scaled(rate, steps)], 0.999 * found.noise_multiplier, delta, "rdp")
    assert less.epsilon > target


@pytest.mark.parametrize("target", [0.005, 0.01, 0.02, 0.04])
def test_small_targets_are_met_tightly_where_the_papers_rule_stops_early(target):
    found = calibrate(Fraction(1, 100), 10, target, 1e-4, cache=None)
    less = calibration._spent([Scaled(Fraction(1, 100), 10)], 0.999 * found.noise_multiplier, 1e-4, "rdp")
    assert found.epsilon <= target < less.epsilon


@pytest.mark.parametrize("target", [20.0, 1e3, 1e7, 1e13])
def test_huge_targets_end_the_search(target):
    found = calibrate(Fraction(1, 10), 10, target, 1e-5, cache=None)
    less = calibration._spent([Scaled(Fraction(1, 10), 10)], 0.999 * found.noise_multiplier, 1e-5, "rdp")
    assert found.epsilon <= target < less.epsilon


@pytest.mark.parametrize("row", [r for r in PAPER if r["dataset"] == "heart" and float(r["target_epsilon"]) <= 2])
def test_pld_calibration(row):
    rate, steps, target, delta = arguments(row)
    found = check_pld(row)
    assert epsilon_for(rate, steps, found.noise_multiplier, delta, "pld").epsilon == found.epsilon
    assert epsilon_for(rate, steps, 0.999 * found.noise_multiplier, delta, "pld").epsilon > target


@pytest.mark.slow
@pytest.mark.parametrize("row", PAPER, ids=lambda r: f"{r['dataset']}-{r['target_epsilon']}")
def test_pld_calibration_of_all_the_papers_budgets(row):
    check_pld(row)


def check_pld(row):
    rate, steps, target, delta = arguments(row)
    found = calibrate(rate, steps, target, delta, "pld", cache=None)
    assert found.noise_multiplier == pytest.approx(float(row["sigma_pld"]), rel=1e-3)
    assert found.epsilon <= target and found.order is None
    return found


@pytest.mark.parametrize("error", [0.8, 0.97, 1.0, 1.002, 1.3])
@pytest.mark.parametrize("power", [0.7, 1.0, 3.5])
def test_the_exact_curve_decides_however_wrong_the_cheap_one_is(error, power):
    evaluated = {}

    def fine(sigma):
        evaluated[sigma] = (5.0 / sigma) ** power
        return evaluated[sigma]

    sigma = calibration._search_pld(fine, lambda s: error * (5.0 / s) ** power, 2.0, 4.0)
    assert evaluated[sigma] <= 2.0 < fine(0.999 * sigma)
    assert len(evaluated) <= (4 if error == 1 else 25)


def test_pld_reaches_targets_that_rdp_refuses():
    with pytest.raises(UsageError, match="accountant=pld"):
        calibrate(Fraction(1), 1, 2e-4, 1e-5, cache=None)
    with pytest.raises(UsageError, match="largest"):
        calibrate(Fraction(1), 1, 1e-5, 1e-5, cache=None)
    found = calibrate(Fraction(1), 1, 2e-3, 1e-6, "pld", cache=None)
    assert 0 < found.epsilon <= 2e-3


def test_pld_refuses_what_it_cannot_resolve():
    with pytest.raises(UsageError, match="resolves"):
        calibrate(Fraction(1), 1, 1e-9, 1e-7, "pld", cache=None)


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_senseless_targets_are_refused(target):
    with pytest.raises(UsageError, match="finite and above 0"):
        calibrate(Fraction(1, 4), 10, target, 1e-5, cache=None)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
def test_senseless_deltas_are_refused(delta):
    with pytest.raises(UsageError, match="delta"):
        calibrate(Fraction(1, 4), 10, 1.0, delta, cache=None)


def test_other_senseless_arguments_are_refused():
    with pytest.raises(UsageError, match="steps"):
        calibrate(Fraction(1, 4), 0, 1.0, 1e-5, cache=None)
    with pytest.raises(UsageError, match="rdp, pld"):
        calibrate(Fraction(1, 4), 1, 1.0, 1e-5, "gdp", cache=None)
    with pytest.raises(UsageError, match="sampling rate"):
        calibrate(Fraction(5, 4), 1, 1.0, 1e-5, cache=None)
    with pytest.raises(UsageError, match="exact"):
        calibrate(0.25, 1, 1.0, 1e-5, cache=None)
    with pytest.raises(UsageError, match="noise multiplier"):
        epsilon_for(Fraction(1, 4), 1, math.nan, 1e-5)


def test_epsilon_for_is_the_inverse():
    assert epsilon_for(Fraction(1, 4), 120, 11.235352, 1e-5).epsilon == pytest.approx(1.0, abs=2e-4)
    assert epsilon_for(Fraction(1, 4), 120, 0.0, 1e-5).epsilon == math.inf
    with pytest.raises(UsageError, match="largest"):
        epsilon_for(Fraction(1, 4), 1, 1e8, 1e-5)


def test_a_kept_result_is_used_after_one_evaluation(tmp_path, monkeypatch):
    first = calibrate(*QUICK, cache=tmp_path)
    evaluations = []

    def counting(events, delta):
        evaluations.append(events)
        return epsilon_rdp(events, delta)

    monkeypatch.setattr(calibration.accounting, "epsilon_rdp", counting)
    second = calibrate(*QUICK, cache=tmp_path)
    assert not first.cached and second.cached and len(evaluations) == 1
    assert (first.noise_multiplier, first.epsilon, first.order) == (
        second.noise_multiplier,
        second.epsilon,
        second.order,
    )
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("wrong", [0.5, 0.999, 1.2, 0.0, -1.0, math.nan, math.inf])
def test_a_poisoned_cache_is_caught_and_mended(tmp_path, wrong):
    honest = calibrate(*QUICK, cache=tmp_path)
    (entry,) = tmp_path.iterdir()
    kept = json.loads(entry.read_text())
    entry.write_text(json.dumps({**kept, "noise_multiplier": wrong * honest.noise_multiplier}))
    assert calibrate(*QUICK, cache=tmp_path) == honest
    assert json.loads(entry.read_text()) == kept


@pytest.mark.parametrize("content", [b"", b"[1]", b"{}", b'{"noise_multiplier": "x"}', b"\xff\xfe", b"null"])
def test_an_unreadable_cache_is_no_error(tmp_path, content):
    honest = calibrate(*QUICK, cache=tmp_path)
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(content)
    assert calibrate(*QUICK, cache=tmp_path) == honest


def test_an_unwritable_cache_is_no_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert not calibrate(*QUICK, cache=tmp_path / "file" / "folder").cached


def test_everything_that_matters_is_in_the_key(tmp_path):
    base = (Fraction(1, 4), 10, 4.0, 1e-5)
    variants = [base, (Fraction(1, 5), *base[1:]), (base[0], 11, *base[2:]), (*base[:2], 4.5, 1e-5), (*base[:3], 1e-6)]
    found = {calibrate(*v, cache=tmp_path).noise_multiplier for v in variants}
    assert len(found) == len(list(tmp_path.iterdir())) == len(variants)
    calibrate(*base, "pld", cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == len(variants) + 1


def test_the_cache_folder_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSWEEP_CACHE", str(tmp_path))
    calibrate(*QUICK)
    assert len(list((tmp_path / "calibration").glob("*.json"))) == 1
    monkeypatch.delenv("DPSWEEP_CACHE")
    assert calibration.default_cache_folder().name == "calibration"


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_several_kinds_of_releases_are_calibrated_together(accountant, tmp_path):
    """Twice as many releases in two parts need what they need in one; others at a scale add to what the first spend."""
    rate = Fraction(1, 20)
    together = calibrate(rate, 40, 2.0, 1e-5, accountant, cache=tmp_path)
    halves = calibrate(rate, 20, 2.0, 1e-5, accountant, cache=tmp_path, others=[Scaled(rate, 20)])
    assert halves.noise_multiplier == pytest.approx(together.noise_multiplier, rel=2e-3 if accountant == "pld" else 1e-6)
    mixed = calibrate(rate, 20, 2.0, 1e-5, accountant, cache=tmp_path, others=[Scaled(Fraction(1, 4), 3, 2.5)])
    sigma = mixed.noise_multiplier
    events = [(SampledGaussian(rate, sigma), 20), (SampledGaussian(Fraction(1, 4), 2.5 * sigma), 3)]
    assert epsilon(events, 1e-5, accountant).epsilon == pytest.approx(mixed.epsilon) and 1.98 < mixed.epsilon <= 2.0
    assert calibrate(rate, 20, 2.0, 1e-5, accountant, cache=tmp_path, others=[Scaled(Fraction(1, 4), 3, 2.5)]).cached
