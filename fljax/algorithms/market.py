"""The parts of IP-FL's server, each a pure function: token manager, scheduler, books; ``clustered`` has its profiler.

Source: "IP-FL: Incentivized and Personalized Federated Learning", section 4, Algorithm 1; see ``ipfl`` for deviations.

Round t is settled in ``select`` of round t + 1, where the ballots are the accuracies of exactly the models of round t.
So clients that trained are paid, whatever a scenario did to the cohort, and the last round of a run stays open. A
client that left before the settlement neither pays nor is paid. Members of a cluster that are not available then are
not asked; a cluster without anybody to ask keeps its pool. Random bids (round 0, clusters without bidders) are placed
within the clients' budgets, which ``fljax.aggregators.tokens.affordable`` checks. Ties are broken by bits of a key of
the round, folded with the client's id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Real

from fljax import aggregators
from fljax.aggregators.tokens import whole_in
from fljax.core import trees
from fljax.core.values import CountOrZero, NonNegative, Positive, Share, check_by_client
from fljax.protocol import AnyArray, Available, Cohort, Info, along


class Clustering(NamedTuple):
    """Initial clusters: the cluster of every client, and a model for each cluster."""

    member: Int[Array, " N"]
    models: PyTree  # [C, ...]


class Books(NamedTuple):
    """What the server knows about clients and clusters, apart from the models."""

    tokens: Array  # [N]
    pools: Array  # [C], tokens
    best: Float[Array, " C"]  # accuracy so far; 0 if there is none yet
    contribution: Float[Array, "N C"]  # the last measured one; initially 0
    participation: Int[Array, "N C"]  # how often a client trained a cluster's model
    gained: Float[Array, "N C"]  # tokens that a client got for a cluster less those that it paid, over all rounds
    members: Bool[Array, "N C"]  # whether a client trained a cluster's model in the last round (not settled yet)
    eligible: Bool[Array, " N"]  # whether a client has data and belongs to the federation


class Tokens(NamedTuple):
    """The token manager: what clients are given, what training costs them, and how pools are paid out.

    Attributes:
      initial: tokens of every client before round 0, its budget: one number, or one per client id ``[N]``. Whole tokens
        are int32, and so is the sum of all clients' tokens.
      price: tokens that a client pays to train a cluster's model for one round; a whole number for whole tokens. One
        number, or one for each cluster ``[C]``; a client then passes over a cluster that its other tokens do not cover.
        Ties in bids, selection and rewards are broken at random in every round.
      whole: whether tokens are whole; see ``settle_tokens`` for this and the next three.
      most_utility: I_max, the relative gain in accuracy from which on nothing is refunded.
      most_reimbursed: T_max, the largest share of a pool that is refunded.
      ranked: which clients share the part of a pool that is paid by participation.
      refunded: the tokens of which a share is refunded: "pool", all in the cluster's pool, or "collected", those that
        members paid in the round, as in the paper's text of equation (12). They differ by what earlier rounds left.
    """

    initial: NonNegative | Real[AnyArray, " N"] | Sequence[float] = 500.0
    price: int | Positive | Real[AnyArray, " C"] | Sequence[float] = 1
    whole: bool = True
    most_utility: Positive = 1.0
    most_reimbursed: Share = 1.0
    ranked: Literal["members", "all"] = "members"
    refunded: Literal["pool", "collected"] = "pool"


class Bidding(NamedTuple):
    """How clients bid for clusters.

    Attributes:
      rule: the clusters that a client bids for. "threshold": those with an importance weight of at least
        ``least_importance``; "argmax": the one of largest weight; "random": a random one, the paper's ablation without
        incentive.
      least_importance: the least importance weight of rule "threshold"; None: 1 / C.
      fill_empty: number of first rounds in which a cluster without bids is filled at random (with clients that can
        pay); later its model stays as it is. "always": in every round; 0: never. In round 0 all clusters are filled at
        random.
      least_gain: the tokens that a client must have gained by a cluster for each time that it trained its model, to bid
        for it again, or to be drawn for it: a decision by past rewards (the paper's section 4.1, without a rule). The
        least is ``-price``. A client that never trained the model bids. None: past rewards are not looked at.
    """

    rule: Literal["threshold", "argmax", "random"] = "threshold"
    least_importance: NonNegative | None = None
    fill_empty: CountOrZero | Literal["always"] = 10
    least_gain: float | None = None


class Exploration(NamedTuple):
    """How many slots of a cluster the scheduler fills with random bidders.

    Attributes:
      initial: their share before any client was selected for the cluster; it falls with participation.
      least: lower bound of that share.
      random_slots: their fixed number, in place of a share that falls; None: the share.
    """

    initial: Share = 0.9
    least: Share = 0.2
    random_slots: CountOrZero | None = None


def new_books(sizes: Int[Array, " N"], clusters: int, tokens: Tokens) -> Books:
    """The books before round 0: the initial tokens of every client, whose sum their dtype holds, and empty pools."""
    population, real = sizes.shape[0], jnp.result_type(float)
    # Unions of numbers and arrays, which functions of both take.
    initial: Any = tokens.initial
    kind = jnp.int32 if tokens.whole else real
    check_by_client("tokens.initial", initial, population, tables=False)
    if tokens.whole:
        most = jnp.iinfo(kind).max // max(population, 1)
        known = isinstance(initial, int | float | np.number | np.ndarray | list | tuple)
        if known and np.max(initial, initial=0) > most:
            raise ValueError(
                f"expected tokens.initial of at most {most} for each of {population} clients, whose sum "
                f"{jnp.dtype(kind)} holds, got {np.max(initial)}"
            )
        # A traced number is reduced to the largest that fits.
        initial = whole_in(initial, most, kind)
    return Books(
        tokens=jnp.broadcast_to(jnp.asarray(initial, kind), (population,)),
        pools=jnp.zeros(clusters, kind),
        best=jnp.zeros(clusters, real),
        contribution=jnp.zeros((population, clusters), real),
        participation=jnp.zeros((population, clusters), jnp.int32),
        gained=jnp.zeros((population, clusters), real),
        members=jnp.zeros((population, clusters), bool),
        eligible=sizes > 0,
    )


def settle(
    key: Key[Array, ""], books: Books, accuracy: Float[Array, "N C"], available: Available, tokens: Tokens
) -> tuple[Books, Info]:
    """Token manager: settles the last round by the new models' accuracies; Info is that of the PREVIOUS round."""
    # A client that left neither pays nor is paid any more, also for the last round.
    reporting = books.members & available.mask()[:, None]
    mean = aggregators.member_accuracy(accuracy, reporting).astype(books.best.dtype)
    ledger = aggregators.settle_tokens(
        books.tokens,
        books.pools,
        books.best,
        books.members,
        books.contribution,
        books.participation,
        mean,
        price=tokens.price,
        integer=tokens.whole,
        most_utility=tokens.most_utility,
        most_reimbursed=tokens.most_reimbursed,
        ranked=tokens.ranked,
        eligible=available.members,
        refunded=tokens.refunded,
        key=key,
    )
    flows = {name: jnp.sum(getattr(ledger, name), axis=1) for name in ("paid", "reimbursed", "rewarded")}
    utility = aggregators.cluster_utility(mean, books.best, most=tokens.most_utility)
    settled = books._replace(
        tokens=ledger.tokens,
        pools=ledger.pools,
        best=ledger.best,
        gained=books.gained + (ledger.reimbursed + ledger.rewarded - ledger.paid).astype(books.gained.dtype),
        members=jnp.zeros_like(books.members),
        eligible=books.eligible if available.members is None else books.eligible & available.members,
    )
    return settled, along("cluster", utility=utility) | along("client", **flows)


def place_bids(
    key: Key[Array, ""],
    round: Int[Array, ""],
    books: Books,
    bid: Float[Array, "N C"],  # reported worth of each cluster's model; an honest client reports its importance
    available: Bool[Array, " N"],
    bidding: Bidding,
    price: Any,
    start: Bool[Array, "N C"] | None,  # who may be drawn in round 0
) -> tuple[Bool[Array, "N C"], Bool[Array, " C"]]:
    """The clusters that each client bids for and can afford, and the clusters that are filled at random."""
    drawn = jax.random.uniform(key, bid.shape, jnp.float32)
    tie_key = jax.random.fold_in(key, 0)
    if bidding.rule == "random":
        choice = jnp.arange(bid.shape[1])[None, :] == jnp.argmax(drawn, axis=1)[:, None]
        bids = aggregators.affordable(drawn, choice, books.tokens, price=price)
    else:
        bids = aggregators.bid_preferences(
            bid, books.tokens, least_importance=bidding.least_importance, price=price, rule=bidding.rule, key=tie_key
        )
    first = round == 0
    able = available[:, None]
    if bidding.least_gain is not None:
        gain = trees.ratio(books.gained, books.participation)
        able = able & ((books.participation == 0) | (gain >= bidding.least_gain))
    bids = bids & able & ~first
    # Round 0 is filled at random, and so are later clusters without bidders, in ``fill_empty`` rounds.
    early = True if bidding.fill_empty == "always" else round < bidding.fill_empty
    open_to_all = ~jnp.any(bids, axis=0) & (first | early)
    pool = open_to_all[None, :] & able
    if start is not None:
        pool = pool & (start | ~first)
    # A client's tokens go to its own bids first, then to random clusters.
    wanted = aggregators.affordable(jnp.where(bids, 2 + drawn, drawn), bids | pool, books.tokens, price=price)
    return wanted, open_to_all


def choose(
    key: Key[Array, ""],
    books: Books,
    bids: Bool[Array, "N C"],
    at_random: Bool[Array, " C"],
    exploration: Exploration,
    slots: int,
) -> tuple[Cohort, Info]:
    """Scheduler: a cohort with ``slots`` rows for each cluster, one for each client that trains its model."""
    if exploration.random_slots is None:
        share = aggregators.exploration_share(
            books.participation, eligible=books.eligible, initial=exploration.initial, least=exploration.least
        )
    else:
        share = jnp.full(bids.shape[1], exploration.random_slots / slots, jnp.result_type(float))
    share = jnp.where(at_random, 1, share).astype(books.best.dtype)
    plan = aggregators.schedule(key, bids, books.contribution, books.participation, share, slots=slots)
    rows = aggregators.slot_rows(plan)
    return Cohort(rows.id, rows.cluster, rows.present), along("cluster", exploration=share)


def record_training(books: Books, cohort: Cohort, values: Float[Array, "C S"]) -> Books:
    """The books with this round's members, participation and contributions."""
    members = trees.set_rows(jnp.zeros(books.members.shape, bool), (cohort.id, cohort.slot), cohort.present, True)
    contribution = values[cohort.slot, jnp.arange(cohort.slot.shape[0])].astype(books.contribution.dtype)
    return books._replace(
        contribution=trees.set_rows(books.contribution, (cohort.id, cohort.slot), cohort.present, contribution),
        participation=books.participation + members,
        members=members,
    )
