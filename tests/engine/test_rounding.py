"""How far rounding goes where a run goes on with another number of devices, over tens of rounds."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn

import fljax
from fljax import algorithms, data, models
from tests.toys.runs import Killed, kill_at

pytestmark = [pytest.mark.thorough, pytest.mark.devices]

CLIENTS, ROUNDS, SEEDS = 12, 30, 2


class Smooth(nn.Module):
    """A network whose gradient has no jumps; that of ReLU jumps where an input is 0 up to rounding."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.tanh(nn.Dense(64)(x.reshape(len(x), -1)))
        return nn.Dense(10)(nn.tanh(nn.Dense(64)(x)))


def test_on_other_devices_a_run_stays_within_rounding(tmp_path: pathlib.Path) -> None:
    """Losses and parameters do; accuracies differ only by rows whose two best classes are equal up to rounding."""
    digits = data.load("digits")
    federation = data.stack(
        data.federations(digits, "dirichlet", seeds=SEEDS, clients=CLIENTS, beta=0.5),
    )
    task = models.task_from_module(Smooth(), digits.x[:1], classes=10)
    algorithm = algorithms.fedavg(task, fljax.Local(0.2, batch_size=8, steps=8), clients_per_round=6)
    options: dict[str, Any] = {"rounds": ROUNDS, "seeds": SEEDS, "evaluate_every": 1}
    one, two = (fljax.Execution(devices=number) for number in (1, 2))
    whole = fljax.simulate(algorithm, federation, execution=two, **options)
    every = fljax.Checkpoint(tmp_path, every=0)
    with pytest.raises(Killed):
        fljax.simulate(
            algorithm, federation, execution=two, callbacks=[kill_at(ROUNDS // 2)], checkpoint=every, **options
        )
    found = fljax.simulate(algorithm, federation, execution=one, checkpoint=every, **options)
    assert [int(each.metrics.execution_devices) for each in (whole, found)] == [2, 1]
    for a, b in zip(jax.tree.leaves(whole.state.server), jax.tree.leaves(found.state.server), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)
    np.testing.assert_allclose(whole.metrics["test_loss"], found.metrics["test_loss"], rtol=0, atol=1e-5)
    assert not np.array_equal(whole.metrics["test_loss"], found.metrics["test_loss"])
    rows = data.row_numbers(federation, "test")
    for seed in range(SEEDS):
        for client in range(CLIENTS):
            x = digits.x[rows[seed * CLIENTS + client]]
            logits, others = (np.asarray(each.predict(client, x, seed=seed)) for each in (whole, found))
            np.testing.assert_allclose(logits, others, rtol=0, atol=2e-5)
            differs = logits.argmax(-1) != others.argmax(-1)
            best = np.sort(logits[differs], axis=-1)
            assert np.all(best[:, -1] - best[:, -2] <= 4e-5)
