"""FedEM: every client's data are a mixture of a few shared component distributions, with one model each.

Source: Marfoq et al., "Federated multi-task learning under a mixture of distributions" (NeurIPS 2021), Algorithm 1.
Deviations: only the cohort is averaged (the authors' code averages all clients, with the last copies of clients that
were not drawn); updates are averaged, with a server learning rate (1 gives the original); every client, seen or unseen,
takes some E-steps on its training rows before it uses the components.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key, PyTree

from fljax import training
from fljax.algorithms.clustered import Clusters, initial_models, judged_clusters, row_losses
from fljax.algorithms.cohorts import select_uniform
from fljax.algorithms.entries import Entry
from fljax.algorithms.single_model import learning_by, normalise_weights
from fljax.core import trees
from fljax.core.values import Count, CountOrZero, NonNegative, checked
from fljax.protocol import Algorithm, Info, Judged, LocalData, Round, Seat, Task, TrainingKey, along, roles
from fljax.protocol.messages import Report
from fljax.protocol.sums import Part, Streamed, Total, mean
from fljax.training import Local, Stream

# Lower bound of a component's share in logarithms.
SMALLEST = 1e-12


class FedEMClient(NamedTuple):
    """A client's mixture pi_k, kept between rounds, and the kept states of its optimizers."""

    mixture: Float[Array, " C"]
    optimizer: PyTree = ()  # [C, ...], one for each component


class FedEMUp(NamedTuple):
    """What a client sends: updates of all components (new minus old), its mixture, its size."""

    update: PyTree  # [C, ...]
    mixture: Float[Array, " C"]
    report: Report


class FedEMRow(NamedTuple):
    """A client's record: its mixture, and its weight in the sum."""

    mixture: Float[Array, " C"]
    mass: Float[Array, ""]


class Mixture(NamedTuple):
    """The model that a client uses: the components, and the client's mixture."""

    models: PyTree  # [C, ...]
    mixture: Float[Array, " C"]


