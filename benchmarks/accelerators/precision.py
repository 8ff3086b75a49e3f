"""What coarser matrix products do to INCFL.

A TPU rounds the factors of a float32 product to bfloat16 by default (7 stored bits), an H100 to TensorFloat-32 (10
bits); sums are float32. A CPU does neither, so the factors are rounded here before each product, forwards and
backwards (``lax.reduce_precision``). The experiment is ``engine/digits.toml``: 40 clients with two of ten digits
each, an MLP, thresholds from standalone models of the same precision. The last row is float32 with another number of
clients side by side: what other rounding alone does.

Weights are INCFL's of the first round, when all models are still equal; their differences from those of float32 are
relative to the largest weight. Accuracies and IPR are means over clients and seeds after the last round; in brackets
the change from float32 with its standard error over seeds.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax import lax

import fljax
from benchmarks.reporting import ROOT, Row
from fljax import algorithms, config, models
from fljax.experiments.inputs.setup import resolve_setup

CONFIG = ROOT / "benchmarks" / "engine" / "digits.toml"
FLOAT32_BITS = 23


def product(bits: int) -> Any:
    """``lax.dot_general`` of two matrices, for ``nn.Dense``, whose factors keep so many stored bits of the mantissa."""
    rounded = lambda x: lax.reduce_precision(x, exponent_bits=8, mantissa_bits=bits)  # noqa: E731

    @jax.custom_vjp
    def multiply(a: Any, b: Any) -> Any:
        return rounded(a) @ rounded(b)

    def backward(factors: Any, slope: Any) -> Any:
        a, b = factors
        return rounded(slope) @ rounded(b).T, rounded(a).T @ rounded(slope)

    multiply.defvjp(lambda a, b: (multiply(a, b), (a, b)), backward)

    def dot_general(a: Any, b: Any, dimension_numbers: Any, **_: Any) -> Any:
        assert dimension_numbers == (((1,), (0,)), ((), ()))
        return multiply(a, b)

    return dot_general


class Mlp(nn.Module):
    """The MLP of the experiment."""

    bits: int

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = x.reshape(x.shape[0], -1)
        for place, width in enumerate((64, 30)):
            x = nn.relu(nn.Dense(width, dot_general=product(self.bits))(x))
            x = nn.Dropout(0.5, deterministic=not train)(x) if place == 0 else x
        return nn.Dense(10, dot_general=product(self.bits))(x)


def run(setup: Any, bits: int, clients: int) -> dict[str, Any]:
    """INCFL's first weights, and the metrics of INCFL and FedAvg after the last round, by seed."""
    federation, execution = setup.federation, fljax.Execution(clients=clients)
    task = models.task_from_module(Mlp(bits), federation.examples.x[:1], classes=10, prepare=setup.task.prepare)
    alone = fljax.standalone(task, federation, setup.standalone, seeds=setup.seeds)
    shared = {"task": task, "local": setup.algorithms[0].local, "clients_per_round": setup.clients_per_round}
    found: dict[str, Any] = {}
    for name, by_seed in (("fedavg", {}), ("incfl", {"threshold": alone.threshold})):
        plan = fljax.Plan(getattr(algorithms, name), shared, by_seed)
        result = fljax.simulate(
            plan,
            federation,
            rounds=setup.rounds,
            evaluate_every=setup.rounds,
            seeds=setup.seeds,
            reference=alone,
            execution=execution,
        )
        last = result.metrics.isel(evaluated_round=-1)
        found[f"{name} accuracy"] = last["test_accuracy"].mean("client").values
        found[f"{name} IPR"] = last["incentivised_participation_rate"].values
        if name == "incfl":
            found["weights"] = result.records["weight"].isel(round=0).values
    return found


def measure(options: Namespace) -> Iterator[Row]:
    """A row for each precision."""
    changes = [f"rounds={options.rounds}"] if options.rounds else []
    setup = resolve_setup(config.load(CONFIG, [f"seeds={options.seeds}", *changes]))
    kinds = (
        ("float32 (23 bits)", FLOAT32_BITS, 1),
        ("TensorFloat-32 (10 bits)", 10, 1),
        ("bfloat16 (7 bits)", 7, 1),
        ("float32, 5 clients at a time", FLOAT32_BITS, 5),
    )
    exact = None
    for title, bits, clients in kinds:
        found = run(setup, bits, clients)
        exact = found if exact is None else exact
        off = np.abs(found["weights"] - exact["weights"]) / exact["weights"].max()
        cells = [title, f"{off.mean():.1e}", f"{off.max():.1e}"]
        for name in ("fedavg accuracy", "fedavg IPR", "incfl accuracy", "incfl IPR"):
            change = found[name] - exact[name]
            error = change.std(ddof=1) / len(change) ** 0.5 if len(change) > 1 else float("nan")
            cells.append(f"{found[name].mean():.3f} ({change.mean():+.3f} ± {error:.3f})")
        yield cells
