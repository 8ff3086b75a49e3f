"""Dynamic opting out: every few rounds, clients that would be better off with another model leave.

Source: "IP-FL: Incentivized and Personalized Federated Learning", equations (1) and (2), which count opt-outs once, at
the end. Removing clients from the pool during training is a reconstruction; it is off by default there and here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Real

from fljax import training
from fljax.core.values import LOSSES, Count, Number, check_by_client, checked
from fljax.metrics import ROUNDING
from fljax.protocol import Algorithm, AnyArray, Available, Census, Cohort, Info, LocalData, Poll, Round, Seat, along
from fljax.protocol.messages import Report
from fljax.protocol.sums import Total, as_streamed
from fljax.scenarios.common import Entry, WithReport, applied_scenarios, deployed_scores, keep_rows, with_server


class OptingServer(NamedTuple):
    """The wrapped server, the clients that have left, and each client's accuracy when it was last judged."""

    inner: PyTree
    gone: Bool[Array, " N"]
    accuracy: Float[Array, " N"]


@checked
def opting_out(
    inner: Algorithm,
    *,
    baseline: Annotated[Real[AnyArray, "*rounds N"] | Sequence[float] | float | Float[Array, ""], LOSSES],
    every: Count = 10,
    delta: Number = 0.0,
    comes_back: bool = False,
    leavers: Literal["left_out", "rewarded"] = "left_out",
    split: Literal["valid", "train", "test"] = "valid",
) -> Algorithm:
    """After every ``every`` rounds clients with ``A_k(deployed_k) - baseline_k < delta`` leave the pool.

    The decision before round t judges the models that are deployed after t rounds. A baseline table is also read after
    t rounds. The gain of an algorithm over itself is 0 if deployment is deterministic. If deployment is random (for
    example in ``finetuned``), clients draw other numbers here than in evaluation, and the gain varies around 0.

    A client that left for good is no member of the federation any more. An algorithm whose server has a model per
    client (``iafl``, ``cgsv``, ``rank``) gives it no reward, and computes ceilings, reference models, reputations and
    ranks over members. The client keeps the model that it had, and metrics judge it with this model. If the algorithm
    has one model for all, metrics judge every client with the federation's current model, also one that left. A client
    that may come back (``comes_back``) is absent and stays a member.

    If the wrapped algorithm polls only in some rounds, it now receives ballots in every round. Clients compute their
    accuracy only in rounds that are multiples of ``every``.

    Args:
      inner: any algorithm; the model that it would deploy to a client is judged.
      baseline: ``rho_k``, the accuracy that a client would have elsewhere (in IP-FL, that of FedAvg's model): one
        number, one per client id ``[N]``, or a table ``[rounds, N]`` whose row t holds the accuracies after t rounds.
        Only rows that are multiples of ``every`` are read. The table needs at least as many rows as the run has rounds.
        In an experiment the baseline is the first algorithm's table, on the rows of ``split``. NaN: the client stays.
        It is an accuracy, so ``fljax.Requirement``, a loss, has no meaning here.
      every: rounds between two decisions; the first is before round ``every``.
      delta: the gain in accuracy below which a client leaves. Differences by rounding alone are ignored. The metric
        ``opt_outs`` has a threshold of its own (``opt_out_threshold``), 0 unless it is given.
      comes_back: whether a client that left is judged again and returns once its gain is large enough.
      leavers: what a client that left for good is to the algorithm. "left_out": no member of the federation, as above;
        "rewarded": an absent client, which goes on getting rewards. Without effect if ``comes_back``.
      split: the rows on which accuracy is computed; a client without such rows uses its training rows. In an
        experiment, a client without such rows has no baseline and stays.

    Returns:
      The algorithm. Info: ``gain`` [client] when the client was last judged (NaN if the baseline of that round is
      unknown), and ``opted_out`` [client]. A run with more rounds than the table has rows is refused.

    Raises:
      ValueError: if ``split`` is not a valid name, ``every`` is not positive, ``baseline`` is for another number of
        clients than the population, or the task has no score.
    """
    training.check_score(inner.task, "opting_out")
    rho = jnp.asarray(baseline)
    poll_every = every if inner.poll is None else 1
    wrapped = with_server(inner)
    loses_members = leavers == "left_out" and not comes_back

    def init_server(key: Key[Array, ""], census: Census) -> OptingServer:
        population = census.train.shape[0]
        check_by_client("baseline", rho, population)
        nobody, nothing = jnp.zeros(population, bool), jnp.zeros(population, jnp.result_type(float))
        if loses_members and census.members is None:
            census = census._replace(members=~nobody)
        return OptingServer(inner.init_server(key, census), nobody, nothing)

    def poll(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> WithReport:
        ballot = () if inner.poll is None else inner.poll.ask(key, seat, down, client, data)

        def judged() -> Array:
            _, accuracy = deployed_scores(inner, split, key, seat, down, client, data)
            assert accuracy is not None  # the task has a score: check_score
            return accuracy

        if poll_every == every:
            return WithReport(Report(accuracy=judged()), ballot)
        nothing = jnp.full((), jnp.nan, jax.eval_shape(judged).dtype)
        # The condition is the same for all clients, so the other rounds skip the computation.
        return WithReport(Report(accuracy=jax.lax.cond(seat.round % every == 0, judged, lambda: nothing)), ballot)

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: OptingServer, ballots: WithReport, available: Available
    ) -> tuple[OptingServer, Cohort, Info]:
        looks, reported = round % every == 0, ballots.report.accuracy
        # A client that is not polled now still has an earlier ballot, which is NaN if that round judged no model.
        accuracy = jnp.where(looks & ~jnp.isnan(reported), reported, server.accuracy.astype(reported.dtype))
        other = rho.astype(accuracy.dtype)
        if other.ndim == 2:
            other = jnp.take(other, round // every * every, axis=0, mode="fill", fill_value=jnp.nan)
        gain = accuracy - other
        # Two programs may round the same share of correct rows differently.
        leaves = jnp.where(available.mask(), gain < delta - ROUNDING * jnp.finfo(gain.dtype).eps, server.gone)
        decides = looks & (round > 0)
        gone = jnp.where(decides, leaves if comes_back else server.gone | leaves, server.gone)
        others = available.without(gone) if loses_members else available.only(~gone)
        inner_server, cohort, info = inner.select(key, round, server.inner, ballots.inner, others)
        if loses_members:
            inner_server = keep_rows(gone, server.inner, inner_server)
        after = OptingServer(inner_server, gone, accuracy.astype(server.accuracy.dtype))
        return after, cohort, {**info, **along("client", gain=gain, opted_out=gone)}

    def finish(server: OptingServer, total: Total, rows: PyTree, round: Round) -> tuple[OptingServer, Info]:
        after, info = streamed.finish(server, total, rows, round)
        return after._replace(inner=keep_rows(server.gone, server.inner, after.inner)), info

    streamed = as_streamed(wrapped.aggregate)
    if loses_members:
        wrapped = wrapped._replace(aggregate=streamed._replace(finish=finish))
    return wrapped._replace(
        init_server=init_server,
        poll=Poll(poll, poll_every),
        select=select,
        scenarios=applied_scenarios(inner, "opting_out", rho.shape[0] if rho.ndim == 2 else None),
    )


ENTRY = Entry(
    opting_out,
    "clients that would be better off elsewhere leave, every few rounds (IP-FL)",
    {"baseline": (0.9, 0.0, 0.3, 0.0, 0.6), "every": 1},
    ("khan2023ipfl",),
    flat=("baseline", "delta"),
)
