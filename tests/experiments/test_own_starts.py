"""Standalone models that start from weights of their own: ``standalone(initial="own")``, ``compare`` and configs."""

from __future__ import annotations

import tomllib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import config, models, training
from fljax.config import ConfigError, parse_grid
from fljax.core import trees
from fljax.engine import Execution, estimate_standalone, standalone
from fljax.engine.rounds.states import Purpose, client_key, round_key
from fljax.experiments import run as experiment
from fljax.experiments import sweep
from fljax.experiments.inputs.setup import resolve_setup
from fljax.models.starting import is_given
from fljax.protocol import Federation, Rows, Subset
from fljax.testing.federation import logistic_regression, tiny_federation
from tests.laws.compare import assert_close, assert_same
from tests.refusals import refuses
from tests.toys.configs import BASE

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_programs")]

TASK, LOCAL = logistic_regression(), fljax.Local(0.3, 3, steps=2)
STILL = LOCAL._replace(learning_rate=1e-30)
FEDERATION = tiny_federation()
SEEDS = (3, 5)
NAMES = ("threshold", "test_loss", "unseen_threshold", "unseen_test_loss")


@pytest.fixture(scope="module")
def own() -> Any:
    """Every client from its own weights, all of them side by side."""
    return alone(execution=Execution(7))


def alone(federation: Federation = FEDERATION, task: Any = TASK, local: Any = LOCAL, **how: Any) -> Any:
    given: dict[str, Any] = {"seeds": SEEDS, "initial": "own", "keep_models": True} | how
    return standalone(task, federation, local, **given)


def start(seed: int, id: int, purpose: Purpose = Purpose.INIT_STANDALONE) -> Any:
    return TASK.init(client_key(round_key(jnp.uint32(seed), purpose), jnp.int32(id)))


@jax.jit
def by_hand(key: Any, params: Any, rows: Rows) -> tuple[Any, Any]:
    """The trained model, and its loss on all of these rows."""
    own = Subset(FEDERATION.examples, rows)
    model = training.train(key, params, own, task=TASK, local=LOCAL).params
    loss, _ = training.evaluate(TASK, lambda x: TASK.logits(model, x), own)
    return model, loss


def test_clients_start_from_different_models() -> None:
    """Before they have learned anything; those of one seed are equal otherwise."""
    models_of = {name: alone(local=STILL, initial=name).params for name in ("own", "shared")}
    for seed, number in enumerate(SEEDS):
        assert_close(trees.take(models_of["own"], seed), jax.tree.map(lambda *rows: jnp.stack(rows), *starts(number)))
        weights = np.asarray(models_of["own"].weight[seed])
        assert all(not np.allclose(weights[one], weights[other]) for one in range(5) for other in range(one))
        shared = np.asarray(models_of["shared"].weight[seed])
        np.testing.assert_allclose(shared, np.broadcast_to(shared[0], shared.shape), atol=1e-20)


def starts(seed: int) -> list[Any]:
    return [start(seed, id) for id in range(5)]


def test_a_client_trains_from_its_own_weights(own: Any) -> None:
    """Seen and unseen ones, whose ids are numbers of their own."""
    place = np.argsort(np.asarray(FEDERATION.clients.id))
    for seed, number in enumerate(SEEDS):
        for id in range(5):
            key = client_key(round_key(jnp.uint32(number), Purpose.STANDALONE), jnp.int32(id))
            model, loss = by_hand(key, start(number, id), trees.take(FEDERATION.clients.train, place[id]))
            assert_close(jax.tree.map(lambda leaf: leaf[seed, id], own.params), model)  # noqa: B023
            np.testing.assert_allclose(own.threshold[seed, id], loss, rtol=1e-5)
        assert FEDERATION.unseen is not None
        for id in range(2):
            key = client_key(round_key(jnp.uint32(number), Purpose.UNSEEN_STANDALONE), jnp.int32(id))
            begin = start(number, id, Purpose.UNSEEN_INIT_STANDALONE)
            _, loss = by_hand(key, begin, trees.take(FEDERATION.unseen.train, id))
            np.testing.assert_allclose(own.unseen_threshold[seed, id], loss, rtol=1e-5)
    assert not np.array_equal(start(3, 1).weight, start(3, 1, Purpose.UNSEEN_INIT_STANDALONE).weight)


@pytest.mark.parametrize(
    "execution",
    [
        pytest.param(Execution(1), id="one at a time"),
        pytest.param(Execution(3, seeds=1), id="three at a time"),
        pytest.param(Execution(2, examples="host"), id="on the host"),
        pytest.param(Execution("debug"), id="debug", marks=pytest.mark.thorough),
    ],
)
def test_it_does_not_matter_how_clients_are_computed(execution: Execution, own: Any) -> None:
    assert_close(alone(execution=execution), own)


def test_it_does_not_matter_who_else_is_there(own: Any) -> None:
    """Clients without unseen ones, with one seed, and stored in another order."""
    found = alone(FEDERATION._replace(unseen=None), seeds=(5,))
    assert_close(trees.take(found.params, 0), trees.take(own.params, 1))
    order = np.array([4, 1, 0, 3, 2])
    assert_close(alone(FEDERATION._replace(clients=trees.take(FEDERATION.clients, order))), own)


