"""Strategic clients: what every client does, as numbers, so that profiles of strategies are runs of one program.

Source: Lin, Du and Liu, "Free-riders in federated learning: attacks and defenses" (2019), for free riders that send
the last change of the model; Fraboni, Vidal and Lorenzi, "Free-rider attacks on model aggregation in federated
learning" (AISTATS 2021), for those that disguise it by noise. Deviation: noise is relative to the update, and not of a
fixed size.

A field that is None is not in the program. A term whose coefficient is 0 is not read, so NaN in it does no harm. Terms
of the last update and of the last model need them in the client's state, so they are there only if a field asks for
them. An honest client sends what it would send without the scenario.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from fljax.core import trees, users
from fljax.core.names import name_of
from fljax.core.values import Range, check_by_client, checked
from fljax.protocol import Algorithm, Census, LocalData, Seat, Task, roles
from fljax.protocol.messages import changed_report, changed_update, updates_of
from fljax.scenarios.changed_rows import with_flipped_labels
from fljax.scenarios.common import (
    ByRound,
    Entry,
    add_normal,
    applied_scenarios,
    key_number,
    of_client,
    root_mean_square,
)
from fljax.scenarios.effort import with_effort
from fljax.scenarios.misreporting import false_value

Coefficients = Annotated[ByRound, Range()]
CoefficientsOrInfinity = Annotated[ByRound, Range(infinite=True)]
Shares = Annotated[ByRound, Range(0, 1)]
Levels = Annotated[ByRound, Range(0)]


class ByReport(NamedTuple):
    """Numbers for each value that clients may report, as in ``Strategy``; None: it is reported as it is.

    Attributes:
      loss: for losses, which may be infinite.
      size: for sizes; reports of it are rounded, and at least 0.
      accuracy: for accuracies; reports of it are at least 0.
      threshold: for thresholds, which may be infinite.
      contribution: for contributions; reports of it are at least 0.
      bid: for bids; reports of it are at least 0.
    """

    loss: CoefficientsOrInfinity | None = None
    size: CoefficientsOrInfinity | None = None
    accuracy: CoefficientsOrInfinity | None = None
    threshold: CoefficientsOrInfinity | None = None
    contribution: CoefficientsOrInfinity | None = None
    bid: CoefficientsOrInfinity | None = None


class Strategy(NamedTuple):
    """What clients do: each field is one number, ``[N]`` by client id, or ``[rounds, N]``; None: all are honest in it.

    Round t uses row ``t % rounds``. The sent update is ``own Delta^t + stale Delta' + echo (w - w') + noise (t +
    1)^-noise_decay r xi`` with ``xi ~ N(0, I)``. Delta' is the client's update of the round in which it trained last,
    at first zero; w is the model that it received now and w' the one that it received last, at first the initial one. r
    is the root mean square of Delta^t where ``own`` is not 0, else of ``w - w'``.

    Attributes:
      effort: share of its training rows that a client trains on, as in the scenario ``effort``, but at least one row;
        1 is honest.
      own: coefficient of its update; 1 is honest, 0 a free rider, -1 flips it.
      stale: coefficient of its last update; 0 is honest.
      echo: coefficient of the last change of the model; 0 is honest.
      noise: the noise, relative to r; 0 is honest.
      noise_decay: the power with which noise decays over rounds; 0: it does not.
      flip: share of its training labels y that are ``classes - 1 - y`` where it trains and where it answers polls.
      factor: by value that the client reports; 1 is honest.
      shift: by value; the client reports ``factor value + shift``; 0 is honest.
    """

    effort: Shares | None = None
    own: Coefficients | None = None
    stale: Coefficients | None = None
    echo: Coefficients | None = None
    noise: Levels | None = None
    noise_decay: Levels | None = None
    flip: Shares | None = None
    factor: ByReport = ByReport()
    shift: ByReport = ByReport()


HONEST = Strategy(1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, ByReport(*[1.0] * 6), ByReport(*[0.0] * 6))


class Knowledge(NamedTuple):
    """What a client knows when it sends a message.

    Attributes:
      seat: the ``round``, and its ``id``.
      key: a random key of its own in this round.
      down: what it received, in polls and in training.
      client: what it keeps from earlier rounds, as the algorithm's Client.
      data: its own rows; ``data.train.rows.size`` is their number.
    """

    seat: Seat
    key: Key[Array, ""]
    down: PyTree
    client: PyTree
    data: LocalData


# ``(message, knowledge) -> message`` of one client, traced: its honest Ballot or Up, and one of the same form.
Deviation = Callable[[Any, Knowledge], Any]


# A Strategy of arrays, with None where a field is None: its annotations also allow the lists and numbers of users.
_Numbers = Any


class StrategicDown(NamedTuple):
    """What a client needs once: what the wrapped algorithm sends then, and what it sends in rounds."""

    inner: PyTree
    usual: PyTree


class StrategicClient(NamedTuple):
    """The wrapped algorithm's Client, and what strategies need of earlier rounds; ``()`` where no field asks for it."""

    inner: PyTree
    update: PyTree = ()
    model: PyTree = ()
    labels: Any = ()  # the key by which labels are flipped
    rounds: Any = 0  # in which it trained


