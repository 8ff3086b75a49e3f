from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from typing import Literal

import pytest

from fljax import config
from fljax.config import ConfigError, name_resolution
from fljax.config.name_resolution import Registries
from fljax.results.identity import flat
from tests.toys.configs import config_text

ROOT = pathlib.Path(__file__).parent.parents[1]


def fedavg(task, local, *, clients_per_round, server_lr: float = 1.0): ...


def incfl(
    task,
    local,
    *,
    threshold,
    clients_per_round: int,
    server_lr: float | Array = 1.0,  # type: ignore[name-defined]
    surrogate: Literal["sigmoid", "relu"] = "sigmoid",
    limit: int | None = None,
    flag: bool = False,
    matrix: Mapping = {},  # type: ignore[name-defined]  # noqa: B006
): ...


def qffl(task, local, *, q: float): ...


def finetuned(inner, *, steps: int = 5, rates: Float[Array, " N"] | Sequence[float] | float = 0.0): ...  # type: ignore[name-defined]


def digits(folder=None, *, size: int = 8): ...


def cluster_labels(labels, *, clients: int, unseen=0, seed=0, groups: int = 5): ...


def mlp(input_shape, classes, *, prepare=None, hidden=(64,), dropout: float = 0.0): ...


FAKES = Registries(
    algorithms={"fedavg": fedavg, "incfl": incfl, "qffl": qffl},
    scenarios={"finetuned": finetuned},
    datasets={"digits": digits},
    partitioners={"cluster_labels": cluster_labels},
    models={"mlp": mlp},
    contributions={},
)

MINIMAL = config_text(
    'dataset = "digits"\npartition = "cluster_labels"\nclients = 4',
    "fedavg",
    'incfl\nlabel = "incfl.b"\nsurrogate = "relu"\nscenarios = [{name = "finetuned", steps = 3}]',
    head="rounds = 20",
    model="mlp",
    batch_size=8,
)


@pytest.fixture(autouse=True)
def _registries(monkeypatch):
    monkeypatch.setattr(name_resolution, "registries", lambda: FAKES)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(MINIMAL)
    return file


def error(path, *overrides):
    with pytest.raises(ConfigError) as caught:
        config.load(path, overrides)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert caught.value.__cause__ is None
    return sentence


def test_defaults(path):
    loaded = config.load(path)
    assert (loaded.name, loaded.seeds, loaded.evaluate_every, loaded.standalone.steps) == ("tiny", (0,), 2, 100)
    assert loaded.participation.clients_per_round == 4
    assert loaded.execution == config.Execution(clients="auto", seeds="auto")
    first, second = loaded.algorithms
    assert (first.label, first.options, first.scenarios) == ("fedavg", {}, ())
    assert (second.label, second.options) == ("incfl.b", {"surrogate": "relu"})
    assert second.scenarios == (config.Scenario(name="finetuned", options={"steps": 3}),)


def test_round_trip(path, tmp_path):
    overrides = [
        "seeds=[3, 1]",
        "model.hidden=[4, 5]",
        'data.folder="a \\"b\\" \\u00e9"',
        "execution.clients=7",
    ]
    loaded = config.load(path, [*overrides, "data.partition_options.groups=2", "algorithms.incfl.b.matrix={a.b=[1]}"])
    again = tmp_path / "again.toml"
    again.write_text(config.dumps(loaded), encoding="utf-8")
    assert (config.load(again), config.dumps(config.load(again))) == (loaded, config.dumps(loaded))


def test_debug_mode_has_a_short_form(path):
    loaded = config.load(path, ["execution=debug"])
    assert loaded.execution == config.Execution(clients="debug")
    assert config.load(path, ["execution.clients=debug"]) == loaded
    assert error(path, "execution=fast").startswith("execution: expected a table, got 'fast'")


def test_overrides(path):
    overrides = [
        "seeds=3",
        "data.test=global",
        "algorithms.incfl.b.server_lr=2",
        "local.options.momentum=0.9",
    ]
    loaded = config.load(path, overrides)
    assert (loaded.seeds, loaded.data.test) == ((0, 1, 2), "global")
    assert loaded.algorithms[1].options == {"surrogate": "relu", "server_lr": 2.0}
    assert loaded.local.options == {"momentum": 0.9}


def test_epochs_instead_of_steps(path):
    path.write_text(MINIMAL.replace("steps = 2", "epochs = 2"))
    loaded = config.load(path, ["standalone.epochs=5"])
    assert (loaded.local.steps, loaded.local.epochs) == (None, 2)
    assert (loaded.standalone.steps, loaded.standalone.epochs) == (None, 5)


