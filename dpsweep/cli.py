"""The command line: run, plan, status, show, report, calibrate, data."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.errors import OutputError, UsageError

if TYPE_CHECKING:
    from dpsweep.config import Composer
    from dpsweep.records import Records
    from dpsweep.tasks import Plan, Settings, Task

_RUN = """\
examples:
  dpsweep run dataset=heart model=rvfl epsilon=2 seed=42     one task; if it is done, its record is printed
  dpsweep run -m model=rvfl,cnn epsilon=1,2 seed=range(5)    every combination
  dpsweep run suite=quickstart                               a whole suite; what is done is not done again
  dpsweep run suite=quickstart model=rvfl threads=2          the suite's matching tasks
  dpsweep run suite=dp_rvfl table=table3                     the tasks that one table of a paper is made of
  dpsweep run suite=dp_rvfl repeat=1,2,3                     three executions of each task
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 done, 1 some task failed, 2 usage or configuration, 130 interrupted."""
    parser = _parser()
    try:
        options, rest = parser.parse_known_args(arguments)
        if any(word.startswith("-") for word in rest) or (rest and not hasattr(options, "overrides")):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        if rest:  # overrides after an option
            options.overrides += rest
        code = options.command(options)
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(f"dpsweep: {error}", file=sys.stderr)
        return 2
    except OutputError as error:
        print(f"dpsweep: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dpsweep: interrupted; what was finished is kept, and the same command goes on from there", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"dpsweep: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpsweep", description="Run, compare and check differentially private training experiments.",
        epilog="`dpsweep COMMAND --help` tells more; `dpsweep run --help` lists every option and key.",
    )  # fmt: skip
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, function: Any, help: str, epilog: str = "",
                multirun: bool = False) -> argparse.ArgumentParser:  # fmt: skip
        sub = commands.add_parser(
            name,
            help=help,
            description=help,
            epilog=epilog,
            add_help=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("-h", "--help", action=_Help)
        sub.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="groups and keys, such as dataset=heart epsilon=2")
        sub.add_argument("--config-dir", action="append", default=[], metavar="FOLDER", help="a folder with groups of your own")
        if multirun:
            sub.add_argument("-m", "--multirun", action="store_true", help="run every combination of the listed values")
        sub.set_defaults(command=function, multirun=False)
        return sub

    command("run", _run, "Run one task, every combination (-m), or a suite.", _RUN, multirun=True)
    command("plan", _plan, "Show what would run: done, failed, missing, and an estimate.", multirun=True)
    status = command("status", _status, "Show how a suite stands: done, failed and why, running where, time left.", multirun=True)
    status.add_argument("--watch", action="store_true", help="go on showing it until all is done")
    command("report", _report, "Rebuild the tables, figures and tests of a suite (or of all records in output_dir).")
    command("calibrate", _calibrate, "Show the noise that meets a budget, without training.", multirun=True)
    show = commands.add_parser("show", help="Show one record in words.", description="Show one record in words.")
    show.add_argument("overrides", nargs="*", metavar="TASK", help="a task's id, the beginning of one, or a record's path; "
                      "output_dir=FOLDER for records elsewhere")  # fmt: skip
    show.set_defaults(command=_show)
    data = commands.add_parser("data", help="Check or fetch data files.", description="Check or fetch data files.")
    data.add_argument("action", choices=["verify", "fetch"], help="verify: counts, shapes, class balance, fingerprints, official "
                      "or not; fetch: get public datasets from the internet, checked")  # fmt: skip
    data.add_argument("overrides", nargs="*", metavar="NAME", help="datasets (verify: all, if none is named), or data.dir=FOLDER")
    data.add_argument("--config-dir", action="append", default=[], metavar="FOLDER", help="a folder with groups of your own")
    data.set_defaults(command=_data)
    return parser


class _Help(argparse.Action):
    """Help with the groups' options and all keys, which only the configuration knows."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show this help")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from dpsweep.checks import flatten
        from dpsweep.config import FORM, GROUPS, NUMBER_GROUPS, Composer

        parser.print_help()
        composer = Composer()
        composer.preload([(group, name) for group in GROUPS for name in composer.options(group)])
        print("\ngroups:")
        for group in GROUPS:
            names = composer.options(group)
            if group in NUMBER_GROUPS:
                print(f"  {group}: any number" + (", or none for training without privacy" if group == "epsilon" else ""))
                continue
            print(f"  {group}:")
            for name in names:
                print(f"    {name:<20}{composer.about(group, name)}")
        values = composer.compose([]).values
        print("\nkeys, with their values for the default task:")
        for key, value in flatten(values).items():
            hidden = key.startswith(("suite.", *FORM)) or key.endswith((".name", ".about", "._target_")) or key in NUMBER_GROUPS
            if not hidden:
                print(f"  {key}={'null' if value is None else str(value).lower() if isinstance(value, bool) else value}")
        parser.exit()


