"""Adaptive effort: clients change the share of their rows by what it earns them while they train.

Source: "Incentive-aware federated learning with training-time model rewards" (IAFL): the utility ``reward - cost
effort`` (section 3), contributions that change in a run (4.2), and clients that contribute as long as the marginal
reward exceeds the cost (appendix F, question 1). How they learn it in a run is ours, after Bravo, Leslie and
Mertikopoulos, "Bandit learning in concave N-person games" (2018): players know their own payoffs alone and try actions
at random. Deviations: differences of two payoffs; rates and trials do not fall.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from fljax.core import trees
from fljax.core.values import NonNegative, Share, check_by_client, checked
from fljax.protocol import Algorithm, Census, Info, LocalData, Round, Seat, along
from fljax.protocol.sums import Part, Streamed, Total, as_streamed
from fljax.scenarios import common
from fljax.scenarios.common import of_client
from fljax.scenarios.effort import Efforts, with_effort
from fljax.scenarios.strategic import Levels


class WithEffort(NamedTuple):
    """A client's message and the share that it used, or a Server and the last shares; only the record reads them."""

    inner: PyTree
    effort: Float[Array, "*N"]


class AdaptiveClient(NamedTuple):
    """The wrapped Client, the key of its trials, its share, and what it saw in rounds in which it trained."""

    inner: PyTree
    key: Key[Array, ""]
    share: Float[Array, ""]
    used: Float[Array, 2]  # in the last of these rounds and in the one before
    reward: Float[Array, ""]  # at the start of the last one
    gain: Float[Array, ""]  # of the one before
    rounds: Int[Array, ""]  # their number


@checked
def adaptive_effort(
    inner: Algorithm,
    *,
    cost: Levels,
    share: Efforts = 1.0,
    rate: NonNegative = 0.1,
    trial: Share = 0.1,
    reward: Literal["accuracy", "loss"] = "accuracy",
    split: Literal["valid", "train", "test"] = "valid",
    scale_contribution: bool = False,
) -> Algorithm:
    """``share_k <- clip(share_k + rate (marginal_k - cost_k), 0, 1)``, with a marginal reward estimated in the run.

    When client k trains, it uses the share ``e = clip(share_k +- trial, 0, 1)`` of its rows as in ``effort`` (of 0: one
    row), with the sign of a coin. The gain g of this round is the reward of the model that it has when it next trains,
    minus that of the present one; gains less costs add up to ``reward - cost sum(e)``. With e' and g' of the next
    round, ``marginal_k = (g' - g) / (e' - e)``; the share stays if e' and e differ by ``trial / 2`` or less.

    Args:
      inner: any algorithm; clients judge the model that it would deploy. Once models gain no more, efforts fall.
      cost: of all rows in one round, in units of the reward; as ``share`` of ``effort``, also by round.
      share: the first share, above 0 and up to 1: one number, or one per client id ``[N]``.
      rate: how fast shares change. With 0 clients try nothing, and the run is that of ``effort``.
      trial: how far trials are from the share; with 0 clients learn nothing.
      reward: "accuracy", as in the paper's experiments, or "loss": minus the loss, as of any task without a score.
      split: the rows on which models are judged; a client without such rows uses its training rows. A model that is
        trained before use is judged as trained on the rows that the client used last.
      scale_contribution: as for ``effort``; without it, ``iafl`` does not reward effort by what clients report.

    Returns:
      The algorithm. Info: ``effort`` [client], the share that each client used last, which it sends beside its message.
    """
    number = common.key_number(inner, "adaptive_effort")
    costs, first = (jnp.asarray(value, jnp.result_type(float)) for value in (cost, share))
    step = jnp.where(jnp.asarray(rate) > 0, trial, 0).astype(first.dtype)
    using = functools.partial(with_effort, inner, scale_contribution=scale_contribution)

    def now(seat: Seat, client: AdaptiveClient) -> Float[Array, ""]:
        coin = jax.random.uniform(jax.random.fold_in(client.key, seat.round), (), jnp.float32) < 0.5
        return jnp.clip(client.share + jnp.where(coin, step, -step), 0, 1)

    wrapped = common.with_clients(
        common.with_server(inner),
        lambda seat, client, data: (using(now(seat, client)), client.inner, data),
        lambda client, new: client._replace(inner=new),
    )
    streamed = as_streamed(wrapped.aggregate)

    def init_server(key: Key[Array, ""], census: Census) -> WithEffort:
        check_by_client("cost", costs, census.train.shape[0])
        check_by_client("share", first, census.train.shape[0], tables=False)
        return WithEffort(using(first).init_server(key, census), jnp.broadcast_to(first, census.train.shape))

    def init_client(key: Key[Array, ""], seat: Seat, down: PyTree, data: LocalData) -> AdaptiveClient:
        zero, own = jnp.zeros((), first.dtype), of_client(first, seat) if seat.known else jnp.ones((), first.dtype)
        trials, used = jax.random.fold_in(key, number), jnp.stack([own, own])
        client = AdaptiveClient((), trials, own, used, zero, zero, jnp.int32(0))
        return client._replace(inner=using(now(seat, client)).init_client(key, seat, down, data))

    def train(
        key: Key[Array, ""], seat: Seat, down: PyTree, client: AdaptiveClient, data: LocalData
    ) -> tuple[WithEffort, AdaptiveClient]:
        up, after = wrapped.train(key, seat, down, client, data)
        # The same in all rows of a client, as the engine judges models: in slot 0.
        look, at = jax.random.fold_in(client.key, seat.round), seat._replace(slot=jnp.zeros_like(seat.slot))
        loss, accuracy = common.deployed_scores(using(client.used[0]), split, look, at, down, client.inner, data)
        found = (-loss if accuracy is None or reward == "loss" else accuracy).astype(client.reward.dtype)
        found = jnp.where(jnp.isfinite(found), found, client.reward)
        gain, apart = found - client.reward, client.used[0] - client.used[1]
        moved = client.share + rate * (trees.ratio(gain - client.gain, apart) - of_client(costs, seat))
        known, used = (client.rounds > 1) & (jnp.abs(apart) > step / 2), jnp.stack([now(seat, client), client.used[0]])
        share = jnp.where(known, jnp.clip(moved, 0, 1), client.share).astype(client.share.dtype)
        after = after._replace(share=share, used=used, reward=found, gain=gain, rounds=client.rounds + 1)
        return WithEffort(up, used[0]), after

    def contribute(server: WithEffort, seat: Seat, up: WithEffort) -> tuple[Part, WithEffort]:
        part, row = streamed.contribute(server, seat, up.inner)
        return part, up._replace(inner=row)

    def finish(server: WithEffort, total: Total, rows: WithEffort, round: Round) -> tuple[WithEffort, Info]:
        after, info = streamed.finish(server, total, rows.inner, round)
        effort = trees.set_rows(server.effort, round.cohort.id, round.cohort.present, rows.effort)
        return after._replace(effort=effort), {**info, **along("client", effort=effort)}

    return wrapped._replace(
        init_server=init_server,
        init_client=init_client,
        train=train,
        aggregate=Streamed(contribute, finish),
        scenarios=common.applied_scenarios(inner, "adaptive_effort"),
    )


ENTRY = common.Entry(
    adaptive_effort,
    "clients adapt the share of their rows to the rewards that it brings (IAFL)",
    {"cost": (0.0, 0.1, 0.5, 0.1, 2.0), "share": (1.0, 0.5, 1.0, 0.3, 0.6), "trial": 0.3, "scale_contribution": True},
    ("wu2024incentive", "bravo2018bandit"),
    ("cost", "share", "rate", "trial"),
)