@checked
def strategic(inner: Algorithm, *, strategy: Strategy = Strategy()) -> Algorithm:
    """Every client follows its strategy: effort, reports, the sent update and flipped labels.

    Only what a client trains on and sends changes. Its own state, and the model that it would use, follow from its
    honest training on these rows. Statistics of a model (BatchNorm) stay honest where ``own`` is not 0, and are zeros
    where it is 0. Who joins is no part of a strategy: see ``member`` of ``fljax.Over``, and ``availability``.

    Args:
      inner: any algorithm. A field has no effect on an algorithm that does not read it.
      strategy: numbers by client. Plans that differ only in these numbers share a program. Fields that are None are no
        part of it. ``stale`` and ``echo``, and ``noise`` beside ``own``, keep a model for each client.

    Returns:
      The algorithm. Info: with ``effort``, ``effort`` [client].

    Raises:
      ValueError: if a number is out of its range, or an array is for another number of clients; with ``flip``, if the
        task has no classes; with fields that keep a model, unless clients receive one model of the shape of the update
        that they send.
    """
    return with_strategy(inner, strategy)


def with_strategy(
    inner: Algorithm,
    strategy: Strategy,
    functions: tuple[Deviation, ...] = (),
    chosen: Float[Array, " N"] | Float[np.ndarray, " N"] | None = None,
) -> Algorithm:
    """``strategic``, where client i first sends what ``functions[chosen_i - 1]`` makes of its messages; 0: honest."""
    number = key_number(inner, "strategic")
    numbers = _arrays(strategy)
    worked = inner if numbers.effort is None else with_effort(inner, numbers.effort)
    keeps_model = numbers.echo is not None or (numbers.noise is not None and numbers.own is not None)
    keeps = keeps_model or numbers.stale is not None
    changes = any(term is not None for term in (numbers.own, numbers.stale, numbers.echo, numbers.noise))

    def init_server(key: Key[Array, ""], census: Census) -> PyTree:
        for path, leaf in jax.tree_util.tree_leaves_with_path(numbers):
            check_by_client(f"strategy.{trees.path_of(path).replace('/', '.')}", leaf, census.train.shape[0])
        return worked.init_server(key, census)

    def send(server: PyTree, seat: Seat) -> PyTree:
        down = worked.send(server, seat)
        return StrategicDown(down, worked.send(server, seat._replace(first=False))) if seat.first else down

    def init_client(key: Key[Array, ""], seat: Seat, down: Any, data: LocalData) -> StrategicClient:
        own = worked.init_client(key, seat, down.inner if keeps else down, data)
        client = StrategicClient(own, rounds=jnp.zeros((), jnp.int32))
        if numbers.flip is not None:
            client = client._replace(labels=jax.random.fold_in(key, number))
        if not keeps:
            return client
        trains = seat._replace(first=False, known=True)
        up, _ = jax.eval_shape(worked.train, key, trains, down.usual, client.inner, data)
        update, model = _of_earlier_rounds(worked, down.usual, up)
        none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), update)
        return client._replace(update=() if numbers.stale is None else none, model=model if keeps_model else ())

    def believed(seat: Seat, client: StrategicClient, data: LocalData) -> LocalData:
        if numbers.flip is None or not seat.known:
            return data
        return with_flipped_labels(inner.task, client.labels, of_client(numbers, seat).flip, data)

    def ask(key: Key[Array, ""], seat: Seat, down: PyTree, client: StrategicClient, data: LocalData) -> PyTree:
        assert worked.poll is not None
        ballot = worked.poll.ask(key, seat, down, client.inner, believed(seat, client, data))
        ballot = _made(functions, chosen, Knowledge(seat, key, down, client.inner, data), ballot)
        return _reported(of_client(numbers, seat), ballot) if seat.known else ballot

    def train(
        key: Key[Array, ""], seat: Seat, down: PyTree, client: StrategicClient, data: LocalData
    ) -> tuple[PyTree, StrategicClient]:
        now = of_client(numbers, seat)
        up, new = worked.train(key, seat, down, client.inner, believed(seat, client, data))
        up = _made(functions, chosen, Knowledge(seat, key, down, client.inner, data), up)
        after, up = client._replace(inner=new, rounds=client.rounds + 1), _reported(now, up)
        if not changes:
            return up, after
        last = _Terms(stale=client.update)
        if keeps:
            update, model = _of_earlier_rounds(worked, down, up)
            last = last._replace(echo=trees.subtract(model, client.model) if keeps_model else ())
            after = after._replace(update=() if numbers.stale is None else update, model=model if keeps_model else ())
        noise_key = jax.random.fold_in(key, number)
        changed = changed_update(up, lambda own: _sent(inner.task, noise_key, seat, now, last._replace(own=own)))
        return changed, after

    def personal(key: Key[Array, ""], seat: Seat, down: PyTree, client: StrategicClient, data: LocalData) -> PyTree:
        return worked.deploy(key, seat, down, client.inner, data)

    return worked._replace(
        init_server=init_server,
        send=send if keeps else worked.send,
        init_client=init_client,
        poll=None if worked.poll is None else worked.poll._replace(ask=ask),
        train=train,
        personal=None if worked.personal is None else personal,
        scenarios=applied_scenarios(inner, "strategic"),
    )


