"""What is proved, what is only claimed, and what all models of a dataset released together."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.privacy import accounting
from dpsweep.report.load import Budget, Results, Run
from dpsweep.report.markup import Footnotes, Table

Record = Mapping[str, Any]


def bound(epsilon: float | None) -> str:
    """An upper bound on epsilon to four digits, rounded up so that it is never understated; — for None."""
    if epsilon is None:
        return "—"
    if not math.isfinite(epsilon):
        return "∞"
    if epsilon <= 0:
        return "0"
    digits = _digits(epsilon)
    # The relative slack keeps 1.0 from becoming 1.001 where 10**digits times epsilon is not exact.
    rounded = math.ceil(epsilon * 10**digits * (1 - 1e-12)) / 10**digits
    return f"{rounded:.{_digits(rounded)}f}"


def _digits(value: float) -> int:
    return max(0, 3 - math.floor(math.log10(value)))


def shortfall(run: Run) -> tuple[str, str, str] | None:
    """Why the epsilon of a done private run's column is not what is proved: (mark, text, detail), or None if it is.

    ‡ the noise was seeded; † nothing is proved; § what is proved is more than the target.
    """
    record = run.done
    if record is None or not run.budget.private:
        return None
    proved, target = record["epsilon"], record["target_epsilon"]
    if proved is None:
        if record["noise_source"] == "seeded" and record["epsilon_if_secure"] is not None:
            text = "seeded noise: no guarantee; with secure noise it would be"
            return "‡", text, f"ε={bound(record['epsilon_if_secure'])}"
        if record["epsilon_claimed"] is None:
            return "†", f"no proved ε: {_reason(record)}", ""
        if target is not None and not math.isclose(record["epsilon_claimed"], target, rel_tol=1e-3):
            own = f"its claim at the run's own schedule is ε={record['epsilon_claimed']:.4g}, not the column's"
            return "†", f"no proved ε: {_reason(record)}; {own}", ""
        return "†", f"no proved ε: {_reason(record)}; merely claimed:", f"ε={record['epsilon_claimed']:g}"
    if target is not None and proved > target * (1 + 1e-9):
        return "§", "proved, and more than the target:", f"ε={bound(proved)}"
    return None


def scope(results: Results) -> str:
    """One sentence on the guarantee behind the unmarked private cells, and a warning where they do not compare."""
    private = [(run, run.done) for run in results.runs if run.budget.private and run.done is not None]
    proved = [record for run, record in private if shortfall(run) is None]
    if not proved:
        return "No cell has a proved ε." if private else ""
    kinds = Counter(
        f"{r['adjacency']} adjacency, protecting the {r['protects']}, " + (f"δ={r['delta']:g}" if r["delta"] else "pure DP: δ=0")
        for r in proved
    )
    text = "Unmarked private cells: the ε of the column is proved for one released model"
    if len(kinds) == 1:
        return f"{text} ({next(iter(kinds))})."
    listed = "; ".join(f"{kind} ({count} records)" for kind, count in kinds.most_common())
    return f"{text}, but not by one relation, so that equal ε are not equal guarantees: {listed}."


def epsilon_table(results: Results) -> Table:
    """Target, claimed, proved and realised epsilon side by side, one line a mechanism and target."""
    groups: dict[tuple[str, Budget], list[Record]] = defaultdict(list)
    for run in results.runs:
        if run.done is not None:
            groups[run.done["mechanism"], run.budget].append(run.done)
    rows, notes = [], Footnotes()
    for (mechanism, budget), records in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1].order)):
        reasons = dict.fromkeys(_reason(record) for record in records if record["epsilon"] is None)
        claimed, proved, secure, realised = (
            spent(records, key) for key in ("epsilon_claimed", "epsilon", "epsilon_if_secure", "epsilon_realised")
        )
        proved += "".join(notes.mark("", reason) for reason in reasons)
        relations = sorted({f"{r['adjacency']}, {r['protects']}" for r in records if r["adjacency"]})
        stubs = [mechanism, budget.name, " / ".join(relations) or "—"]
        rows.append([*stubs, str(len(records)), claimed, proved, secure, realised])
    stubs = ["Mechanism", "Target", "Adjacency, protects"]
    header = [*stubs, "Models", "Claimed ε", "Proved ε", "ε if secure", "Realised ε"]
    caption = (
        "ε of each released model: claimed by the method's own analysis, proved for the model, and realised (an "
        "odometer's reading, no guarantee); with seeded noise, what secure noise would give. Rounded up."
    )
    return Table("epsilons", caption, header, rows, stubs=3, blocks=True, notes=notes.listed())


def _reason(record: Record) -> str:
    return record["guarantee_reason"] or "no reason was recorded"


def spent(records: Sequence[Record], key: str) -> str:
    """The range of an epsilon over records, rounded up; how many have one where not all do."""
    values = [record[key] for record in records if record[key] is not None]
    low, high = (bound(min(values)), bound(max(values))) if values else ("—", "—")
    text = low if low == high else f"{low}–{high}"
    return text if len(values) in (0, len(records)) else f"{text} ({len(values)} of {len(records)})"


def released(results: Results) -> Table:
    """What all done runs released from each dataset together, by composition in Rényi DP.

    One line a dataset and relation (adjacency and what is protected), since bounds under different relations do not
    add up; a model whose guarantee holds for several relations counts in the line of each. Composed are the events of
    every private model, at the least delta that its records name. A model trained without noise, or without a proof,
    has no bound, and then neither has the total; the line says what the proved models release alone, and, where the
    noise was seeded, what they would with secure noise. Basic composition of independent runs on one dataset (Mironov,
    2017, Proposition 1).
    """
    rows = []
    for dataset in results.datasets:
        done = [run for run in results.runs if run.dataset == dataset and run.done is not None]
        open_models = sum(not run.budget.private for run in done)
        relations: dict[tuple, list[Record]] = defaultdict(list)
        for run in done:
            if run.budget.private and run.done is not None:
                for adjacency in (run.done["adjacency"] or "—").split(" and "):
                    relations[adjacency, run.done["protects"] or "—"].append(run.done)
        everyone = {record["id"] for records in relations.values() for record in records}
        if not relations:
            if done:
                text = f"unbounded: {_count(open_models, 'non-private')} of the same data"
                rows.append([dataset, "—", "0", "—", text])
            continue
        for (adjacency, protects), records in relations.items():
            proved = [record for record in records if record["epsilon"] is not None]
            seeded = [r for r in records if r["epsilon"] is None and r["epsilon_if_secure"] is not None]
            unproved = len(records) - len(proved) - len(seeded)
            # No delta at all is pure DP throughout.
            delta = min((record["delta"] for record in records if record["delta"]), default=0.0)
            causes = [
                text
                for number, text in (
                    (open_models, f"{_count(open_models, 'non-private')} of the same data"),
                    (len(seeded), f"{_count(len(seeded), 'private')} with seeded noise"),
                    (unproved, f"{_count(unproved, 'private')} without a proved ε"),
                )
                if number
            ]
            parts = [f"unbounded: {', '.join(causes)}"] if causes else []
            if proved:
                total = _composed(proved, delta)
                if not causes:
                    parts.append(total)
                else:
                    kind = "proved" if seeded or unproved else "private"
                    parts.append(f"the {kind} ones alone ({len(proved)}): {total}")
            if seeded:
                parts.append(f"with secure noise the private ones ({len(proved) + len(seeded)}) would release "
                             f"{_composed([*proved, *seeded], delta)}")  # fmt: skip
            if len(records) < len(everyone):
                parts.append("models under another relation stand in a line of their own; no common bound is computed")
            rows.append([dataset, f"{adjacency}, {protects}", str(len(records)), f"{delta:g}", "; ".join(parts)])
    caption = (
        "What all models of this report released from one dataset together, by composition. Each ε in the other tables "
        "is one run's. Whoever sees the tables has seen them all, and other records of the same data add to the total."
    )
    header = ["Dataset", "Relation", "Private models", "δ", "Released together"]
    return Table("released", caption, header, rows, stubs=5)


def _count(number: int, kind: str) -> str:
    return f"{number} {kind} model{'s' if number != 1 else ''}"


def _composed(records: Sequence[Record], delta: float) -> str:
    if any(record["events"] is None for record in records):
        return "not computed (a record doesn't say what it released)"
    counts: Counter[str] = Counter()
    for record in records:
        for event, count in record["events"]:
            counts[json.dumps(event, sort_keys=True)] += count
    try:
        events = [(accounting.event_from_json(json.loads(event)), count) for event, count in counts.items()]
        # Pure DP needs no accountant, so that its records name none.
        accountant = "pld" if {record["accountant"] for record in records} - {None} == {"pld"} else "rdp"
        told = f"ε={bound(accounting.epsilon(events, delta, accountant).epsilon)}"
        return f"{told} (PLD)" if accountant == "pld" else told
    except (accounting.AccountingError, ValueError) as error:
        return f"not computed ({error})"


def in_words(results: Results) -> list[tuple[str, int]]:
    """The distinct guarantees in words with how many done records state each, most frequent first."""
    return Counter(str(record["guarantee_text"]) for record in results.done).most_common()


def selections(results: Results) -> list[tuple[str, int]]:
    """How hyperparameters of the done runs were chosen, in words, with how many runs say so."""
    return Counter(record["selection"] for record in results.done if record.get("selection")).most_common()


def unprotected(results: Results) -> list[tuple[str, list[str]]]:
    """By dataset, the record fields that were read from its data without noise."""
    fields: dict[str, set[str]] = defaultdict(set)
    for record in results.done:
        fields[record["dataset"]].update(record["unprotected"] or ())
    return [(dataset, sorted(names)) for dataset, names in fields.items() if names]
