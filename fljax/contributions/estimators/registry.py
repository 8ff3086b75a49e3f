"""All estimators of what a client is worth, by name, from a run (``RunRecord``) or a game (``CachedGame``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from fljax.contributions.estimators import directions, reconstructed, sampled
from fljax.contributions.estimators.rounds import Estimate, Estimator, RunRecord, estimate_run
from fljax.core.names import unknown

# What an estimator may need, and what that means.
NEEDS = {
    "individual": "single updates of clients, not sums of them",
    "utility": "a number for any model, on validation rows of the server",
    "accuracy": "a utility that is an accuracy, from 0 to 1",
    "gradient": "the gradient of the validation loss at the model before each round",
    "next gradient": "the gradient of the validation loss at the model after each round",
    "head": "the rows of the last layer by class",
    "client metric": "what clients measure on their own validation rows",
    "all rounds": "a memory that grows with the number of rounds",
    "all coalitions": "a memory or models for each of the 2^N coalitions, at most 16 clients",
    "random": "a key",
    "retraining": "values of coalitions that are trained from scratch",
}


class Entry(NamedTuple):
    """A line of the registry.

    Attributes:
      summary: one line for tables.
      source: of the method.
      needs: names in ``NEEDS``.
      function: builds an ``Estimator`` that looks at rounds; or, with the need "retraining", takes
        ``(game, key, **options)`` and returns an ``Estimate``. The latter run on the host alone.
      cost: of N clients, ``m`` of them present in a round, over T rounds.
      by_round: whether it says something of each round.
      least: ``(clients, **options) -> trainings``, a budget with which it values somebody for every key; those that
        retrain have it.
    """

    summary: str
    source: str
    needs: tuple[str, ...]
    function: Callable[..., Any]
    cost: str
    by_round: bool = False
    least: Callable[..., int] | None = None

    @property
    def on_host(self) -> bool:
        """Whether it cannot run inside a round, under ``jit``."""
        return "retraining" in self.needs


_SONG = "Song, Tong and Wei (IEEE BigData 2019)"
_LOOKS = ("individual", "utility")


def _of_nodes(clients: int, nodes: int | None = None, samples: int | None = 10) -> int:
    every = 2**clients - 1
    return every if samples is None else min((nodes or -(-clients // 2)) * (clients + 1), every)


ESTIMATORS: dict[str, Entry] = {
    "one_round": Entry(
        "Shapley values of the models that the updates of all rounds make for each coalition",
        _SONG,
        (*_LOOKS, "all coalitions"),
        reconstructed.one_round,
        "2^N evaluations",
    ),
    "multi_round": Entry(
        "Shapley values of each round's game, weighted by decay^t",
        _SONG,
        (*_LOOKS, "all coalitions"),
        reconstructed.multi_round,
        "T 2^m evaluations",
        by_round=True,
    ),
    "fed_shapley": Entry(
        "Shapley values of each round's game over its cohort: multi_round without decay",
        "Wang et al. (2020)",
        (*_LOOKS, "all coalitions"),
        reconstructed.fed_shapley,
        "T 2^m evaluations",
        by_round=True,
    ),
    "completed_shapley": Entry(
        "Shapley values of rounds whose unknown coalitions are completed by a matrix of low rank",
        "Fan et al. (ICDE 2022)",
        (*_LOOKS, "all coalitions", "all rounds"),
        reconstructed.completed_shapley,
        "T 2^m evaluations",
    ),
    "gtg_shapley": Entry(
        "truncated Shapley values of each round's game, from orders that each client leads in turn",
        "Liu et al. (ACM TIST 2022)",
        (*_LOOKS, "random"),
        reconstructed.gtg_shapley,
        "from 2 T to T 2^m evaluations",
        by_round=True,
    ),
    "in_run_leave_one_out": Entry(
        "what each round's model would lose without the client's update",
        "Cook, Detection of influential observation in linear regression (1977), in each round",
        _LOOKS,
        reconstructed.in_run_leave_one_out,
        "T (m + 1) evaluations",
        by_round=True,
    ),
    "digfl": Entry(
        "how far updates go down the validation loss, before the round",
        "Wang et al. (ICDE 2022)",
        ("gradient",),
        directions.digfl,
        "T gradients",
        by_round=True,
    ),
    "first_order": Entry(
        "how far updates go down the validation loss, relative to their mean, after the round",
        "IP-FL, appendix H",
        ("individual", "next gradient"),
        directions.first_order,
        "T gradients",
        by_round=True,
    ),
    "cosine": Entry(
        "cosine of an update with the total of all",
        "Xu et al. (NeurIPS 2021), without their memory",
        ("individual",),
        directions.cosine,
        "none",
        by_round=True,
    ),
    "shapfed": Entry(
        "cosine of the last layer's update with the total, class by class",
        "Tastan et al. (IJCAI 2024)",
        ("head",),
        directions.shapfed,
        "none",
        by_round=True,
    ),
    "fedce": Entry(
        "how different a client's updates are, and how bad a model without the client is",
        "Jiang et al. (CVPR 2023)",
        ("individual", "client metric"),
        directions.fedce,
        "T m evaluations by clients",
        by_round=True,
    ),
    "cffl_reputation": Entry(
        "a reputation by the accuracy of the model with the client's update alone",
        "Lyu et al. (2020)",
        (*_LOOKS, "accuracy"),
        directions.cffl_reputation,
        "T m evaluations",
        by_round=True,
    ),
    "rffl_reputation": Entry(
        "a reputation by the cosine of an update with the total of all",
        "Xu and Lyu (2020)",
        ("individual",),
        directions.rffl_reputation,
        "none",
        by_round=True,
    ),
    "permutation_shapley": Entry(
        "mean marginal contributions over random orders",
        "Castro, Gomez and Tejada (2009)",
        ("retraining", "random"),
        sampled.permutation_shapley,
        "at most orders (N - 1) + 1 trainings",
        least=lambda clients, **_: clients,
    ),
    "truncated_shapley": Entry(
        "mean marginal contributions over random orders, 0 once nearly all is gained",
        "Ghorbani and Zou (ICML 2019)",
        ("retraining", "random"),
        sampled.truncated_shapley,
        "at most orders (N - 1) + 1 trainings",
        least=lambda clients, **_: clients,
    ),
    "stratified_shapley": Entry(
        "mean marginal contributions for each client and number of others",
        "Maleki et al. (2013)",
        ("retraining", "random"),
        sampled.stratified_shapley,
        "at most 2 samples N^2 trainings",
        least=lambda clients, **_: 2 * clients - 1,
    ),
    "owen_shapley": Entry(
        "mean marginal contributions to coalitions that each client joins with probability q, over nodes q",
        "Okhrati and Lipani (ICPR 2020)",
        ("retraining", "random"),
        sampled.owen_shapley,
        "at most samples nodes (N + 1) trainings",
        least=_of_nodes,
    ),
    "msr_banzhaf": Entry(
        "mean value with the client minus mean value without, over uniform coalitions: Banzhaf values",
        "Wang and Jia (AISTATS 2023)",
        ("retraining", "random"),
        sampled.msr_banzhaf,
        "at most samples trainings",
        least=lambda clients, samples=1: 2**clients - 1 if samples is None else 1,
    ),
    "ipss": Entry(
        "marginal contributions to small coalitions alone",
        "Wei et al. (arXiv 2504.16668)",
        ("retraining", "random"),
        sampled.ipss,
        "at most budget - 1 trainings",
        least=lambda clients, **_: clients,
    ),
}


def estimate(
    name: str, source: RunRecord | sampled.CachedGame, *, clients: int | None = None, key: Any = None, **options: Any
) -> Estimate:
    """What clients are worth by the estimator ``name``.

    Args:
      name: in ``ESTIMATORS``.
      source: the record of a run; or a game, for estimators that need retraining.
      clients: N, of a record whose cohorts have fewer rows than there are clients.
      key: for estimators that draw.
      **options: of the estimator's function.

    Returns:
      ``Estimate``: ``worth`` ``[N]`` and what else there is.

    Raises:
      ValueError: if the name or an option is unknown, something is missing that the estimator needs, or the source is
        of the other kind.
    """
    if name not in ESTIMATORS:
        raise ValueError(unknown("estimator", name, ESTIMATORS))
    entry = ESTIMATORS[name]
    kind, other = (sampled.CachedGame, RunRecord) if entry.on_host else (RunRecord, sampled.CachedGame)
    if not isinstance(source, kind):
        got = type(source).__name__
        raise ValueError(f"expected a {kind.__name__} for the estimator {name!r}, not a {other.__name__}, got a {got}")
    for each in inspect.signature(entry.function).parameters.values():
        if each.kind is each.KEYWORD_ONLY and each.default is each.empty and each.name not in options:
            raise ValueError(f"expected the option {each.name} for the estimator {name!r}, got none")
    if isinstance(source, sampled.CachedGame):
        return entry.function(source, key, **options)
    if {"gradient", "next gradient"} & set(entry.needs) and source.gradients is None:
        raise ValueError(
            f"expected a record with gradients for the estimator {name!r}, got none; validation_gradients adds them"
        )
    estimator: Estimator = entry.function(**options)
    found = estimate_run(estimator, source, clients=clients, key=key)
    return found if entry.by_round else found._replace(by_round=None)
