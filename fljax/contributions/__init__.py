"""Contribution measures of clients, the inputs of IAFL's rewards: plain functions on arrays by client id.

``CONTRIBUTIONS`` lists measures that are known before training: sizes, participation rates and standalone accuracies. A
custom measure is any function that takes some of the same arguments. ``ROUND_MEASURES`` lists those that the server
computes from the updates in every round: a ``RoundMeasure`` says with which memory, and who is shut out. CGSV's whole
reputation is ``fljax.aggregators.cgsv_reputation``, of the algorithms that use it.

What clients are worth in a game over coalitions of clients comes from a table of all values (``shapley``, ``banzhaf``,
``least_core`` and others), from a function of a coalition (``exact_shapley``, ``monte_carlo_shapley``), or from an
estimator of ``ESTIMATORS`` (``fljax.contributions.estimators``). ``agreement`` compares estimates with the truth.
"""

from fljax.contributions.estimators.in_rounds import ROUND_MEASURES as ROUND_MEASURES
from fljax.contributions.estimators.in_rounds import RoundMeasure as RoundMeasure
from fljax.contributions.estimators.registry import ESTIMATORS as ESTIMATORS
from fljax.contributions.estimators.registry import estimate as estimate
from fljax.contributions.estimators.rounds import Estimate as Estimate
from fljax.contributions.estimators.rounds import RunRecord as RunRecord
from fljax.contributions.estimators.rounds import validation_gradients as validation_gradients
from fljax.contributions.estimators.sampled import CachedGame as CachedGame
from fljax.contributions.measures import CONTRIBUTIONS as CONTRIBUTIONS
from fljax.contributions.measures import MEASURES as MEASURES
from fljax.contributions.measures import Contribution as Contribution
from fljax.contributions.measures import Measure as Measure
from fljax.contributions.measures import Violations as Violations
from fljax.contributions.measures import contribution_at as contribution_at
from fljax.contributions.measures import convexity as convexity
from fljax.contributions.measures import data_size as data_size
from fljax.contributions.measures import free_riders as free_riders
from fljax.contributions.measures import measure as measure
from fljax.contributions.measures import monotonicity as monotonicity
from fljax.contributions.measures import participation_rate as participation_rate
from fljax.contributions.measures import standalone_accuracy as standalone_accuracy
from fljax.contributions.measures import superadditivity as superadditivity
from fljax.contributions.solutions import LeastCore as LeastCore
from fljax.contributions.solutions import banzhaf as banzhaf
from fljax.contributions.solutions import beta_shapley as beta_shapley
from fljax.contributions.solutions import least_core as least_core
from fljax.contributions.solutions import leave_one_out as leave_one_out
from fljax.contributions.solutions import nucleolus as nucleolus
from fljax.contributions.solutions import semivalue as semivalue
from fljax.contributions.solutions import shapley as shapley
from fljax.contributions.tables import Bounds as Bounds
from fljax.contributions.tables import ErrorBars as ErrorBars
from fljax.contributions.tables import Labels as Labels
from fljax.contributions.tables import error_bars as error_bars
from fljax.contributions.tables import simultaneous_bounds as simultaneous_bounds
from fljax.contributions.tables import wins as wins
from fljax.contributions.value_functions import Agreement as Agreement
from fljax.contributions.value_functions import agreement as agreement
from fljax.contributions.value_functions import coalition_value as coalition_value
from fljax.contributions.value_functions import exact_shapley as exact_shapley
from fljax.contributions.value_functions import monte_carlo_shapley as monte_carlo_shapley
from fljax.contributions.value_functions import stability as stability
from fljax.core.lazy import exported as _exported

__all__ = _exported(globals())  # pyright: ignore[reportUnsupportedDunderAll]
