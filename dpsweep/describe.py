"""One record in words."""

from __future__ import annotations

import math
from typing import Any


def charged(events: list[list[Any]]) -> str:
    """A record's events in words."""
    from dpsweep.privacy.accounting import event_from_json, in_words

    return in_words((event_from_json(event), count) for event, count in events)


def describe(record: dict[str, Any]) -> str:
    """A summary that a person understands: data, model, protocol, guarantee, metrics, times."""
    r = record
    lines = [f"{r['id']}: {r['status']}"]

    def of(field: str, form: str = ",") -> str:
        return "?" if r.get(field) is None else format(r[field], form)

    def line(label: str, text: str) -> None:
        lines.append(f"  {label:<11}{text}")

    if r["status"] != "done":
        error = r["error"] or {"type": "unknown", "message": ""}
        line("error", f"{error['type']}: {error['message']}")
        return "\n".join(lines)
    official = {True: "the official files", False: "not the official files", None: ""}[r["data_official"]]
    sizes = f"{of('train_size')} training and {of('test_size')} test records"
    sizes = sizes if r["train_size"] else "training records not counted"
    line("data", ", ".join(filter(None, [str(r["dataset"]), sizes, official, "" if r["public"] else "not public"])))
    line(
        "model",
        f"{r['model']}, {of('trainable_parameters')} trained of {of('stored_parameters')} stored parameters, seed {r['seed']}",
    )
    method = r["mechanism"] if r["optimizer"] is None else f"{r['mechanism']} with {r['optimizer']}"
    amounts = {
        "macs": lambda n: f"{n:,} multiply-accumulates a record",
        "stored_bytes": lambda n: f"{n / 2**20:.3f} MiB stored",
        "peak_memory_growth": lambda n: f"{n / 2**20:.0f} MiB more memory while it was trained",
    }
    if told := [words(r[name]) for name, words in amounts.items() if r[name] is not None]:
        line("resources", ", ".join(told))
    if r["noise_multiplier"] is not None:
        line("training", f"{method}: q = {r['sample_rate']}, T = {r['steps']}, "
                         f"m0 = {r['normalizer']}, N0 = {of('reference_size')}, C = {r['max_grad_norm']}, "
                         f"sigma = {r['noise_multiplier']:.6f}")  # fmt: skip
    elif r.get("laplace_scale") is not None:
        line("training", f"{method}: q = {r['sample_rate']}, T = {r['steps']}, N0 = {of('reference_size')}, "
                         f"Laplace scale = {of('laplace_scale', '.6g')}")  # fmt: skip
    elif r.get("kappa") is not None:
        lr = (r["config"].get("optimizer") or {}).get("lr") or math.nan
        line("training", f"{method}: q = {r['sample_rate']}, T = {r['steps']}, m0 = {r['normalizer']}, N0 = "
                         f"{of('reference_size')}, r = {of('r', '.6f')}, alpha = {of('alpha', 'g')}; learning rate {lr:g}, "
                         f"effectively {lr * r['kappa']:.4g} (kappa = {r['kappa']:.6f})")  # fmt: skip
    else:
        line("training", f"{method}: T = {r['steps']} steps, batch size {r['batch_size'] or r['normalizer']}")
    if r.get("s_min_least") is not None:
        line("noise", f"shaped; its least share of sigma (s_min) was {r['s_min_least']:.3g} at one step, {r['s_min_mean']:.3g} "
                      "on average")  # fmt: skip
    if r["epsilon"] is not None:
        target = "" if r["target_epsilon"] is None else f" of {r['target_epsilon']:g}"
        over = ", ABOVE THE TARGET" if target and r["epsilon"] > r["target_epsilon"] else ""
        line("epsilon", f"{r['epsilon']:.6f} achieved{target} at delta {of('delta', 'g')}, "
                        f"proved for the released model{over}")  # fmt: skip
        if r["events"] is not None:
            line("charged", charged(r["events"]))
    elif r["target_epsilon"] is not None or r["target_noise_multiplier"] is not None:
        would = f" (with secure noise it would be {r['epsilon_if_secure']:.6f})" if r["epsilon_if_secure"] is not None else ""
        claimed = f"; merely claimed: {r['epsilon_claimed']:.6g}" if r["epsilon_claimed"] is not None and not would else ""
        line("epsilon", f"none is proved: {r['guarantee_reason']}{would}{claimed}")
    line("covers", str(r["guarantee_text"]))
    if r["diverged"]:
        line("test", "the parameters diverged to non-finite values; there are no metrics")
    else:
        metrics = (
            f"{name} {r['test_' + name]:.4f}" for name in ("accuracy", "f1", "auroc", "auprc") if r["test_" + name] is not None
        )
        line("test", ", ".join(metrics))
    if (seen := r["diagnostics"]) is not None:
        losses = [epoch["loss"] for epoch in seen["epochs"] if epoch["loss"] is not None]
        parts = [str(len(seen["epochs"]))]
        if losses:
            parts.append(f"training loss {losses[0]:.4f} after the first and {losses[-1]:.4f} at the end")
        if seen["clipped_fraction"] is not None:
            parts.append(f"{seen['clipped_fraction']:.1%} of the gradients clipped")
        line("epochs", ", ".join(parts) + "; read from the training records without noise")
    if r["seconds_train"] is not None:
        line("time", f"{r['seconds_train']:.2f} s training, {of('seconds_setup', '.2f')} s before it, "
                     f"{of('seconds_total', '.2f')} s in all; {r['threads']} threads on {r['device']}"
                     + ("" if r["alone"] else ", beside other tasks"))  # fmt: skip
    if not r["public"]:
        what = ", ".join(r["unprotected"] or ["some fields"])
        line("withheld", f"{what}: read from records without noise, and the dataset is not marked public")
    return "\n".join(lines)
