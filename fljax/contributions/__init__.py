"""Contribution measures of clients, the inputs of IAFL's rewards: plain functions on arrays by client id.

``CONTRIBUTIONS`` lists measures that are known before training: sizes, participation rates and standalone accuracies. A
custom measure is any function that takes some of the same arguments. CGSV's reputation is not listed, as it is computed
from the updates in every round (``fljax.aggregators.cgsv_reputation`` and the algorithms that use it). The package also
computes Shapley values of any game over coalitions of clients, exact or sampled, on the device.
"""

from fljax.contributions.measures import CONTRIBUTIONS as CONTRIBUTIONS
from fljax.contributions.measures import Measure as Measure
from fljax.contributions.measures import contribution_at as contribution_at
from fljax.contributions.measures import data_size as data_size
from fljax.contributions.measures import free_riders as free_riders
from fljax.contributions.measures import measure as measure
from fljax.contributions.measures import participation_rate as participation_rate
from fljax.contributions.measures import standalone_accuracy as standalone_accuracy
from fljax.contributions.shapley import coalition_value as coalition_value
from fljax.contributions.shapley import exact_shapley as exact_shapley
from fljax.contributions.shapley import monte_carlo_shapley as monte_carlo_shapley
