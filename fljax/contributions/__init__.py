"""Contribution measures of clients, the inputs of IAFL's rewards: plain functions on arrays by client id.

``CONTRIBUTIONS`` lists measures that are known before training: sizes, participation rates and standalone accuracies. A
custom measure is any function that takes some of the same arguments. ``ROUND_MEASURES`` lists those that the server
computes from the updates in every round: a ``RoundMeasure`` says with which memory, and who is shut out. CGSV's whole
reputation is ``fljax.aggregators.cgsv_reputation``, of the algorithms that use it.

What clients are worth in a game over coalitions of clients comes from a table of all values (``shapley``, ``banzhaf``,
``least_core`` and others), from a function of a coalition (``exact_shapley``, ``monte_carlo_shapley``), or from an
estimator of ``ESTIMATORS`` (``fljax.contributions.estimators``). ``agreement`` compares estimates with the truth.
"""

from fljax.contributions.estimators.in_rounds import ROUND_MEASURES, RoundMeasure
from fljax.contributions.estimators.registry import ESTIMATORS, estimate
from fljax.contributions.estimators.rounds import Estimate, RunRecord, validation_gradients
from fljax.contributions.estimators.sampled import CachedGame
from fljax.contributions.measures import (
    CONTRIBUTIONS,
    MEASURES,
    Contribution,
    Measure,
    Violations,
    contribution_at,
    convexity,
    data_size,
    free_riders,
    measure,
    monotonicity,
    participation_rate,
    standalone_accuracy,
    superadditivity,
)
from fljax.contributions.solutions import (
    LeastCore,
    banzhaf,
    beta_shapley,
    least_core,
    leave_one_out,
    nucleolus,
    semivalue,
    shapley,
)
from fljax.contributions.tables import Bounds, ErrorBars, Labels, error_bars, simultaneous_bounds, wins
from fljax.contributions.value_functions import (
    Agreement,
    agreement,
    coalition_value,
    exact_shapley,
    monte_carlo_shapley,
    stability,
)

__all__ = [
    "CONTRIBUTIONS",
    "ESTIMATORS",
    "MEASURES",
    "ROUND_MEASURES",
    "Agreement",
    "Bounds",
    "CachedGame",
    "Contribution",
    "ErrorBars",
    "Estimate",
    "Labels",
    "LeastCore",
    "Measure",
    "RoundMeasure",
    "RunRecord",
    "Violations",
    "agreement",
    "banzhaf",
    "beta_shapley",
    "coalition_value",
    "contribution_at",
    "convexity",
    "data_size",
    "error_bars",
    "estimate",
    "exact_shapley",
    "free_riders",
    "least_core",
    "leave_one_out",
    "measure",
    "monotonicity",
    "monte_carlo_shapley",
    "nucleolus",
    "participation_rate",
    "semivalue",
    "shapley",
    "simultaneous_bounds",
    "stability",
    "standalone_accuracy",
    "superadditivity",
    "validation_gradients",
    "wins",
]