def test_the_default_is_one_model_for_all(own: Any) -> None:
    expected = standalone(TASK, FEDERATION, LOCAL, seeds=SEEDS, keep_models=True)
    assert_same(alone(initial="shared"), expected)
    assert not np.allclose(own.threshold, expected.threshold)


def test_its_memory_is_estimated() -> None:
    found = estimate_standalone(TASK, FEDERATION, LOCAL, seeds=SEEDS, initial="own", execution=Execution(7))
    assert found.data > 0
    with pytest.raises(ValueError, match="expected shared initial weights"):
        estimate_standalone(models.start_from(TASK, TASK.init(jax.random.key(0))), FEDERATION, LOCAL, initial="own")


@pytest.mark.quick
@pytest.mark.unchecked
@pytest.mark.parametrize("initial", ["mine", "", None])
def test_unknown_names_are_refused(initial: Any) -> None:
    message = f"^expected initial weights of standalone models to be shared or own, got {initial!r}$"
    for run in (standalone, estimate_standalone):
        with pytest.raises(ValueError, match=message):
            run(TASK, FEDERATION, LOCAL, initial=initial)
    refuses(lambda: compare(initial), message)


def test_given_parameters_are_refused() -> None:
    """They are the start of all models, also where only the layers that are not frozen are given."""
    params = TASK.init(jax.random.key(1))
    part = models.mlp((4,), 3, hidden=(5,))
    first, *_ = trees.paths_of(part.init(jax.random.key(0)))
    frozen, drawn = (
        models.freeze(part, part.init(jax.random.key(0)), lambda path: path == first, draw=draw)
        for draw in (False, True)
    )
    assert [is_given(each) for each in (TASK, part, drawn, frozen, models.start_from(TASK, params))] == [
        False,
        False,
        False,
        True,
        True,
    ]
    message = "^expected shared initial weights for a task that starts from given parameters, got 'own'$"
    refuses(lambda: alone(task=models.start_from(TASK, params)), message)
    refuses(lambda: compare("own", models.start_from(TASK, params)), message)


def compare(initial: Any, task: Any = TASK) -> fljax.Comparison:
    how: dict[str, Any] = {"rounds": 1, "seeds": SEEDS, "progress": False, "standalone_initial": initial}
    return fljax.compare(["fedavg"], FEDERATION, task, LOCAL, standalone=LOCAL, **how)


def test_a_comparison_hands_it_on(own: Any) -> None:
    found = compare("own")
    for name in NAMES:
        stored = name.replace("test", "standalone_test")
        np.testing.assert_allclose(found.metrics[stored].values, getattr(own, name), rtol=1e-5, err_msg=name)
    assert tomllib.loads(found.origin["comparison.toml"])["standalone_initial"] == "own"


def written(**changes: Any) -> config.Config:
    """The config, after it was written and read again."""
    parsed = config.parse(BASE | changes, name="tiny")
    assert config.parse(tomllib.loads(config.dumps(parsed))) == parsed
    return parsed


@pytest.mark.quick
def test_a_key_of_a_config() -> None:
    assert written().standalone.initial == "shared"
    assert 'initial = "shared"' in config.dumps(written())
    setup = resolve_setup(written(standalone={"steps": 3, "initial": "own"}))
    assert (setup.standalone_initial, setup.standalone) == ("own", resolve_setup(written()).standalone)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"standalone": {"initial": "mine"}}, r"^standalone\.initial: expected .*shared.*own.*, got 'mine'$"),
        (
            {"local": BASE["local"] | {"initial": "own"}},
            r"^local\.initial: expected one of the keys .*, got 'initial'$",
        ),
        (
            {"standalone": {"initial": "own"}, "model": BASE["model"] | {"initial": "a.npz"}},
            r"^standalone\.initial: expected 'shared' with model\.initial, the start of all models, got 'own'$",
        ),
    ],
)
def test_what_a_config_refuses(changes: dict[str, Any], message: str) -> None:
    refuses(lambda: config.parse(BASE | changes), message, ConfigError)


@pytest.mark.thorough
def test_runs_and_sweeps() -> None:
    """A cell of a sweep is the run of its config."""
    raw = BASE | {"rounds": 1, "evaluate_every": 1, "algorithms": [{"name": "incfl"}]}
    found = sweep.run(parse_grid(raw, ["standalone.initial=shared,own"], name="tiny")).metrics
    for initial in ("shared", "own"):
        one = experiment.run(config.parse(raw | {"standalone": {"steps": 3, "initial": initial}}, name="tiny")).metrics
        cell = found.sel(initial=initial)
        for name in ("threshold", "standalone_test_loss", "unseen_standalone_test_loss", "test_loss"):
            np.testing.assert_allclose(cell[name].values, one[name].values, rtol=1e-5, err_msg=name)
    shared, own = (found["threshold"].sel(initial=each).values for each in ("shared", "own"))
    assert not np.allclose(shared, own)
