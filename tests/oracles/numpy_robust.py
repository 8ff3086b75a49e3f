"""Robust rules in NumPy: loops over the n rows ``x [n, d]`` that are present, in double precision, without fljax."""

from __future__ import annotations

import numpy as np

Rows = np.ndarray


def distances(x: Rows) -> Rows:
    return np.square(x[:, None] - x[None]).sum(axis=2)


def krum_scores(x: Rows, f: int, rows: list[int]) -> dict[int, float]:
    apart, near = distances(x), max(len(rows) - f - 2, 1)
    return {i: float(sum(sorted(apart[i, j] for j in rows if j != i)[:near])) for i in rows}


def multi_krum(x: Rows, f: int, keep: int | None = None) -> Rows:
    scores = krum_scores(x, f, list(range(len(x))))
    best = sorted(scores, key=lambda i: (scores[i], i))
    return x[best[: max(len(x) - f - 2, 1) if keep is None else keep]].mean(axis=0)


def geometric_median(x: Rows, weights: Rows, start: Rows, iterations: int = 4, smoothing: float = 1e-5) -> Rows:
    for _ in range(iterations):
        beta = weights / np.maximum(smoothing, np.linalg.norm(x - start, axis=1))
        start = beta @ x / beta.sum()
    return start


def clipped(x: Rows, bound: float) -> Rows:
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x * np.minimum(1, bound / np.where(norms > 0, norms, 1))


def fltrust(x: Rows, reference: Rows) -> Rows:
    units = clipped(1e9 * x, 1.0)
    trust = np.maximum(units @ reference, 0)
    return np.linalg.norm(reference) * trust @ units / (trust.sum() or 1)


def bulyan_picks(x: Rows, f: int) -> list[int]:
    left, picks = list(range(len(x))), []
    for _ in range(max(len(x) - 2 * f, 1)):
        scores = krum_scores(x, f, left)
        picks.append(min(left, key=lambda i: (scores[i], i)))
        left.remove(picks[-1])
    return picks


def bulyan(x: Rows, f: int) -> Rows:
    """Values as far as the last one taken share the places left."""
    picked = x[bulyan_picks(x, f)]
    near, found = max(len(picked) - 2 * f, 1), []
    for values in picked.T:
        apart = np.abs(values - np.median(values))
        tied = np.isclose(apart, np.sort(apart)[near - 1], rtol=1e-9, atol=1e-12)
        inside = (apart < np.sort(apart)[near - 1]) & ~tied
        found.append((values[inside].sum() + (near - inside.sum()) * values[tied].mean()) / near)
    return np.array(found)


def trimmed_mean(x: Rows, f: int) -> Rows:
    cut = min(f, (len(x) - 1) // 2)
    return np.sort(x, axis=0)[cut : len(x) - cut].mean(axis=0)


def nearest_neighbour_mixing(x: Rows, f: int) -> Rows:
    near = len(x) - min(f, (len(x) - 1) // 2)
    return np.array([x[np.argsort(row, kind="stable")[:near]].mean(axis=0) for row in distances(x)])
