"""The comparison of steps measures every mechanism of clipped sums, and runs."""

import sys
from pathlib import Path

import torch
from zoo import COMPOSER

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import bench_mechanisms


def test_every_mechanism_that_clips_is_measured():
    measured = {name.split()[0] for name in bench_mechanisms.contestants()}
    clip = {m for m in COMPOSER.options("mechanism") if "max_grad_norm" in COMPOSER.node("mechanism", m)}
    assert clip >= {"gaussian", "dp_sat", "dp_sam", "dp_is", "dp_adam_ac", "dp_adam_bc", "scheduled"}
    assert measured - {"dirichlet", "plain"} == clip


def test_it_prints_a_ratio_for_each(monkeypatch, capsys):
    overrides = ["model=logistic_raw", "dataset=digits", "dataset.reference_size=100"]
    monkeypatch.setattr(torch, "set_flush_denormal", lambda on: True)  # it would last for the tests that follow
    monkeypatch.setattr(sys, "argv", ["bench_mechanisms.py", *overrides, "--rounds", "2", "--steps", "2"])
    bench_mechanisms.main()
    _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == len(bench_mechanisms.contestants())
    assert all(float(row[18:].split()[1]) > 0 for row in rows)
