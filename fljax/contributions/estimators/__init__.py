"""Estimators of what a client is worth: thirteen that look at one run, and six that retrain some coalitions.

``estimate(name, source)`` runs one of ``ESTIMATORS``, which says what each one needs and costs. The functions of the
first kind build an ``Estimator`` that can run inside a round: ``begin``, ``observe``, ``estimate_of``.
"""

from fljax.contributions.estimators.directions import (
    cffl_reputation,
    cosine,
    digfl,
    fedce,
    first_order,
    rffl_reputation,
    shapfed,
)
from fljax.contributions.estimators.in_rounds import (
    ROUND_MEASURES,
    Contributions,
    RoundMeasure,
    begin_contributions,
    estimator_of,
    observe_contributions,
)
from fljax.contributions.estimators.reconstructed import (
    completed_shapley,
    fed_shapley,
    gtg_shapley,
    in_run_leave_one_out,
    multi_round,
    one_round,
)
from fljax.contributions.estimators.registry import ESTIMATORS, NEEDS, Entry, estimate
from fljax.contributions.estimators.rounds import (
    Cost,
    Estimate,
    Estimator,
    Observation,
    RunRecord,
    State,
    begin,
    estimate_of,
    estimate_run,
    observe,
    validation_gradients,
)
from fljax.contributions.estimators.sampled import (
    CachedGame,
    ipss,
    msr_banzhaf,
    owen_shapley,
    permutation_shapley,
    stratified_shapley,
    truncated_shapley,
)

__all__ = [
    "ESTIMATORS",
    "NEEDS",
    "ROUND_MEASURES",
    "CachedGame",
    "Contributions",
    "Cost",
    "Entry",
    "Estimate",
    "Estimator",
    "Observation",
    "RoundMeasure",
    "RunRecord",
    "State",
    "begin",
    "begin_contributions",
    "cffl_reputation",
    "completed_shapley",
    "cosine",
    "digfl",
    "estimate",
    "estimate_of",
    "estimate_run",
    "estimator_of",
    "fed_shapley",
    "fedce",
    "first_order",
    "gtg_shapley",
    "in_run_leave_one_out",
    "ipss",
    "msr_banzhaf",
    "multi_round",
    "observe",
    "observe_contributions",
    "one_round",
    "owen_shapley",
    "permutation_shapley",
    "rffl_reputation",
    "shapfed",
    "stratified_shapley",
    "truncated_shapley",
    "validation_gradients",
]
