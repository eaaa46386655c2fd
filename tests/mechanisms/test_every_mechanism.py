"""What holds for every registered mechanism, a new one included: budgets, ledger, repeatability, honesty."""

import math

import pytest
from zoo import COMPOSER, partner

from dpsweep.build import build, plan_of
from dpsweep.config import parse
from dpsweep.privacy.accounting import epsilon, event_from_json
from dpsweep.runner import run_task
from dpsweep.tasks import Settings, Task

MECHANISMS = list(COMPOSER.options("mechanism"))
PRIVATE = [m for m in MECHANISMS if COMPOSER.node("mechanism", m).get("private", True)]
PROVED = [m for m in PRIVATE if COMPOSER.node("mechanism", m).get("proved", True)]
CLAIMED = [m for m in PRIVATE if m not in PROVED]


def run(mechanism, *overrides):
    items = [("mechanism", mechanism), ("model", "dense"), *partner("mechanism", mechanism), *usable(mechanism, ("epochs", 2))]
    config = COMPOSER.compose([*items, *parse(["dataset=breast_cancer", "device=cpu", "threads=1", *overrides])[0]])
    record = run_task(Task.from_config(config), Settings.from_config(config))
    assert record["status"] == "done", record["error"]
    return record


def usable(mechanism, *items):
    """Those of the items that the mechanism uses."""
    return [item for item in items if item[0] not in COMPOSER.node("mechanism", mechanism).get("unused", ())]


@pytest.mark.parametrize("mechanism", PROVED)
@pytest.mark.parametrize("accountant", COMPOSER.options("accountant"))
def test_the_plan_meets_the_budget(mechanism, accountant):
    items = [("mechanism", mechanism), *partner("mechanism", mechanism), *usable(mechanism, ("accountant", accountant))]
    config = COMPOSER.compose([*items, ("epsilon", 1.3)])
    _, schedule, account, plan = plan_of(config.values)
    assert plan.epsilon(account) <= 1.3
    assert plan.steps >= 1


@pytest.mark.parametrize("mechanism", PROVED)
def test_the_record_tells_what_is_proved(mechanism):
    record = run(mechanism, "epsilon=1.3")
    assert record["noise_source"] == "secure" and (record["noise_multiplier"] or record["laplace_scale"]) > 0
    assert record["epsilon_claimed"] == 1.3
    assert build("mechanism", COMPOSER.node("mechanism", mechanism)).departs in record["guarantee_text"]
    if record["epsilon"] is None:
        assert record["guarantee_reason"]
    else:
        assert record["epsilon"] <= 1.3 and record["adjacency"] and record["protects"]
        charged = [(event_from_json(event), count) for event, count in record["events"]]
        assert record["epsilon"] >= epsilon(charged, record["delta"]).epsilon > 0  # what the ledger saw fits the promise
    assert sum(count for _, count in record["events"]) >= record["steps"]


@pytest.mark.parametrize("mechanism", CLAIMED)
def test_a_mechanism_that_only_claims_never_has_a_proved_epsilon(mechanism):
    record = run(mechanism, "epsilon=2.5")
    assert record["claim_only"] and record["epsilon_claimed"] <= 2.5 and record["delta"] == 1e-5
    assert record["epsilon"] is None and record["epsilon_if_secure"] is None and record["guarantee_reason"]
    charged = [(event_from_json(event), count) for event, count in record["events"]]
    spent = record["epsilon_realised"]  # an odometer's reading, where the events have one
    assert epsilon(charged, record["delta"]).epsilon == (math.inf if spent is None else pytest.approx(spent))


@pytest.mark.parametrize("mechanism", PRIVATE)
def test_seeded_noise_repeats_bit_for_bit_and_proves_nothing(mechanism):
    first, second = (run(mechanism, "noise.source=seeded") for _ in range(2))
    for key in ("test_accuracy", "test_f1", "test_auroc", "test_auprc"):
        assert first[key] == second[key]
    assert first["epsilon"] is None and "seeded" in first["guarantee_reason"]
    assert first["epsilon_if_secure"] is None if mechanism in CLAIMED else first["epsilon_if_secure"] <= 1
    assert run(mechanism, "noise.source=seeded", "seed=1")["test_auroc"] != first["test_auroc"]


@pytest.mark.parametrize("mechanism", PRIVATE)
def test_secure_noise_does_not_repeat(mechanism):
    assert run(mechanism)["test_auprc"] != run(mechanism)["test_auprc"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_training_without_privacy_repeats_and_claims_nothing(mechanism):
    first, second = run(mechanism, "epsilon=none"), run(mechanism, "epsilon=none")
    assert first["test_auprc"] == second["test_auprc"]
    assert first["epsilon"] is None and first["epsilon_claimed"] is None and first["delta"] is None
    assert first["guarantee_text"].startswith("No privacy")


def test_records_that_are_not_public_are_not_told():
    config = COMPOSER.compose([("dataset", "breast_cancer"), ("epochs", 1), ("dataset.public", False)])
    record = run_task(Task.from_config(config), Settings.from_config(config))
    assert record["status"] == "done"
    assert [record[key] for key in record["unprotected"]] == [None] * len(record["unprotected"])
    assert {"data_fingerprint", "train_size"} <= set(record["unprotected"])


def test_an_error_over_private_records_is_cut_to_type_and_place(monkeypatch):
    def leak(*_):
        raise ValueError("the record says 42")

    monkeypatch.setattr("dpsweep.runner.load_data", leak)
    config = COMPOSER.compose([("dataset.public", False)])
    record = run_task(Task.from_config(config), Settings.from_config(config))
    assert record["status"] == "failed" and record["error"]["type"] == "ValueError"
    assert "42" not in str({k: record["error"][k] for k in ("message", "traceback")})
    assert "runner.py" in record["error"]["traceback"]
