"""The law of coalitions: a run on some members is the run of a federation that holds only these clients.

Keys are made of ids, and JAX draws ``[N]`` numbers entry by entry. So the first clients alone have the batches and the
draws that they have as members. Other members have other ids in a federation of their own: there the two are compared
on full batches, with everybody in each round.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from fljax.contributions.estimators.in_rounds import Contributions
from fljax.core import trees
from fljax.data.datasets import training_moments
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.evaluate import evaluate_state
from fljax.engine.rounds.states import by_id
from fljax.engine.whole_runs.program import Scales, final_state
from fljax.protocol import Algorithm, Federation, Moments, unlabelled
from fljax.protocol.data import RowLists
from fljax.testing.bench import LOCAL, POPULATION, Bench, enable_x64, quick_options
from fljax.testing.federation import logistic_regression, tiny_federation, with_other_rows
from fljax.testing.laws import assert_same

# Relative to the largest number of an array.
CLOSE = 1e-12
FIRST, OTHERS = (0, 1, 2), (0, 1, 3)
FULL = LOCAL._replace(batch_size=16)
ROUNDS = 3


def only_members(federation: Federation, who: Sequence[int]) -> Federation:
    """The federation of these seen clients alone; the first of them has the id 0, the next 1, and so on."""
    stored = by_id(federation)
    clients = trees.take(stored.clients, np.asarray(who))
    return stored._replace(clients=clients._replace(id=jnp.arange(len(who), dtype=jnp.int32)))


def equals_its_members_alone(case: Bench) -> None:
    """A run on the first three of five clients, with batches and cohorts that are drawn."""
    compare_with_members_alone(case, FIRST, LOCAL, 2)


def compare_with_members_alone(case: Bench, who: Sequence[int], local: Any, clients_per_round: int | None) -> None:
    """Raises an AssertionError unless scores and contributions of members ``who`` are equal, to ``CLOSE``."""
    # All are the same bits with other rows and labels of those outside, NaN and large ones.
    member = np.isin(np.arange(POPULATION), who)
    with enable_x64(True):
        data = by_id(tiny_federation(dtype=np.float64))
        options = _options(case, clients_per_round)
        run = _program(_built(case, options, local))
        among = _of_those(who, run(_seen_by(data, member), member))
        alone = _program(_built(case, _of_members(options, who), local))(_seen_by(only_members(data, who)), ())
        others = [run(_seen_by(with_other_rows(data, ~member, factor), member), member) for factor in (np.nan, -1e6)]
    for name, expected in alone.items():
        found = among[name]
        apart = np.abs(found - expected) / max(1.0, np.nanmax(np.abs(expected), initial=0.0))
        same = (apart <= CLOSE) | (np.isnan(found) & np.isnan(expected)) | (found == expected)
        if not np.all(same):
            raise AssertionError(f"{name} is {found.tolist()} of members, and {expected.tolist()} of them alone")
    for other in others:
        assert_same(among, _of_those(who, other))


def _seen_by(federation: Federation, member: Any = ()) -> Federation:
    """The federation, stored by id, standardised by the moments of the members' training rows; ``()``: of all."""
    trains = RowLists.of(federation.clients.train, federation.lists).by_client()
    whole = federation._replace(moments=training_moments(federation.examples.x, trains))
    scales = Scales.of(whole)
    if isinstance(member, tuple) or scales is None:
        return whole
    return whole._replace(
        moments=Moments(*(jnp.asarray(leaf[0]) for leaf in scales.of_members(member[None], np.zeros(1, int))))
    )


def _of_those(who: Sequence[int], scores: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The scores of some clients, and all that are not by seen client."""
    common = ("unseen_", "server_", "cluster_")
    return {name: each if name.startswith(common) else each[np.asarray(who)] for name, each in scores.items()}


def _options(case: Bench, clients_per_round: int | None) -> dict[str, Any]:
    options = dict(case.case.example)
    signature = inspect.signature(case.case.signature or case.case.build)
    if "clients_per_round" in signature.parameters and options.get("clients_per_round", 0) is not None:
        options["clients_per_round"] = clients_per_round
    return options


def _built(case: Bench, options: Mapping[str, Any], local: Any) -> Algorithm:
    return case.case.build(logistic_regression(jnp.float64), local, **options)


def _of_members(options: Mapping[str, Any], who: Sequence[int]) -> dict[str, Any]:
    """Options in which arrays by client have those of the members alone."""

    def restricted(value: Any) -> Any:
        if isinstance(value, str) or not isinstance(value, tuple | list | np.ndarray | jax.Array):
            return value
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(restricted, value))
        numbers = np.asarray(value)
        return numbers[..., list(who)] if numbers.ndim and numbers.shape[-1] == POPULATION else value

    return {name: restricted(value) for name, value in options.items()}


def _program(algorithm: Algorithm) -> Callable[[Federation, Any], dict[str, np.ndarray]]:
    """``(data, member)`` to scores and measured contributions after some rounds; ``()``: all clients."""
    layout = Layout(16, 1, 16)

    @functools.partial(jax.jit, compiler_options=quick_options())
    def scores(data: Federation, member: Any) -> Any:
        state = final_state(algorithm, data, layout, jnp.uint32(3), member, ROUNDS)
        found = unlabelled(evaluate_state(algorithm, data, layout, state, state.round, valid=True))
        return {**found, **_contributions_in(state.server)}

    return lambda data, member: {name: np.asarray(values) for name, values in scores(data, member).items()}


def _contributions_in(server: PyTree) -> dict[str, Array]:
    """``[N]`` numbers of each ``Contributions`` that a server keeps, by name."""

    def is_measured(node: Any) -> bool:
        return isinstance(node, Contributions)

    measured = [node for node in jax.tree.leaves(server, is_leaf=is_measured) if is_measured(node)]
    return {
        f"{name} {place}": jnp.asarray(getattr(node, name), jnp.result_type(float))
        for place, node in enumerate(measured)
        for name in ("contribution", "rounds", "filtered")
    }
