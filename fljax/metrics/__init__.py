"""Metrics of clients: pure functions whose last axis is the clients (NumPy and JAX alike), and statistics over seeds.

Functions are imported at first use: who asks for the names of metrics does not wait for SciPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fljax.metrics.formulas import ROUNDING as ROUNDING
    from fljax.metrics.formulas import accuracy_increase as accuracy_increase
    from fljax.metrics.formulas import average_accuracy as average_accuracy
    from fljax.metrics.formulas import contribution_correlation as contribution_correlation
    from fljax.metrics.formulas import gini_coefficient as gini_coefficient
    from fljax.metrics.formulas import global_model_appeal as global_model_appeal
    from fljax.metrics.formulas import incentivised as incentivised
    from fljax.metrics.formulas import incentivised_participation_rate as incentivised_participation_rate
    from fljax.metrics.formulas import ipr_accuracy as ipr_accuracy
    from fljax.metrics.formulas import ipr_loss as ipr_loss
    from fljax.metrics.formulas import maximum_accuracy as maximum_accuracy
    from fljax.metrics.formulas import opt_outs as opt_outs
    from fljax.metrics.formulas import participation_rate as participation_rate
    from fljax.metrics.formulas import pearson_correlation as pearson_correlation
    from fljax.metrics.formulas import personalised_model_accuracy_gain as personalised_model_accuracy_gain
    from fljax.metrics.formulas import preferred_accuracy as preferred_accuracy
    from fljax.metrics.formulas import preferred_model_accuracy as preferred_model_accuracy
    from fljax.metrics.formulas import standard_deviation as standard_deviation
    from fljax.metrics.formulas import standard_error as standard_error
    from fljax.metrics.scores import SCORES as SCORES
    from fljax.metrics.scores import Score as Score
    from fljax.metrics.summaries import Summary as Summary
    from fljax.metrics.summaries import mean as mean
    from fljax.metrics.summaries import over_seeds as over_seeds

_FORMULAS = (
    "ROUNDING",
    "accuracy_increase",
    "average_accuracy",
    "contribution_correlation",
    "gini_coefficient",
    "global_model_appeal",
    "incentivised",
    "incentivised_participation_rate",
    "ipr_accuracy",
    "ipr_loss",
    "maximum_accuracy",
    "opt_outs",
    "participation_rate",
    "pearson_correlation",
    "personalised_model_accuracy_gain",
    "preferred_accuracy",
    "preferred_model_accuracy",
    "standard_deviation",
    "standard_error",
)
_SCORES = ("SCORES", "Score")
_SUMMARIES = ("Summary", "mean", "over_seeds")


def __getattr__(name: str) -> Any:
    if name in _FORMULAS:
        return getattr(importlib.import_module("fljax.metrics.formulas"), name)
    if name in _SCORES:
        return getattr(importlib.import_module("fljax.metrics.scores"), name)
    if name in _SUMMARIES:
        return getattr(importlib.import_module("fljax.metrics.summaries"), name)
    raise AttributeError(f"module 'fljax.metrics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*_FORMULAS, *_SCORES, *_SUMMARIES))
