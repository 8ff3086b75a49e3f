"""Rank: every client is rewarded with the mean of the updates of all clients that rank no higher than itself.

Source: IAFL, section 6, a baseline; its authors' code re-implements a method whose code was not released. Deviation:
clients are ranked on the server's validation rows; that code ranks on the test set (``rank_on = "test"``).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fljax import aggregators, training
from fljax.algorithms.cohorts import select_uniform
from fljax.algorithms.entries import Entry
from fljax.algorithms.rewarding import Models, move_models, per_client_models
from fljax.core import trees
from fljax.core.values import Count, checked
from fljax.protocol import Algorithm, Info, PerClient, Round, Task, along, roles
from fljax.training import Local


@checked
def rank(task: Task, local: Local, *, rank_on: str = "validation", clients_per_round: Count | None = None) -> Algorithm:
    """``theta_(i) <- theta_(i) + (1/(i+1)) sum_{j<=i} g_(j)``, clients in ascending order of their accuracy.

    The accuracy is that of the locally trained model ``theta_k + g_k`` on the server's rows ``rank_on``. The server
    judges one model per client in every round. A client that left the federation keeps its model and is not ranked.

    Args:
      task: model and loss.
      local: how clients train.
      rank_on: a name in ``federation.held``: "validation" (``held_fraction`` above 0) or "test".
      clients_per_round: drawn uniformly without replacement; None: all. A client outside the cohort is ranked by its
        current model; its update of zero counts in the means, and it still receives its reward.

    Returns:
      The algorithm. The server has no model of its own; an unseen client uses the mean of all members' models. Info:
      ``score`` [client], NaN for a client that left.

    Raises:
      ValueError: if the task has no score, or (in a run) if the server has no rows ``rank_on``.
    """
    training.check_score(task, "rank")

    def aggregate(server: Models, up: PyTree, round: Round) -> tuple[Models, Info]:
        if rank_on not in round.held:
            names = ", ".join(round.held) or "none; held_fraction above 0 keeps some for validation"
            raise ValueError(
                f"expected rank_on to name rows that the server has, got {rank_on!r}; valid names are {names}"
            )
        models = server.models.values
        update = trees.set_rows(trees.zeros_like(models), round.cohort.id, round.cohort.present, up.update)
        _, score = training.evaluate_each(task, trees.add(models, update), round.held[rank_on])
        sent = roles.replace_statistics(task, update, trees.add(models, update))
        if server.members is None:
            moved = move_models(task, models, aggregators.rank_rewards(sent, score), jnp.ones(score.shape, bool))
            # The mean of all models, for unseen clients.
            reference = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), moved)
            return Models(PerClient(moved), reference), along("client", score=score)
        # Behind all members, clients that left count in no member's mean.
        rewards = aggregators.rank_rewards(sent, jnp.where(server.members, score, jnp.inf))
        moved = trees.where_rows(server.members, move_models(task, models, rewards, server.members), models)
        mean = aggregators.weighted_mean(moved, server.members.astype(score.dtype))
        reference = trees.where(jnp.any(server.members), mean, server.reference)
        after = Models(PerClient(moved), reference, members=server.members)
        return after, along("client", score=trees.or_nan(server.members, score))

    return per_client_models(task, local, select_uniform(clients_per_round), aggregate)


ENTRY = Entry(
    rank,
    "rewards clients with the updates of those that rank no higher",
    ("wu2024incentive",),
    {"rank_on": "test"},
    reads="updates, whose models it ranks",
)
