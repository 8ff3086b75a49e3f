"""Rules and attacks are those of byzfl 0.0.11 on 200 inputs, with arguments that undo differences of definitions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import aggregators as own
from fljax.aggregators import centred_clipping as clip
from tests.oracles.byzfl_numbers import BOUND, FILE, ROWS, cases
from tests.precision import enable_x64

pytestmark = pytest.mark.thorough

# By number of byzfl: what is different there, and ours of x, present, f and n with the arguments that undo it.
DIFFERENCES: dict[str, tuple[str, Any]] = {
    "median": ("nothing", lambda x, p, f, n: own.coordinate_median(x, present=p)),
    "trimmed_mean": ("nothing", lambda x, p, f, n: own.trimmed_mean(x, f, present=p)),
    "krum": ("n - f - 1 neighbours, ours for f - 1", lambda x, p, f, n: own.krum(x, f - 1, present=p)),
    "multi_krum": ("so, and n - f rows kept", lambda x, p, f, n: own.multi_krum(x, f - 1, keep=n - f, present=p)),
    "from_mean": ("starts at 0: the mean was taken off", lambda x, p, f, n: own.geometric_median(x, present=p)),
    "clipped_mean": ("clips before a rule, in place", lambda x, p, f, n: own.clipped_mean(x, BOUND, present=p)),
    "centred_clipping": ("nothing", lambda x, p, f, n: clip(x, BOUND, iterations=3, present=p)),
    "kept": ("its result, no other centre", lambda x, p, f, n: clip(x, BOUND, clip(x, BOUND, present=p), present=p)),
    "mixing": ("nothing", lambda x, p, f, n: own.nearest_neighbour_mixing(x, f, present=p)),
    "alie": ("adds 1.5 deviations", lambda x, p, f, n: own.a_little_is_enough(x, p, ~p, deviations=-1.5)),
    "ipm": ("a scale of 2", lambda x, p, f, n: own.inner_product_manipulation(x, p, scale=2.0)),
    "sign": ("minus the mean, not the own row", lambda x, p, f, n: own.inner_product_manipulation(x, p, scale=1.0)),
    "mimic": ("a row by its place", lambda x, p, f, n: own.mimic(x, p, (jnp.arange(ROWS) - f) % ROWS)),
}


def of_all(function: Any) -> np.ndarray:
    """Of all cases; rows that a case does not have are absent."""
    x, n, _, f = cases()
    with enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(function))(*map(jnp.asarray, (x, np.arange(ROWS) < n[:, None], f, n))))


@pytest.mark.parametrize("name", DIFFERENCES)
def test_is_byzfls(name: str) -> None:
    with np.load(FILE) as file:
        np.testing.assert_allclose(of_all(DIFFERENCES[name][1]), file[name], rtol=1e-9, atol=2e-8)


def test_without_translation() -> None:
    """Krum with the same f. The limit of geometric medians may be any point of a segment, of one sum of distances."""
    x, n, _, f = cases()
    with np.load(FILE) as file:
        for rule, number in ((own.krum, 111), (own.multi_krum, 0)):
            apart = abs(of_all(lambda x, p, f, n, r=rule: r(x, f, present=p)) - file[rule.__name__]).max(axis=1)
            assert (np.sum(apart[n >= 2 * f + 3] < 1e-6), np.sum(n >= 2 * f + 3)) == (number, 162)
        limit = of_all(lambda x, p, f, n: own.geometric_median(x, iterations=300, smoothing=1e-6, present=p))
        apart = [np.linalg.norm(x - z[:, None], axis=2) for z in (limit, file["limit"])]
    np.testing.assert_allclose(*(np.sum(a, 1, where=np.arange(ROWS) < n[:, None]) for a in apart), rtol=1e-9)
