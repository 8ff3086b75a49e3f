"""Early stopping of standalone models: where all paths hand it on, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import config, data, models, training
from fljax.config import parse_grid
from fljax.engine import Execution, estimate_standalone, standalone
from fljax.engine.rounds.states import Purpose, client_key, round_key
from fljax.experiments.run import run
from fljax.experiments.sweep import run as run_sweep
from fljax.protocol import Rows, Subset
from fljax.training import Local, StopAlone

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

BLOBS = data.load("blobs", classes=4, dimension=3, samples=80, separation=1.0)
FEDERATION = data.federate(BLOBS, "dirichlet", beta=0.7, clients=5, unseen=2, valid_fraction=0.3)
TASK = models.mlp(BLOBS.x.shape[1:], 4, hidden=(8,))
LOCAL, STOP, SEED = Local(0.4, 4, steps=30), StopAlone(every=4, patience=2), 3
NAMES = ("threshold", "test_loss", "test_accuracy", "unseen_threshold", "unseen_test_loss", "unseen_test_accuracy")


@pytest.fixture(scope="module")
def stopped():
    return standalone(TASK, FEDERATION, LOCAL, seeds=[SEED], stop=STOP, keep_models=True)


def test_each_client_stops_for_itself(stopped):
    """Against one client after another; some stop before the end, and one without validation rows does not."""
    start = TASK.init(round_key(jnp.uint32(SEED), Purpose.INIT_SERVER))
    ends = []
    for client in range(5):
        local = {name: data.row_numbers(FEDERATION, name)[client] for name in ("train", "valid")}
        parts = {name: _subset(rows) for name, rows in local.items()}
        key = client_key(round_key(jnp.uint32(SEED), Purpose.STANDALONE), jnp.int32(client))
        how: dict[str, Any] = {"task": TASK, "local": LOCAL, "stop": STOP}
        found = training.train_until(key, start, parts["train"], parts["valid"], **how)
        ends.append(int(found.steps))
        for mine, theirs in zip(jax.tree.leaves(found.params), jax.tree.leaves(stopped.params), strict=True):
            np.testing.assert_allclose(theirs[0, client], mine, rtol=2e-4, atol=1e-5)
    assert min(ends) < 30, ends


def _subset(rows):
    padded = np.concatenate([rows, np.zeros(80 - len(rows), int)]).astype(np.int32)
    return Subset(FEDERATION.examples, Rows(jnp.asarray(padded), jnp.int32(len(rows))))


def test_it_changes_the_models_and_nothing_else(stopped):
    whole = standalone(TASK, FEDERATION, LOCAL, seeds=[SEED])
    assert not np.allclose(whole.test_loss, stopped.test_loss)
    again = standalone(TASK, FEDERATION, LOCAL, seeds=[SEED], stop=None)
    for name in NAMES:
        np.testing.assert_array_equal(getattr(whole, name), getattr(again, name))


def test_examples_on_the_host(stopped):
    on_host = data.federate(BLOBS, "dirichlet", beta=0.7, clients=5, unseen=2, valid_fraction=0.3, examples="host")
    found = standalone(TASK, on_host, LOCAL, seeds=[SEED], stop=STOP)
    for name in NAMES:
        np.testing.assert_allclose(getattr(found, name), getattr(stopped, name), rtol=1e-4, err_msg=name)


def test_memory_is_estimated():
    assert estimate_standalone(TASK, FEDERATION, LOCAL, stop=STOP, execution=Execution(3)).model > 0


CONFIG = {
    "rounds": 1,
    "data": {
        "dataset": "blobs",
        "dataset_options": {"classes": 4, "dimension": 3, "samples": 80, "separation": 1.0},
        "partition": "dirichlet",
        "partition_options": {"beta": 0.7},
        "clients": 5,
        "unseen": 2,
        "valid_fraction": 0.3,
    },
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"learning_rate": 0.4, "batch_size": 4, "steps": 2},
    "standalone": {"steps": 30, "stop": {"every": 4, "patience": 2}},
    "algorithms": [{"name": "fedavg"}],
    "seeds": [0],
}


def test_a_comparison_hands_it_on():
    how: dict[str, Any] = {"rounds": 1, "seeds": [SEED], "progress": False}
    found = fljax.compare(["fedavg"], FEDERATION, TASK, LOCAL, standalone=LOCAL, standalone_stop=STOP, **how)
    expected = standalone(TASK, FEDERATION, LOCAL, seeds=[SEED], stop=STOP)
    np.testing.assert_allclose(found.metrics["threshold"].values, expected.threshold, rtol=1e-5)
    assert "patience = 2" in found.origin["comparison.toml"]


@pytest.mark.thorough
def test_configs_and_sweeps():
    parsed = config.parse(CONFIG, name="tiny")
    assert config.parse({"name": "tiny", **CONFIG}) == parsed
    assert "stop = {" in config.dumps(parsed) or "[standalone.stop]" in config.dumps(parsed)
    one = run(parsed).metrics["threshold"]
    whole = run(config.parse(CONFIG | {"standalone": {"steps": 30}}, name="tiny")).metrics["threshold"]
    assert not np.allclose(one, whole)
    swept = run_sweep(parse_grid(CONFIG, ["standalone.stop.patience=1,2"], name="tiny")).metrics["threshold"]
    np.testing.assert_allclose(swept.sel(patience=2).values, one.values, rtol=1e-5)
    with pytest.raises(ValueError, match=r"standalone\.stop\.patience: expected a number above 0, got 0"):
        config.parse(CONFIG | {"standalone": {"stop": {"patience": 0}}})
