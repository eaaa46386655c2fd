"""Configuration: every mistake names the key, the value and the remedy; nothing is imported for it that is slow."""

import pytest
from zoo import partner

from dpsweep.checks import ImpossiblePair, flatten, fraction
from dpsweep.config import GROUPS, Composer, config_home, parse
from dpsweep.errors import UsageError

COMPOSER = Composer()


def compose(*overrides):
    (items,) = parse(overrides)
    return COMPOSER.compose(items).values


BAD = [
    ("model=rvlf", ["model=rvlf", "rvfl"]),
    ("dataset=3", ["dataset=3", "name"]),
    ("epsilon=0", ["epsilon=0", "above 0", "none"]),
    ("epsilon=-1", ["epsilon=-1"]),
    ("epsilon=nan", ["epsilon=nan"]),
    ("epsilon=inf", ["epsilon=inf"]),
    ("epsilon=true", ["epsilon=true"]),
    ("epsilon=tiny", ["epsilon=tiny", "any number"]),
    ("seed=-1", ["seed=-1"]),
    ("seed=1.5", ["seed=1.5", "integer"]),
    ("delta=0", ["delta=0", "between 0 and 1"]),
    ("delta=1", ["delta=1"]),
    ("delta=nan", ["delta=nan", "finite"]),
    ("delta=small", ["delta=small", "number"]),
    ("hiden=3", ["hiden", "model.hidden"]),
    ("model.hiden=3", ["model.hiden", "model.hidden"]),
    ("model.hidden=2.5", ["model.hidden=2.5", "integer"]),
    ("model.direct_link=3", ["true or false"]),
    ("model.name=x", ["model.name"]),
    ("dataset.classes=3", ["dataset.classes=3", "YAML of dataset=", "another name"]),
    ("dataset.shape=[3]", ["dataset.shape", "YAML"]),
    ("dataset.kind=image", ["dataset.kind", "YAML"]),
    ("model._target_=os.system", ["_target_"]),
    ("optimizer.lr=0", ["optimizer.lr", "above 0"]),
    ("optimizer.lr=inf", ["optimizer.lr", "finite"]),
    ("mechanism.max_grad_norm=-1", ["mechanism.max_grad_norm"]),
    ("batch_size=0", ["batch_size=0"]),
    ("dataset.schedule.epochs=0", ["epochs=0"]),
    ("sample_rate=0.1", ["steps"]),
    ("sample_rate=2", ["sample_rate=2"]),
    ("noise_multiplier=0", ["noise_multiplier=0", "above 1e-6", "null"]),
    ("noise_multiplier=1e200", ["noise_multiplier=1e+200", "below 1e6"]),
    ("noise_multiplier=-1", ["noise_multiplier=-1"]),
    ("noise_multiplier=nan", ["noise_multiplier=nan", "finite"]),
    ("noise_multiplier=inf", ["noise_multiplier=inf"]),
    ("noise_multiplier=true", ["noise_multiplier=True"]),
    ("noise_multiplier=loud", ["noise_multiplier=loud"]),
    ("curves=false", ["curves=False", "true or null"]),
    ("noise.source=dice", ["noise.source=dice", "secure or seeded"]),
    ("noise=3", ["noise=3"]),
    ("run=../../x", ["run=../../x", "label"]),
    ("diagnostics=1", ["diagnostics=1", "true or null"]),
    ("+new=1", ["+new=1"]),
    ("~model", ["~model"]),
    ("heart", ["key=value"]),
    ("epsilon=1,2", ["-m"]),
    ("model={a:1}", ["model="]),
    ("threads=0", ["threads=0"]),
    ("device=tpu", ["device=tpu"]),
]


@pytest.mark.parametrize(("override", "mentioned"), BAD, ids=[b[0] for b in BAD])
def test_a_mistake_is_refused_by_name(override, mentioned):
    with pytest.raises(UsageError) as caught:
        compose(override)
    for part in mentioned:
        assert part in str(caught.value)