def _made(
    functions: tuple[Deviation, ...],
    chosen: Float[Array, " N"] | Float[np.ndarray, " N"] | None,
    knowledge: Knowledge,
    message: PyTree,
) -> PyTree:
    """The message that the chosen function makes, 0: the honest one; a ValueError if it has another form."""
    if chosen is None or not functions or not knowledge.seat.known:
        return message
    honest = jax.tree.map(jnp.asarray, message)

    def of(function: Deviation) -> PyTree:
        told = users.call("the deviation", "(message, knowledge)", function, message, knowledge)
        if not _have_same_shapes(told, honest):
            shapes = (jax.tree.map(jnp.shape, tree) for tree in (honest, told))
            expected = f"expected {name_of(function)} to give a message of the form of an honest one"
            raise ValueError("{}, {}, got {}".format(expected, *shapes))
        return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), told, honest)

    number = jnp.asarray(chosen)[knowledge.seat.id].astype(jnp.int32)
    return jax.lax.switch(number, [lambda: honest, *(lambda function=function: of(function) for function in functions)])


class _Terms(NamedTuple):
    """The terms of a sent update: that of this round, the last one, and the last change of the model."""

    own: PyTree = ()
    stale: PyTree = ()
    echo: PyTree = ()


def _sent(task: Task, key: Key[Array, ""], seat: Seat, now: _Numbers, terms: _Terms) -> PyTree:
    """The update that a client sends; ``now`` has its numbers ``[]`` of this round."""

    def false_update() -> PyTree:
        own = jnp.ones(()) if now.own is None else now.own
        total = _times(own, terms.own)
        for coefficient, term in ((now.stale, terms.stale), (now.echo, terms.echo)):
            total = total if coefficient is None else trees.add(total, _times(coefficient, term))
        if now.noise is not None:
            size = root_mean_square(task, terms.own)
            size = size if now.own is None else jnp.where(own != 0, size, root_mean_square(task, terms.echo))
            decay = 1.0 if now.noise_decay is None else (seat.round + 1.0) ** -now.noise_decay
            noisy = functools.partial(add_normal, key, total, now.noise * decay * trees.readable(now.noise != 0, size))
            total = trees.sloped(jax.lax.cond(now.noise != 0, noisy, lambda quiet=total: quiet), noisy())
        statistics = trees.where(own == 0, trees.zeros_like(terms.own), terms.own)
        return roles.replace_statistics(task, total, statistics)

    honest = ((now.own, 1), (now.stale, 0), (now.echo, 0), (now.noise, 0))
    differs = functools.reduce(jnp.logical_or, [number != value for number, value in honest if number is not None])
    # On a CPU the condition skips the work for honest clients. Programs without derivatives leave out the second one.
    return trees.sloped(jax.lax.cond(differs, false_update, lambda: terms.own), false_update())