def _tasks(options: argparse.Namespace) -> tuple[Plan, Composer]:
    from dpsweep.config import Composer
    from dpsweep.tasks import enumerate_tasks

    composer = Composer([Path(folder) for folder in options.config_dir])
    plan = enumerate_tasks(options.overrides, composer, options.multirun)
    for reason in dict.fromkeys(plan.impossible):
        print(f"left out: {reason}", file=sys.stderr)
    return plan, composer


def _run(options: argparse.Namespace) -> int:
    from dpsweep.describe import describe
    from dpsweep.records import Records
    from dpsweep.sweep import run_tasks

    plan, _ = _tasks(options)
    result = run_tasks(plan.tasks, plan.settings)
    records = Records(plan.settings.output_dir)
    if len(plan.tasks) == 1:
        record = records.load(plan.tasks[0].id)
        if record is not None:
            print(describe(record))
            print(f"  record     {records.path(record['id'])}")
            _remarks(plan.tasks[0], plan.settings, record, records)
        return result.exit_code
    print(f"{result.done} of {len(plan.tasks)} tasks done, {result.failed} failed; records in {records.folder}")
    missing = len(plan.tasks) - result.done - result.failed
    if missing or result.failed:
        open_tasks = missing + result.failed
        which = f"{open_tasks} tasks that are" if open_tasks > 1 else "task that is"
        print(f"the same command runs the {which} missing or failed")
    elif plan.suite:
        where = f" table={plan.table}" if plan.table else ""
        where += "" if str(plan.settings.output_dir) == "outputs" else f" output_dir={plan.settings.output_dir}"
        where += "".join(f" --config-dir {shlex.quote(folder)}" for folder in options.config_dir)
        print(f"tables and figures: dpsweep report suite={plan.suite['name']}{where}")
    return result.exit_code


def _remarks(task: Task, settings: Settings, record: dict[str, Any], records: Records) -> None:
    """What a finished record can't follow any more."""
    public = bool(task.values["dataset"].get("public", False))
    if record["public"] != public:
        print(f"  note       this record was made with dataset.public={str(record['public']).lower()} and is shown as it is")
    if settings.save_model and record["status"] == "done" and (missing := records.weights_of(record)[1]):
        print(f"  note       {missing}")


def _plan(options: argparse.Namespace) -> int:
    from dpsweep import outlook, provenance
    from dpsweep.records import Records
    from dpsweep.sweep import status_of
    from dpsweep.tasks import available_cores

    plan, composer = _tasks(options)
    status = status_of(plan.tasks, Records(plan.settings.output_dir), plan.settings.data_dir)
    print("\n".join(outlook.counts(plan.tasks, status)))
    print(f"{len(plan.tasks)} tasks: {len(status.done)} done, {len(status.failed)} failed, {len(status.missing)} missing")
    for name, record in status.failed.items():
        print(f"  failed {name}: {record['error']['type']}: {record['error']['message']}")
    for name, reason in status.damaged.items():
        print(f"  damaged {name}.json: {reason}; a run sets it aside and does the task again")
    for line in provenance.summed_up(status.other_data):
        print(f"  not done: {line}; a run does such tasks again and keeps these records as superseded")
    for line in status.strangers:
        print(f"  left out: {line}")
    if told := provenance.versions_in_words(status.done.values()):
        print(f"  {told}")
    cores = min(available_cores(), plan.settings.threads)
    to_run = [task for task in plan.tasks if task.id not in status.done]
    finished = [*status.done.values(), *status.others]
    found = outlook.estimate(to_run, finished, outlook.sizes_of(plan.tasks, finished, composer), cores)
    print("\n".join(outlook.in_words(found, len(to_run), cores)))
    return 0


def _status(options: argparse.Namespace) -> int:
    from dpsweep import outlook, status
    from dpsweep.records import Records
    from dpsweep.sweep import status_of
    from dpsweep.tasks import available_cores

    plan, composer = _tasks(options)
    records = Records(plan.settings.output_dir)

    def draw() -> tuple[str, bool]:
        found = status_of(plan.tasks, records)
        finished = [*found.done.values(), *found.others]
        to_run = [task for task in plan.tasks if task.id not in found.done]
        left = outlook.estimate(to_run, finished, outlook.sizes_of(plan.tasks, finished, composer), available_cores())
        return "\n".join(status.lines(plan.tasks, found, records.running(), left, time.time())), not to_run

    if options.watch:
        status.watch(draw)
    else:
        print(draw()[0])
    return 0


