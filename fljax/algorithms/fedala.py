"""FedALA: clients learn, entry by entry, how much of the global model's last layers enters their own.

Source: Zhang et al., "FedALA: adaptive local aggregation for personalized federated learning" (AAAI 2023), Algorithm 1.
Deviations: p counts parameter tensors, as in the authors' code (the paper: layers), and p = 0 means all of them; an
epoch's loss is its mean over the rows (the code: the loss of the last batch); the first learning of the weights ends
after at most ``most_epochs`` (no limit in the paper or the code); the server has a learning rate and an optimizer (the
defaults give the original).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, PyTree

from fljax import training
from fljax.algorithms.entries import Entry
from fljax.algorithms.fedavg import averaging
from fljax.algorithms.single_model import learning_by
from fljax.core import trees
from fljax.core.loops import repeat
from fljax.core.values import Count, CountOrZero, NonNegative, Share, checked
from fljax.protocol import Algorithm, LocalData, Role, Rows, Seat, Subset, Task, roles
from fljax.protocol.messages import Report, Sent
from fljax.training import Local, Optimizer, Stream

# The first learning ends after more than LAST epochs, once the losses of the last LAST epochs have a standard deviation
# below SETTLED.
LAST, SETTLED = 10, 0.1
# Layers that always come first in the model's order.
FIRST = ("embedding", "stem")

Leaves = tuple["Array", ...]


class FedAlaClient(NamedTuple):
    """What a client keeps between rounds."""

    model: PyTree  # theta_k, the model after the last local training
    weights: Leaves  # W for each of the top tensors, in the order of the parameters' leaves
    learned: Bool[Array, ""]  # whether W was ever learned
    trained: Bool[Array, ""]
    optimizer: PyTree = ()  # the kept state of local training


@checked
def fedala(
    task: Task,
    local: Local,
    *,
    layers: CountOrZero = 2,
    weight_learning_rate: NonNegative = 1.0,
    sample: Share = 0.8,
    most_epochs: Count = 100,
    clients_per_round: Count | None = 10,
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """Local training starts at w in the lower tensors and at ``theta_k + (w - theta_k) W_k`` in the top ones.

    Before local training, ``W <- clip(W - eta_W g (w - theta_k), 0, 1)`` for batches of a random share of the client's
    rows, where g is the gradient at the start of local training. A client's first learning of W repeats this until the
    loss settles; later rounds take one epoch. W is not learned if w equals theta_k. The server is FedAvg with weights
    by size.

    Args:
      task: model and loss.
      local: how clients train; W is learned with its batch size.
      layers: p, the number of top parameter tensors (a dense layer has two of them); 0: all. Statistics do not count;
        they always come from the global model. Tensors are in the order of the model: fields of tuples in their own
        order; dictionary names in alphabetical order, with numbers in names compared as numbers and a layer's bias
        last. ``embedding`` and ``stem`` come first; layers called ``dense``, ``dense_0`` and so on come after all
        others, and the head (``Task.roles``) comes last.
      weight_learning_rate: eta_W. 0 leaves W at 1: FedAvg.
      sample: share of the rows on which W is learned, at least one row, drawn in every round, also without shuffling.
      most_epochs: limit of the first learning. It ends earlier, after 11 epochs or more, once the losses of the last 10
        epochs have a standard deviation below 0.1.
      clients_per_round: drawn uniformly without replacement; None: all. The others keep theta_k and W.
      server_lr: server learning rate eta_g.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm. A client uses the newest global model, merged with its theta_k by its W. An unseen client, or one
      that never trained, uses the global model. ``common`` is the global model. Info: ``weight`` [row], normalised.

    Raises:
      ValueError: as ``fedavg``, or if the model has fewer tensors than ``layers``, ``sample`` is a number outside
        [0, 1], or ``most_epochs`` is not positive.
    """
    top = top_tensors(task, layers)
    once = local._replace(epochs=1, steps=None)
    learning = learning_by(task, local)

    def tops(model: PyTree) -> Leaves:
        return tuple(leaf for leaf, is_top in zip(jax.tree.leaves(model), top, strict=True) if is_top)

    def start(received: PyTree, personal: PyTree, weights: Leaves) -> PyTree:
        """The model at the start of local training."""
        leaves, structure = jax.tree.flatten(received)
        mixed = iter(old + (new - old) * w for old, new, w in zip(tops(personal), tops(received), weights, strict=True))
        return jax.tree.unflatten(
            structure, [next(mixed) if is_top else leaf for leaf, is_top in zip(leaves, top, strict=True)]
        )

    def learn(key: Key[Array, ""], received: PyTree, client: FedAlaClient, subset: Subset) -> FedAlaClient:
        """The client's state with new weights W."""
        same = jnp.stack(jax.tree.leaves(jax.tree.map(jnp.array_equal, client.model, received)))
        limit = jnp.where(jnp.all(same), 0, jnp.where(client.learned, 1, most_epochs))
        some = _some(training.stream(key, Stream.BATCHES), subset, sample)
        away = trees.subtract(tops(received), tops(client.model))
        dtype = np.promote_types(jax.tree.leaves(received)[0].dtype, np.float32)

        def step(carry: PyTree, position: Array, mask: Array, step_key: Key[Array, ""]) -> PyTree:
            weights, total = carry
            now = start(received, client.model, weights)
            loss, slope = training.value_and_gradient(task, now, some, position, mask, step_key)
            moves = trees.scale(tuple(map(jnp.multiply, tops(slope), away)), weight_learning_rate)
            weights = tuple(jnp.clip(weight - move, 0, 1) for weight, move in zip(weights, moves, strict=True))
            return weights, total + (loss * jnp.sum(mask)).astype(dtype)

        def epoch(_: Int[Array, ""], carry: PyTree) -> PyTree:
            weights, recent, done = carry
            own_key = jax.random.fold_in(training.stream(key, Stream.STEPS), done)
            batches = training.draw(training.stream(own_key, Stream.BATCHES), some, once)
            begin = (weights, jnp.zeros((), dtype))
            (weights, total), _ = training.descend(step, begin, batches, training.stream(own_key, Stream.STEPS))
            return weights, recent.at[done % LAST].set(total / jnp.maximum(some.rows.size, 1)), done + 1

        def settled(carry: PyTree) -> Bool[Array, ""]:
            _, recent, done = carry
            return (done > LAST) & (jnp.std(recent) < SETTLED)

        begin = (client.weights, jnp.zeros(LAST, dtype), jnp.zeros((), jnp.int32))
        weights, _, done = repeat(limit, epoch, begin, most=most_epochs, until=settled)
        return client._replace(weights=weights, learned=client.learned | (done > 0))

    def train(
        key: Key[Array, ""], seat: Seat, down: PyTree, client: FedAlaClient, data: LocalData
    ) -> tuple[Sent, FedAlaClient]:
        client = learn(training.stream(key, Stream.MIXING_WEIGHTS), down, client, data.train)
        begin = start(down, client.model, client.weights)
        trained = learning.train(key, seat, begin, data, client.optimizer)
        after = client._replace(model=trained.params, trained=jnp.asarray(True), optimizer=trained.state)
        return Sent(trees.subtract(trained.params, down), Report(size=data.train.rows.size)), after

    def init_client(key: Key[Array, ""], seat: Seat, down: PyTree, data: LocalData) -> FedAlaClient:
        weights, state = tuple(map(jnp.ones_like, tops(down))), learning.first(down)
        return FedAlaClient(down, weights, jnp.asarray(False), jnp.asarray(False), state)

    def deploy(key: Key[Array, ""], seat: Seat, down: PyTree, client: FedAlaClient, data: LocalData) -> PyTree:
        return trees.where(client.trained, start(down, client.model, client.weights), down)

    inner = averaging(task, local, clients_per_round, "size", server_lr, server_optimizer)
    return inner._replace(train=train, init_client=init_client, personal=deploy)