def _times(coefficient: Float[Array, ""], tree: PyTree) -> PyTree:
    """The product, and zeros where the coefficient is 0, whatever the tree has."""
    return jax.tree.map(lambda leaf: coefficient.astype(leaf.dtype) * trees.readable(coefficient != 0, leaf), tree)


def _reported(now: _Numbers, message: PyTree) -> PyTree:
    """The message with the reports of a client; ``now`` has its numbers ``[]`` of this round."""
    for name in ByReport._fields:
        factor, shift = getattr(now.factor, name), getattr(now.shift, name)
        if factor is None and shift is None:
            continue
        multiplied = jnp.ones(()) if factor is None else factor
        added = jnp.zeros(()) if shift is None else shift
        message = changed_report(message, name, functools.partial(_said, name, multiplied, added))
    return message


def _said(name: str, factor: Float[Array, ""], shift: Float[Array, ""], value: Array) -> Array:
    """The value of an honest client as it is, else ``factor value + shift``."""
    false = false_value(name, value, factor, shift)
    return trees.sloped(jnp.where((factor == 1) & (shift == 0), value, false), false)


def received_model(algorithm: Algorithm, down: PyTree, update: PyTree) -> PyTree:
    """What a client received with the shapes of its update; None where clients train one of several models."""
    candidates = [down, getattr(down, "model", None)]
    candidates += [] if algorithm.common is None else [algorithm.common(down)]
    alike = (part for part in candidates if part is not None and _have_same_shapes(part, update))
    return next(alike, None)


def _of_earlier_rounds(algorithm: Algorithm, down: PyTree, up: PyTree) -> tuple[PyTree, PyTree]:
    """The update that a client sends, and the model that it received; raises a ValueError if there are none."""
    updates = updates_of(up)
    model = received_model(algorithm, down, updates[0]) if len(updates) == 1 else None
    if model is None:
        raise ValueError(
            "expected an algorithm whose clients receive one model and send an update of its shape, for stale, for "
            "echo and for noise beside own, got one that sends something else"
        )
    return updates[0], model


def _have_same_shapes(one: PyTree, other: PyTree) -> bool:
    """Whether two trees have the same structure, and leaves of the same shapes."""
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(jnp.shape(first) == jnp.shape(second) for first, second in pairs)


def _arrays(strategy: Strategy) -> _Numbers:
    """The strategy with arrays in place of numbers and lists; None stays."""

    def one(value: Any) -> Any:
        return None if value is None else jnp.asarray(value, jnp.result_type(float))

    rest = {name: one(value) for name, value in strategy._asdict().items() if name not in ("factor", "shift")}
    return Strategy(factor=ByReport(*map(one, strategy.factor)), shift=ByReport(*map(one, strategy.shift)), **rest)


ENTRY = Entry(
    strategic,
    "clients follow strategies: effort, false reports, scaled, stale, echoed and noisy updates, flipped labels",
    {
        "strategy": Strategy(
            effort=(1.0, 0.5, 1.0, 0.3, 0.6),
            own=(1.0, 1.5, 1.0, 0.5, 1.0),
            factor=ByReport(loss=(1.0, 0.5, 1.0, 2.0, 1.0), contribution=(1.0, 0.5, 1.0, 2.0, 1.0)),
            shift=ByReport(loss=(0.0, 0.1, 0.0, 0.0, 0.2)),
        )
    },
    ("lin2019free", "fraboni2021free", "wu2024incentive"),
    tuple(f"strategy.{name}" for name in ("own", "stale", "echo", "noise", "noise_decay"))
    + tuple(f"strategy.{kind}.{name}" for kind in ("factor", "shift") for name in ByReport._fields if name != "size"),
    ("strategy.effort", "strategy.flip", "strategy.factor.size", "strategy.shift.size"),
)
