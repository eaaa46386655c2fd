"""Suites: YAML files that name many tasks, and the choice of some of a suite's tasks on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from dpsweep.config import GROUPS, PERFORMANCE, Composer, Item, as_number
from dpsweep.errors import UsageError

KEYS = ("name", "about", "include", "grids", "report")
FILTERS = (*(group for group in GROUPS if group not in PERFORMANCE), "run")  # what keeps some of a suite's tasks


@dataclass(frozen=True)
class Request:
    """What a command line asks of a suite.

    Attributes:
        suite: the suite's YAML, checked, with the grids of the suites that it includes.
        points: every task's overrides, in the order in which they run.
        filters: keys of `FILTERS` and the values to keep; a task is kept if it passes all of them.
        table: names of the paper's tables and figures, with commas; their tasks alone are kept. None: all tasks.
        repeats: which executions were asked for; none: one execution.
    """

    suite: dict[str, Any]
    points: list[list[Item]]
    filters: dict[str, list[Any]]
    table: str | None
    repeats: list[Any]

    @property
    def part(self) -> str:
        """What of the suite was asked for: "dataset=heart repeat=1,2", "" for the whole."""
        asked = self.filters | ({"repeat": self.repeats} if self.repeats else {})
        return " ".join(f"{key}={','.join(map(_word, values))}" for key, values in asked.items())

    def keep(self, configs: list[dict[str, Any]]) -> list[int]:
        """The positions of the tasks whose canonical configurations pass every filter, in their order.

        Raises:
            UsageError: a filter's value that no task has, a table that there isn't, or nothing is left over.
        """
        for key, values in self.filters.items():
            self._check(key, values, [_value(config, key) for config in configs])
        kept = [i for i, config in enumerate(configs) if all(_passes(config, k, values) for k, values in self.filters.items())]
        if self.table is not None:
            needed = _needed(self.suite, self.table)
            kept = [i for i in kept if needed(configs[i])]
        if not kept:
            asked = self.filters if self.table is None else self.filters | {"table": [self.table]}
            together = " ".join(f"{key}={','.join(map(_word, values))}" for key, values in asked.items())
            raise UsageError(
                f"suite={self.suite['name']} has no task with {together} together: leave one of them out "
                f"(`dpsweep plan suite={self.suite['name']}` shows all)"
            )
        return kept

    def _check(self, key: str, values: list[Any], there: list[Any]) -> None:
        there = list(dict.fromkeys(there))
        for value in values:
            if not any(_equal(key, own, value) for own in there):
                known = ", ".join(f"{own:g}" if isinstance(own, float) else _word(own) for own in there)
                raise UsageError(f"suite={self.suite['name']} has no task with {key}={_word(value)}. There are: {known}")


def named(overrides: Iterable[str]) -> bool:
    """Whether a command line names a suite."""
    return any(text.startswith("suite=") and text not in ("suite=none", "suite=null") for text in overrides)


def request(points: list[list[Item]], composer: Composer) -> Request:
    """Read a command line that names a suite.

    Args:
        points: the command line's overrides, every combination of listed values.

    Raises:
        UsageError: a key that doesn't apply to suites, an unknown name, or a mistake in the suite's YAML.
    """
    given: dict[str, list[Any]] = {}
    for key, value in (item for point in points for item in point):
        if value not in given.setdefault(key, []):
            given[key].append(value)
    for key in ("suite", *(key for key in given if key.partition(".")[0] in PERFORMANCE)):
        if len(given.get(key, [])) > 1:
            raise UsageError(f"{key}={','.join(map(_word, given[key]))} with a suite: name one value at a time")
    (name,) = given.pop("suite")
    suite = load(str(name), composer)
    tables, repeats = given.pop("table", []), given.pop("repeat", [])
    performance: list[Item] = []
    filters: dict[str, list[Any]] = {}
    for key, values in given.items():
        if key.partition(".")[0] in PERFORMANCE:
            performance.append((key, values[0]))
        elif key in FILTERS:
            filters[key] = values
        else:
            raise UsageError(
                f"{key}={_word(values[0])} with suite={name}: a suite fixes its protocol, so only {', '.join(FILTERS)} (to keep "
                "the matching tasks), table, repeat and performance keys apply. For another protocol write a suite of your own "
                "(README: your own suite)"
            )
    composer.preload((key, v) for key, values in filters.items() if key in GROUPS for v in values if isinstance(v, str))
    once = [point + performance for grid in suite["grids"] for point in _grid(grid)]
    again = [[*point, ("repeat", repeat)] for repeat in repeats for point in once]
    return Request(suite, again or once, filters, ",".join(map(str, tables)) or None, repeats)


def load(name: str, composer: Composer) -> dict[str, Any]:
    """A suite's YAML, checked, its `grids` preceded by those of the suites that it includes.

    Raises:
        UsageError: there is no such suite, it includes itself, or its YAML has a mistake.
    """
    suite = composer.node("suite", name)
    _check(suite)
    return suite | {"grids": list(_grids(suite, composer, (name,)))}


def _grids(suite: dict[str, Any], composer: Composer, way: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for name in suite.get("include") or []:
        if name in way:
            raise UsageError(f"suite={way[0]}: {' includes '.join((*way, name))}, which has no end. Take one include out")
        if name not in composer.options("suite"):
            raise UsageError(
                f"suite={way[-1]} includes {name}, and there is no such suite. There are: {', '.join(composer.options('suite'))}"
            )
        included = composer.node("suite", name)
        _check(included)
        yield from _grids(included, composer, (*way, name))
    yield from suite.get("grids") or []


def _check(suite: Any) -> None:
    """Refuse a suite's mistakes by name, before anything runs."""
    from dpsweep.report.spec import check

    if not isinstance(suite, dict) or not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", str(suite.get("name", ""))):
        raise UsageError("a suite's YAML needs a `name` of letters, digits, - and _, and a list of `grids`")
    name, grids, included = suite["name"], suite.get("grids", []), suite.get("include", [])
    unknown = suite.keys() - set(KEYS)
    if unknown:
        raise UsageError(f"suite={name}: unknown key {', '.join(sorted(unknown))}; there are {', '.join(KEYS)}")
    if not isinstance(included, list) or not all(isinstance(other, str) for other in included):
        raise UsageError(f"suite={name}: `include` must be a list of suites' names, such as [quickstart]")
    if not isinstance(grids, list) or not (grids or included) or not all(isinstance(grid, dict) and grid for grid in grids):
        raise UsageError(f"suite={name}: `grids` must be a list of mappings from keys to values or lists of values")
    for grid in grids:
        for key, value in grid.items():
            if str(key).partition(".")[0] in PERFORMANCE:
                raise UsageError(
                    f"suite={name}: {key} doesn't change a result, so it is given on the command line, not in a grid"
                )
            if value == [] or isinstance(value, dict):
                raise UsageError(f"suite={name}: {key} needs a value or a list of values")
    check(suite.get("report") or {})


