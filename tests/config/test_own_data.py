"""A user's own data in a config: paths, options, clients that are counted, and what is wrong in one sentence."""

from __future__ import annotations

import re

import numpy as np
import pandas
import pytest

import fljax
from fljax import data
from fljax.config import ConfigError, dumps, load, load_grid, parse
from fljax.config.reading import parse_grid
from fljax.experiments import run as experiment
from fljax.experiments import sweep
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.setup import build_world, resolve_setup
from fljax.protocol import Features
from fljax.results.events import Event, EventLog
from fljax.results.identity import difference
from tests.refusals import refuses
from tests.toys import command
from tests.toys.configs import config_text

TEXT = config_text('dataset = "patients.csv"\nlabel = "ill"\nclient = "hospital"', head="rounds = 2", standalone=2)


@pytest.fixture
def config(tmp_path):
    draw = np.random.default_rng(0)
    columns = {
        "age": draw.integers(20, 80, 40),
        "income": draw.normal(5e4, 1e4, 40),
        "hospital": [f"h{i % 4}" for i in range(40)],
        "ill": draw.choice(["yes", "no"], 40),
    }
    pandas.DataFrame(columns).to_csv(tmp_path / "patients.csv", index=False)
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    return path


def test_the_path_is_relative_to_the_config_and_clients_are_counted(config, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    found = load(config)
    assert found.data.dataset == str(config.parent / "patients.csv")
    assert (found.data.partition, found.data.clients) == ("natural", 4)
    assert found.data.dataset_options == {"label": "ill", "client": "hospital"}
    assert found.participation.clients_per_round == 4
    setup = resolve_setup(found)
    assert (setup.federation.names.clients, setup.federation.names.classes) == (("h0", "h1", "h2", "h3"), ("no", "yes"))
    assert setup.federation.moments is not None
    assert setup.federation.features == Features(("age", "income"))


@pytest.mark.parametrize("change", ["partition_options={minimum=11}", "held_fraction=0.7", 'test="global"'])
def test_owners_that_are_left_are_counted(config, change):
    table = pandas.read_csv(config.parent / "patients.csv")
    small = [table.iloc[:1].assign(hospital=f"s{i}") for i in range(8)]
    pandas.concat([table, table.iloc[1::4], *small]).to_csv(config.parent / "patients.csv", index=False)
    for seeds in ([0], [0, 1, 2]):
        found = load(config, [f"data.{change}", f"seeds={seeds}"])
        assert resolve_setup(found).clients == found.data.clients < 12
    assert "minimum" not in change or found.data.clients == 1


def test_the_folder_of_files_is_relative_to_the_config(tmp_path, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    text = TEXT.replace('"patients.csv"', '"fashion_mnist"').replace(
        'label = "ill"\nclient = "hospital"', "clients = 3"
    )
    (tmp_path / "mine.toml").write_text(text.replace("clients = 3", 'clients = 3\npartition = "iid"\nfolder = "idx"'))
    assert load(tmp_path / "mine.toml").data.folder == str(tmp_path / "idx")


@pytest.mark.parametrize(("shape", "most"), [((40, 2, 2, 1), 1), ((40, 2, 2), 16), ((40, 4), 1), ((40, 2, 2, 1), 255)])
def test_pixels_of_a_small_part_of_the_scale_are_refused(tmp_path, shape, most):
    """Vectors of whole numbers are no images: they are standardised by the moments of the members."""
    x = np.random.default_rng(0).integers(0, most + 1, shape).astype(np.uint8)
    np.savez(tmp_path / "rows.npz", x=x, y=np.arange(40) % 2, who=np.arange(40) % 4)
    text = TEXT.replace("patients.csv", "rows.npz").replace('label = "ill"\nclient = "hospital"', 'client = "who"')
    (tmp_path / "mine.toml").write_text(text)
    if len(shape) > 2 and most < 128:
        with pytest.raises(
            ValueError, match=f"expected pixels from 0 to 255, got a largest value of {most}; store them"
        ):
            resolve_setup(load(tmp_path / "mine.toml"))
    else:
        assert (resolve_setup(load(tmp_path / "mine.toml")).federation.moments is None) == (len(shape) > 2)


def test_what_is_written_is_read_again(config, tmp_path_factory):
    found = load(config)
    copy = tmp_path_factory.mktemp("run") / "config.toml"
    copy.write_text(dumps(found))
    assert load(copy) == found.model_copy(update={"name": "mine"})


def test_a_base_has_paths_of_its_own_folder(config):
    (config.parent / "below").mkdir()
    child = config.parent / "below" / "child.toml"
    child.write_text('base = "../mine.toml"\nrounds = 3\n')
    assert load(child).data.dataset == str(config.parent / "patients.csv")


def test_other_partitions_and_unseen_clients(config):
    changes = ["data.partition=dirichlet", "data.clients=3", "data.partition_options={alpha=0.5,minimum=2}"]
    found = load(config, changes)
    assert (found.data.partition, found.data.clients) == ("dirichlet", 3)
    assert resolve_setup(found).federation.clients.id.shape == (1, 3)
    assert load(config, ["data.unseen=1"]).data.clients == 3


def test_a_config_as_a_dictionary(config, monkeypatch):
    monkeypatch.chdir(config.parent)
    raw = {
        "rounds": 1,
        "data": {"dataset": "patients.csv", "label": "ill", "client": "hospital"},
        "model": {"name": "mlp"},
        "local": {"learning_rate": 0.1, "batch_size": 4, "steps": 1},
        "algorithms": [{"name": "fedavg"}],
    }
    assert parse(raw).data.clients == 4
    cells = parse_grid({**raw, "sweep": {"grid": {"local.learning_rate": [0.1, 0.2]}}}).cells
    assert [cell.data.clients for cell in cells] == [4, 4]


def test_a_file_that_changes_is_counted_anew(config):
    assert load(config).data.clients == 4
    table = pandas.read_csv(config.parent / "patients.csv")
    table.assign(hospital=[f"h{i % 8}" for i in range(40)]).to_csv(config.parent / "patients.csv", index=False)
    assert load(config).data.clients == 8


def test_neither_clients_nor_a_partition(config):
    text = TEXT.replace('client = "hospital"\n', "")
    config.write_text(text)
    refuses(lambda: load(config), r"data: expected client, which says whose row it is, or a partition", ConfigError)


def test_nan_is_named(config):
    table = pandas.read_csv(config.parent / "patients.csv")
    table.loc[3, "age"] = np.nan
    table.to_csv(config.parent / "patients.csv", index=False)
    with pytest.raises(ConfigError, match=r"patients\.csv: expected a value in each row of the column 'age', got none"):
        load(config, ["data.standardise=false"])
    load(config)


@pytest.mark.thorough
def test_a_run_knows_the_names_of_its_classes_and_clients(config):
    command.run(config, "--out", config.parent / "run", "--save-models", "last")
    run = fljax.load(config.parent / "run")
    assert run.names.clients == ("h0", "h1", "h2", "h3")
    table = pandas.read_csv(config.parent / "patients.csv")
    logits = run.predict("fedavg", 2, table[["age", "income"]].to_numpy(np.float32))
    assert run.names.classes is not None
    assert {run.names.classes[each] for each in np.argmax(logits, axis=-1).tolist()} <= {"no", "yes"}


MODELS = """
import flax.linen as nn


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(x)


ready = Net()


def forgot(input_shape, classes):
    return Net()
"""


@pytest.mark.parametrize("name", ["Net", "ready"])
def test_a_flax_module_in_place_of_a_model_is_a_sentence(config, monkeypatch, name):
    (config.parent / "modules_of_test_own_data.py").write_text(MODELS)
    monkeypatch.syspath_prepend(config.parent)
    config.write_text(TEXT.replace("logistic_regression", f"modules_of_test_own_data:{name}"))
    with pytest.raises(
        ConfigError, match=r"model.name: expected '.*' to be a function \(input_shape, classes\) that returns"
    ):
        load(config)


def test_a_model_that_is_no_task_is_a_sentence(config, monkeypatch):
    (config.parent / "modules_of_test_own_data.py").write_text(MODELS)
    monkeypatch.syspath_prepend(config.parent)
    config.write_text(TEXT.replace("logistic_regression", "modules_of_test_own_data:forgot"))
    with pytest.raises(ValueError, match=r"expected modules_of_test_own_data:forgot to return a Task, .* got a Net"):
        resolve_setup(load(config))


@pytest.mark.thorough
def test_names_of_clients_that_differ_between_seeds(config):
    text = TEXT.replace('client = "hospital"', 'client = "hospital"\nunseen = 1')
    config.write_text("seeds = 6\n" + text.replace("seeds = 1\n", ""))
    command.run(config, "--out", config.parent / "run")
    run = fljax.load(config.parent / "run")
    assert run.names.clients is None
    assert run.names.classes == ("no", "yes")
    for seed in (0, 5):
        federation = build_world(load(config).model_copy(update={"seeds": (seed,)})).federation
        names = run.names_of(seed)
        assert names == federation.names
        assert sorted((*(names.clients or ()), *(names.unseen or ()))) == ["h0", "h1", "h2", "h3"]
    refuses(lambda: run.names_of(6), "expected a position of a seed below 6, got 6")


@pytest.mark.in_turn
def test_every_model_sees_standardised_features(config, monkeypatch):
    module = config.parent / "nets_of_the_test.py"
    module.write_text(
        "from fljax import models\ndef bare(input_shape, classes):\n    return models.mlp(input_shape, classes)\n"
    )
    monkeypatch.syspath_prepend(config.parent)
    for model in ("nets_of_the_test:bare", "mlp"):
        found = resolve_setup(load(config, [f"model.name={model}"]))
        assert found.federation.moments is not None
        found = resolve_setup(load(config, [f"model.name={model}", "data.standardise=false"]))
        assert found.federation.moments is None


def test_moments_that_an_own_source_gives(config, monkeypatch):
    module = config.parent / "source_of_the_test.py"
    module.write_text(
        "import numpy as np\n"
        "from fljax import data, models\n"
        "def bare(input_shape, classes):\n"
        "    return models.mlp(input_shape, classes)\n"
        "def source(*, folder=None):\n"
        "    made = data.dataset(np.ones((20, 2)), np.arange(20) % 2)\n"
        "    return made._replace(mean=np.ones(2), std=np.ones(2))\n"
    )
    monkeypatch.syspath_prepend(config.parent)
    events: list[Event] = []
    own = ["data.dataset=source_of_the_test:source", "data.partition=iid", "data.clients=4"]
    config.write_text(re.sub(r"(?m)^(label|client) = .*\n", "", config.read_text()))
    resolve_setup(load(config, [*own, "model.name=source_of_the_test:bare"]), EventLog(None, events.append))
    assert re.search("takes no prepare, so it sees the features of .*:source as they are", events[-1].message)
    assert resolve_setup(load(config, own)).task.prepare is not None


def test_rows_to_test_on_are_needed(config):
    rows = pandas.read_csv(config.parent / "patients.csv").iloc[:4]
    rows.to_csv(config.parent / "patients.csv", index=False)
    with pytest.raises(
        ValueError, match="expected clients with test rows, got none: every client has one row at most; test ="
    ):
        experiment.run(load(config))
    with pytest.raises(ValueError, match="expected clients with test rows"):
        sweep.run(load_grid(config, [], ["local.learning_rate=0.1,0.2"]))
    several = pandas.concat([rows] * 4)
    several.to_csv(config.parent / "patients.csv", index=False)
    preparation.check_test_rows(resolve_setup(load(config, ["data.test=global"])).federation)
    made = data.dataset(np.zeros((8, 2)), np.arange(8) % 2)
    single = lambda labels, *, clients, unseen, seed: [[each] for each in range(clients)]  # noqa: E731
    with pytest.raises(ValueError, match="expected clients with test rows"):  # nobody is tested on rows for validation
        preparation.check_test_rows(data.federate(made, single, clients=4, held_fraction=0.4))
    preparation.check_test_rows(data.federate(made, single, clients=4, test="global"))


def test_classes_without_training_rows_are_said(config):
    rows = pandas.read_csv(config.parent / "patients.csv")
    usual = resolve_setup(load(config))
    assert preparation.absent_classes(usual) is None
    more = usual._replace(task=usual.task._replace(classes=4))
    assert preparation.absent_classes(more) == "no client that trains has a training row of 2 of 4 classes: 2, 3"
    rows["split"] = np.where(np.arange(40) < 30, "train", "test")
    rows["ill"] = np.where(rows.split == "train", rows.ill, "perhaps")
    rows.to_csv(config.parent / "patients.csv", index=False)
    found = preparation.absent_classes(resolve_setup(load(config, ["data.part=split", "seeds=2"])))
    assert found == "no client that trains has a training row of 1 of 3 classes in some seed: perhaps"


def test_clients_without_test_rows_are_said(config):
    rows = pandas.read_csv(config.parent / "patients.csv")
    assert preparation.untested_clients(resolve_setup(load(config))) is None
    for tested, words in ((2, None), (1, "3 of 4 clients have no test rows, so metrics over clients leave them out")):
        mine = rows.hospital.isin(sorted(rows.hospital.unique())[:tested]) & rows.hospital.duplicated()
        rows["split"] = np.where(mine, "test", "train")
        rows.to_csv(config.parent / "patients.csv", index=False)
        assert preparation.untested_clients(resolve_setup(load(config, ["data.part=split"]))) == words
    found = preparation.untested_clients(resolve_setup(load(config, ["data.part=split", "seeds=2"])))
    assert found == "6 of 8 clients over all seeds have no test rows, so metrics over clients leave them out"


def test_unseen_clients_by_name(config):
    found = load(config, ['data.unseen=["h2","h0"]'])
    assert (found.data.unseen, found.data.clients) == (("h2", "h0"), 2)
    for seed in (0, 1):
        names = build_world(found.model_copy(update={"seeds": (seed,)})).federation.names
        assert (names.clients, names.unseen) == (("h1", "h3"), ("h0", "h2"))
    copy = config.parent / "copy.toml"
    copy.write_text(dumps(found))
    assert load(copy).data == found.data
    assert difference(dumps(found), dumps(load(config, ['data.unseen=["h1","h0"]']))) is not None


def test_clients_that_are_given_leave_unseen_ones_out(config):
    found = load(config, ['data.unseen=["h2"]', "data.partition=natural", "data.clients=2"])
    names = build_world(found).federation.names
    assert names.unseen == ("h2",)
    assert len(names.clients or ()) == 2


def test_clients_whose_rows_are_all_test_rows_are_unseen(config):
    rows = pandas.read_csv(config.parent / "patients.csv")
    rows["split"] = np.where(rows.hospital == "h3", "test", np.where(np.arange(40) < 20, "train", "test"))
    rows.to_csv(config.parent / "patients.csv", index=False)
    found = load(config, ["data.part=split", "data.unseen=test"])
    assert found.data.clients == 3
    assert build_world(found).federation.names.unseen == ("h3",)
    assert load(config, ["data.part=split"]).data.clients == 3


def test_a_sweep_leaves_each_client_out(config):
    grid = load_grid(config, [], ['data.unseen=["h0"],["h1","h2"],1'])
    assert [cell.data.clients for cell in grid.cells] == [3, 2, 3]
    assert [cell.data.unseen for cell in grid.cells] == [("h0",), ("h1", "h2"), 1]


@pytest.mark.thorough
def test_a_run_and_a_sweep_with_unseen_clients_by_name(config):
    command.run(config, "--out", config.parent / "run", "--set", 'data.unseen=["h2"]')
    run = fljax.load(config.parent / "run")
    assert (run.names.clients, run.names.unseen) == (("h0", "h1", "h3"), ("h2",))
    assert np.isfinite(run.metrics["unseen_average_accuracy"].values).all()
    grid = load_grid(config, [], ['data.unseen=["h0"],["h1"]'])
    found = sweep.run(grid)
    assert found.metrics["data.unseen"].values.tolist() == ['["h0"]', '["h1"]']
    assert np.isfinite(found.metrics["unseen_average_accuracy"].values).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (['data.unseen=["h7"]'], "expected one of the owners h0, h1, h2, h3 as an unseen client, got 'h7'"),
        (["data.unseen=h1"], "data.unseen: expected a number, a list of clients such as ['h1'], or 'test', got 'h1'"),
        (['data.unseen=["h1","h1"]'], "data.unseen: expected a number, a list of different clients by name"),
        (["data.unseen=[]"], "data.unseen: expected a number, a list of different clients by name"),
        (["data.unseen=[true]"], "data.unseen: expected a number, a list of different clients by name"),
        (["data.unseen=1.5"], "data.unseen: expected a number, a list of different clients by name"),
        (["data.unseen=test"], "data.unseen: expected owners whose rows are all test rows"),
        (['data.unseen=["h0","h1","h2","h3"]'], "expected fewer than 4, the number of clients in the data"),
        (['data.unseen=["h0"]', "data.partition=iid", "data.clients=2"], "iid, since only natural chooses clients"),
    ],
)
def test_unseen_clients_that_cannot_be_are_a_sentence(config, changes, words):
    with pytest.raises(ConfigError) as error:
        load(config, changes)
    assert words in str(error.value)
    assert str(error.value).startswith("data.unseen: expected ")
    assert "\n" not in str(error.value)


def test_named_clients_that_the_data_lack_are_a_sentence_when_all_keys_are_given(config):
    given = load(config, ['data.unseen=["h7"]', "data.partition=natural", "data.clients=2"])
    refuses(lambda: build_world(given), "expected one of the owners h0, h1, h2, h3 as an unseen client, got 'h7'")
