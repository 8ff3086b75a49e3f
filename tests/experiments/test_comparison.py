"""Models of ``fljax.compare`` in a folder: what is written, and what the caller gives to use them again."""

from __future__ import annotations

import copy
import json
import pathlib
import pickle
import shutil
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

import fljax
from fljax import algorithms, data
from fljax import config as configuration
from fljax.experiments.inputs.setup import with_initial
from fljax.protocol import Names
from tests.refusals import refuses
from tests.toys.configs import BASE
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_programs")]

TASK, LOCAL = logistic_regression(), fljax.Local(0.1, 2, steps=2)
X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
MINE = algorithms.fedavg(TASK, LOCAL, clients_per_round=3)
PLAN = fljax.Plan(algorithms.fedprox, {"task": TASK, "local": LOCAL, "clients_per_round": 3, "mu": 0.5})
# One with values by seed, one that trains on the client's rows when it is used, and two that run as they are.
ENTRIES: dict[str, Any] = {
    "iafl": ("iafl", {"kappa": 0.5}),
    "a:b/c": ("fedavg_finetune", {"local": LOCAL._replace(learning_rate=0.3)}),
    "plan": PLAN,
    "value": MINE,
}
OWN = "a:b/c"
GIVEN: dict[str, Any] = {"algorithms": ENTRIES, "task": TASK, "local": LOCAL}


def federations() -> list[fljax.Federation]:
    """One for each seed, whose clients have other names."""
    named = [Names(clients=tuple(f"{seed}{client}" for client in range(5))) for seed in range(2)]
    found = [tiny_federation(0), tiny_federation(1)]
    return [each._replace(names=names) for each, names in zip(found, named, strict=True)]


@pytest.fixture(scope="module")
def found() -> fljax.Comparison:
    how: Any = {"rounds": 2, "seeds": 2, "clients_per_round": 3, "progress": False, "standalone": LOCAL}
    return fljax.compare(ENTRIES, federations(), TASK, LOCAL, **how)


