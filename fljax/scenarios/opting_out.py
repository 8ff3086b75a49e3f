"""Dynamic opting out: every few rounds, clients that would be better off with another model leave.

Source: "IP-FL: Incentivized and Personalized Federated Learning", equations (1) and (2), which count opt-outs once, at
the end; taking them out of the pool while training goes on is a reconstruction, off by default there as here.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax import training
from fljax.algorithms.ipfl import REFERENCE
from fljax.messages import Report
from fljax.scenarios.common import Entry, applied_scenarios, check_split, deployed_scores, with_server
from fljax.types import Algorithm, Available, Census, Cohort, Info, LocalData, Poll, Seat, along

# Multiples of the precision by which equal accuracies may differ.
ROUNDING = 8


class OptingServer(NamedTuple):
    """The wrapped server, who has left, and accuracies as of the last time that clients looked."""

    inner: PyTree
    gone: Bool[Array, " N"]
    accuracy: Float[Array, " N"]


class OptingBallot(NamedTuple):
    """A client's accuracy with what it would deploy, and the ballot of the wrapped algorithm."""

    report: Report
    inner: PyTree


def opting_out(
    inner: Algorithm,
    *,
    baseline: Float[Array, "rounds N"] | Float[Array, " N"] | float,
    every: int = 10,
    delta: float = 0.0,
    comes_back: bool = False,
    split: Literal["valid", "train", "test"] = "valid",
) -> Algorithm:
    """After every ``every`` rounds clients with ``A_k(deployed_k) - baseline_k < delta`` leave the pool.

    The decision before round t judges the models that are deployed after t rounds. A baseline that changes from round
    to round is also taken after t rounds. The gain of an algorithm over itself is 0 where deploying a model draws
    nothing at random. Where it does (``finetuned``, for example), clients draw other numbers here than in evaluation,
    and that gain varies around 0.

    Where the wrapped algorithm asks for ballots itself, only in some rounds, it now gets them in every round. Clients
    judge what they would deploy only in rounds that ``every`` divides.

    Args:
      inner: any algorithm; what it would deploy to a client is judged.
      baseline: ``rho_k``, the accuracy that a client would have elsewhere, in IP-FL that of FedAvg's model: one number,
        one by client id ``[N]``, or a table ``[rounds, N]`` whose row t holds the accuracies after t rounds. Only the
        rows that ``every`` divides are read. There must be as many rows as rounds, or more. In an experiment it is the
        table of the first algorithm, on the rows of ``split``. NaN: the client stays.
      every: rounds between two decisions; the first is before round ``every``.
      delta: the gain in accuracy below which a client leaves. What is missing by rounding alone does not count.
      comes_back: whether a client that left looks again, and returns once its gain is large enough.
      split: the rows on which accuracy is taken; a client that has none of them takes its training rows. In an
        experiment a client without such rows has no baseline and stays.

    Returns:
      The algorithm. Info: ``gain`` [client], as of the last time that clients looked (NaN where the baseline of
      that round is not known), and ``opted_out`` [client]. A run of more rounds than the table has is refused.

    Raises:
      ValueError: if ``split`` is no valid name, ``every`` is not positive, ``baseline`` is of another number of
        clients than the population, or the task has no score.
    """
    check_split(split)
    training.check_score(inner.task, "opting_out")
    if every < 1:
        raise ValueError(f"expected every to be positive, got {every}")
    rho = jnp.asarray(baseline)
    poll_every = every if inner.poll is None else 1
    own = with_server(inner, lambda server: server.inner, lambda server, new: server._replace(inner=new))

    def init_server(key: Key[Array, ""], census: Census) -> OptingServer:
        population = census.train.shape[0]
        if rho.ndim > 2 or rho.shape[-1:] not in ((), (population,)):
            raise ValueError(
                f"expected baseline to be one number or one for each of {population} clients, or a table of as many "
                f"columns with a row for each round, got shape {rho.shape}"
            )
        nobody, nothing = jnp.zeros(population, bool), jnp.zeros(population, jnp.result_type(float))
        return OptingServer(inner.init_server(key, census), nobody, nothing)

    def poll(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> OptingBallot:
        ballot = () if inner.poll is None else inner.poll.ask(key, seat, down, client, data)

        def judged() -> Array:
            _, accuracy = deployed_scores(inner, split, key, seat, down, client, data)
            assert accuracy is not None  # the task has a score: check_score
            return accuracy

        if poll_every == every:
            return OptingBallot(Report(accuracy=judged()), ballot)
        nothing = jnp.full((), jnp.nan, jax.eval_shape(judged).dtype)
        # One condition for all clients, so that in rounds between nobody computes anything.
        return OptingBallot(Report(accuracy=jax.lax.cond(seat.round % every == 0, judged, lambda: nothing)), ballot)

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: OptingServer, ballots: OptingBallot, available: Available
    ) -> tuple[OptingServer, Cohort, Info]:
        looks, told = round % every == 0, ballots.report.accuracy
        # Who was not asked now has the ballot of a round in which nobody looked.
        accuracy = jnp.where(looks & ~jnp.isnan(told), told, server.accuracy.astype(told.dtype))
        other = rho.astype(accuracy.dtype)
        if other.ndim == 2:
            other = jnp.take(other, round // every * every, axis=0, mode="fill", fill_value=jnp.nan)
        gain = accuracy - other
        # Two programs may round the same share of correct rows differently.
        leaves = jnp.where(available.mask(), gain < delta - ROUNDING * jnp.finfo(gain.dtype).eps, server.gone)
        decides = looks & (round > 0)
        gone = jnp.where(decides, leaves if comes_back else server.gone | leaves, server.gone)
        inner_server, cohort, info = inner.select(key, round, server.inner, ballots.inner, available.only(~gone))
        after = OptingServer(inner_server, gone, accuracy.astype(server.accuracy.dtype))
        return after, cohort, {**info, **along("client", gain=gain, opted_out=gone)}

    return own._replace(
        init_server=init_server,
        poll=Poll(poll, poll_every),
        select=select,
        scenarios=applied_scenarios(inner, "opting_out", rho.shape[0] if rho.ndim == 2 else None),
    )


ENTRY = Entry(
    opting_out,
    "clients that would be better off elsewhere leave, every few rounds (IP-FL)",
    {"baseline": (0.9, 0.0, 0.3, 0.0, 0.6), "every": 1},
    REFERENCE,
)
