"""FedRep: clients learn a body together; in each round they first fit their own head to it.

Source: Collins et al., "Exploiting shared representations for personalized federated learning" (ICML 2021), Algorithm
1. Deviations: bodies are averaged by size, as in the authors' code for FEMNIST and Sent140 (uniformly in the paper and
for its other data), and a cohort of fixed size is drawn. What is held has no gradient; with PyTorch before 2.0 momentum
and decay moved it in that code. In that code the last round trains the heads of all clients for at least 10 epochs;
here ``final_epochs`` does so at every deployment. The momentum of 0.5 and the decay of weights alone of that code are
options of ``Local``. The code averages heads, too, but only for clients that have none.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Array, Key, PyTree

from fljax import training
from fljax.algorithms.entries import Entry, with_work
from fljax.algorithms.heads import in_body, learning_of
from fljax.algorithms.single_model import Learning, partly_shared
from fljax.core import trees
from fljax.core.values import Count, CountOrZero, checked
from fljax.protocol import Algorithm, LocalData, Seat, Task
from fljax.training import Local, Stream, Trained


@checked
def fedrep(
    task: Task,
    local: Local,
    *,
    head_epochs: Count | None = None,
    head_steps: Count | None = None,
    final_epochs: CountOrZero = 0,
    clients_per_round: Count | None = 10,
    weights: Literal["size", "uniform"] = "size",
) -> Algorithm:
    """``H_k <- LocalSGD(H; B)``, then ``B_k = LocalSGD(B; H_k)`` and ``B <- B + sum_k a_k (B_k - B) / sum_k a_k``.

    H is the head, the last layer by ``Task.roles``, and B the rest. While one of them trains, the other one is a
    constant, but for statistics (BatchNorm), which move in both phases. A phase with nothing to train is left out:
    without a head it is FedAvg.

    Args:
      task: model and loss.
      local: how clients train B, and the defaults for H.
      head_epochs: epochs of H in every round (the paper has 10, and 1 for B), or
      head_steps: steps of H in every round; both None: as for B.
      final_epochs: epochs of H before a client uses its model, with the trained leaves of B as received and the
        learning rate of the coming round; 0: a client uses its H as it is.
      clients_per_round: drawn uniformly without replacement; None: all. A client outside the cohort keeps its H and
        uses it with the new B.
      weights: ``a_k``: "size" is the client's number of training samples, "uniform" is 1.

    Returns:
      The algorithm. Only B is sent. An unseen client trains H from the initial one, for ``final_epochs`` or, if that is
      0, as in a round. Info: ``weight`` [row], normalised.

    Raises:
      ValueError: if ``weights`` is not a valid name, both ``head_epochs`` and ``head_steps`` are given, or a number is
        too small.
    """
    of_head = with_work(local, "head", head_epochs, head_steps)
    head, body = learning_of("head", task, of_head), learning_of("trained", task, local)
    final = learning_of("head", task, local._replace(steps=None, epochs=final_epochs)) if final_epochs else head

    def learn(key: Key[Array, ""], seat: Seat, model: PyTree, data: LocalData, state: PyTree) -> Trained:
        fitted = head.train(training.stream(key, Stream.HEAD), seat, model, data, state[0])
        both = body.train(key, seat, fitted.params, data, state[1])
        return both._replace(state=(fitted.state, both.state))

    def deploy(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> PyTree:
        model = trees.merge(down, client.own)
        if seat.known and final_epochs == 0:
            return model
        return final.train(key, seat, model, data).params

    shared, learning = in_body(task), Learning(lambda model: (head.first(model), body.first(model)), learn)
    usual = partly_shared(task, local, shared, clients_per_round=clients_per_round, weights=weights, learning=learning)
    return usual._replace(personal=deploy)


ENTRY = Entry(
    fedrep,
    "averages all but the last layer, which clients fit first (FedRep)",
    ("collins2021exploiting",),
    {"head_steps": 2},
)
