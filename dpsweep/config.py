"""Configuration: overrides in, one validated configuration out.

Hydra composes the groups and parses the override grammar. Composing takes about 0.1 s, too long for a suite of
thousands, so each option is composed once and tasks are put together from the composed nodes. Every error is a
:class:`~dpsweep.errors.UsageError` that names the key, the value and the remedy.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest
from math import isfinite
from pathlib import Path
from typing import Any

from dpsweep.checks import check_pairs, check_values, choose_target, flatten, is_private
from dpsweep.errors import UsageError

GROUPS = ("dataset", "model", "mechanism", "epsilon", "seed", "optimizer", "accountant", "executor", "suite")
NUMBER_GROUPS = ("epsilon", "seed")  # any number is an option of these, whether or not a file of that name exists
PERFORMANCE = {
    "engine", "device", "threads", "workers", "physical_batch", "output_dir", "data", "save_model", "on_error",
    "retry", "force", "task_timeout", "checkpoint", "executions", "executor", "suite",
}  # fmt: skip


Item = tuple[str, Any]  # one override: a dotted key or a group, and its value


@dataclass(frozen=True)
class Config:
    """A composed and checked configuration.

    Attributes:
        values: everything, nested, as plain Python values; ``epsilon`` is None for the non-private condition.
        explicit: the keys that the user set, rather than a default.
    """

    values: dict[str, Any]
    explicit: frozenset[str]


def config_home() -> Path:
    """The folder of the groups: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    return package / "conf" if (package / "conf").is_dir() else package.parent / "conf"


def parse(overrides: Iterable[str], multirun: bool = False) -> list[list[Item]]:
    """Parse ``key=value`` strings by Hydra's grammar; a multirun is expanded into the product of its sweeps."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import OverrideType, QuotedString
    from hydra.errors import OverrideParseException

    def plain(value: Any) -> Any:
        if isinstance(value, QuotedString):
            return value.text
        if isinstance(value, list):
            return [plain(element) for element in value]
        return value

    axes: list[list[Item]] = []
    for text in overrides:
        if "=" not in text:
            raise UsageError(f"'{text}' is not an override: write key=value, such as epsilon=2 or dataset=heart")
        try:
            (override,) = OverridesParser.create().parse_overrides([text])
        except OverrideParseException as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"'{text}' cannot be read ({reason}); quote special characters: key='\"value\"'") from None
        if override.type is not OverrideType.CHANGE or override.package:
            raise UsageError(f"'{text}': every key exists already, so write key=value without +, ~ or @")
        key = override.key_or_group
        if not override.is_sweep_override():
            axes.append([(key, plain(override.value()))])
        elif multirun:
            axes.append([(key, plain(value)) for value in override.sweep_iterator()])
        else:
            raise UsageError(f"'{text}' names several values: add -m to run them all (dpsweep run -m {text})")
    return [list(combination) for combination in product(*axes)]


class Composer:
    """Puts configurations together from the groups in conf/ and in the user's own folders."""

    def __init__(self, config_dirs: Sequence[Path] = ()) -> None:
        for folder in config_dirs:
            if not folder.is_dir():
                raise UsageError(f"--config-dir {folder}: there is no such folder")
            if str(folder.resolve()) not in sys.path:  # the user's classes lie beside their YAML
                sys.path.append(str(folder.resolve()))
        self._dirs = tuple(folder.resolve() for folder in config_dirs)
        for file in (f for folder in self._dirs for group in GROUPS for f in (folder / group).glob("*.yaml")):
            if (config_home() / file.parent.name / file.name).exists():
                raise UsageError(f"{file}: there is a built-in {file.parent.name}={file.stem}; give yours another name")
        self._nodes: dict[tuple[str, str], Any] = {}
        self._base: dict[str, Any] = {}
        self._options: dict[str, list[str]] = {}

    def options(self, group: str) -> list[str]:
        """The named options of a group, sorted (numbers by size)."""
        if group not in self._options:  # a suite asks thousands of times: the folders are read once
            names = {f.stem for home in (config_home(), *self._dirs) for f in (home / group).glob("*.yaml")}
            self._options[group] = sorted(names, key=lambda name: (as_number(name) is None, as_number(name) or 0, name))
        return self._options[group]

    def about(self, group: str, name: str) -> str:
        """One line about an option, from its YAML."""
        node = self.node(group, name)
        return str(node.get("about", "")) if isinstance(node, dict) else ""

    def preload(self, wanted: Iterable[Item]) -> None:
        """Compose many options with few calls: each call takes one option of every group."""
        columns: dict[str, list[str]] = {group: [] for group in GROUPS}
        for group, name in dict.fromkeys(wanted):
            if group in NUMBER_GROUPS and as_number(name) is not None:
                continue
            if name not in self.options(group):
                close = difflib.get_close_matches(str(name), self.options(group), n=3)
                known = ", ".join(self.options(group)) + (", or any number" if group in NUMBER_GROUPS else "")
                hint = f" Did you mean {' or '.join(close)}?" if close else ""
                raise UsageError(f"{group}={name}: there is no such {group}.{hint} There are: {known}")
            if (group, name) not in self._nodes:
                columns[group].append(name)
        for names in zip_longest(*columns.values()):
            chosen = {g: n for g, n in zip(columns, names, strict=True) if n is not None}
            composed = self._hydra([f"{g}='{n}'" for g, n in chosen.items()])
            self._nodes.update({(g, n): composed[g] for g, n in chosen.items()})

    def compose(self, items: Iterable[Item]) -> Config:
        """One configuration: defaults, then group choices, then single values; checked."""
        items = list(items)
        choices = [(key, _choice(key, value)) for key, value in items if key in GROUPS]
        self.preload(choices)
        if not self._base:
            self._base = self._hydra([])
        values = {key: _own(node) for key, node in self._base.items()}
        for group, name in choices:
            values[group] = self.node(group, name)
        values["dataset"].setdefault("public", False)
        for key, value in items:
            if key not in GROUPS:
                _set(values, key, value)
        explicit = frozenset(key for key, _ in items)
        check_values(values)
        choose_target(values, explicit)
        stand_in = values["mechanism"].get("without_budget", "none")
        if not is_private(values) and values["mechanism"].get("private", True) and stand_in != "self":
            self.preload([("mechanism", stand_in)])
            values["mechanism"] = self.node("mechanism", stand_in)
        check_pairs(values, explicit)
        return Config(values, explicit)

    def node(self, group: str, name: str) -> Any:
        """What an option of a group stands for: the contents of its YAML, or the number itself."""
        number = as_number(name) if group in NUMBER_GROUPS else None
        if number is not None:
            return number
        self.preload([(group, name)])
        return _own(self._nodes[group, name])

    def _hydra(self, overrides: list[str]) -> dict[str, Any]:
        from hydra import compose, initialize_config_dir
        from hydra.core.global_hydra import GlobalHydra
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError

        if self._dirs:
            overrides = [*overrides, "hydra.searchpath=[" + ",".join(f"'file://{d}'" for d in self._dirs) + "]"]
        GlobalHydra.instance().clear()
        try:
            with initialize_config_dir(str(config_home()), version_base="1.3"):
                return OmegaConf.to_container(compose("config", overrides), resolve=True)  # type: ignore[return-value]
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            where = " ".join(o for o in overrides if not o.startswith("hydra."))
            raise UsageError(f"the configuration {where} cannot be composed: {str(error) or error.__cause__}") from None


