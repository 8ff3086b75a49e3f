"""Initial parameters as PyTorch draws them: bounds and moments of each layer; numbers that no model has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.core import trees
from fljax.models import MODELS, cnn_a, mlp
from fljax.protocol import Rows, Subset, Task
from fljax.training import Local
from fljax.training.batches import draw
from tests.precision import enable_x64

KEY = jax.random.key(0)
pytestmark = pytest.mark.usefixtures("quick_compilation")

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "logistic_regression": ((60,), {}),
    "mlp": ((28, 28), {}),
    "cnn": ((8, 8, 2), {"groups": 2}),
    "cnn_a": ((28, 28, 1), {}),
    "cnn_b": ((32, 32, 3), {}),
    "cnn_c": ((28, 28, 1), {}),
    "resnet18": ((32, 32, 3), {}),
    "bilstm": ((6,), {"vocabulary": 50, "embedding": 40, "hidden": 30}),
    "text_cnn": ((6,), {"vocabulary": 50, "embedding": 20, "maps": 16, "kernels": (2, 3)}),
}


def drawn(name: str, seed: int = 0, **options: Any) -> dict[str, np.ndarray]:
    params = jax.jit(build(name, **options).init)(jax.random.key(seed))
    return by_path(params)


def build(name: str, **options: Any) -> Task:
    shape, own = CASES[name]
    return MODELS[name](shape, 10, **own, **options)


def by_path(params: Any) -> dict[str, Any]:
    return dict(zip(trees.paths_of(params), map(np.asarray, jax.tree.leaves(params)), strict=True))


def thorough_if(names: Iterable[str], *long: str) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.thorough] * (name in long)) for name in names]


def test_every_model_is_tested() -> None:
    assert CASES.keys() == MODELS.keys()


@pytest.mark.thorough
@pytest.mark.parametrize("name", thorough_if(CASES, "resnet18"))
def test_each_layer_has_pytorchs_distribution(name: str) -> None:
    params = drawn(name, initialisation="framework")
    plain, own = (jax.eval_shape(build(name, initialisation=how).init, KEY) for how in ("flax", "framework"))
    assert plain == own
    for path, leaf in params.items():
        layer, _, kind = path.rpartition("/")
        if kind == "embedding":
            check_moments(leaf, 1.0, 3.0)
            assert np.abs(leaf).max() > 2.5
            continue
        if f"{layer}/kernel" not in params:  # of a normalisation
            np.testing.assert_array_equal(leaf, 1 if kind == "scale" else 0)
            continue
        *inputs, width = params[f"{layer}/kernel"].shape
        if "_lstm" in layer:
            bound, summed = width**-0.5, kind == "bias"
        else:
            bound, summed = np.prod(inputs) ** -0.5, False
        assert np.abs(leaf).max() <= bound * (2 if summed else 1) * (1 + 1e-6)
        assert np.ptp(leaf) > 0
        if leaf.size > 500:
            assert np.abs(leaf).max() > 0.98 * bound
        check_moments(leaf, bound**2 / 3 * (2 if summed else 1), 2.4 if summed else 1.8)


def check_moments(leaf: np.ndarray, variance: float, kurtosis: float) -> None:
    """Mean and variance are within five standard errors of what they are to be."""
    n = leaf.size
    assert abs(leaf.mean()) < 5 * np.sqrt(variance / n)
    assert abs(np.mean(np.square(leaf)) - variance) < 5 * variance * np.sqrt((kurtosis - 1) / n)


@pytest.mark.in_turn
def test_no_two_layers_and_no_two_keys_draw_the_same_numbers() -> None:
    first, second = (drawn("cnn_c", seed, initialisation="framework") for seed in (0, 1))
    starts = [leaf.reshape(-1)[:4] / np.abs(leaf).max() for each in (first, second) for leaf in each.values()]
    correlated = np.corrcoef([leaf.reshape(-1)[:10] for leaf in first.values()])
    assert len({tuple(np.round(each, 4)) for each in starts}) == len(starts)
    assert np.abs(correlated - np.eye(len(correlated))).max() < 0.99
    again = drawn("cnn_c", 0, initialisation="framework")
    for path in first:
        np.testing.assert_array_equal(first[path], again[path])


@pytest.mark.in_turn
def test_the_norms_of_iafls_network() -> None:
    """1.73 between kernels, as measured beside the authors' code; its biases are not 0."""
    norms = [
        np.sqrt(sum(np.sum(np.square(leaf, dtype=float)) for leaf in drawn("cnn_a", initialisation=name).values()))
        for name in ("flax", "framework")
    ]
    np.testing.assert_allclose(norms, [15.4, 8.9], rtol=0.02)
    kernels = [
        np.sqrt(np.sum(np.square(drawn("cnn_a", initialisation=name)["dense_0/kernel"])))
        for name in ("flax", "framework")
    ]
    np.testing.assert_allclose(kernels[0] / kernels[1], np.sqrt(3), rtol=0.02)


def test_flax_is_the_default() -> None:
    assert mlp((4,), 3, initialisation="flax") is mlp((4,), 3)


def test_equal_arguments_give_the_same_initial_function() -> None:
    first, second = (cnn_a((28, 28), 10, initialisation="framework") for _ in range(2))
    assert first == second
    assert first != cnn_a((28, 28), 10)


@pytest.mark.in_turn
def test_dtypes_share_their_numbers() -> None:
    single = drawn("mlp", initialisation="framework")
    with enable_x64(True):
        double = drawn("mlp", initialisation="framework", dtype=jnp.float64)
    for path, leaf in single.items():
        assert double[path].dtype == np.float64
        np.testing.assert_array_equal(leaf, double[path].astype(np.float32))


@pytest.mark.parametrize("count", [{"steps": 2**30}, {"epochs": 2**30}])
def test_more_rows_than_an_array_holds_are_not_drawn(count):
    rows = Rows(jnp.arange(8), jnp.asarray(8))
    with pytest.raises(ValueError, match="expected at most 2147483647 rows drawn by a client in a round"):
        draw(jax.random.key(0), Subset(None, rows), Local(0.1, 4, **count))  # type: ignore[arg-type]
