"""Law 16: one host's program can be compiled for CPUs, GPUs and TPUs, each in its own form, with the same results.

They are the same up to rounding. One exception is known: where two pixels of a window of a max-pool are equal, the
first receives the gradient on a TPU, and both share it elsewhere.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import algorithms, engine, models
from fljax.core import gpu_rules
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.states import State, by_id, initial_state
from fljax.protocol import ClientData, Examples, Federation, Rows
from fljax.testing import laws
from fljax.training import Local
from tests.laws.cases import ALGORITHMS, Bench, bench, chosen
from tests.laws.compare import assert_close
from tests.platforms import forms_of

pytestmark = pytest.mark.by_case

PLATFORMS = ("cpu", "cuda", "tpu")


@pytest.fixture(scope="module", params=chosen(ALGORITHMS))
def case(request: pytest.FixtureRequest) -> Bench:
    """The programs of one algorithm."""
    return bench(request.param)


@pytest.mark.sampled(50)
@pytest.mark.in_turn
def test_law_16_it_lowers_for_every_platform(case: Bench) -> None:
    """Lowering raises an error where an operation has no form for one of the platforms."""
    laws.lowers_for_every_platform(case)


@pytest.mark.in_turn
@pytest.mark.parametrize("platform", ["cuda", pytest.param("tpu", marks=pytest.mark.thorough)])
def test_law_16_the_forms_of_all_platforms_agree(case: Bench, platform: str) -> None:
    """Models, clients' states and metrics after two rounds."""
    expected = case.run(case.start())
    with forms_of(platform):
        other = Bench(case.case)
        found = other.run(other.start())
        judged = other.judge(found)
    assert_close(found, expected)
    assert_close(judged, case.judge(expected))


def _images() -> Federation:
    """Two rows of 28 x 28 pixels for each client."""
    clients = 4
    rows = Rows(jnp.arange(2 * clients, dtype=jnp.int32).reshape(clients, 2), jnp.full(clients, 2, jnp.int32))
    x = np.random.default_rng(0).integers(0, 256, (2 * clients, 28, 28, 1), np.uint8)
    examples = Examples(jnp.asarray(x), jnp.arange(2 * clients, dtype=jnp.int32) % 10)
    return by_id(Federation(examples, ClientData(jnp.arange(clients, dtype=jnp.int32), rows, rows, rows)))


@pytest.fixture(scope="module")
def lenet() -> Any:
    """A round of FedAvg with a LeNet: one step of two images drawn at random."""
    task, data = models.cnn_a((28, 28, 1), 10), _images()
    algorithm = algorithms.fedavg(task, Local(0.1, batch_size=2, steps=3))

    def round(state: State, data: Federation) -> State:
        return engine.one_round(algorithm, data, Layout(4, 1, 4), state)[0]

    state = jax.eval_shape(lambda: initial_state(algorithm, data, jnp.uint32(0)))
    return jax.jit(round).trace(state, data)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_law_16_a_lenet_has_the_form_of_its_platform(lenet: Any, platform: str) -> None:
    text = lenet.lower(lowering_platforms=(platform,)).as_text()
    convolutions, loops = text.count("stablehlo.convolution"), text.count("stablehlo.while")
    barriers = text.count("stablehlo.optimization_barrier")
    if platform == "cpu":
        assert convolutions == 0
        assert barriers > 0
        assert loops > 1  # over steps, over picks of rows, and in random numbers
    else:
        # Two forward, two by kernel, one by image; on a GPU the table says that narrow ones are products.
        narrow = gpu_rules.read().narrow_convolution
        assert convolutions == (0 if platform == "cuda" and narrow != "grouped" else 5)
        assert barriers == 0
        assert loops == 1
    assert text.count("stablehlo.reduce_window") == (2 if platform == "tpu" else 0)
    assert text.count("stablehlo.select_and_scatter") == (2 if platform == "tpu" else 0)
