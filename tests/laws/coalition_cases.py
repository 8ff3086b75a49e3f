"""The cases of the law of coalitions: the registry, other forms of its algorithms, and measures of contribution.

Members that are not the first clients have other ids in a federation of their own, so what is drawn by id differs
there. ``WITHOUT_DRAWS`` has options with which nothing is drawn by id, for the second form of the law. Of ``DRAWN`` no
options are known; the first form, in which ids are the same, has them too.
"""

from __future__ import annotations

from typing import Any

from fljax.algorithms import with_contributions
from fljax.algorithms.market import Exploration, Tokens
from fljax.contributions import ROUND_MEASURES, RoundMeasure
from fljax.protocol import Algorithm, Task
from fljax.testing.bench import Bench
from fljax.testing.coalitions import FULL
from fljax.training import Local
from tests.laws.cases import ALGORITHMS, VARIANTS, Case, wrapped

# Thresholds at which somebody falls out of the reputations in three rounds.
_REPUTATIONS: dict[str, dict[str, Any]] = {
    "rffl_reputation": {"options": {"alpha": 0.5, "threshold": 1.0, "warm_up": 1}},
    "cffl_reputation": {"options": {"threshold": 1.0}, "judged_by": "accuracy"},
}


def _measure(name: str, **filters: Any) -> RoundMeasure:
    return RoundMeasure(name, memory=0.5, **{"judged_by": "loss", **_REPUTATIONS.get(name, {}), **filters})


def _with(name: str, **options: Any) -> Case:
    case = ALGORITHMS[name]
    return case._replace(example=case.example | options)


def _recorded(name: str, measure: RoundMeasure) -> Case:
    """An algorithm that does not use the contributions, but whose clients may be shut out by them."""
    case = ALGORITHMS[name]

    def build(task: Task, local: Local, **options: Any) -> Algorithm:
        return with_contributions(case.build(task, local, **options), measure, stacked=True)

    return case._replace(build=build)


# The starts of ComFedSV's completion are drawn for the coalitions of all clients.
_LAWFUL = [name for name in ROUND_MEASURES if name != "completed_shapley"]
MEASURED = {f"iafl_measured_{name}": _with("iafl", contribution=_measure(name)) for name in _LAWFUL} | {
    f"fedavg_recorded_{name}": _recorded("fedavg", _measure(name, filter_below=0.5)) for name in _REPUTATIONS
}
FORMS = {
    "fedavg_uniform": _with("fedavg", weights="uniform"),
    "fedavg_adam": _with("fedavg", server_optimizer="adam", server_lr=0.1),
    "fedprox_stragglers": _with("fedprox", stragglers=0.5),
    "scaffold_option_1": _with("scaffold", option="I"),
    "scaffold_size": _with("scaffold", weights="size"),
    "perfedavg_size": _with("perfedavg", weights="size", hessian="none"),
    "pfedme_size": _with("pfedme", weights="size"),
    "afl_model": _with("afl", updates="model", clients_per_round=4),
    "mwfed_pooled": _with("mwfed", mode="pooled"),
    "incfl_mean": _with("incfl", normalise="mean", surrogate="hinge"),
    "iafl_median": _with("iafl", reference_rule="median"),
    "iafl_copied": _with("iafl", reference_draw="copied"),
    "cgsv_quirk": _with("cgsv", quirk=True),
    "ifca_gradient": _with("ifca", averaging="gradient", weights="size"),
    "ipfl_members": _with("ipfl", profile_on="members"),
    "ipfl_iid": _with("ipfl", profile_on="iid", normalised=False, importance="accuracy"),
    "fedbn_uniform": _with("fedbn", weights="uniform"),
    "fedper_uniform": _with("fedper", weights="uniform"),
    "fedrep_uniform": _with("fedrep", weights="uniform", final_epochs=1),
    "fedbabu_size": _with("fedbabu", weights="size"),
    "ditto_size": _with("ditto", weights="size"),
    "apfl_fixed": _with("apfl", weights="size", adaptive=False),
    "robust_fedavg": wrapped(ALGORITHMS["fedavg"], "robust", rule="coordinate_median"),
    "robust_fedavg_krum": wrapped(ALGORITHMS["fedavg"], "robust", rule="krum", byzantine=0),
    "robust_scaffold": wrapped(ALGORITHMS["scaffold"], "robust", rule="geometric_median", before="mixing", byzantine=0),
    "robust_fednova_centre": wrapped(ALGORITHMS["fednova"], "robust", rule="centred_clipping", bound=0.1),
    "robust_ifca_bucketing": wrapped(ALGORITHMS["ifca"], "robust", rule="coordinate_median", before="bucketing"),
    "fedproto_uniform": _with("fedproto", weights="uniform"),
}
CASES = ALGORITHMS | VARIANTS | FORMS | MEASURED

# Every client gets every update, and no model is replaced.
_IAFL = {"kappa": 1.0, "recovery": 0.0}
# Every client can pay for every cluster, there is a slot for each, and a pool has no single tokens left.
_IPFL = {"tokens": Tokens(initial=40.0, whole=False), "clients_per_cluster": 5, "exploration": Exploration(0.0, 0.0)}
_BY_ALGORITHM: dict[str, dict[str, Any]] = {
    "iafl": _IAFL,
    "cgsv_iafl": _IAFL,
    "fedala": {"sample": 1.0},
    "fedsoft": {"clients_per_cluster": None},
    "ipfl": _IPFL,
}
WITHOUT_DRAWS = {name: _BY_ALGORITHM[case.algorithm] for name, case in CASES.items() if case.algorithm in _BY_ALGORITHM}
DRAWN = {
    "fedprox_stragglers": "who straggles, and how much less it trains, is drawn by id",
    "ipfl": "models of clusters that are alike differ by rounding, which decides whose rows of the server are",
    "robust_ifca_bucketing": "buckets are drawn by id",
    "iafl_measured_gtg_shapley": "the orders of the rows of a cohort are drawn, and a federation of five has more rows",
}
# Rows with replacement are drawn by id; in the order in which they stand, they are the same.
IN_ORDER = ("mwfed_pooled",)


def whole(name: str) -> Bench:
    """The bench of a case as it is."""
    return Bench(CASES[name])


def without_draws(name: str) -> tuple[Bench, Local]:
    """The bench of a case in which nothing is drawn by id, and how its clients train: on all rows in each step."""
    case = CASES[name]
    local = FULL._replace(shuffle=False) if name in IN_ORDER else FULL
    return Bench(case._replace(example=case.example | WITHOUT_DRAWS.get(name, {}))), local
