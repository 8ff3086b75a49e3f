"""Every algorithm where all clients have equally many batches, so that programs know their number of steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data, engine
from fljax.engine.programs import program
from fljax.training import Local
from tests.laws.cases import ALGORITHMS, POPULATION, TASK, chosen

pytestmark = pytest.mark.usefixtures("quick_compilation")

EPOCHS = Local(0.1, 4, epochs=2)  # two batches of an epoch, the second one partial


def equal_federation() -> Any:
    """As many clients as in the other laws, with six or seven rows each, in lists."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(10 * POPULATION + 30, 4)).astype(np.float32)
    made = data.Dataset(x, (x[:, 0] > 0).astype(np.int64), 2, 10 * POPULATION + 30)
    federation = data.federate(made, "iid", clients=POPULATION, valid_fraction=0.2, held_fraction=0.1)
    return federation._replace(held={**federation.held, "test": federation.held["validation"]})


@pytest.mark.parametrize("name", chosen(ALGORITHMS, quick=("fedavg",)))
def test_a_fixed_number_of_steps_gives_the_same_run(name: str) -> None:
    """``simulate`` knows that all clients have equally many batches; ``rollout`` does not."""
    case, federation = ALGORITHMS[name], equal_federation()
    algorithm = case.build(TASK, EPOCHS, **case.example)
    _, inputs = program.partition_plan(algorithm, federation)
    assert inputs.federation.clients.train.index.least == 6
    found = engine.simulate(algorithm, federation, rounds=2, evaluate_every=2, seeds=(3,))
    expected, _ = jax.jit(lambda: engine.rollout(algorithm, federation, rounds=2, seed=3))()
    for part in ("server", "clients"):
        pairs = zip(*(jax.tree.leaves(getattr(each, part)) for each in (found.state, expected)), strict=True)
        for a, b in pairs:
            if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
                np.testing.assert_allclose(a[0], b, rtol=2e-5, atol=1e-5)