def test_a_subset_of_images_has_its_own_reference_size():
    """N0 of the whole training part would make the divisor m0 many times what a batch of the subset holds."""

    def sizes(*overrides):
        return compose("sample_rate=1/25", "steps=10", *overrides)["dataset"]["reference_size"]

    assert sizes("dataset=cifar10") == 42500 and sizes("dataset=cifar10", "split=subset") == 5000
    assert sizes("dataset=cifar10", "split=subset_tuning", "dataset.reference_size=4000") == 4000
    assert sizes("dataset=digits", "split=subset") == 1257 and sizes("dataset=cardio", "split=subset") == sizes("dataset=cardio")


@pytest.mark.parametrize("value", ["1", "-0.1", "nan", "true", "much"])
def test_a_momentum_that_can_only_diverge_is_refused(value):
    with pytest.raises(UsageError, match="optimizer.momentum="):
        compose("optimizer=sgd", f"optimizer.momentum={value}")


def test_a_private_budget_needs_a_private_mechanism():
    with pytest.raises(UsageError, match="mechanism=none with epsilon=2"):
        compose("mechanism=none", "epsilon=2")
    assert compose("mechanism=none")["epsilon"] is None


def test_a_noise_multiplier_takes_the_place_of_the_budget():
    values = compose("noise_multiplier=1")
    assert (values["epsilon"], values["noise_multiplier"], values["mechanism"]["name"]) == (None, 1.0, "gaussian")
    assert compose("noise_multiplier=1.5", "epsilon=none")["mechanism"]["name"] == "gaussian"
    with pytest.raises(UsageError, match="noise_multiplier=1.5 with epsilon=2.*Give one of them"):
        compose("noise_multiplier=1.5", "epsilon=2")
    with pytest.raises(ImpossiblePair, match="mechanism=none with noise_multiplier=1.5.*adds no noise"):
        compose("noise_multiplier=1.5", "mechanism=none")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model=dp_elm", "epsilon=2"], ["model=dp_elm with mechanism=gaussian", "model=dp_elm mechanism=laplace_elm"]),
        (["model=dp_elm", "epsilon=none"], ["mechanism=none", "mechanism=laplace_elm"]),
        (["mechanism=laplace_elm"], ["mechanism=laplace_elm with model=rvfl", "model=dp_elm"]),
    ],
)
def test_options_that_go_together_alone_are_named(overrides, said):
    with pytest.raises(ImpossiblePair) as caught:
        compose(*overrides)
    assert all(part in str(caught.value) for part in said)


@pytest.mark.parametrize(
    "override", ["optimizer=sgd", "optimizer.lr=0.1", "accountant=pld", "delta=1e-6", "batch_size=3", "epochs=3", "steps=3",
                 "sample_rate=0.1", "noise.hardening=sum4", "noise_multiplier=1.5"])  # fmt: skip
def test_a_key_that_a_mechanism_does_not_use_is_refused_by_name(override):
    with pytest.raises(ImpossiblePair, match=f"{override.partition('=')[0]} with mechanism=laplace_elm.*Leave it out"):
        compose("model=dp_elm", "mechanism=laplace_elm", override)


def test_a_mechanism_can_only_leave_out_what_there_is(tmp_path):
    (tmp_path / "mechanism").mkdir()
    (tmp_path / "mechanism" / "mine.yaml").write_text("name: mine\n_target_: mine.Mine\nunused: [optimiser]\n")
    with pytest.raises(UsageError, match="mechanism=mine.*optimiser"):
        Composer([tmp_path]).compose([("mechanism", "mine")])


def test_no_budget_means_the_mechanism_without_privacy():
    values = compose("epsilon=none", "mechanism.max_grad_norm=3")
    assert values["mechanism"]["name"] == "none"
    assert values["epsilon"] is None


def test_any_number_is_a_budget_and_a_seed():
    values = compose("epsilon=3.7", "seed=123")
    assert (values["epsilon"], values["seed"]) == (3.7, 123)


