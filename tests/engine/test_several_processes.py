"""Two processes compute what one process computes, up to rounding."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from tests.processes import ROOT, given

pytestmark = pytest.mark.thorough

WORK = """
sys.path.insert(0, {root!r})
from tests.engine.several import work
give(work({devices}))
""".replace("{root!r}", repr(str(ROOT)))


def same(one: Any, other: Any, tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("devices", [1, 2])
def test_all_calls(tmp_path: pathlib.Path, devices: int) -> None:
    """``simulate``, ``standalone``, ``sweep``, ``predict`` and ``deployed``; both processes have all of it."""
    from tests.engine.several import work

    first, second = given(WORK.replace("{devices}", '"all"'), tmp_path, devices=devices)
    same(first, second, 0.0)
    same(work(1), first, 1e-5)
