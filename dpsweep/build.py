"""From a configuration's nodes to objects: datasets, models, mechanisms, and the plan of a run.

Nothing here imports torch; the classes that it constructs may.
"""

from __future__ import annotations

import importlib
import inspect
from fractions import Fraction
from typing import Any

from dpsweep.checks import fraction
from dpsweep.errors import UsageError
from dpsweep.mechanisms.base import Account, Mechanism, Plan, Schedule, Target
from dpsweep.privacy.accounting import AccountingError
from dpsweep.privacy.sampling import protocol_numbers
from dpsweep.tasks import DESCRIPTIVE

# Keys of a group's node that are not arguments of its class.
_NOT_ARGUMENTS = {group: keys | {"name", "reference_size"} for group, keys in DESCRIPTIVE.items()}
# Those of a dataset that its class is given all the same if it has a parameter of the name, to hold them against its own.
_OFFERED = {"name", "shape", "classes"}


def target_class(group: str, node: dict[str, Any]) -> Any:
    """The class that a group's `_target_` names.

    Raises:
        UsageError: it can't be imported.
    """
    path = node.get("_target_")
    module, _, name = str(path).rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{group}={node.get('name')}: its class {path} can't be imported ({error}). Its module must lie in the folder "
            "given with --config-dir, in PYTHONPATH or in an installed package"
        ) from None


def build(group: str, node: dict[str, Any], *positional: Any) -> Any:
    """Construct what a group's node describes.

    Raises:
        UsageError: its class can't be imported, or refuses the arguments.
    """
    cls = target_class(group, node)
    left_out = _NOT_ARGUMENTS[group]
    if group == "dataset":
        left_out = left_out - (_OFFERED & inspect.signature(cls).parameters.keys())
    arguments = {k: v for k, v in node.items() if k != "_target_" and k not in left_out}
    try:
        inspect.signature(cls).bind(*positional, **arguments)
    except TypeError as error:
        raise UsageError(f"{group}={node['name']}: {node['_target_']} doesn't take the keys of its YAML: {error}") from None
    try:
        return cls(*positional, **arguments)
    except ValueError as error:
        raise UsageError(f"{group}={node['name']}: {error}") from error


def schedule_of(values: dict[str, Any]) -> Schedule:
    """The public numbers of a run (DP-RVFL paper, table 2): from batch size and epochs, or from a given rate and T; where the
    mechanism uses neither, one pass over all records."""
    size = values["dataset"]["reference_size"]
    model, classes = values["model"], values["dataset"]["classes"]
    if values["sample_rate"] is not None:
        rate = fraction(values["sample_rate"])
        normalizer = max(1, int(rate * size))
        return Schedule(size, rate, values["steps"], normalizer, normalizer, model, classes)
    if values["batch_size"] is None:
        return Schedule(size, Fraction(1), 1, size, size, model, classes)
    rate, steps, normalizer = protocol_numbers(size, values["batch_size"], values["epochs"])
    return Schedule(size, rate, steps, normalizer, values["batch_size"], model, classes)


def target_of(values: dict[str, Any]) -> Target | None:
    """What the run is to meet: a budget, a given noise multiplier, or (None) nothing."""
    epsilon, noise_multiplier = values["epsilon"], values["noise_multiplier"]
    return None if epsilon is None and noise_multiplier is None else Target(epsilon, noise_multiplier)


def plan_of(values: dict[str, Any]) -> tuple[Mechanism, Schedule, Account, Plan]:
    """The mechanism of a configuration and its calibrated plan: no data is read, and torch isn't needed.

    Raises:
        UsageError: no noise meets the budget, a given noise has no epsilon, or the mechanism refuses its arguments.
    """
    mechanism = build("mechanism", values["mechanism"])
    schedule = schedule_of(values)
    # Without an accountant and a delta the guarantee is pure: such epsilons add up, whoever counts.
    accountant = values["accountant"]["name"] if values["accountant"] else "rdp"
    account = Account(accountant, values["delta"] or 0.0)
    plan = mechanism.calibrate(schedule, target_of(values), account)
    if values["noise_multiplier"] is not None and accountant == "rdp" and not plan.unbounded():
        try:  # RDP alone can refuse, at its largest order
            plan.epsilon(account)
        except AccountingError as error:
            raise UsageError(f"noise_multiplier={values['noise_multiplier']:g}: {error}") from error
    return mechanism, schedule, account, plan
