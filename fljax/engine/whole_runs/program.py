"""The program of whole runs, and of runs of some clients only.

By the law of coalitions, a run on some members equals the run of a federation that holds only these clients. Absence
alone would break it, since algorithms divide by the number of clients, rank them, or keep what they had. Features are
standardised by the members' moments, joined on the host in float64 from sums of each client: the very moments of a
federation of the members alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, PyTree, UInt

from fljax.core import trees, users
from fljax.data.datasets import Sums, scale_of, sums_of
from fljax.engine.devices.layout import Layout, keep_everywhere
from fljax.engine.programs import jit
from fljax.engine.programs.program import Inputs, Spec, map_runs
from fljax.engine.rounds.evaluate import evaluate_state
from fljax.engine.rounds.round import AS_USUAL, RoundOptions, one_round
from fljax.engine.rounds.states import State, initial_state
from fljax.protocol import (
    Algorithm,
    AnyArray,
    Available,
    Census,
    ClientData,
    Cohort,
    Federation,
    Info,
    Labelled,
    LocalData,
    Moments,
    Rows,
    Seat,
    Subset,
)
from fljax.protocol.data import RowLists


def rows_of_members(federation: Federation, member: Bool[Array, " N"]) -> Federation:
    """The federation of one seed, by id, in which seen clients outside ``member`` hold test rows alone."""
    # ``Spans.least`` stays. It is read where clients train, and no client without rows is trained.

    def kept(rows: Rows) -> Rows:
        return rows._replace(size=jnp.where(member, rows.size, 0))

    clients = federation.clients
    parts = {part: kept(rows) for part, rows in clients.parts.items() if part != "test"}
    return federation._replace(clients=clients._replace(**parts))


# Numbers of all clients and runs that are joined at a time.
_AT_ONCE = 2**22


class Scales(NamedTuple):
    """What moments of members are made of, for each of F stacked federations; one federation is the only one."""

    given: Moments  # [F, ...], the moments of all clients
    sums: Sums  # [F, N, ...], of training rows, in the order of storage

    @classmethod
    def of(cls, federation: Federation) -> Scales | None:
        """Of a federation; None if it is not standardised."""
        if federation.moments is None:
            return None
        x, shape = np.asarray(federation.examples.x), (-1, federation.clients.id.shape[-1])
        each = [sums_of(x, rows) for rows in RowLists.of(federation.clients.train, federation.lists).by_client()]
        stacked = map(np.stack, zip(*each, strict=True))
        sums = Sums(*(leaf.reshape(*shape, *leaf.shape[1:]) for leaf in stacked))
        given: Any = (np.asarray(leaf).reshape(-1, *x.shape[1:]) for leaf in federation.moments)
        return cls(Moments(*given), sums)

    def of_members(self, member: Bool[np.ndarray, "R N"], place: Int[np.ndarray, " R"]) -> Moments:
        """``[R, ...]``, the moments of the members of each run, whose federation is the one at ``place``."""
        # Everybody has those that are given, bit by bit. Nobody has 0 and 1, as a federation that is not standardised.
        found: Any = (leaf[place] for leaf in self.given)
        mean, std = found
        has_rows = (self.sums.count > 0).reshape(*self.sums.count.shape[:2], -1).any(axis=2)
        inside, plain = member & has_rows[place], self.as_stored()
        mean[~inside.any(axis=1)], std[~inside.any(axis=1)] = 0, 1
        some = inside.any(axis=1) & (inside.sum(axis=1) < has_rows.sum(axis=1)[place])
        for runs in np.array_split(np.flatnonzero(some), -(-some.sum() * self.sums.mean[0].size // _AT_ONCE) or 1):
            own = _joined(Sums(*(leaf[place[runs]] for leaf in self.sums)), inside[runs])
            mean[runs], std[runs] = (np.where(plain[place[runs]], *each) for each in zip((0, 1), own, strict=True))
        return Moments(mean, std)

    def as_stored(self) -> Bool[np.ndarray, "F ..."]:
        """Which features are not standardised: their moments are 0 and 1, and those of their rows are others."""
        mean, std = _joined(self.sums, np.ones(self.sums.count.shape[:2], bool))
        near = (np.abs(mean) < 1e-6) & (np.abs(std - 1) < 1e-6)  # float32 has 0 and 1 in their place
        return (np.asarray(self.given.mean) == 0) & (np.asarray(self.given.std) == 1) & ~near


def _joined(sums: Sums, member: Bool[np.ndarray, "R N"]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the members' rows, as by Chan, Golub and LeVeque (1979)."""
    known = np.isfinite(sums.mean) & np.isfinite(sums.squares)  # 0 times another number would not be 0
    means, squares = np.where(known, sums.mean, 0), np.where(known, sums.squares, 0)
    count = np.einsum("rn,rn...->rn...", member, sums.count)
    total = count.sum(axis=1)
    mean = np.einsum("rn...,rn...->r...", count, means) / np.maximum(total, 1)
    apart = means - mean[:, None]
    squares = np.einsum("rn...,rn...->r...", count, apart * apart) + np.einsum("rn,rn...->r...", member, squares)
    lost = np.einsum("rn,rn...->r...", member, ~known)
    return scale_of(Sums(total, np.where(lost, np.nan, mean), squares))


