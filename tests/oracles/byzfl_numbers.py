"""Numbers of byzfl 0.0.11, in float64, on 200 drawn inputs: run by a Python that has it, this file writes them.

Its parts without torchvision are imported. Numbers are rounded to 8 digits; rows and columns that a case lacks are 0.
"""

import importlib
import sys
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parents[1] / "fixtures" / "byzfl.npz"
CASES, ROWS, COLUMNS, BOUND = 200, 20, 6, 1.5  # about half of the rows are longer


def cases() -> tuple[np.ndarray, ...]:
    """``x [200, 20, 6]``, and by case its rows n, columns d, and f with 0 < 2 f < n; often f rows lie far out."""
    random, x = np.random.default_rng(64), np.zeros((CASES, ROWS, COLUMNS))
    n, d = random.integers(5, ROWS + 1, CASES), random.integers(1, COLUMNS + 1, CASES)
    f = random.integers(1, (n - 1) // 2 + 1)
    for case in range(CASES):
        rows = random.normal(size=(n[case], d[case])) + random.normal(size=d[case])
        rows[: f[case] * (case % 2)] *= random.uniform(3, 30)
        x[case, : n[case], : d[case]] = np.round(random.permutation(rows), 6)
    return x, n, d, f


def rules(byzfl: Any, x: np.ndarray, f: int) -> dict[str, Any]:
    """All that is compared, as functions of x."""
    mean, kept = x.mean(axis=0), byzfl.CenteredClipping(L=1, tau=BOUND)
    return {
        "median": byzfl.Median(),
        "trimmed_mean": byzfl.TrMean(f),
        "krum": byzfl.Krum(f),
        "multi_krum": byzfl.MultiKrum(f),
        "from_mean": lambda x: mean + byzfl.GeometricMedian(nu=1e-5, T=4)(x - mean),
        "limit": byzfl.GeometricMedian(nu=1e-6, T=2000),
        "clipped_mean": lambda x: byzfl.Clipping(BOUND)(x.copy()).mean(axis=0),  # Clipping writes into its input
        "centred_clipping": byzfl.CenteredClipping(L=3, tau=BOUND),
        "kept": lambda x: [kept(x), kept(x)][1],  # goes on from its first result
        "mixing": byzfl.NNM(f),
        "alie": byzfl.ALittleIsEnough(),
        "ipm": byzfl.InnerProductManipulation(),
        "sign": byzfl.SignFlipping(),
        "mimic": byzfl.Mimic(f),
    }


if __name__ == "__main__":
    sys.modules["byzfl"] = package = types.ModuleType("byzfl")  # without its __init__.py
    package.__path__ = [str(metadata.distribution("byzfl").locate_file("byzfl"))]
    parts = [vars(importlib.import_module(f"byzfl.{name}")) for name in ("aggregators", "attacks.attacks")]
    names, found = types.SimpleNamespace(**parts[0] | parts[1]), dict[str, Any](version=metadata.version("byzfl"))
    for case, (x, n, d, f) in enumerate(zip(*cases(), strict=True)):
        for name, rule in rules(names, x[:n, :d], int(f)).items():
            v = np.round(rule(x[:n, :d]), 8)
            found.setdefault(name, np.zeros((CASES, *(ROWS, COLUMNS)[-v.ndim :])))[(case, *map(slice, v.shape))] = v
    np.savez_compressed(FILE, **found)