def _show(options: argparse.Namespace) -> int:
    from dpsweep.config import Composer, parse
    from dpsweep.records import Records
    from dpsweep.show import show
    from dpsweep.tasks import Settings

    words = [word for word in options.overrides if "=" not in word]
    if len(words) != 1:
        raise UsageError("show: name one task, by its id, the beginning of it, or its record's path (dpsweep show TASK)")
    items = parse([word for word in options.overrides if "=" in word])[0]
    print(show(words[0], Records(Settings.from_config(Composer().compose(items)).output_dir)))
    return 0


def _report(options: argparse.Namespace) -> int:
    from dpsweep import provenance
    from dpsweep.records import Records
    from dpsweep.report.render import build, build_parts
    from dpsweep.tasks import labels_of

    plan, _ = _tasks(options)
    records = Records(plan.settings.output_dir)
    scan = records.scan()
    if plan.suite is not None:
        title, about, spec = plan.suite["name"], plan.suite.get("about", ""), plan.suite.get("report", {})
        tasks = [{"id": task.id, **task.labels} for task in plan.tasks]
    else:
        title, about, spec = "all", f"every record in {records.folder}", {}
        mine = filter(provenance.of_this_protocol, scan.records)
        tasks = [{**{key: r[key] for key in ("id", "claim_only", "config")}, **labels_of(r["config"])} for r in mine]
    if not {record["id"] for record in scan.records} & {task["id"] for task in tasks}:
        run = f"dpsweep run suite={title}" if plan.suite else "dpsweep run ..."
        raise UsageError(
            f"{records.folder} holds no record of {title}: run it first ({run}), or name its folder: output_dir=PATH"
        )
    standing, left_out = _standing(plan, {task["id"] for task in tasks}, scan.records, records)
    left_out += provenance.strangers(tasks, scan.records)
    out_dir = plan.settings.output_dir / "reports" / title
    if plan.part and plan.table is None:  # a part of a suite has a page of its own: the whole suite's stays
        out_dir = out_dir.with_name(f"{title} {plan.part}".replace(" ", "-")[:150])
        title, about = f"{title} ({plan.part})", f"A part of the suite. {about}"
    if plan.table is not None:
        report = build_parts(plan.table, tasks, standing, spec, out_dir, left_out)
    else:
        report = build(title, about, tasks, standing, scan.damaged, spec, out_dir, left_out)
    print(report.text)
    return 0 if report.complete else 1


def _standing(plan: Plan, ids: set[str], found: list[dict[str, Any]], records: Records) -> tuple[list[dict[str, Any]], list[str]]:
    """The records that a report of some tasks is made of, one an id; and in words, what of theirs it leaves out."""
    from dpsweep import provenance

    mine = [record for record in found if record["id"] in ids]
    known = plan.tasks if plan.suite is not None else []
    other_data = provenance.of_one_data(mine, lambda group: provenance.made_of_other_data(known, group, plan.settings.data_dir))
    mine = [record for record in mine if record["id"] not in other_data]
    earlier = records.superseded()
    several = {r["id"]: made for r in mine
               if r["id"] in earlier and r["status"] == "done" and len(made := records.executions(r)) > 1}  # fmt: skip
    which = plan.settings.executions
    mine = [several[r["id"]][0 if which == "first" else -1] if r["id"] in several else r for r in mine]
    again = sum(len(made) - 1 for made in several.values())
    others = [f"{again} other executions of tasks that force=true ran again (shown is the {which}: executions=first or last)"]
    return mine, [*(others if several else []), *provenance.summed_up(other_data)]


def _calibrate(options: argparse.Namespace) -> int:
    from dpsweep.build import plan_of, target_of

    plan, _ = _tasks(options)
    for task in plan.tasks:
        mechanism, schedule, account, found = plan_of(task.values)
        words = mechanism.calibrated(found, schedule, account, target_of(task.values))
        nothing = f"{task.labels['mechanism']} adds no noise (epsilon=none), so there is nothing to calibrate"
        print(f"{task.labels['dataset']}: {words or nothing}")
    return 0


def _data(options: argparse.Namespace) -> int:
    from dpsweep.build import build
    from dpsweep.config import Composer, parse
    from dpsweep.datasets.verify import verify_report
    from dpsweep.tasks import Settings

    composer = Composer([Path(folder) for folder in options.config_dir])
    overrides = [word for word in options.overrides if "=" in word]
    names = [word for word in options.overrides if "=" not in word]
    if options.action == "fetch":
        from dpsweep.datasets.fetch import fetch

        return 0 if fetch(names, Settings.from_config(composer.compose(parse(overrides)[0])).data_dir, print) else 1
    chosen = names or composer.options("dataset")
    configs = {name: composer.compose([("dataset", name), *parse(overrides)[0]]) for name in chosen}
    readers = {name: build("dataset", config.values["dataset"]) for name, config in configs.items()}
    settings = Settings.from_config(next(iter(configs.values())))
    text, ok = verify_report(readers, settings.data_dir, required=names)
    print(text)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