def by_themselves(federation: Federation) -> Federation:
    """The federation for models that its clients train alone: each has the moments of its own training rows."""

    def alone(clients: ClientData) -> ClientData:
        scales = Scales.of(federation._replace(clients=clients))
        assert scales is not None
        given, plain = scales.given, scales.as_stored()[:, None]
        mean, std = (np.where(plain, *each) for each in zip((0, 1), scale_of(scales.sums), strict=True))
        shape = *clients.id.shape, *given.mean.shape[1:]
        return clients._replace(
            moments=Moments(*(jnp.asarray(leaf.reshape(shape), given.mean.dtype) for leaf in (mean, std)))
        )

    if federation.moments is None:
        return federation
    unseen = None if federation.unseen is None else alone(federation.unseen)
    return federation._replace(clients=alone(federation.clients), unseen=unseen)


def among_members(algorithm: Algorithm, member: Bool[Array, " N"]) -> Algorithm:
    """The algorithm in a federation of ``member`` alone: the others have left for good, before round 0."""
    # The others have ballots of zeros. They are judged, too, but ``personal`` gets none of their rows before that.

    def init_server(key: Key[Array, ""], census: Census) -> PyTree:
        return algorithm.init_server(key, census._replace(members=member))

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: PyTree, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        shown = trees.where_rows(member, ballots, jax.tree.map(jnp.zeros_like, ballots))
        return algorithm.select(key, round, server, shown, available.without(~member))

    def personal(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> PyTree:
        assert algorithm.personal is not None
        if seat.known:

            def kept(subset: Subset) -> Subset:
                size = jnp.where(member[seat.id], subset.rows.size, 0)
                return subset._replace(rows=subset.rows._replace(size=size))

            data = data._replace(train=kept(data.train), valid=kept(data.valid))
        return algorithm.personal(key, seat, down, client, data)

    tuned = {} if algorithm.personal is None else {"personal": personal}
    return algorithm._replace(init_server=init_server, select=select, **tuned)


@runtime_checkable
class Measure(Protocol):
    """``(algorithm, state, scores) -> {name: array}``: what is kept of a run, computed on the device.

    ``state`` is the one after the last round. ``scores`` are the evaluation of all clients, as ``fljax.Result.metrics``
    names them: ``test_loss`` [client] and so on. An array may be ``Labelled``; others get numbered dimensions. The
    function is a static part of the program: another function is another program, also if it does the same.
    """

    def __call__(
        self, algorithm: Algorithm, state: State, scores: Mapping[str, Labelled], /
    ) -> Mapping[str, Array | Labelled]: ...


def all_scores(algorithm: Algorithm, state: State, scores: Mapping[str, Labelled]) -> Mapping[str, Array | Labelled]:
    """The ``Measure`` that keeps the scores of all clients, seen and unseen, and of the server's models."""
    return dict(scores)


class RunRows(NamedTuple):
    """The runs of one call of the program, by row."""

    seed: UInt[Array, " rows"]
    member: Any  # [rows, N] by id, who belongs to the run's federation; (): all clients
    moments: Any  # [rows, ...] of the members' training rows; (): those of the federation
    place: Int[Array, " rows"]  # of the seed among the seeds, for federations of several seeds
    cost: Int[Array, " rows"]  # 0: the row is not computed, and its results are zeros


class RunEnd(NamedTuple):
    """What leaves the device of a run: its measures, and whether its state was frozen since it was not finite."""

    measures: dict[str, Any]
    diverged: AnyArray


class _Run(NamedTuple):
    seed: UInt[Array, ""]
    member: Any
    moments: Any


@jit.program(static_argnames=("spec", "layout", "measure"))
def whole_runs(
    spec: Spec, layout: Layout, measure: Measure, inputs: Inputs, rows: RunRows, rounds: Int[Array, ""]
) -> RunEnd:
    """All runs of a block, ``[rows]``: start, ``rounds`` rounds, evaluation of all clients, measure."""

    def one(algorithm: Algorithm, data: Federation, layout: Layout, run: _Run) -> RunEnd:
        options = RoundOptions(spec.everybody, non_finite=spec.non_finite)
        data = data._replace(moments=run.moments) if run.moments else data
        state = final_state(algorithm, data, layout, run.seed, run.member, rounds, options)
        judged = algorithm if isinstance(run.member, tuple) else among_members(algorithm, run.member)
        scores = evaluate_state(judged, data, layout, state, rounds, spec.valid, spec.common)
        found: Any = users.call("measure", "(algorithm, state, scores)", measure, algorithm, state, scores)
        if not isinstance(found, Mapping):
            raise users.refused("measure", measure, "arrays by name", found)
        for name, entry in found.items():
            values = entry.values if isinstance(entry, Labelled) else entry
            users.numbers("measure", measure, f"an array of numbers as {name!r}", values, (...,))
        return RunEnd(dict(found), state.diverged >= 0)

    own = _Run(rows.seed, rows.member, rows.moments)
    return keep_everywhere(map_runs(spec, layout, inputs, own, one, rows.place, rows.cost), layout)


def final_state(
    algorithm: Algorithm,
    data: Federation,
    layout: Layout,
    seed: UInt[Array, ""],
    member: PyTree,
    rounds: int | Int[Array, ""],
    options: RoundOptions = AS_USUAL,
) -> State:
    """The state of one run after its rounds; ``data`` of one seed, by id, with the members' moments (``Scales``)."""
    # ``member`` is ``[N]`` by id; ``()``: all clients.
    if not isinstance(member, tuple):
        algorithm, data = among_members(algorithm, member), rows_of_members(data, member)
        options = options._replace(everybody=False)
    state = initial_state(algorithm, data, seed)
    # Weakly typed leaves (from Python numbers) become strongly typed, as in every later state.
    state = jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)

    def one(round: Int[Array, ""], state: State) -> State:
        return one_round(algorithm, data, layout, state, round, options=options)[0]

    return jax.lax.fori_loop(jnp.zeros((), jnp.int32), jnp.asarray(rounds, jnp.int32), jax.jit(one), state)