def as_number(text: Any) -> float | int | None:
    """The number that a choice of epsilon or seed stands for; None for a name."""
    if isinstance(text, bool) or text is None:
        return None
    try:
        return int(text)
    except (ValueError, OverflowError):  # OverflowError: int(inf)
        try:
            return float(text)
        except ValueError:
            return None


def _choice(group: str, value: Any) -> str:
    if group in NUMBER_GROUPS:
        return "none" if value is None else repr(value) if isinstance(value, float) else str(value).lower()
    if not isinstance(value, str):
        raise UsageError(f"{group}={value}: an option's name is expected, such as {group}={_EXAMPLES.get(group, '...')}")
    return value


_EXAMPLES = {"dataset": "heart", "model": "rvfl", "mechanism": "gaussian", "optimizer": "adam", "accountant": "rdp"}


def _own(node: Any) -> Any:
    """A copy that a task may change: mappings are copied, what stands in them is shared (much faster than a deep copy)."""
    return {key: _own(value) for key, value in node.items()} if isinstance(node, dict) else node


# What a dataset's YAML tells of its files. It is no part of a task's identity, so no command line or grid may change it.
FORM = ("dataset.kind", "dataset.classes", "dataset.shape", "dataset.profiles")


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    if key in FORM or key.startswith("dataset.profiles."):
        raise UsageError(
            f"{key}={value}: this tells the form of a dataset's files, which tasks of one name share. Change the YAML of "
            f"dataset={values['dataset']['name']}, or write another one with another name"
        )
    *path, last = key.split(".")
    node: Any = values
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    if not isinstance(node, dict) or last not in node or last.startswith("_") or last in ("name", "about"):
        known = [k for k in flatten(values) if not k.endswith((".name", ".about", "._target_"))]
        close = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
        close = close or [k for k in known if k.rpartition(".")[2] == last][:3]
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise UsageError(f"{key}={value}: there is no key '{key}' here.{hint} `dpsweep run --help` lists them all.")
    node[last] = _like(key, node[last], value)


def _like(key: str, old: Any, value: Any) -> Any:
    """The value in the type of the one that it replaces (null takes any)."""
    if isinstance(value, float) and not isfinite(value):
        raise UsageError(f"{key}={value}: a finite number is needed")
    if old is None or (type(old) is type(value) and not isinstance(old, dict)):
        return value
    if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if value is None and not isinstance(old, dict):
        return None
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a text", list: "a list [a, b] (grids: [[a, b]])"}
    raise UsageError(f"{key}={value}: {names.get(type(old), 'a single value under its own key')} is needed, as in {key}={old}")