@pytest.fixture(scope="module")
def folder(found: fljax.Comparison, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return found.save(tmp_path_factory.mktemp("saved") / "run", models="last")


def same(run: Any, found: fljax.Comparison, label: str) -> None:
    for arguments in ({"client": 0}, {"client": 2, "seed": 1}, {"client": 1, "unseen": True, "seed": 1}):
        expected = found.results[label].predict(x=X, **arguments)
        np.testing.assert_array_equal(run.predict(label, x=X, **arguments), expected)


@pytest.mark.parametrize("label", [label for label in ENTRIES if label != OWN])
def test_models_predict_as_before(found: fljax.Comparison, folder: pathlib.Path, label: str) -> None:
    run = fljax.load(folder, **GIVEN)
    same(run, found, label)
    assert run.models(label).state.round.tolist() == [2, 2]
    assert run.models(label) is run.models(label)


@pytest.mark.thorough
def test_a_model_that_needs_rows_asks_for_the_federation(found: fljax.Comparison, folder: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"expected the federation of the comparison .*load\(\.\.\., federation=fed"):
        fljax.load(folder, **GIVEN).predict(OWN, 0, X)
    for given in (federations(), data.stack(federations())):
        same(fljax.load(folder, **GIVEN, federation=given), found, OWN)
    others: list[Any] = [tiny_federation(0), federations()[::-1]]
    for other in others:
        with pytest.raises(ValueError, match="expected the federation of the comparison, got one with other rows"):
            fljax.load(folder, **GIVEN, federation=other).models(OWN)
    with pytest.raises(ValueError, match="expected federation to be a Federation, got"):
        fljax.load(folder, **GIVEN, federation=X)  # type: ignore[arg-type]


def test_training_goes_on(found: fljax.Comparison, folder: pathlib.Path) -> None:
    state = fljax.load(folder, **GIVEN).models("plan").state
    how: Any = {"rounds": 1, "seeds": 2}
    more, expected = (
        fljax.simulate(PLAN, data.stack(federations()), initial=each, **how)
        for each in (state, found.results["plan"].state)
    )
    np.testing.assert_array_equal(more.metrics["test_loss"], expected.metrics["test_loss"])


def test_a_config_starts_from_a_saved_comparison(found: fljax.Comparison, folder: pathlib.Path) -> None:
    started = with_initial(TASK, f"{folder}:value", seed=1)
    expected = found.results["value"].deployed(0, seed=1)
    np.testing.assert_array_equal(started.init(jax.random.key(0)).weight, expected.weight)
    refuses(lambda: with_initial(TASK, f"{folder}:value"), r"expected model\.initial_seed, one of the seeds \[0, 1\]")
    refuses(lambda: with_initial(TASK, str(folder)), "expected a run folder with a label")


def test_the_folder_says_what_it_has(found: fljax.Comparison, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run = fljax.load(folder)
    assert run.metrics.identical(found.metrics)
    assert repr(run).endswith("2 seeds, 2 rounds, models: last>")
    assert [run.names_of(seed).clients for seed in range(2)] == [each.names.clients for each in federations()]
    assert run.names.clients is None
    without = fljax.load(found.save(tmp_path / "without"))
    assert repr(without).endswith("models: none>")
    for refused in (lambda: without.names, lambda: without.names_of(1)):
        refuses(refused, r"expected names in .*which Comparison.save\(folder, models='last'\) wri")
    with pytest.raises(ValueError, match=r"expected models in .*which Comparison.save\(folder, models='last'\) writes"):
        fljax.load(tmp_path / "without", **GIVEN).models("plan")
    with pytest.raises(ValueError, match=r"which Comparison.save\(folder, models='last'\) writes, got no such file"):
        with_initial(TASK, f"{tmp_path / 'without'}:value")


def test_no_file_and_no_pickle_has_rows(found: fljax.Comparison, folder: pathlib.Path) -> None:
    content = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    for path in folder.rglob("*.npz"):
        with np.load(path, allow_pickle=False) as file:
            content += b"".join(file[name].tobytes() for name in file.files)
    content += pickle.dumps(found) + pickle.dumps(found.results)
    rows = np.asarray(data.stack(federations()).examples.x)
    assert np.isfinite(rows).all(axis=1).sum() > 10
    for row in rows[np.isfinite(rows).all(axis=1)]:
        assert row.tobytes() not in content
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.results["iafl"].predict(0, X), found.results["iafl"].predict(0, X))


def test_a_pickle_cannot_be_saved_with_models(found: fljax.Comparison, tmp_path: pathlib.Path) -> None:
    again = pickle.loads(pickle.dumps(found))
    with pytest.raises(ValueError, match=r"expected results with their data, .*got those of a pickle"):
        again.save(tmp_path / "run", models="last")
    assert not (tmp_path / "run").exists()
    assert fljax.load(again.save(tmp_path / "run")).labels == found.labels


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"local": LOCAL._replace(learning_rate=0.2)}, "local.learning_rate is 0.1 there and 0.2 here"),
    ({"algorithms": ENTRIES | {"iafl": ("iafl", {"kappa": 0.25})}}, "iafl.kappa is 0.5 there and 0.25 here"),
    ({"algorithms": ENTRIES | {OWN: "fedavg_finetune"}}, "local.learning_rate is 0.3 there and not set here"),
    ({"algorithms": {"iafl": "iafl"}}, "expected the algorithms iafl, a:b/c, plan, value of the comparison, got iafl"),
    ({"task": LOCAL, "local": TASK}, "expected task to be a Task, got Local"),
    ({"local": {}}, "expected local to be a Local, got dict"),
    ({"algorithms": "iafl"}, "expected a list of algorithms, or algorithms by label, got 'iafl'"),
    ({"algorithms": ENTRIES | {"iafl": "iafll"}}, "expected one of the algorithms .*, got 'iafll'"),
    (
        {"algorithms": ENTRIES | {"plan": PLAN._replace(arguments=dict(PLAN.arguments) | {"mu": 0.25})}},
        "expected plan as the comparison had it, got another: numbers of the algorithm differ",
    ),
    (
        {"algorithms": ENTRIES | {"plan": PLAN._replace(arguments=dict(PLAN.arguments) | {"clients_per_round": 2})}},
        "expected plan as the comparison had it, got another: clients_per_round is 3 there and 2 here",
    ),
    (
        {"algorithms": ENTRIES | {"value": algorithms.fedavg(TASK, LOCAL._replace(decay=0.5), clients_per_round=3)}},
        "expected value as the comparison had it, got another: numbers in the algorithm's functions differ",
    ),
    (
        {"task": TASK._replace(logits=lambda model, x, key=None: 2.0 * TASK.logits(model, x))},
        "expected the task of the comparison, got one that computes otherwise",
    ),
    (
        {"task": TASK._replace(prepare=lambda x: x - np.array([[1.0, 2, 3, 4]], np.float32))},
        "expected the task of the comparison, got one that computes otherwise",
    ),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("changes", "words"), OTHERS)
def test_what_did_not_make_the_models_is_refused(folder: pathlib.Path, changes: dict[str, Any], words: str) -> None:
    label = next((name for name in ("plan", "value") if name in words.split()), "iafl")
    refuses(lambda: fljax.load(folder, **GIVEN | changes).models(label), words)


