"""Whether all processes of a run make the same call: the same programs, whose texts and numbers are compared."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from jaxtyping import Array

from fljax.core import processes
from fljax.core.trees import numbers_of
from fljax.engine.checkpoints import checksum
from fljax.engine.devices import eager

# Addresses of functions, and numbers of devices.
_OF_PROCESS = re.compile(r"0x[0-9a-f]+|\bid=\d+")


def check_programs(trace: Callable[[], Iterable[Any]]) -> None:
    """Raises a ValueError in every process unless ``trace`` gives the same traced programs in all.

    So a model with another dropout, initialisation or dtype is noticed, and a function of the user's that differs. In
    one process, nothing is traced.
    """
    if processes.are_several() and not eager.is_on():
        processes.check_same(lambda: {"model or algorithm": checksum_of_programs(trace())})


def checksum_of_programs(traced: Iterable[Any]) -> int:
    """A checksum of the texts of traced programs and of the arrays in them, without addresses of functions."""
    found = 0
    for each in traced:
        arrays = [numbers_of(value) for value in each.jaxpr.consts if isinstance(value, np.ndarray | Array)]
        text = f"{_OF_PROCESS.sub('', str(each.jaxpr))} {checksum(arrays)}"
        found = zlib.crc32(text.encode(), found)
    return found