def top_tensors(task: Task, layers: int) -> list[bool]:
    """Whether each leaf of the parameters is among the last ``layers`` in the model's order; 0: all."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(shapes)]
    if layers > len(paths):
        raise ValueError(
            f"expected layers to be from 0 to the {len(paths)} parameter tensors of the model, got {layers!r}; "
            f"they are {', '.join(map(trees.path_of, paths))}"
        )
    leaf_roles = roles.roles_of(task, shapes)
    seen: dict[str, int] = {}

    def place(path: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
        parts = []
        for depth, part in enumerate(path):
            # Fields of a tuple, and other containers with an order, keep their order.
            number = seen.setdefault(jax.tree_util.keystr(path[: depth + 1]), len(seen))
            name = str(part.key) if isinstance(part, jax.tree_util.DictKey) else None
            # The text and the numbers of a name in turn.
            words = [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", name or "")]
            parts.append((number,) if name is None else (name == "bias", words))
        return tuple(parts)

    def kind(path: tuple[Any, ...], role: Role | None) -> int:
        names = [jax.tree_util.keystr((part,), simple=True).lower() for part in path]
        if role == "head":
            return 2
        if any(re.fullmatch(r"dense(_\d+)?", name) for name in names):
            return 1
        return -1 if names[0] in FIRST else 0

    keys = [(kind(path, role), place(path)) for path, role in zip(paths, leaf_roles, strict=True)]
    trained = [number for number, role in enumerate(leaf_roles) if role in ("trained", "head")]
    last = sorted(trained, key=keys.__getitem__)[len(trained) - layers if layers else 0 :]
    return [number in last for number in range(len(paths))]


def _some(key: Key[Array, ""], subset: Subset, share: float | Array) -> Subset:
    """A random share of a subset's rows; the number of rows is rounded and at least one."""
    size, capacity = subset.rows.size, subset.rows.index.shape[-1]
    wanted = jnp.round(jnp.asarray(share) * size).astype(size.dtype)
    order = jnp.clip(training.shuffle(key, size, capacity), 0, capacity - 1)
    return subset._replace(rows=Rows(subset.rows.index[order], jnp.clip(wanted, jnp.minimum(size, 1), size)))


ENTRY = Entry(
    fedala,
    "clients learn how much of the global model's last layers they take",
    ("zhang2023fedala",),
    {"layers": 1, "most_epochs": 12},
    differentiable=("weight_learning_rate", "server_lr"),
    flat=("sample",),
)
