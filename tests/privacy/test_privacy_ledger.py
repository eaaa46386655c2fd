from fractions import Fraction

import pytest

from dpsweep.privacy.accounting import PureDP, SampledGaussian, Unbounded
from dpsweep.privacy.ledger import Ledger, LedgerError, dominates

Q = Fraction(1, 10)
ONE = SampledGaussian(Q, 1.0)


def test_equal_steps_become_one_event_with_a_count():
    ledger = Ledger(lambda step: (ONE,), 3)
    for step in range(3):
        ledger.charge(step, Q, 1.0)
        ledger.close_step()
    assert ledger.events() == [(ONE, 3)] and ledger.steps_taken == 3


def test_releases_of_one_batch_are_one_event():
    ledger = Ledger(lambda step: (ONE,), 2)
    ledger.charge(0, Q, 2**0.5)
    ledger.charge(0, Q, 2**0.5)
    ledger.close_step()
    ((event, count),) = ledger.events()
    assert event.noise_multiplier == pytest.approx(1.0, rel=1e-12) and count == 1


def test_independent_batches_stay_two_events():
    ledger = Ledger(lambda step: (ONE, ONE), 1)
    ledger.charge(0, Q, 1.0)
    ledger.charge(1, Q, 1.0)
    assert ledger.events() == [(ONE, 2)]  # the open step is spent too
    ledger.close_step()
    assert ledger.events() == [(ONE, 2)]


@pytest.mark.parametrize(
    "overcharge",
    [
        lambda ledger: ledger.charge(1, Q, 0.9),
        lambda ledger: ledger.charge(1, Q / 2, 1.0),
        lambda ledger: ledger.charge_event(PureDP(0.1, "laplace")),
        lambda ledger: ledger.charge_event(Unbounded("loss")),
        lambda ledger: (ledger.charge(1, Q, 1.0), ledger.charge(1, Q, 50.0)),
        lambda ledger: (ledger.charge(1, Q, 1.0), ledger.charge(2, Q, 1.0)),
    ],
)
def test_an_overcharge_raises_and_leaves_the_ledger_as_it_was(overcharge):
    ledger = Ledger(lambda step: (ONE,), 2)
    ledger.charge(0, Q, 1.0)
    ledger.close_step()
    with pytest.raises(LedgerError, match="plan"):
        overcharge(ledger)
    assert ledger.events() in ([(ONE, 1)], [(ONE, 2)])


def test_a_batch_of_an_earlier_step_cannot_be_charged_again():
    ledger = Ledger(lambda step: (ONE,), 2)
    ledger.charge(4, Q, 1.0)
    ledger.close_step()
    with pytest.raises(LedgerError, match="earlier step"):
        ledger.charge(4, Q, 1.0)
    ledger.charge(5, Q, 1.0)


def test_a_batch_has_one_rate():
    ledger = Ledger(lambda step: (ONE, SampledGaussian(Q / 2, 1.0)), 1)
    ledger.charge(0, Q, 5.0)
    with pytest.raises(LedgerError, match="one rate"):
        ledger.charge(0, Q / 2, 5.0)


def test_no_step_beyond_the_plan():
    ledger = Ledger(lambda step: (ONE,), 1)
    ledger.charge(0, Q, 1.0)
    ledger.close_step()
    with pytest.raises(LedgerError, match="all are taken"):
        ledger.close_step()
    with pytest.raises(LedgerError, match="all are taken"):
        ledger.charge(7, Q, 1.0)
    with pytest.raises(LedgerError, match="all are taken"):
        ledger.charge_event(PureDP(0.1, "laplace"))


def test_a_step_without_charge_is_refused():
    ledger = Ledger(lambda step: (ONE,), 2)
    with pytest.raises(LedgerError, match="released nothing"):
        ledger.close_step()
    ledger.charge(0, Q, 1.0)
    ledger.close_step()
    assert (ledger.steps_taken, ledger.events()) == (1, [(ONE, 1)])


def test_planned_unprotected_reads_show_in_the_events():
    read = Unbounded("plain gradient")
    ledger = Ledger(lambda step: (read,), 1)
    ledger.charge_event(read)
    assert ledger.events() == [(read, 1)]


def test_each_step_is_held_to_its_own_allowance():
    """A step may not use the noise of another: less noise is allowed in the last of three steps alone."""
    less = SampledGaussian(Q, 0.5)
    ledger = Ledger(lambda step: (less,) if step == 2 else (ONE,), 3)
    for step in range(2):
        with pytest.raises(LedgerError, match=f"Step {step + 1} would release.*0.5"):
            ledger.charge(10 * step, Q, 0.5)
        ledger.charge(10 * step + 1, Q, 1.0)
        ledger.close_step()
    ledger.charge(90, Q, 0.5)
    ledger.close_step()
    assert sorted(ledger.events(), key=str) == sorted([(ONE, 2), (less, 1)], key=str)


def test_a_step_may_be_allowed_a_second_batch_now_and_then():
    ledger = Ledger(lambda step: (ONE, ONE) if step % 2 == 0 else (ONE,), 2)
    ledger.charge(1, Q, 1.0)
    ledger.charge(2, Q, 1.0)
    ledger.close_step()
    ledger.charge(3, Q, 1.0)
    with pytest.raises(LedgerError, match="Step 2 would release"):
        ledger.charge(4, Q, 1.0)
    ledger.close_step()
    assert ledger.events() == [(ONE, 3)]


def test_a_negative_number_of_steps_is_refused():
    with pytest.raises(ValueError, match="steps"):
        Ledger(lambda step: (), -1)


def test_dominates_matches_each_charge_to_an_allowance_of_its_own():
    one, two = SampledGaussian(Q, 1.0), SampledGaussian(Q, 2.0)
    assert dominates((one,), ()) and dominates((one,), (one,)) and dominates((one,), (two,))
    assert not dominates((two,), (one,)) and not dominates((one,), (one, one)) and not dominates((), (one,))
    assert dominates((one, two), (two, one)) and dominates((one, two), (two, two))
    assert not dominates((one, two), (one, one))
    assert dominates((one,), (SampledGaussian(Q, 1 - 1e-13),))
    assert not dominates((one,), (SampledGaussian(Q, 1 - 1e-11),))
    assert not dominates((one,), (SampledGaussian(Q / 2, 1.0),))
    assert dominates((PureDP(1, "a"), one), (one, PureDP(0.5, "a")))
    assert not dominates((PureDP(1, "a"),), (PureDP(1.1, "a"),))
    assert not dominates((PureDP(1, "a"), one), (PureDP(1, "a"), PureDP(0.5, "a")))


def test_dominates_lets_unprotected_reads_pass_only_where_planned():
    read = Unbounded("gradient")
    assert not dominates((SampledGaussian(Q, 1.0),), (read,))
    assert dominates((read,), (read, Unbounded("loss")))
    assert not dominates((read,), (SampledGaussian(Q, 1.0),))
