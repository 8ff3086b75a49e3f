"""Contribution measures of clients, the inputs of IAFL's rewards: plain functions on arrays by client id.

``CONTRIBUTIONS`` lists measures that are known before training: sizes, participation rates and standalone accuracies. A
custom measure is any function that takes some of the same arguments. CGSV's reputation is not listed, as it is computed
from the updates in every round (``fljax.aggregators.cgsv_reputation`` and the algorithms that use it). The package also
computes Shapley values of any game over coalitions of clients, exact or sampled, on the device.
"""

from fljax.contributions.measures import (
    CONTRIBUTIONS,
    Contribution,
    Measure,
    contribution_at,
    data_size,
    free_riders,
    measure,
    participation_rate,
    standalone_accuracy,
)
from fljax.contributions.shapley import coalition_value, exact_shapley, monte_carlo_shapley
from fljax.contributions.tables import Labels

__all__ = [
    "CONTRIBUTIONS",
    "Contribution",
    "Labels",
    "Measure",
    "coalition_value",
    "contribution_at",
    "data_size",
    "exact_shapley",
    "free_riders",
    "measure",
    "monte_carlo_shapley",
    "participation_rate",
    "standalone_accuracy",
]
