"""Fine-tuning before deployment: every client trains its received model on its own data, then uses it.

Source: INCFL, appendix F.2 (local tuning, 5 steps); IAFL's FedAvg-finetune (1 epoch at the initial learning rate).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree, Shaped

from fljax import training
from fljax.core import trees
from fljax.core.values import Count, NonNegative, checked
from fljax.protocol import Algorithm, AnyArray, LocalData, Seat, TrainingKey
from fljax.scenarios.common import Entry, applied_scenarios, given, with_known
from fljax.training import Local

# Streams of the key of ``deploy``.
_DEPLOYMENT, _TUNING = 0, 1


@checked
def finetuned(
    inner: Algorithm,
    *,
    learning_rate: NonNegative,
    batch_size: Count,
    steps: Count | None = None,
    epochs: Count | None = None,
    optimizer: str | Callable[[Any], Any] = "sgd",
    shuffle: bool = True,
    who: Shaped[AnyArray, "*rounds N"] | None = None,
) -> Algorithm:
    """``deployed_k = LocalSGD(inner.deploy_k)``; training and aggregation are those of ``inner``.

    Args:
      inner: any algorithm; tuning trains the floating leaves of its deployed model, on the task loss of
        ``inner.predict``.
      learning_rate: learning rate of tuning, without decay.
      batch_size: batch size of tuning.
      steps: local steps, or
      epochs: passes over the client's training rows.
      optimizer: as for ``fljax.training.Local``.
      shuffle: whether batches are drawn, as for ``fljax.training.Local``, whatever ``inner`` does; if False, they are
        rows in their order.
      who: the clients that tune, by client id ``[N]``, or by round and client id ``[rounds, N]``, where row
        ``t % rounds`` is for deployment after t rounds. All unseen clients tune. None: all clients.

    Returns:
      The algorithm. Its ``common`` model is that of ``inner``, so both models are judged. The tuned model is judged on
      training rows, too (``train_loss``), for the metric ``deployed_model_appeal``.

    Raises:
      ValueError: unless exactly one of steps and epochs is given, or if ``who`` is for another number of clients.
    """
    if (steps is None) == (epochs is None):
        raise ValueError(f"expected exactly one of steps and epochs for finetuned, got steps={steps}, epochs={epochs}")
    tuners = None if who is None else with_known(inner, given(who))
    tuning = Local(learning_rate, batch_size, steps, epochs, optimizer, shuffle=shuffle)

    def deploy(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> PyTree:
        start = inner.deploy(jax.random.fold_in(key, _DEPLOYMENT), seat, down, client, data)
        is_floating = [jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating) for leaf in jax.tree.leaves(start)]
        params, _ = trees.split(start, is_floating)

        def loss(params: PyTree, x: Array, y: Array, position: Array, key: TrainingKey) -> Array:
            return inner.task.losses(inner.predict(trees.merge(params, start), x, key), y)

        tune_key = jax.random.fold_in(key, _TUNING)
        trained = training.train(tune_key, params, data.train, task=inner.task, local=tuning, loss=loss).params
        tuned = trees.merge(trained, start)
        return tuned if tuners is None or not seat.known else trees.where(tuners.behaves(client, seat), tuned, start)

    algorithm = inner if tuners is None else tuners.algorithm
    return algorithm._replace(personal=deploy, scenarios=applied_scenarios(inner, "finetuned", tunes=True))


ENTRY = Entry(
    finetuned,
    "clients train what they are given on their own data before they use it",
    {"learning_rate": 0.1, "batch_size": 2, "steps": 2},
    ("cho2022federate", "wu2024incentive"),
    ("learning_rate",),
)
