"""How a sweep stands, while it runs or afterwards, from what lies in its folder. Imports neither torch nor opacus."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from dpsweep.outlook import Estimate
from dpsweep.sweep import Status, span
from dpsweep.tasks import Task

WINDOW = 1800.0  # seconds back that the rate is reckoned over
NAMED = 8  # running tasks, and kinds of failure, that are named
PATIENCE = 3.0, 10.0  # a watched page is redrawn after so many seconds, or so many times what drawing it takes


class Pace(NamedTuple):
    """How fast tasks were finished lately: so many, in so many seconds, by so many cores on average."""

    tasks: int
    seconds: float
    cores: float


def lines(tasks: list[Task], status: Status, running: Mapping[str, Mapping[str, Any]], found: Estimate, now: float) -> list[str]:
    """What is done, failed and why, running since when and where, missing; the pace, and the time that is left.

    Args:
        running: notes beside the claims, by task (`Records.running`).
        found: the estimate for the tasks without a done record.
        now: seconds of the clock, as `time.time` gives them.
    """
    at_work = {task.id: running[task.id] for task in tasks if task.id in running and task.id not in status.done}
    failed = {name: record for name, record in status.failed.items() if name not in at_work}
    missing = len(tasks) - len(status.done) - len(failed) - len(at_work)
    text = [f"{len(tasks)} tasks: {len(status.done)} done, {len(failed)} failed, {len(at_work)} running, {missing} missing"]
    text += _failures(failed)
    for name, note in sorted(at_work.items(), key=lambda item: item[1]["since"])[:NAMED]:
        text.append(f"  running {name}: for {span(max(0.0, now - note['since']))} on {note['host']} (process {note['pid']})")
    if len(at_work) > NAMED:
        text.append(f"  and {len(at_work) - NAMED} more are running")
    text += [f"  damaged {name}.json: {reason}; a run sets it aside" for name, reason in status.damaged.items()]
    if len(status.done) == len(tasks):
        return [*text, "nothing is left to run"]
    if not at_work:
        return [*text, "nothing runs now; the same command as before goes on (dpsweep run ...)"]
    pace = pace_of(status.done.values(), now)
    if pace is None:
        return [*text, "no task was finished lately, so that nothing tells how long the rest takes"]
    text.append(f"{pace.tasks} tasks done in the last {span(pace.seconds)}: {3600 * pace.tasks / pace.seconds:,.0f} an hour")
    if found.seconds and not found.unknown:
        left = f"about {span(found.total / pace.cores)} left, by what finished tasks took on {pace.cores:.1f} cores lately"
    else:
        rest = len(tasks) - len(status.done)
        left = f"about {span(rest * pace.seconds / pace.tasks)} left, if the rest is like what was done lately"
    return [*text, left]


def _failures(failed: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Failed tasks by their reason, the most frequent first, each with one that `dpsweep show` tells more about."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, record in failed.items():
        message = str(record["error"]["message"]).strip().partition("\n")[0]
        groups[f"{record['error']['type']}: {message[:200]}".rstrip(": ")].append(name)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    text = [f"  failed {len(names)}: {reason}  (such as {names[0]})" for reason, names in ordered[:NAMED]]
    return text + ([f"  and {len(ordered) - NAMED} more reasons"] if len(ordered) > NAMED else [])


def pace_of(done: Iterable[Mapping[str, Any]], now: float) -> Pace | None:
    """The pace over the last `WINDOW` seconds, from the first start to now; None where no record tells it (its dataset is not
    public, or nothing was finished lately)."""
    spans = []
    for record in done:
        try:
            begun, ended = (datetime.fromisoformat(record[key]).timestamp() for key in ("started", "finished"))
        except (TypeError, ValueError):
            continue
        if now - WINDOW <= ended <= now + 1 and begun <= ended:
            spans.append((begun, ended, max(1, record["threads"] or 1)))
    if not spans:
        return None
    first = max(now - WINDOW, min(begun for begun, _, _ in spans))
    used = sum(threads * (ended - max(begun, first)) for begun, ended, threads in spans)
    seconds = max(1.0, now - first)
    return Pace(len(spans), seconds, max(1.0, used / seconds))


def watch(draw: Callable[[], tuple[str, bool]]) -> None:
    """Draw a page again and again until it says that all is done; elsewhere than on a terminal, one page after another.

    Args:
        draw: makes the text and says whether it is the last one.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def pages() -> Iterable[str]:
        while True:
            begun = time.monotonic()
            text, last = draw()
            yield text
            if last:
                return
            time.sleep(max(PATIENCE[0], PATIENCE[1] * (time.monotonic() - begun)))

    if not sys.stdout.isatty():
        for page in pages():
            print(page, flush=True)
        return
    with Live(console=Console(), auto_refresh=False) as live:
        for page in pages():
            live.update(Text(page), refresh=True)
