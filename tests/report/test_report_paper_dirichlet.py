"""The Dirichlet paper's places, suites and tables: what stands beside what, and that a claim is never printed as a proof."""

from fractions import Fraction

import pytest
from report_factory import record, task

from dpsweep.config import Composer
from dpsweep.privacy.dirichlet import DirichletAccount, effective_scale
from dpsweep.report.load import join
from dpsweep.report.paper import Evidence, Place
from dpsweep.report.papers import dirichlet as paper
from dpsweep.tasks import enumerate_tasks, task_id

COMPOSER = Composer()
SUITES = {  # budgets of the Dirichlet mechanism, Dirichlet tasks
    "dirichlet_cifar10": ({1, 2, 4, 8}, 20), "dirichlet_mnist": ({0.5, 1, 2, 4, 8}, 25),
    "dirichlet_dermamnist": ({1, 2, 4, 8}, 20),
    "dirichlet_fashionmnist": ({0.5, 1, 2, 4, 8}, 25), "dirichlet_svhn": ({0.5, 1, 2, 4, 8}, 25),
    "dirichlet_alpha_lr": ({1}, 1050), "dirichlet_sampling": ({2, 4, 8}, 45), "dirichlet_optimizers": ({1, 2, 4, 8}, 60),
    "dirichlet_cpu": ({1, 4}, 14), "dirichlet_smoke": ({2, 4}, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_stands_in_the_paper_and_its_comparators_have_the_rates_of_its_r(name):
    tasks = enumerate_tasks([f"suite={name}"], COMPOSER).tasks
    places = [(paper.locate(t.config), t) for t in tasks]
    assert all(place is not None and place.stage == name for place, _ in places)
    assert len({(place, t.config["seed"]) for place, t in places}) == len(tasks)  # no two share a cell
    own = [(place, t) for place, t in places if place.model == paper.DIRICHLET]
    assert ({place.epsilon for place, _ in own}, len(own)) == SUITES[name]
    for place, t in places:
        mechanism = t.config["mechanism"]
        if place.model == paper.PLAIN:
            (twin,) = {u.id: u for other, u in own if (other.dataset, other.epsilon) == (place.dataset, place.epsilon)
                       and u.config["seed"] == t.config["seed"]}.values()  # fmt: skip
            keys = twin.config["mechanism"]
            rate, steps = keys.get("r_sample_rate", twin.config["sample_rate"]), keys.get("r_steps", twin.config["steps"])
            r = DirichletAccount(Fraction(rate), steps, 1e-5, 3.0).calibrate(place.epsilon)
            expected = twin.config["optimizer"]["lr"] * effective_scale(r, 3.0)
            assert t.config["optimizer"]["lr"] == pytest.approx(expected, rel=1e-5)
        if mechanism["name"] == "dirichlet":
            assert mechanism["divisor"] == "realised" and t.labels["claim_only"] is True
            if "r_steps" in mechanism:  # gamma T is the paper's
                assert t.config["optimizer"]["lr"] * t.config["steps"] == pytest.approx(0.1 * mechanism["r_steps"])


def made(method, seed, epsilon=1.0, value=0.9):
    mechanism = {paper.DIRICHLET: "dirichlet", paper.MEAN: "dirichlet_mean", paper.DPSGD: "gaussian"}.get(method, "none")
    config = {
        "protocol": 1, "dataset": {"name": "cifar10"}, "model": {"name": "resnet18"}, "mechanism": {"name": mechanism},
        "optimizer": {"name": "sgd", "lr": 0.1}, "seed": seed, "run": "dirichlet_cifar10", "sample_rate": "1/200", "steps": 20000,
    }  # fmt: skip
    if method == paper.MEAN:
        config["mechanism"]["r_epsilon"] = epsilon
    if method == paper.PLAIN:
        config["run"] += f"_ce_eps{epsilon:g}"
    private = method in (paper.DIRICHLET, paper.DPSGD)
    if private:
        config["epsilon"] = epsilon
    one = task("cifar10", "resnet18", epsilon if private else None, seed, mechanism, config["run"])
    one |= {"id": task_id(config), "config": config, "claim_only": True if method == paper.DIRICHLET else None}
    changes = {"config": config, "optimizer": "sgd", "steps": 20000}
    if method == paper.DIRICHLET:
        changes |= {"epsilon": None, "noise_multiplier": None, "adjacency": "replace_features", "protects": "features",
                    "guarantee_reason": "no function of the samples"}  # fmt: skip
    if method in (paper.DIRICHLET, paper.MEAN):
        changes |= {"r": 0.23489, "alpha": 3.0, "kappa": 0.077}
    return one, record(one, value, **changes)


VALUES = {paper.DIRICHLET: 0.83, paper.MEAN: 0.84, paper.PLAIN: 0.8, paper.DPSGD: 0.5, paper.NONE: 0.9}


@pytest.fixture(scope="module")
def evidence():
    pairs = [made(method, seed, 1.0, value + seed / 1000) for method, value in VALUES.items() for seed in (0, 1, 2)]
    results = join([t for t, _ in pairs], [r for _, r in pairs])
    assert [budget.name for budget in results.budgets] == ["non-private", "ε=1", "claimed ε=1"]
    return Evidence(paper.PAPER, results.runs)


def test_table_1_sets_the_stated_numbers_beside_the_measured(evidence):
    (table,) = paper.comparison(evidence, "dirichlet_cifar10", "table1")
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert row["Dirichlet (ε claimed) published"] == "82.96"
    assert row["Dirichlet (ε claimed) measured"].startswith("83.10 ± 0.10†")
    assert row["DP-SGD (ε proved) measured"] == "50.10 ± 0.10" and row["DP-SGD, WRN-40-4 published"] == "56.4"
    last = dict(zip(table.header, table.rows[-1], strict=True))
    assert last["ε"] == "none" and last["Non-private measured"] == "90.10 ± 0.10" and last["DP-SGD (ε proved) measured"] == ""
    assert any("merely claimed" in text for _, text in table.notes)


def test_what_the_samples_cost(evidence):
    (table,) = paper.variance(evidence)
    ((*stubs, mean, plain, dpsgd),) = table.rows
    assert stubs == ["dirichlet_cifar10", "CIFAR-10", "1", "3"]
    assert mean.startswith("−1.00 (") and plain.startswith("+3.00 (") and dpsgd.startswith("+33.00 (")


def test_r_cost_and_rates(evidence, tmp_path):
    (r,), (cost,), (rates,) = paper.table7(evidence), paper.cost(evidence), paper.figure2(evidence)
    assert r.rows == [("dirichlet_cifar10", "CIFAR-10", "1", "1/20", "20000", "3", "0.23489", "0.0783", "0.07700", "1")]
    assert cost.rows[0][2].startswith("0.1 (1.00 x)")
    assert [row[2:5] for row in rates.rows] == [
        ["CE at γκ, ε=1", "0.1", "0.1"], ["Dirichlet mean, ε=1", "0.1", "0.0077"], ["Dirichlet, ε=1", "0.1", "0.0077"],
    ]  # fmt: skip
    (picture,) = paper.draw2(evidence, tmp_path)
    assert picture.png.stat().st_size > 1000 and "No ε is proved" in picture.caption


def test_stated_relations():
    pairs = []
    for method, value in {paper.DIRICHLET: 0.75, paper.DPSGD: 0.5}.items():
        one, found = made(method, 0, 4.0, value)
        config = one["config"] | {"dataset": {"name": "fashionmnist"}, "run": "dirichlet_fashionmnist"}
        change = {"id": task_id(config), "dataset": "fashionmnist", "run": "dirichlet_fashionmnist", "config": config}
        pairs.append((one | change, found | change))
    (table,) = paper.statements(Evidence(paper.PAPER, join([t for t, _ in pairs], [r for _, r in pairs]).runs))
    told = {row[0]: row[3] for row in table.rows}
    assert told == {"FashionMNIST": "50.00% lower error", "SVHN": "—", "DermaMNIST": "—"}


def test_other_tasks_have_no_place():
    for run in (None, "dp_rvfl_primary", "dirichlet_other"):
        config = {"run": run, "mechanism": {"name": "dirichlet"}, "optimizer": {"lr": 0.1}, "dataset": {"name": "mnist"}}
        assert paper.locate(config) is None
    assert Place("dirichlet_cifar10", "cifar10", "", paper.DIRICHLET, 4.0) in {place for place, _ in paper.published()}
