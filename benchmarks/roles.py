"""Models with BatchNorm, with dropout, and with a frozen backbone: ``python benchmarks/roles.py``.

Fashion-MNIST by 20 clients of 300 images, whose cameras differ: a quarter of the clients has plain images, the others
have inverted, dark or noisy ones. Every client takes 5 steps of 32 images in each round. The bytes are those of the
model that a client keeps or sends, and those that the compiled program of all rounds says it needs.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import fljax
from fljax import Federation, Task, algorithms, data, models
from fljax.core import trees
from fljax.training import Local

CLIENTS, ROWS = 20, 300
LOCAL = Local(0.1, 32, steps=5)


class Cnn(nn.Module):
    """Two convolutions and two dense layers; an adapter is a bottleneck whose output is added to its input."""

    normalised: bool = False
    dropout: float = 0.0
    adapter: int = 0

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        for number, width in enumerate((16, 32)):
            x = nn.Conv(width, (3, 3), conv_general_dilated=models.convolution, name=f"conv_{number}")(x)
            if self.normalised:
                x = nn.BatchNorm(use_running_average=not train, momentum=0.9, name=f"norm_{number}")(x)
            x = models.max_pool(nn.relu(x), 2)
        x = nn.relu(nn.Dense(64, name="dense")(x.reshape(x.shape[0], -1)))
        if self.adapter:
            inner = nn.relu(nn.Dense(self.adapter, name="adapter_down")(x))
            x = x + nn.Dense(64, kernel_init=nn.initializers.zeros, name="adapter_up")(inner)
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return nn.Dense(10, name="head")(x)


def cameras() -> Federation:
    """Clients whose images differ in the same way from those of others."""
    source = data.load("fashion_mnist")
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(source.y))[: CLIENTS * ROWS]
    x, owner = np.asarray(source.x)[rows].astype(np.float32), np.repeat(np.arange(CLIENTS), ROWS)
    kind = (owner % 4)[:, None, None, None]
    noisy = np.clip(x + rng.normal(0, 60, x.shape), 0, 255)
    x = np.select([kind == 0, kind == 1, kind == 2], [x, 255 - x, x / 4], noisy)
    return data.from_arrays(x.astype(np.uint8), np.asarray(source.y)[rows], owner, classes=10)


def task_of(federation: Federation, module: nn.Module, **options: Any) -> Task:
    """The classification task of a module."""
    head = lambda path: path.startswith("head/")  # noqa: E731
    return models.task_from_module(module, federation.examples.x[:1], classes=10, head=head, **options)


def row(name: str, build: Callable[..., Any], task: Task, federation: Federation, rounds: int, seeds: int) -> Any:
    """Runs one experiment, prints its line, and returns its result."""
    plan = fljax.Plan(build, {"task": task, "local": LOCAL, "clients_per_round": None})
    result = fljax.simulate(plan, federation, rounds=rounds, seeds=range(seeds), evaluate_every=rounds)
    accuracy = result.metrics.test_accuracy.isel(evaluated_round=-1).values
    size = trees.bytes_of(jax.eval_shape(task.init, jax.random.key(0)))
    kept = trees.bytes_of(result.state.clients) // seeds
    program = jax.jit(
        lambda task: fljax.rollout(
            build(task, LOCAL, clients_per_round=None), federation, rounds=1, clients=CLIENTS // 2
        )[0]
    )
    analysis = program.lower(task).compile().memory_analysis()
    assert analysis is not None
    held = analysis.temp_size_in_bytes + analysis.output_size_in_bytes
    print(
        f"{name:<40} {accuracy.mean():8.3f} {np.sort(accuracy, axis=-1)[:, :5].mean():10.3f} "
        f"{size / 1e3:10.1f} {kept / 1e3:12.1f} {held / 1e6:10.1f}",
        flush=True,
    )
    return result


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="BatchNorm, dropout, and adapters on a frozen backbone.")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    federation = cameras()
    run = functools.partial(row, federation=federation, rounds=options.rounds, seeds=options.seeds)
    print(f"{options.rounds} rounds, {options.seeds} seeds; kB: a model, kept by all clients; MB: a round")
    print(f"{'':<40} {'accuracy':>8} {'worst 5':>10} {'model kB':>10} {'clients kB':>12} {'round MB':>10}")
    fedavg, fedbn = algorithms.fedavg, algorithms.fedbn
    plain, normalised = task_of(federation, Cnn()), task_of(federation, Cnn(normalised=True))
    run("no normalisation, fedavg", fedavg, plain)
    run("dropout 0.5, fedavg", fedavg, task_of(federation, Cnn(dropout=0.5)))
    whole = run("BatchNorm, fedavg", fedavg, normalised)
    run("BatchNorm, fedbn", fedbn, normalised)
    run("BatchNorm, fedbn, own = statistics", functools.partial(fedbn, own="statistics"), normalised)

    adapted = task_of(federation, Cnn(normalised=True, adapter=8), statistics="frozen")
    # The backbone was trained by the clients together; the adapters start anew.
    trained = jax.tree.map(jnp.asarray, whole.deployed(0))
    params = {**adapted.init(jax.random.key(0)), **trained}
    trains = ("adapter_down/", "adapter_up/", "head/")
    frozen = models.freeze(adapted, params, lambda path: not path.startswith(trains), draw=False)
    whole_again = adapted._replace(init=jax.tree_util.Partial(lambda params, key: params, params))
    run("all layers go on, ditto", algorithms.ditto, whole_again)
    run("adapters on a frozen backbone, ditto", algorithms.ditto, frozen)
    run("adapters on a frozen backbone, fedavg", fedavg, frozen)


if __name__ == "__main__":
    main()