def test_more_clients_per_round_than_clients_is_allowed(path):
    assert config.load(path, ["participation.clients_per_round=9"]).participation.clients_per_round == 9


def test_provided_parameters_may_be_overridden_by_numbers(path):
    loaded = config.load(path, ["algorithms.incfl.b.threshold=1", "algorithms.incfl.b.clients_per_round=3"])
    assert loaded.algorithms[1].options == {"surrogate": "relu", "threshold": 1.0, "clients_per_round": 3}


def test_import_path(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_config_module.py").write_text("def mine(task, local, *, alpha: float): ...\n")
    loaded = config.load(path, ["algorithms.fedavg.alpha=1", "algorithms.fedavg.name=my_config_module:mine"])
    assert loaded.algorithms[0].options == {"alpha": 1.0}
    assert "my_config_module:mine.alpha" in error(path, "algorithms.fedavg.name=my_config_module:mine")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["round=3"], r"round: expected one of the keys name, seeds, .* got 'round' \(did you mean 'rounds'\?\)"),
        (["data.clents=3"], r"data.clents: expected one of the keys .* \(did you mean 'clients'\?\)"),
        (["rounds=-1"], "rounds: expected a number of at least 0, got -1"),
        (["rounds=1.5"], "rounds: expected an integer, got 1.5"),
        (["rounds=many"], "rounds: expected an integer, got 'many'"),
        (["evaluate_every=0"], "evaluate_every: expected a number above 0, got 0"),
        (["data.clients=0"], "data.clients: expected a number above 0, got 0"),
        (["data.unseen=-1"], "data.unseen: expected a number of at least 0, got -1"),
        (["data.train_fraction=1"], "data.train_fraction: expected a number below 1, got 1"),
        (["data.test=globl"], r"data.test: expected one of the values own, global, got 'globl' \(did .*'global'"),
        (["data.dataset=digit"], r"data.dataset: expected one of the datasets digits, .*'digits'\?"),
        (["data.partition=cluster"], "data.partition: expected one of the partitions cluster_labels, got 'cluster'"),
        (["data.partition_options.group=2"], r"partition_options: expected one of the options groups, .*'groups'\?"),
        (["data.partition_options.groups=two"], "partition_options.groups: expected an integer, got 'two'"),
        (["data.dataset_options.sise=2"], r"data.dataset_options: expected one of the options .*'size'\?"),
        (["model.name=mlpp"], r"model.name: expected one of the models mlp, got 'mlpp' \(did you mean 'mlp'\?\)"),
        (["model.hiden=3"], r"model: expected one of the options hidden, dropout, got 'hiden' .*'hidden'\?"),
        (["model=3"], "model: expected a table, got 3"),
        (["metrics.opt_out_threshold=much"], "opt_out_threshold: expected a .*number or a list of them, got 'much'"),
        (["metrics.extra=['objektive']"], r"metrics.extra: .*, got 'objektive' \(did you mean 'objective'\?\)"),
        (
            ["metrics.extra=['valid_global_model_appeal']", "data.valid_fraction=0"],
            "valid_fraction to be positive for valid_global_model_appeal, got 0",
        ),
        (["metrics.opt_out_threshold=[0, nan]"], r"opt_out_threshold.1: expected a number, got nan"),
        (["metrics.opt_out_threshold=[0, true]"], r"expected a finite number or a list of them, got \[0, True\]"),
        (["metrics.opt_out_threshold=[0, 0.1]"], "opt_out_threshold: expected numbers of .* clients, got 2"),
        (["local.epochs=2"], "local: expected exactly one of steps and epochs, got steps = 2 and epochs = 2"),
        (["local.batch_size=0"], "local.batch_size: expected a number above 0"),
        (["local.learning_rate=-0.1"], "local.learning_rate: expected a number above 0, got -0.1"),
        (["local.learning_rate=inf"], "local.learning_rate: expected a finite number, got inf"),
        (["local.weight_decay=-1"], "local.weight_decay: expected a number of at least 0"),
        (["standalone.weight_decay=-1"], "standalone.weight_decay: expected a number of at least 0"),
        (["standalone.decay=0.9"], "standalone.decay: expected one of the keys steps, .* stop, got 'decay'"),
        (["local.optimizer=sdg"], r"local.optimizer: .*\(did you mean 'sgd'\?\)"),
        (["local.keep=2"], "local.keep: expected true or false, got 2"),
        (["local.clip_norm=0"], "local.clip_norm: expected a number above 0, got 0"),
        (["local.schedule={name='cosine'}"], "local.schedule: expected one of the schedules .*, got 'cosine'"),
        (["local.schedule={decay_steps=5}"], "local.schedule.name: expected a value"),
        (["local.options.momentun=0.9"], r"local.options: .*\(did you mean 'momentum'\?\)"),
        (["standalone.steps=3", "standalone.epochs=2"], "standalone: expected at most one of steps and epochs"),
        (["participation.clients_per_round=0"], "participation.clients_per_round: expected a number above 0"),
        (["execution.clients=fast"], "execution.clients: expected 'auto', .*'vmap', 'scan' or a positive chunk size"),
        (["execution.seeds=0"], "execution.seeds: expected 'auto', 'vmap', 'scan' or a positive chunk size, got 0"),
        (["seeds=0"], "seeds: expected a positive number of seeds or a list of different integers >= 0, got 0"),
        (["seeds=[1, 1]"], r"seeds: expected a positive number of seeds .* got \[1, 1\]"),
        (["seeds=true"], "seeds: expected a positive number of seeds .* got True"),
        (["name=a/b"], "name: expected a name of letters"),
        (["algorithms=[]"], "algorithms: expected at least 1 of them"),
        (["algorithms.incfl.b.label=fedavg"], "expected a different label for each .* got 'fedavg' twice"),
        (["algorithms.incfl.b.server=2"], r"algorithms.incfl.b: expected one of the hyper-parameters .*'server_lr'"),
        (["algorithms.incfl.b.task=2"], "algorithms.incfl.b: expected one of the hyper-parameters"),
        (["algorithms.incfl.b.server_lr=fast"], "incfl.b.server_lr: expected a number, got 'fast'"),
        (["algorithms.incfl.b.flag=1"], "incfl.b.flag: expected true or false, got 1"),
        (["algorithms.incfl.b.limit=1.5"], "incfl.b.limit: expected an integer, got 1.5"),
        (["algorithms.incfl.b.surrogate=rellu"], r"surrogate: expected one of the values sigmoid, relu, .*'relu'\?"),
        (["algorithms.incfl.b.threshold=high"], "incfl.b.threshold: expected a number, got 'high'"),
        (["algorithms.incfl.b.clients_per_round=0"], "incfl.b.clients_per_round: expected a number above 0, got 0"),
        (["algorithms.incfl.x=0"], "algorithms: expected one of the labels fedavg, incfl.b, got 'incfl'"),
        (["algorithms.fedavg=0"], "expected an override 'algorithms.fedavg.key=value'"),
        (["algorithms.fedavg.name=fedavgg"], r"algorithms.fedavgg: expected one of the algorithms .*'fedavg'\?"),
        (["algorithms.fedavg.name=qffl"], "algorithms.qffl.q: expected a value .there is no default., got none"),
        (["algorithms.fedavg.name=3"], "algorithms.3.name: expected text in quotes, got 3"),
        (["algorithms.fedavg.scenarios=[{name='finetund'}]"], r"scenarios.finetund: expected .*'finetuned'\?"),
        (["algorithms.fedavg.scenarios=[{name='finetuned', step=1}]"], r"scenarios.finetuned: .*'steps'\?"),
        (
            ["algorithms.fedavg.scenarios=[{name='finetuned', rates=[0.5, 'half']}]"],
            "finetuned.rates: expected a number, got 'half'",
        ),
        (
            ["algorithms.fedavg.scenarios=[{name='finetuned', rates=true}]"],
            "finetuned.rates: expected a list or a number or a table, got True",
        ),
        (["algorithms.fedavg.scenarios=[{steps=1}]"], "algorithms.fedavg.scenarios.0.name: expected a value"),
        (["algorithms.fedavg.scenarios=3"], "algorithms.fedavg.scenarios: expected a list, got 3"),
        (["algorithms.fedavg.name=no_such_module:x"], "there is no module 'no_such_module'"),
        (["rounds"], "expected an override 'table.key=value', got 'rounds'"),
        (["rounds.x=3"], "expected 'rounds' in the override 'rounds.x=3' to be a table, got 20"),
    ],
)
def test_sentences(path, overrides, sentence):
    assert re.search(sentence, error(path, *overrides)), error(path, *overrides)


