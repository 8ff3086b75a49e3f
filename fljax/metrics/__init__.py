"""Metrics of clients: pure functions whose last axis is the clients (NumPy and JAX alike), and statistics over seeds.

Functions are imported at first use: who asks for the names of metrics does not wait for SciPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fljax.core.lazy import at_first_use

if TYPE_CHECKING:
    from fljax.metrics.arrays import ROUNDING as ROUNDING
    from fljax.metrics.formulas import accuracy_increase as accuracy_increase
    from fljax.metrics.formulas import average_accuracy as average_accuracy
    from fljax.metrics.formulas import contribution_correlation as contribution_correlation
    from fljax.metrics.formulas import gini_coefficient as gini_coefficient
    from fljax.metrics.formulas import global_model_appeal as global_model_appeal
    from fljax.metrics.formulas import incentive_margin as incentive_margin
    from fljax.metrics.formulas import incentivised as incentivised
    from fljax.metrics.formulas import incentivised_participation_rate as incentivised_participation_rate
    from fljax.metrics.formulas import ipr_accuracy as ipr_accuracy
    from fljax.metrics.formulas import ipr_loss as ipr_loss
    from fljax.metrics.formulas import jain_index as jain_index
    from fljax.metrics.formulas import maximum_accuracy as maximum_accuracy
    from fljax.metrics.formulas import opt_outs as opt_outs
    from fljax.metrics.formulas import participation_rate as participation_rate
    from fljax.metrics.formulas import pearson_correlation as pearson_correlation
    from fljax.metrics.formulas import personalised_model_accuracy_gain as personalised_model_accuracy_gain
    from fljax.metrics.formulas import preferred_accuracy as preferred_accuracy
    from fljax.metrics.formulas import preferred_model_accuracy as preferred_model_accuracy
    from fljax.metrics.formulas import rounds_to_target as rounds_to_target
    from fljax.metrics.formulas import spread_over_clients as spread_over_clients
    from fljax.metrics.formulas import standard_deviation as standard_deviation
    from fljax.metrics.formulas import standard_error as standard_error
    from fljax.metrics.formulas import surrogate_objective as surrogate_objective
    from fljax.metrics.formulas import worst_share as worst_share
    from fljax.metrics.scores import SCORES as SCORES
    from fljax.metrics.scores import Score as Score
    from fljax.metrics.uncertainty import Summary as Summary
    from fljax.metrics.uncertainty import binomial_standard_error as binomial_standard_error
    from fljax.metrics.uncertainty import gain_standard_error as gain_standard_error
    from fljax.metrics.uncertainty import is_within_noise as is_within_noise
    from fljax.metrics.uncertainty import mean as mean
    from fljax.metrics.uncertainty import opt_outs_by_noise as opt_outs_by_noise
    from fljax.metrics.uncertainty import over_seeds as over_seeds
    from fljax.metrics.uncertainty import paired_standard_error as paired_standard_error
    from fljax.metrics.uncertainty import worse_off_by_noise as worse_off_by_noise

__getattr__, __dir__ = at_first_use(__spec__)
