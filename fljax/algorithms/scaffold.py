"""SCAFFOLD: control variates correct the drift of local steps.

Source: Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning" (ICML 2020), Algorithm 1,
options I and II. Deviation: if sizes differ, a client's control variate is divided by the client's actual number of
steps. The server's control variate moves by the cohort's sum divided by the number of ALL clients. Some libraries
divide by the size of the cohort; then the method diverges if few clients take part. With weights by size, the variate c
is the mean of all c_k by size, so that the method descends FedAvg's objective ``sum_k n_k F_k / sum_k n_k``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from fljax import training
from fljax.algorithms.cohorts import mass_of_members, select_and_weigh
from fljax.algorithms.entries import Entry, require_plain_sgd
from fljax.algorithms.single_model import contribute_by, learning_by, normalise_weights, reported_size, single_model
from fljax.algorithms.single_model import server_optimizer as optimizer
from fljax.core import trees
from fljax.core.values import Count, NonNegative, checked
from fljax.protocol import Algorithm, Census, Info, LocalData, Round, Seat, Task, along, roles
from fljax.protocol.messages import Report
from fljax.protocol.sums import Part, Streamed, Total, divided
from fljax.training import Local, Optimizer, Stream


class ScaffoldServer(NamedTuple):
    """The model, the server optimizer's state, the mean control variate c, and the total weight of all clients."""

    model: PyTree
    optimizer: PyTree
    control: PyTree
    mass: Array  # [], the number of clients with data, or of all their training samples
    weights: Array | None = None  # [N]; None unless clients may leave: then ``mass`` is the members' total


class ScaffoldDown(NamedTuple):
    """What a client receives: the model and the mean control variate c."""

    model: PyTree
    control: PyTree


class ScaffoldUp(NamedTuple):
    """What a client sends: the changes (new minus old) of the model and of its control variate, and its size."""

    update: PyTree
    control: PyTree
    report: Report = Report()


class ScaffoldClient(NamedTuple):
    """A client's control variate c_k, kept between rounds."""

    control: PyTree


@checked
def scaffold(
    task: Task,
    local: Local,
    *,
    option: Literal["I", "II"] = "II",
    clients_per_round: Count | None = 10,
    weights: Literal["size", "uniform"] = "uniform",
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """``y <- y - eta (g(y) - c_k + c)``; ``w <- w + server_lr mean_k Delta_k``; ``c <- c + sum_k (c_k' - c_k) / N``.

    Args:
      task: model and loss.
      local: how clients train: plain SGD with a learning rate that is constant within a round. With ``clip_norm`` the
        corrected gradients are clipped, so option II averages clipped ones, less the drift ``c - c_k``.
      option: how ``c_k'`` is computed: "I" is the gradient at the received model on all of the client's rows; "II" is
        ``c_k - c + (w - y) / (K eta)`` after K steps, which needs no extra gradient; it stays where ``K eta`` is 0.
      clients_per_round: drawn uniformly without replacement; None: all.
      weights: ``a_k``, for ``w <- w + server_lr sum_k a_k Delta_k / sum_k a_k`` and ``c <- c + sum_k a_k (c_k' - c_k) /
        sum_j a_j`` with j over all members: "uniform" is 1, "size" is the client's number of training samples.
      server_lr: server learning rate eta_g.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm. Clients keep ``c_k``; ``c`` is the mean of all ``c_k``, by ``weights``, until a client leaves the
      federation. The server never receives ``c_k``, so it cannot take that of a client that left out of ``c``; from
      then on N counts the members. Info: ``weight`` [row].

    Raises:
      ValueError: if ``option`` or ``weights`` is not a valid name, or the local optimizer is not plain SGD.
    """
    contribute_one, learning = contribute_by(weights), learning_by(task, local)
    require_plain_sgd(local, "scaffold")
    server_side = optimizer(server_lr, server_optimizer, task)

    def init_server(key: Key[Array, ""], census: Census) -> ScaffoldServer:
        model = task.init(key)
        control = trees.widened(trees.zeros_like(model))  # changes of many rounds add up
        return ScaffoldServer(model, server_side.init(model), control, *mass_of_members(census, weights))

    def train(
        key: Key[Array, ""], seat: Seat, down: ScaffoldDown, client: ScaffoldClient, data: LocalData
    ) -> tuple[ScaffoldUp, ScaffoldClient]:
        drift = trees.subtract(down.control, client.control)
        trained = learning.train(key, seat, down.model, data, adjust=training.with_correction(drift))
        update = trees.subtract(trained.params, down.model)
        if option == "I":
            slope = training.full_gradient(task, down.model, data.train, training.stream(key, Stream.CONTROL_VARIATE))
            control = trees.widened(slope)
        else:
            own = training.of_client(local, data.train)
            eta = trees.wide(training.rate(own, seat.round, jax.tree.leaves(update)[0].dtype))
            length = trained.steps.astype(eta.dtype) * eta
            moved = length >= trees.least_divisor(eta.dtype)
            mean = trees.scale(trees.widened(update), -1 / jnp.where(moved, length, 1))
            control = trees.subtract(mean, drift)
            # Without a step there is no gradient to average, as where decay has brought the rate to zero.
            control = jax.tree.map(lambda new, old: jnp.where(moved, new, old), control, client.control)
        control = roles.zero_statistics(task, control)
        change = trees.subtract(control, client.control)
        return ScaffoldUp(update, change, reported_size(weights, data)), ScaffoldClient(control)

    def contribute(server: ScaffoldServer, seat: Seat, up: ScaffoldUp) -> tuple[Part, Array]:
        part, mass = contribute_one(server, seat, up)
        return Part(up._replace(report=Report()), part.weight), mass

    def finish(
        server: ScaffoldServer, total: Total, rows: Float[Array, " S"], round: Round
    ) -> tuple[ScaffoldServer, Info]:
        step = divided(total.value.update, total.weight)
        model, state = server_side.move(server.model, server.optimizer, step, round.cohort.present)
        control = trees.add_scaled(server.control, divided(total.value.control, server.mass))
        after = server._replace(model=model, optimizer=state, control=control)
        return after, along("row", weight=normalise_weights(rows))

    return single_model(
        task,
        clients_per_round=clients_per_round,
        train=train,
        aggregate=Streamed(contribute, finish),
        init_server=init_server,
        select=select_and_weigh(clients_per_round),
        send=lambda server, seat: ScaffoldDown(server.model, server.control),
        init_client=lambda key, seat, down, data: ScaffoldClient(trees.zeros_like(down.control)),
        common=lambda down: down.model,
    )


ENTRY = Entry(
    scaffold, "corrects local steps by control variates", ("karimireddy2020scaffold",), differentiable=("server_lr",)
)