def test_a_given_rate_replaces_the_schedule():
    values = compose("sample_rate=70/7007", "steps=6006")
    assert fraction(values["sample_rate"]) == fraction("10/1001")
    assert values["batch_size"] is None and values["epochs"] is None
    with pytest.raises(UsageError, match="batch_size=3"):
        compose("sample_rate=0.1", "steps=3", "batch_size=3")


def test_multirun_expands_lists_and_ranges():
    points = parse(["epsilon=1,2", "seed=range(3)"], multirun=True)
    assert len(points) == 6
    assert points[-1] == [("epsilon", 2), ("seed", 2)]


def test_the_fast_path_composes_what_hydra_composes():
    """Nodes are composed once and put together here; Hydra's own composition of the same choices must agree."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    choices = {
        "dataset": "breast_cancer",
        "model": "cnn",
        "optimizer": "sgd",
        "accountant": "pld",
        "epsilon": "4",
        "seed": "44",
    }
    ours = compose(*(f"{g}={n}" for g, n in choices.items()), "optimizer.lr=0.5")
    with initialize_config_dir(str(config_home()), version_base="1.3"):
        overrides = [*(f"{g}='{n}'" for g, n in choices.items()), "optimizer.lr=0.5"]
        theirs = OmegaConf.to_container(hydra_compose("config", overrides), resolve=True)
    theirs["batch_size"], theirs["epochs"] = ours["batch_size"], ours["epochs"]  # filled in from the schedule
    assert ours == theirs


def test_a_users_folder_adds_options(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "wide.yaml").write_text("name: wide\n_target_: dpsweep.models.dense.Dense\nimage_widths: [9, 9]\n")
    composer = Composer([tmp_path])
    assert "wide" in composer.options("model") and "rvfl" in composer.options("model")
    assert composer.compose([("model", "wide")]).values["model"]["image_widths"] == [9, 9]


def test_an_option_cannot_take_the_name_of_a_built_in(tmp_path):
    (tmp_path / "mechanism").mkdir()
    (tmp_path / "mechanism" / "gaussian.yaml").write_text("name: gaussian\n")
    with pytest.raises(UsageError, match="another name"):
        Composer([tmp_path])


def test_a_yaml_that_lacks_what_is_needed_is_named(tmp_path):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "mine.yaml").write_text("name: mine\n_target_: mine.Mine\nclasses: 2\n")
    with pytest.raises(UsageError, match="dataset=mine.*kind"):
        Composer([tmp_path]).compose([("dataset", "mine")])


def test_a_broken_yaml_is_named(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "broken.yaml").write_text("name: [")
    with pytest.raises(UsageError, match="model='broken'"):
        Composer([tmp_path]).compose([("model", "broken")])


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_composes_and_bears_its_name(group):
    for name in COMPOSER.options(group):
        values = COMPOSER.compose([(group, name), *(partner(group, name) if group in ("model", "mechanism") else [])]).values
        if group in ("epsilon", "seed") or name == "none":
            continue
        assert values[group]["name"] == name
        assert values[group]["about"]


def test_flatten():
    assert flatten({"a": 1, "b": {"c": {"d": None}}}) == {"a": 1, "b.c.d": None}


@pytest.mark.parametrize("name", ["../out", "a/b", "", "..", ".hidden", "x" * 61, "a b"])
def test_a_name_that_could_leave_the_output_folder(tmp_path, name):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(f"name: {name!r}\n_target_: dpsweep.models.dense.Dense\n")
    with pytest.raises(UsageError, match="model=.*its YAML's `name` must be"):
        Composer([tmp_path]).compose([("model", "mine")])


@pytest.mark.parametrize("label", ["../x", "a/b", "..", ""])
def test_a_label_that_could_leave_the_output_folder(label):
    with pytest.raises(UsageError, match="run=.*a label of letters"):
        Composer().compose([("run", label)])