@pytest.mark.unchecked
def test_another_jax_writes_other_programs(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The checksum of a task is of one version of JAX, so that another version is not a reason to refuse."""
    shutil.copytree(folder, tmp_path / "run")
    path = tmp_path / "run" / "comparison.toml"
    text = path.read_text()
    assert 'jax = "' in text
    path.write_text(text.replace('jax = "', 'jax = "0.0, before ').replace("checksum = ", "checksum = 1"))
    assert fljax.load(tmp_path / "run", **GIVEN).predict("plan", 0, X).shape == (3, 3)


@pytest.mark.unchecked
def test_models_of_another_precision_are_loaded(folder: pathlib.Path) -> None:
    expected = fljax.load(folder, **GIVEN).predict("iafl", 0, X)
    jax.config.update("jax_enable_x64", True)
    try:
        found = fljax.load(folder, **GIVEN).predict("iafl", 0, X)
    finally:
        jax.config.update("jax_enable_x64", False)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_is_missing_is_one_sentence(folder: pathlib.Path) -> None:
    run = fljax.load(folder)
    with pytest.raises(ValueError, match=r"a folder has no code, as in fljax.load\(folder, algorithms=\.\.\., task="):
        run.predict("plan", 0, X)
    refuses(lambda: run.models("plann"), "expected one of the labels iafl, a:b/c, plan, value, got 'plann'")
    requests: list[dict[str, Any]] = [{"which": "best"}, {"round": 1}]
    for asked in requests:
        with pytest.raises(ValueError, match="expected which='last', since a comparison has the models after the last"):
            run.models("plan", **asked)
    with pytest.raises(ValueError, match=r"expected algorithms, task and local together, .*got no task and no local"):
        fljax.load(folder, algorithms=ENTRIES)
    refuses(lambda: fljax.load(folder, federation=federations()), "got no algorithms and no task and no local")


@pytest.mark.thorough
def test_saving_again_leaves_no_old_models(found: fljax.Comparison, tmp_path: pathlib.Path) -> None:
    place = found.save(tmp_path / "run", models="last")
    for models in ("last", "none"):
        with pytest.warns(UserWarning, match="has results already"):
            assert found.save(place, models=models) != place
    (place / "models" / "mine.txt").touch()
    part = found._replace(metrics=found.metrics.sel(algorithm=["iafl"]), results={"iafl": found.results["iafl"]})
    part.save(place, models="last", overwrite=True)
    assert sorted(path.name for path in (place / "models").iterdir()) == ["iafl.npz", "mine.txt"]
    part.save(place, overwrite=True)
    assert [path.name for path in (place / "models").iterdir()] == ["mine.txt"]
    assert not (place / "data.npz").exists()
    refuses(lambda: part.save(place, overwrite=True), "expected a folder that no run writes to")


@pytest.mark.unchecked
def test_what_save_refuses_is_refused_before_anything_is_written(found, tmp_path):
    results = {label: each for label, each in found.results.items() if label != "plan"}
    cases: list[tuple[Any, Any, str]] = [
        (found, "lasst", "expected models to be 'none' or 'last', got 'lasst'"),
        (found._replace(results=results), "last", "expected the models of all algorithms, got none of plan"),
        (found._replace(outline={}), "last", "expected a comparison of fljax.compare or fljax.run_config"),
    ]
    for comparison, models, words in cases:
        with pytest.raises(ValueError, match=words):
            comparison.save(tmp_path / "run", models=models)
        assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_models_of_a_config_need_nothing_more(tmp_path: pathlib.Path) -> None:
    raw = copy.deepcopy(BASE)
    mine = fljax.run_config(raw, ["rounds=2"], progress=False)
    folder = mine.save(tmp_path / "copy", models="last")
    run = fljax.load(folder)
    assert run.config.save_models == "last"
    label = run.labels[0]
    x = np.zeros((2, *mine.results[label].deployed.parts()[0][1].federation.examples.x.shape[1:]), np.float32)
    np.testing.assert_array_equal(run.predict(label, 0, x), mine.results[label].predict(0, x))
    assert configuration.load(folder / "config.toml") == run.config
    with pytest.raises(ValueError, match="expected no algorithms, task or local training for a folder with a config"):
        fljax.load(folder, **GIVEN)


@pytest.mark.thorough
def test_another_process_predicts(tmp_path: pathlib.Path) -> None:
    """The functions of a notebook are those of another module on the next day."""
    code = """
import json, sys
import fljax
from fljax import data, models

blobs = data.load("blobs")
task = models.logistic_regression(blobs.x.shape[1:], blobs.classes)
local = fljax.Local(0.1, 8, steps=2)
entries = ["fedavg", ("iafl", {"kappa": 0.5})]
if sys.argv[1] == "train":
    federation = data.federate(blobs, "iid", clients=4)
    found = fljax.compare(entries, federation, task, local, rounds=2, progress=False)
    found.save("run", models="last")
    predict = lambda label: found.results[label].predict(1, blobs.x[:2])
else:
    run = fljax.load("run", algorithms=entries, task=task, local=local)
    predict = lambda label: run.predict(label, 1, blobs.x[:2])
print(json.dumps({label: predict(label).tolist() for label in ("fedavg", "iafl")}))
"""
    (tmp_path / "today.py").write_text(code)
    (tmp_path / "tomorrow.py").write_text("import today")

    def call(*words: str) -> Any:
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    trained, again = call("today.py", "train"), call("tomorrow.py", "predict")
    assert trained == again
