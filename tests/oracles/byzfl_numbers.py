"""Numbers of byzfl 0.0.11 on 200 drawn inputs: ``python tests/oracles/byzfl_numbers.py`` writes them to a file.

byzfl runs on NumPy arrays in float64. Only its ``aggregators`` and ``attacks`` are imported, as the rest needs
torchvision. Numbers are rounded to 8 digits; rows and columns that a case does not have are zeros.
"""

import importlib
import sys
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parents[1] / "fixtures" / "byzfl.npz"
CASES, ROWS, COLUMNS = 200, 20, 6
BOUND = 1.5  # about half of the rows are longer


def cases() -> tuple[np.ndarray, ...]:
    """``x [200, 20, 6]``, and by case its rows n, columns d, and f with 0 < 2 f < n; often f rows lie far out."""
    random, x = np.random.default_rng(64), np.zeros((CASES, ROWS, COLUMNS))
    n, d = random.integers(5, ROWS + 1, CASES), random.integers(1, COLUMNS + 1, CASES)
    f = random.integers(1, (n - 1) // 2 + 1)
    for case in range(CASES):
        rows = random.normal(size=(n[case], d[case])) + random.normal(size=d[case])
        if case % 2:
            rows[random.choice(n[case], f[case], replace=False)] *= random.uniform(3, 30, (f[case], 1))
        x[case, : n[case], : d[case]] = np.round(rows, 6)
    return x, n, d, f


def of_case(byzfl: Any, x: np.ndarray, f: int) -> dict[str, np.ndarray]:
    """All that is compared."""
    mean, kept = x.mean(axis=0), byzfl.CenteredClipping(L=1, tau=BOUND)
    calls = {
        "median": byzfl.Median(),
        "trimmed_mean": byzfl.TrMean(f),
        "krum": byzfl.Krum(f),
        "multi_krum": byzfl.MultiKrum(f),
        "geometric_median": byzfl.GeometricMedian(),
        "geometric_median_from_mean": lambda x: mean + byzfl.GeometricMedian(nu=1e-5, T=4)(x - mean),
        "geometric_median_limit": byzfl.GeometricMedian(nu=1e-6, T=2000),
        "clipped_mean": lambda x: byzfl.Clipping(BOUND)(x.copy()).mean(axis=0),  # Clipping writes into its input
        "centred_clipping": byzfl.CenteredClipping(L=3, tau=BOUND),
        "kept_1": kept,
        "kept_2": kept,  # goes on from its first result
        "mixing": byzfl.NNM(f),
        "alie": byzfl.ALittleIsEnough(),
        "ipm": byzfl.InnerProductManipulation(),
        "sign": byzfl.SignFlipping(),
        "mimic": byzfl.Mimic(f),
    }
    return {name: call(x) for name, call in calls.items()}


if __name__ == "__main__":
    sys.modules["byzfl"] = package = types.ModuleType("byzfl")  # without its __init__.py
    package.__path__ = [str(metadata.distribution("byzfl").locate_file("byzfl"))]
    rules, attacks = (vars(importlib.import_module(f"byzfl.{name}")) for name in ("aggregators", "attacks.attacks"))
    found: dict[str, Any] = {"version": metadata.version("byzfl")}
    for case, (x, n, d, f) in enumerate(zip(*cases(), strict=True)):
        for name, value in of_case(types.SimpleNamespace(**rules | attacks), x[:n, :d], int(f)).items():
            shape = (CASES, ROWS, COLUMNS) if value.ndim == 2 else (CASES, COLUMNS)
            found.setdefault(name, np.zeros(shape))[(case, *map(slice, value.shape))] = np.round(value, 8)
    np.savez_compressed(FILE, **found)
