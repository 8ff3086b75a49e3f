"""Law 17: reverse mode of two rounds is finite differences; in single precision, forward mode and double's."""

from __future__ import annotations

import numpy as np
import pytest

from fljax.algorithms import REGISTRY
from tests.laws.cases import ALGORITHMS, numbers
from tests.laws.slopes import MODES, along, apart, both

# Some unlike algorithms, each in one mode, are not slow; those of the quick tests are quick.
QUICK = ("incfl",)
DEFAULT = {
    "fedavg": "steps",
    "incfl": "epochs",
    "iafl": "steps",
    "ipfl": "steps",
    "scaffold": "epochs",
    "fedfomo": "steps",
    "fedproto": "epochs",
    "standalone": "steps",
    "qffl": "steps",
    "pfedme": "steps",
    "feddyn": "steps",
    "moon": "steps",
    "apfl": "epochs",
    "fedala": "steps",
    "learnt": "steps",
}
CASES = [
    pytest.param(
        name,
        mode,
        marks=pytest.mark.slow if DEFAULT.get(name) != mode else () if name in QUICK else pytest.mark.thorough,
    )
    for name in REGISTRY
    for mode in MODES
]
# Differences in single precision are at most 3.3e-5 here. They are largest where a slope is what remains of larger
# terms, as INCFL's in gap_scale. With JAX's own derivative of a quotient INCFL's were 0.4 to 10 with 16 clients.
SINGLE = 3e-4


@pytest.mark.parametrize("name", REGISTRY)
def test_every_float_is_declared(name: str) -> None:
    entry = REGISTRY[name]
    declared = (*entry.differentiable, *entry.flat)
    assert sorted(declared) == sorted(set(declared))
    assert set(declared) == set(numbers(ALGORITHMS[name]))


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_law_17_gradients_equal_finite_differences(name: str, mode: str) -> None:
    check(name, mode)


@pytest.mark.thorough
@pytest.mark.parametrize("clients", ["16", "6"])
def test_law_17_with_more_clients(clients: str) -> None:
    """In float32 these gradients of INCFL were wrong by up to ten times their size."""
    check("incfl", clients)


def check(name: str, where: str) -> None:
    """Compares the derivatives in all floats."""
    single, double = both(name, where)
    np.testing.assert_allclose(single.value, double.value, rtol=1e-6)
    for key, slope in double.reverse.items():
        if key in REGISTRY[name].flat:
            for found in (slope, single.reverse[key], single.small[key]):
                np.testing.assert_array_equal(found, 0, err_msg=key)
            continue
        direction, expected = along(slope), double.differences[key]
        np.testing.assert_allclose(np.vdot(slope, direction), expected, rtol=1e-5, atol=1e-8, err_msg=key)
        assert abs(expected) > 1e-7, f"{key} has no influence here"
        assert apart(single.reverse[key], slope) < SINGLE, key
        assert apart(single.small[key], slope) < SINGLE, f"{key}, of a small objective"
        if single.forward is not None:
            size = np.vdot(np.abs(slope), direction)
            assert abs(np.vdot(single.reverse[key], direction) - single.forward[key]) < SINGLE * size, key