def test_missing_key(path):
    path.write_text(MINIMAL.replace("clients = 4", ""))
    assert error(path) == "data.clients: expected a value (there is no default), got none"


def test_neither_steps_nor_epochs(path):
    path.write_text(MINIMAL.replace("steps = 2", ""))
    assert error(path) == "local: expected exactly one of steps and epochs, got neither"


def test_files_that_cannot_be_read(path, tmp_path):
    assert "expected a config file, got" in error(tmp_path / "none.toml")
    path.write_text("rounds = ")
    assert "expected valid TOML in" in error(path)
    path.write_bytes(b"\xff")
    assert "expected valid TOML in" in error(path)


def test_a_base_is_joined_table_by_table(path, tmp_path):
    (tmp_path / "sub").mkdir()
    above = tmp_path / "sub" / "above.toml"
    above.write_text(
        f'base = "../{path.name}"\nrounds = 7\n[data]\nclients = 9\n[[algorithms]]\nname = "qffl"\nq = 1.0\n'
    )
    found, below = config.load(above), config.load(path)
    assert (found.rounds, found.data.clients, found.data.dataset) == (7, 9, below.data.dataset)
    assert [entry.label for entry in found.algorithms] == ["qffl"]
    assert found.local == below.local
    assert config.load(above, ["data.clients=3"]).data.clients == 3


