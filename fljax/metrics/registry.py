"""The registry of metrics over clients: the variables and the function of each.

One entry adds a metric, and the same metric ``unseen_...``, to results, sweeps and ``fljax list metrics``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax.metrics import formulas


class Metric(NamedTuple):
    """One number for all clients.

    Attributes:
      sentence: its definition, with the names of variables of results.
      compute: function of ``variables``, each ``[..., client]``, with a result ``[...]``.
      variables: names of variables over clients. The metric exists if all of them do.
      lower: whether lower is better, for sweeps.
    """

    sentence: str
    compute: Callable[..., Any]
    variables: tuple[str, ...]
    lower: bool = False


OVER_CLIENTS: dict[str, Metric] = {
    "incentivised_participation_rate": Metric(
        "fraction of clients with test_loss < standalone_test_loss (INCFL, equation 1)",
        formulas.incentivised_participation_rate,
        ("test_loss", "standalone_test_loss"),
    ),
    "global_incentivised_participation_rate": Metric(
        "fraction of clients with global_test_loss < standalone_test_loss (INCFL, equation 1, before any tuning)",
        formulas.incentivised_participation_rate,
        ("global_test_loss", "standalone_test_loss"),
    ),
    "global_model_appeal": Metric(
        "fraction of clients with global_test_loss < required_loss (MaxFL, equation 1)",
        formulas.global_model_appeal,
        ("global_test_loss", "required_loss"),
    ),
    "deployed_model_appeal": Metric(
        "fraction of clients with train_loss < required_loss: the appeal of tuned models (MaxFL, Table 4)",
        formulas.global_model_appeal,
        ("train_loss", "required_loss"),
    ),
    "ipr_loss": Metric(
        "fraction of clients with test_loss <= standalone_test_loss (IAFL)",
        formulas.ipr_loss,
        ("test_loss", "standalone_test_loss"),
    ),
    "ipr_accuracy": Metric(
        "fraction of clients with test_accuracy >= standalone_test_accuracy (IAFL)",
        formulas.ipr_accuracy,
        ("test_accuracy", "standalone_test_accuracy"),
    ),
    "preferred_model_accuracy": Metric(
        (
            "mean over clients of test_accuracy where test_loss < standalone_test_loss, else "
            "standalone_test_accuracy (INCFL)"
        ),
        formulas.preferred_model_accuracy,
        ("test_accuracy", "standalone_test_accuracy", "test_loss", "standalone_test_loss"),
    ),
    "preferred_model_accuracy_by_accuracy": Metric(
        "mean over clients of the larger of test_accuracy and standalone_test_accuracy",
        functools.partial(formulas.preferred_model_accuracy, prefer="accuracy"),
        ("test_accuracy", "standalone_test_accuracy"),
    ),
    "preferred_model_accuracy_by_threshold": Metric(
        (
            "mean over clients of global_test_accuracy where global_test_loss < required_loss, else "
            "standalone_test_accuracy (MaxFL)"
        ),
        formulas.preferred_model_accuracy,
        ("global_test_accuracy", "standalone_test_accuracy", "global_test_loss", "required_loss"),
    ),
    "average_loss": Metric(
        "mean over clients of test_loss",
        formulas.average_accuracy,
        ("test_loss",),
        lower=True,
    ),
    "average_accuracy": Metric(
        "mean over clients of test_accuracy",
        formulas.average_accuracy,
        ("test_accuracy",),
    ),
    "global_average_accuracy": Metric(
        "mean over clients of global_test_accuracy",
        formulas.average_accuracy,
        ("global_test_accuracy",),
    ),
    "maximum_accuracy": Metric(
        "largest test_accuracy over clients (IAFL)",
        formulas.maximum_accuracy,
        ("test_accuracy",),
    ),
    "accuracy_increase": Metric(
        "mean over clients of test_accuracy minus standalone_test_accuracy (IAFL)",
        formulas.accuracy_increase,
        ("test_accuracy", "standalone_test_accuracy"),
    ),
    "pearson_correlation": Metric(
        "correlation over clients of test_accuracy and standalone_test_accuracy (IAFL)",
        formulas.pearson_correlation,
        ("test_accuracy", "standalone_test_accuracy"),
    ),
    "average_gain": Metric(
        "mean over clients of personalised_model_accuracy_gain (IP-FL)",
        formulas.average_accuracy,
        ("personalised_model_accuracy_gain",),
    ),
    "opt_outs": Metric(
        "number of clients with personalised_model_accuracy_gain < opt_out_threshold (IP-FL, equations 1 and 2)",
        lambda gain, threshold: formulas.opt_outs(gain, threshold=threshold),
        ("personalised_model_accuracy_gain", "opt_out_threshold"),
        lower=True,
    ),
    "participation_rate": Metric(
        "fraction of clients with personalised_model_accuracy_gain >= opt_out_threshold (IP-FL)",
        lambda gain, threshold: formulas.participation_rate(gain, threshold=threshold),
        ("personalised_model_accuracy_gain", "opt_out_threshold"),
    ),
}

# Metrics that compare with standalone models: not defined for a method that is the training of standalone models.
COMPARED_WITH_STANDALONE = frozenset(
    name
    for name, metric in OVER_CLIENTS.items()
    if any(variable.startswith("standalone_") for variable in metric.variables)
)


def is_lower_better(name: str) -> bool:
    """Whether lower values of a metric are better: of losses, and of those with ``lower``."""
    plain = name.removeprefix("unseen_")
    return OVER_CLIENTS[plain].lower if plain in OVER_CLIENTS else plain.endswith("loss")


def over_clients(variables: Mapping[str, Any]) -> dict[str, Any]:
    """All metrics whose variables exist, ``[...]`` by name.

    Args:
      variables: arrays ``[..., client]`` by name; their leading axes are broadcast.
    """
    scalars = {}
    for name, metric in OVER_CLIENTS.items():
        if all(each in variables for each in metric.variables):
            scalars[name] = metric.compute(*(variables[each] for each in metric.variables))
    return scalars


def of_gains(
    gain: formulas.Array, opt_out_threshold: float | Sequence[float], *, unseen: bool
) -> tuple[np.ndarray, dict[str, Any]]:
    """The metrics of gains over a baseline.

    Args:
      gain: ``[..., client]``, the differences of accuracies.
      opt_out_threshold: IP-FL's ``delta_k``: one number for all clients, or one for each seen client; unseen clients
        then have 0.
      unseen: whether ``gain`` is of unseen clients.

    Returns:
      The thresholds ``[client]``, and the metrics ``[...]`` by name.
    """
    chosen = 0.0 if unseen and np.ndim(opt_out_threshold) else opt_out_threshold
    thresholds = np.broadcast_to(np.asarray(chosen, gain.dtype), gain.shape[-1:])
    variables = {"personalised_model_accuracy_gain": gain, "opt_out_threshold": thresholds}
    return thresholds, over_clients(variables)