def _needed(suite: dict[str, Any], tables: str) -> Callable[[dict[str, Any]], bool]:
    """Whether some of these tables and figures of the suite's paper are made of a task, by its configuration."""
    name = (suite.get("report") or {}).get("paper")
    if name is None:
        raise UsageError(f"table={tables}: suite={suite['name']} reports on no paper (report.paper), so it has no tables by name")
    from dpsweep.report.paper import load_paper

    paper = load_paper(name)
    items = paper.choose(tables)
    return lambda config: any(item.covers(paper.locate(config)) for item in items)


def _grid(grid: dict[str, Any]) -> Iterator[list[Item]]:
    axes = [[(key, value) for value in (values if isinstance(values, list) else [values])] for key, values in grid.items()]
    return (list(point) for point in product(*axes))


def _value(config: dict[str, Any], key: str) -> Any:
    """A filter's value in a task's canonical configuration; None where it has none."""
    own = config.get(key)
    return own.get("name") if isinstance(own, dict) else own


def _passes(config: dict[str, Any], key: str, values: list[Any]) -> bool:
    return any(_equal(key, _value(config, key), value) for value in values)


def _equal(key: str, own: Any, asked: Any) -> bool:
    if own is None or _word(asked).lower() == "none":
        return own is None and _word(asked).lower() == "none"
    return own == as_number(asked) if key in ("epsilon", "seed") else own == asked


def _word(value: Any) -> str:
    return "none" if value is None else str(value)
