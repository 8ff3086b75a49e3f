"""Estimators of what a client is worth: thirteen that look at one run, and six that retrain some coalitions.

``estimate(name, source)`` runs one of ``ESTIMATORS``, which says what each one needs and costs. The functions of the
first kind build an ``Estimator`` that can run inside a round: ``begin``, ``observe``, ``estimate_of``.
"""

from fljax.contributions.estimators.directions import cffl_reputation as cffl_reputation
from fljax.contributions.estimators.directions import cosine as cosine
from fljax.contributions.estimators.directions import digfl as digfl
from fljax.contributions.estimators.directions import fedce as fedce
from fljax.contributions.estimators.directions import first_order as first_order
from fljax.contributions.estimators.directions import rffl_reputation as rffl_reputation
from fljax.contributions.estimators.directions import shapfed as shapfed
from fljax.contributions.estimators.in_rounds import ROUND_MEASURES as ROUND_MEASURES
from fljax.contributions.estimators.in_rounds import Contributions as Contributions
from fljax.contributions.estimators.in_rounds import RoundMeasure as RoundMeasure
from fljax.contributions.estimators.in_rounds import begin_contributions as begin_contributions
from fljax.contributions.estimators.in_rounds import estimator_of as estimator_of
from fljax.contributions.estimators.in_rounds import observe_contributions as observe_contributions
from fljax.contributions.estimators.reconstructed import completed_shapley as completed_shapley
from fljax.contributions.estimators.reconstructed import fed_shapley as fed_shapley
from fljax.contributions.estimators.reconstructed import gtg_shapley as gtg_shapley
from fljax.contributions.estimators.reconstructed import in_run_leave_one_out as in_run_leave_one_out
from fljax.contributions.estimators.reconstructed import multi_round as multi_round
from fljax.contributions.estimators.reconstructed import one_round as one_round
from fljax.contributions.estimators.registry import ESTIMATORS as ESTIMATORS
from fljax.contributions.estimators.registry import NEEDS as NEEDS
from fljax.contributions.estimators.registry import Entry as Entry
from fljax.contributions.estimators.registry import estimate as estimate
from fljax.contributions.estimators.rounds import Cost as Cost
from fljax.contributions.estimators.rounds import Estimate as Estimate
from fljax.contributions.estimators.rounds import Estimator as Estimator
from fljax.contributions.estimators.rounds import Observation as Observation
from fljax.contributions.estimators.rounds import RunRecord as RunRecord
from fljax.contributions.estimators.rounds import State as State
from fljax.contributions.estimators.rounds import begin as begin
from fljax.contributions.estimators.rounds import estimate_of as estimate_of
from fljax.contributions.estimators.rounds import estimate_run as estimate_run
from fljax.contributions.estimators.rounds import observe as observe
from fljax.contributions.estimators.rounds import validation_gradients as validation_gradients
from fljax.contributions.estimators.sampled import CachedGame as CachedGame
from fljax.contributions.estimators.sampled import ipss as ipss
from fljax.contributions.estimators.sampled import msr_banzhaf as msr_banzhaf
from fljax.contributions.estimators.sampled import owen_shapley as owen_shapley
from fljax.contributions.estimators.sampled import permutation_shapley as permutation_shapley
from fljax.contributions.estimators.sampled import stratified_shapley as stratified_shapley
from fljax.contributions.estimators.sampled import truncated_shapley as truncated_shapley
from fljax.core.lazy import exported as _exported

__all__ = _exported(globals())  # pyright: ignore[reportUnsupportedDunderAll]
