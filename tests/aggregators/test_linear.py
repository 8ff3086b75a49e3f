"""Linear combinations of updates against a naive loop."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.aggregators import mix, weighted_mean, weighted_sum
from tests.drawn import at_most

pytestmark = pytest.mark.usefixtures("strict")


@pytest.mark.thorough
@given(
    rows=st.integers(1, 3),
    count=st.integers(1, 4),
    shapes=st.lists(st.sampled_from([(), (1,), (3,), (2, 2)]), min_size=1, max_size=2),
    seed=st.integers(0, 99),
)
@at_most(20)
def test_mix_is_a_loop(rows, count, shapes, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(rows, count)).astype(np.float32)
    updates = {str(i): rng.normal(size=(count, *shape)).astype(np.float32) for i, shape in enumerate(shapes)}
    found = mix(jnp.asarray(matrix), jax.tree.map(jnp.asarray, updates))
    for name, leaf in updates.items():
        assert found[name].shape == (rows, *leaf.shape[1:])
        for r in range(rows):
            expected = sum(matrix[r, s].astype(np.float64) * leaf[s] for s in range(count))
            np.testing.assert_allclose(found[name][r], expected, rtol=1e-5, atol=1e-6)


def test_one_row_is_weighted_sum():
    updates, weights = {"w": jnp.arange(6.0).reshape(3, 2)}, jnp.array([1.0, 0.0, 2.0])
    np.testing.assert_array_equal(weighted_sum(updates, weights)["w"], [8.0, 11.0])
    np.testing.assert_array_equal(mix(weights[None], updates)["w"], [[8.0, 11.0]])
    np.testing.assert_allclose(weighted_mean(updates, weights)["w"], [8 / 3, 11 / 3], rtol=1e-6)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_an_update_without_weight_is_never_read(bad):
    updates = {"w": jnp.array([[1.0, 2.0], [bad, bad], [3.0, 4.0]])}
    weights = jnp.array([1.0, 0.0, 3.0])
    np.testing.assert_array_equal(weighted_mean(updates, weights)["w"], [2.5, 3.5])
    matrix = jnp.array([[1.0, 0.0, 1.0], [0.0, 0.0, 2.0]])
    np.testing.assert_array_equal(mix(matrix, updates)["w"], [[4.0, 6.0], [6.0, 8.0]])
    # One that any row uses is read.
    assert np.isnan(mix(matrix.at[0, 1].set(1.0), updates)["w"][0]).all() or np.isinf(bad)


@pytest.mark.in_turn
def test_no_weight_left_gives_the_zero_tree():
    updates = {"w": jnp.array([[1.0], [jnp.nan]])}
    np.testing.assert_array_equal(weighted_mean(updates, jnp.zeros(2))["w"], [0.0])
    slope = jax.grad(lambda w: weighted_mean({"w": jnp.ones((2, 1))}, w)["w"].sum())(jnp.zeros(2))
    assert np.isfinite(slope).all()


def test_tiny_weights_keep_their_proportions():
    updates = {"w": jnp.array([1.0, 3.0])}
    found = weighted_mean(updates, jnp.array([1e-37, 1e-37]))["w"]
    np.testing.assert_allclose(found, 2.0, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_dtypes_are_kept(dtype):
    updates = {"w": jnp.ones((2, 3), dtype)}
    for found in (mix(jnp.ones((4, 2)), updates), weighted_mean(updates, jnp.ones(2))):
        assert found["w"].dtype == jnp.dtype(dtype)


def test_double_precision(x64):
    rng = np.random.default_rng(0)
    matrix, leaf = rng.normal(size=(2, 5)), rng.normal(size=(5, 3))
    found = mix(jnp.asarray(matrix), {"w": jnp.asarray(leaf)})["w"]
    assert found.dtype == jnp.float64
    np.testing.assert_allclose(found, matrix @ leaf, rtol=1e-14)
    weights = jnp.asarray(rng.uniform(size=5), jnp.float32)  # weights of another precision are cast
    assert weighted_mean({"w": jnp.asarray(leaf)}, weights)["w"].dtype == jnp.float64


def loaded_by(statement):
    """Which modules a fresh interpreter has after a statement."""
    code = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def packages(modules):
    """The packages of modules, without those of Python's own library."""
    return {name.split(".")[0] for name in modules} - set(sys.stdlib_module_names)


@pytest.mark.in_turn
def test_aggregators_need_jax_alone():
    loaded = loaded_by("from fljax.aggregators import incfl_update, mix")
    assert "jax" in loaded
    assert packages(loaded) - packages(loaded_by("import jax, jax.numpy")) == {"fljax"}
    ours = {name for name in loaded if name.split(".")[0] == "fljax"}
    assert {name.split(".")[1] for name in ours if "." in name} <= {"aggregators", "core"}
    core = {name.removeprefix("fljax.core.") for name in ours if name.startswith("fljax.core.")}
    assert core == {"lazy", "platforms", "trees"}


def test_the_face_is_lazy():
    loaded = loaded_by("import fljax; fljax.__version__; dir(fljax)")
    assert not loaded & {"jax", "numpy", "flax", "optax", "xarray", "tensorflow_datasets", "matplotlib", "pydantic"}