def test_bases_that_are_wrong(path, tmp_path):
    text = path.read_text()
    path.write_text(f'base = "{path.name}"\n{text}')
    assert "expected bases that end, got" in error(path)
    path.write_text(f'base = "nothing.toml"\n{text}')
    assert "expected a config file, got" in error(path)
    path.write_text(f"base = 3\n{text}")
    assert error(path) == "base: expected the path of a config file, got 3"


def test_scenarios_of_all_algorithms(path):
    found = config.load(path, ['scenarios=[{name="finetuned", steps=3}]'])
    assert [(each.name, each.options) for each in found.scenarios] == [("finetuned", {"steps": 3})]
    assert config.parse(tomllib.loads(config.dumps(found))) == found
    path.write_text(path.read_text() + '[[scenarios]]\nname = "finetuned"\n')
    assert config.load(path, ["scenarios.finetuned.steps=4"]).scenarios[0].options == {"steps": 4}
    assert "scenarios.finetuned" in error(path, "scenarios.finetuned.pace=4")
    assert "expected one of the labels finetuned" in error(path, "scenarios.tuned.steps=4")


def test_options_may_be_a_number_or_one_for_each_client(path):
    for value in (0.5, [0.5, 1.0]):
        found = config.load(path, [f'scenarios=[{{name="finetuned", rates={value}}}]'])
        assert found.scenarios[0].options == {"rates": value}
        assert config.parse(tomllib.loads(config.dumps(found))) == found


def test_an_algorithm_may_train_in_its_own_way(path):
    found = config.load(path, ["algorithms.fedavg.local={learning_rate=0.5, epochs=2}"])
    own = found.algorithms[0].local
    assert (own.learning_rate, own.epochs, own.steps) == (0.5, 2, None)
    assert config.parse(tomllib.loads(config.dumps(found))) == found
    assert "expected at most one of steps and epochs" in error(path, "algorithms.fedavg.local={steps=1, epochs=2}")
    assert "expected one of the keys" in error(path, "algorithms.fedavg.local={rate=1.0}")


def test_the_servers_optimizer_is_checked_before_anything_runs(path, monkeypatch):
    monkeypatch.undo()
    set_to = lambda value: f"algorithms.fedavg.server_optimizer={value}"  # noqa: E731
    config.load(path, [set_to('"adam"')])
    config.load(path, [set_to('{name="sgd", momentum=0.9}')])
    where = r"algorithms\.fedavg\.server_optimizer"
    assert re.search(rf"{where}: expected one of the optimizers .*'adamm'", error(path, set_to('"adamm"')))
    assert re.search(rf"{where}: expected .*'momentun'", error(path, set_to('{name="sgd", momentun=0.9}')))
    assert re.search(rf"{where}: expected the name of an optimizer", error(path, set_to("{momentum=0.9}")))


def test_an_algorithm_that_asks_everybody(path, monkeypatch):
    monkeypatch.undo()
    text = path.read_text().replace("[[algorithms]]", '[[algorithms]]\nname = "afl"\n[[algorithms]]', 1)
    path.write_text(text)
    config.load(path)
    sentence = error(path, "participation.clients_per_round=3")
    assert sentence == "algorithms.afl.clients_per_round: expected all 4 clients, which afl asks, got 3"


def test_what_processes_compare_of_a_config():
    text = '[data]\ndataset = "a"\n[model]\ndropout = {}\n[data.dataset_options]\nimages = "/a/b"\nlabel = "y"\n'
    first, second = flat('save_models = "last"\n' + text.format(0.1)), flat(text.format(0.2))
    assert first == {"model.dropout": "0.1", "data.dataset_options.label": "'y'"}
    assert [key for key in first if first[key] != second[key]] == ["model.dropout"]


@pytest.mark.in_turn
def test_configs_are_read_without_the_engine() -> None:
    """Commands that only read run folders start sooner."""
    program = "import sys, fljax.config; sys.exit('fljax.engine' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
