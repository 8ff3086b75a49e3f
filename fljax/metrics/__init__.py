"""Metrics of clients: pure functions whose last axis is the clients (NumPy and JAX alike), and statistics over seeds.

Functions are imported at first use: who asks for the names of metrics does not wait for SciPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
    from fljax.metrics.summaries import Summary as Summary
    from fljax.metrics.summaries import mean as mean
    from fljax.metrics.summaries import over_seeds as over_seeds
    from fljax.metrics.uncertainty import binomial_standard_error as binomial_standard_error
    from fljax.metrics.uncertainty import gain_standard_error as gain_standard_error
    from fljax.metrics.uncertainty import is_within_noise as is_within_noise
    from fljax.metrics.uncertainty import opt_outs_by_noise as opt_outs_by_noise
    from fljax.metrics.uncertainty import paired_standard_error as paired_standard_error
    from fljax.metrics.uncertainty import worse_off_by_noise as worse_off_by_noise

_HOME = {
    "ROUNDING": "arrays",
    "SCORES": "scores",
    "Score": "scores",
    "Summary": "summaries",
    "accuracy_increase": "formulas",
    "average_accuracy": "formulas",
    "binomial_standard_error": "uncertainty",
    "contribution_correlation": "formulas",
    "gain_standard_error": "uncertainty",
    "gini_coefficient": "formulas",
    "global_model_appeal": "formulas",
    "incentive_margin": "formulas",
    "incentivised": "formulas",
    "incentivised_participation_rate": "formulas",
    "ipr_accuracy": "formulas",
    "ipr_loss": "formulas",
    "is_within_noise": "uncertainty",
    "jain_index": "formulas",
    "maximum_accuracy": "formulas",
    "mean": "summaries",
    "opt_outs": "formulas",
    "opt_outs_by_noise": "uncertainty",
    "over_seeds": "summaries",
    "paired_standard_error": "uncertainty",
    "participation_rate": "formulas",
    "pearson_correlation": "formulas",
    "personalised_model_accuracy_gain": "formulas",
    "preferred_accuracy": "formulas",
    "preferred_model_accuracy": "formulas",
    "rounds_to_target": "formulas",
    "spread_over_clients": "formulas",
    "standard_deviation": "formulas",
    "standard_error": "formulas",
    "surrogate_objective": "formulas",
    "worse_off_by_noise": "uncertainty",
    "worst_share": "formulas",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"fljax.metrics.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fljax.metrics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_HOME)
