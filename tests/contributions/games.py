"""Small games by code, with known values."""

from __future__ import annotations

import numpy as np

# Accuracies of three clients.
THREE = np.array([0.10, 0.50, 0.60, 0.80, 0.30, 0.62, 0.70, 0.90])
_MEMBERS = [np.arange(2**n)[:, None] >> np.arange(n) & 1 for n in range(6)]
GLOVE = (_MEMBERS[3][:, 0] * np.maximum(_MEMBERS[3][:, 1], _MEMBERS[3][:, 2])).astype(float)
MAJORITY = (_MEMBERS[3].sum(axis=1) >= 2).astype(float)
MINERS = (_MEMBERS[4].sum(axis=1) // 2).astype(float)


def root_of_sizes(*sizes: int) -> np.ndarray:
    """The value is the square root of the number of samples."""
    return np.sqrt(_MEMBERS[len(sizes)] @ np.array(sizes))
