"""Robust rules beside NumPy and byzfl, and rounds with one of them.

100 normal updates of 52,500 numbers in float32, f = 20; fljax's rules are compiled. `--byzfl FOLDER`, packages of a
Python with byzfl 0.0.11, adds it on torch tensors, with torch's number of threads. Turns of two alternate; ratios are
fljax's time by the other's, as in `pairs`. Last come 50 rounds of W1a with `trimmed_mean`, beside plain FedAvg.
"""

import functools
import importlib
import sys
import timeit
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import fljax
from benchmarks.engine.memory import in_turn
from benchmarks.engine.pairs import alternating, cells
from benchmarks.peers.contestants import parts
from benchmarks.peers.workloads import WORKLOADS, meta_of


def measure(options: Namespace) -> Iterator[Any]:
    """A row for each rule, and one of rounds."""
    fljax.use_cores()
    x = np.random.default_rng(0).standard_normal((100, options.numbers), np.float32)
    if options.byzfl:  # without its __init__.py, which needs torchvision
        sys.path.append(options.byzfl)
        vars(sys.modules.setdefault("byzfl", type(sys)("byzfl")))["__path__"] = [f"{options.byzfl}/byzfl"]
    for name, (given, plain, *words) in rules().items():
        rule = jax.jit(functools.partial(getattr(fljax.aggregators, name), **given))
        calls = [functools.partial(rule, jax.numpy.asarray(x)), functools.partial(plain, x)]
        if options.byzfl and words:
            theirs = getattr(importlib.import_module("byzfl.aggregators"), words[0])(*words[1:])
            calls.append(functools.partial(theirs, importlib.import_module("torch").from_numpy(x)))
        yield name, *beside(options.turns, *calls)
    data, fedavg = in_turn(meta := meta_of(WORKLOADS["W1a"])), parts.algorithm(meta, parts.task(meta))
    forms = [fljax.scenarios.robust(fedavg, rule="trimmed_mean", byzantine=20), fedavg]
    runs = [functools.partial(fljax.simulate, form, data, rounds=50, evaluate_every=50) for form in forms]
    yield "rounds", *beside(options.turns, *runs)


def beside(turns: int, *calls: Callable[[], Any]) -> list[str]:
    """Our milliseconds, and each other's with the ratio; the first calls are not counted."""
    ours, *others = [lambda f=f: (timeit.timeit(lambda: jax.block_until_ready(f()), number=1), 1.0) for f in calls]
    found = [cells(alternating([other, ours], turns + 1)[1:], 1e3) for other in others]
    return [found[0][1], *(cell for each in found for cell in (each[0], each[2]))]


def rules() -> dict[str, tuple[Any, ...]]:
    """By name: more arguments of fljax's, NumPy's, and byzfl's class with its arguments."""
    f, bound = 20, 200.0  # norms are about 229

    def apart(x: Any) -> Any:
        return np.add.outer(square := np.square(x).sum(axis=1), square) - 2 * (x @ x.T)

    def best(square: Any) -> Any:
        return np.argsort(np.sort(square)[:, 1 : max(len(square) - f - 1, 2)].sum(axis=1))

    def middle(x: Any, cut: int) -> Any:
        return np.sort(x, axis=0)[cut : len(x) - cut].mean(axis=0)

    def geometric(x: Any) -> Any:
        z = x.mean(axis=0)
        for _ in range(4):
            z = (weights := 1 / np.linalg.norm(x - z, axis=1)) @ x / weights.sum()
        return z

    def clipped(x: Any) -> Any:
        return np.minimum(1, bound / np.linalg.norm(x, axis=1)) @ x / len(x)

    def mixed(x: Any) -> Any:
        return np.eye(len(x), dtype=x.dtype)[np.argsort(apart(x))[:, :-f]].mean(axis=1) @ x

    def bulyan(x: Any) -> Any:
        square, left = apart(x), np.arange(len(x))
        while len(left) > 2 * f:
            left = np.delete(left, best(square[np.ix_(left, left)])[0])
        picked = np.delete(x, left, axis=0)
        near = np.argsort(abs(picked - middle(picked, (len(picked) - 1) // 2)), axis=0)[: len(x) - 4 * f]
        return np.take_along_axis(picked, near, axis=0).mean(axis=0)

    return {
        "coordinate_median": ({}, lambda x: middle(x, 49), "Median"),
        "trimmed_mean": ({"byzantine": f}, lambda x: middle(x, f), "TrMean", f),
        "multi_krum": ({"byzantine": f}, lambda x: x[best(apart(x))[:78]].mean(axis=0), "MultiKrum", f),
        "geometric_median": ({}, geometric, "GeometricMedian", 1e-5, 4),
        "centred_clipping": ({"bound": bound}, clipped, "CenteredClipping", None, 1, bound),
        "bulyan": ({"byzantine": f}, bulyan),
        "nearest_neighbour_mixing": ({"byzantine": f}, mixed, "NNM", f),
    }