@checked
def fedem(
    task: Task,
    local: Local,
    *,
    clusters: Count = 2,
    deploy_steps: CountOrZero = 10,
    clients_per_round: Count | None = 10,
    server_lr: NonNegative = 1.0,
) -> Algorithm:
    """E-step ``r_i(c) = softmax_c(log pi_k(c) - loss(w_c; i))``, ``pi_k = mean_i r_i``, LocalSGD of each component.

    The M-step trains w_c on ``sum_i r_i(c) loss(w_c; i) / b`` over batches of b rows; all components see the same
    batches. The server step is ``w_c <- w_c + server_lr sum_k N_k Delta_kc / sum_k N_k`` over the cohort.

    Args:
      task: model and loss, a negative log-likelihood over classes.
      local: how clients train a component.
      clusters: C, the number of components. They start from different initial parameters, the first one from those of
        ``fedavg``.
      deploy_steps: E-steps on its training rows that a client takes before it uses the received components. They start
        from the client's mixture, or from the uniform mixture if the client is unseen or never trained. The losses are
        computed once for all E-steps. 0: mixtures are those of the last training.
      clients_per_round: drawn uniformly without replacement; None: all. Clients outside the cohort keep their mixture.
      server_lr: server learning rate.

    Returns:
      The algorithm. A client predicts ``log sum_c pi_k(c) softmax(w_c(x))``. The model of a cluster is a component
      alone. Info: ``mixture`` [row, cluster], zeros in an empty row, and ``weight`` [row].

    Raises:
      ValueError: if ``clusters`` or ``clients_per_round`` is not positive, ``deploy_steps`` is negative, or the
        task has no classes.
    """
    training.check_classes(task, "fedem")
    learning = learning_by(task, local)

    def train(
        key: Key[Array, ""], seat: Seat, down: PyTree, client: FedEMClient, data: LocalData
    ) -> tuple[FedEMUp, FedEMClient]:
        losses = row_losses(task, down, data.train, training.stream(key, Stream.LOSS))
        responsibility, mixture = expectation(client.mixture, losses, data.train.rows.size)

        def maximise(component: tuple[PyTree, Array, PyTree]) -> tuple[PyTree, PyTree]:
            model, weight, state = component

            def loss(params: PyTree, x: Array, y: Array, position: Array, key: TrainingKey) -> Array:
                return weight[position] * task.losses(task.logits(params, x, key), y)

            trained = learning.train(key, seat, model, data, state, loss=loss)
            return trees.subtract(trained.params, model), trained.state

        update, state = training.map_models(maximise, (down, responsibility, client.optimizer))
        return FedEMUp(update, mixture, Report(size=data.train.rows.size)), FedEMClient(mixture, state)

    def init_client(key: Key[Array, ""], seat: Seat, down: PyTree, data: LocalData) -> FedEMClient:
        return FedEMClient(jnp.ones(clusters) / clusters, jax.vmap(learning.first)(down))

    def contribute(server: Clusters, seat: Seat, up: FedEMUp) -> tuple[Part, FedEMRow]:
        mass = trees.wide(up.report.size)
        return Part(up.update, mass), FedEMRow(up.mixture, mass)

    def finish(server: Clusters, total: Total, rows: FedEMRow, round: Round) -> tuple[Clusters, Info]:
        models = roles.add_scaled(task, server.models, mean(total), server_lr)
        info = along("row", "cluster", mixture=rows.mixture) | along("row", weight=normalise_weights(rows.mass))
        return Clusters(models), info

    def deploy(key: Key[Array, ""], seat: Seat, down: PyTree, client: FedEMClient, data: LocalData) -> Mixture:
        if deploy_steps == 0:
            return Mixture(down, client.mixture)
        losses, size = row_losses(task, down, data.train, training.stream(key, Stream.LOSS)), data.train.rows.size

        def step(_: int | Array, mixture: Array) -> Array:
            return expectation(mixture, losses, size)[1]

        return Mixture(down, jax.lax.fori_loop(0, deploy_steps, step, client.mixture))

    def predict(deployed: Mixture, x: Array, key: TrainingKey | None = None) -> Array:
        chance = training.map_models(lambda w: jax.nn.log_softmax(trees.wide(task.logits(w, x, key))), deployed.models)
        return jax.nn.logsumexp(chance + _logarithm(deployed.mixture, chance.dtype)[:, None, None], axis=0)

    def components(server: Clusters) -> dict[str, Judged]:
        # Each component is judged as a mixture of this component alone.
        alone = Mixture(jax.tree.map(lambda leaf: leaf[:, None], server.models), jnp.ones((clusters, 1)))
        return judged_clusters(alone)

    def roles_of(tree: PyTree) -> PyTree:  # a deployed mixture, or components
        assert task.roles is not None
        if not isinstance(tree, Mixture):
            return task.roles(tree)
        return tree._replace(models=task.roles(tree.models), mixture="trained")

    return Algorithm(
        task=task._replace(logits=predict, roles=None if task.roles is None else roles_of),
        init_server=lambda key, census: Clusters(initial_models(task, key, clusters)),
        init_client=init_client,
        send=lambda server, seat: server.models,
        train=train,
        aggregate=Streamed(contribute, finish, stacked=True),
        select=select_uniform(clients_per_round),
        personal=deploy,
        models=components,
    )


def expectation(
    mixture: Float[Array, " C"], losses: Float[Array, "C n_max"], size: Int[Array, ""]
) -> tuple[Float[Array, "C n_max"], Float[Array, " C"]]:
    """The E-step: components' responsibilities for each row, and the new mixture, which without rows is the old one."""
    responsibility = jax.nn.softmax(_logarithm(mixture, losses.dtype)[:, None] - losses, axis=0)
    real = jnp.arange(losses.shape[1]) < size
    total = jnp.sum(jnp.where(real[None, :], responsibility, 0), axis=1) / jnp.maximum(size, 1).astype(losses.dtype)
    return responsibility, jnp.where(size > 0, total.astype(mixture.dtype), mixture)


def _logarithm(mixture: Float[Array, " C"], dtype: DTypeLike) -> Float[Array, " C"]:
    return jnp.log(jnp.maximum(mixture.astype(dtype), SMALLEST))


ENTRY = Entry(
    fedem,
    "every client's data are a mixture of shared components (FedEM)",
    ("marfoq2021federated",),
    differentiable=("server_lr",),
)
