"""Every variable of ``Result.metrics``: its definition in one sentence, and how those over clients are computed.

An entry of ``OVER_CLIENTS`` adds a metric, and the same metric ``unseen_...``, to results, sweeps and
``fljax list metrics``.

``f`` is a loss, ``w`` the global model, ``w_k`` the model that client k would use and ``what_k`` its standalone model.
If an algorithm has no global model, metrics of the global model are absent (NaN beside other algorithms). Metrics that
compare with standalone models are NaN for an algorithm whose clients train alone. Accuracies are fractions. Averages
count only clients with a value.

``global_*`` metrics are those of the common model; metrics without a prefix are those of the deployed model.
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


# Arrays over clients that also exist with the prefix "unseen_".
PER_CLIENT = {
    "test_loss": "per client: mean loss on its test rows of the model that it would use",
    "test_accuracy": "per client: accuracy on its test rows of the model that it would use",
    "global_test_loss": "per client: mean loss on its test rows of the global model, before the client changes it",
    "global_test_accuracy": "per client: accuracy on its test rows of the global model, before the client changes it",
    "train_loss": "per client: mean loss on its training rows of the model that it has tuned (scenario finetuned)",
    "standalone_test_loss": "per client: mean loss of its standalone model on its test rows",
    "standalone_test_accuracy": "per client: accuracy of its standalone model on its test rows",
    "threshold": "per client: mean loss of its standalone model on all of its training rows (rho_k in INCFL and MaxFL)",
    "required_loss": "per client: the loss that it requires, the same for all algorithms (fljax.Requirement)",
    "personalised_model_accuracy_gain": "per client: test_accuracy minus that of the baseline algorithm (IP-FL's PMA)",
    "opt_out_threshold": "per client: the gain below which it opts out (IP-FL's delta; 0 unless a config has another)",
}
PER_SEEN_CLIENT = {
    "valid_loss": "per client: mean loss on its validation rows of the model that it would use",
    "valid_accuracy": "per client: accuracy on its validation rows of the model that it would use",
    "decision_test_accuracy": "per client: test_accuracy after the rounds at which a scenario compares with it",
    "decision_valid_accuracy": "per client: valid_accuracy after the rounds at which a scenario compares with it",
}

# One number per seed and evaluation, besides those of ``OVER_CLIENTS``.
OVER_SEEN_CLIENTS = {
    "average_valid_accuracy": "mean over clients of valid_accuracy",
    "average_valid_loss": "mean over clients of valid_loss",
    "contribution_correlation": "correlation over clients of test_accuracy and the contribution last reported (IAFL)",
}

# About the server, clusters and the run itself.
OTHERS = {
    "server_test_loss": "mean loss of the server's own model on the server's test rows",
    "server_test_accuracy": "accuracy of the server's own model on the server's test rows",
    "cluster_loss": "per cluster: mean loss of its model on the server's rows of each source distribution",
    "cluster_accuracy": "per cluster: accuracy of its model on the server's rows of each source distribution",
    "rounds_done": "number of rounds after which the run ended: fewer than asked for if it stopped early",
    "diverged": "per seed: the round in which a NaN or infinity appeared; -1 where none did",
    "diverged_by": "per client: whether its message or state was not finite in the round in which the seed diverged",
    "dropped_messages": 'messages that were dropped so far because they were not finite (non_finite = "drop")',
    "seconds_trial": "seconds in which ways to map clients to devices were timed",
    "seconds_compile": "seconds of tracing, of waiting for compiled programs, and of making the state before round 0",
    "seconds_train": "seconds of all rounds",
    "seconds_evaluate": "seconds of all evaluations",
    "execution_clients": "clients that train side by side on one device",
    "execution_seeds": "runs side by side on one device",
    "execution_evaluation": "clients that are evaluated side by side on one device",
    "execution_devices": "devices that were used",
    "execution_runs_apart": "whether devices take whole runs instead of a run's clients",
    "execution_memory": "bytes that each device holds at once, by XLA's analysis of the compiled programs",
}


def _with_unseen(lines: dict[str, str]) -> dict[str, str]:
    return lines | {f"unseen_{name}": f"as {name}, over clients that did not train" for name in lines}


# Names of single numbers per seed and evaluation, for tables and for the choice of sweeps.
SCALARS = _with_unseen({name: metric.sentence for name, metric in OVER_CLIENTS.items()}) | OVER_SEEN_CLIENTS
# Those that an evaluation of one algorithm has by itself: others compare with another algorithm, or need records.
_OF_SEVERAL = {name for name, metric in OVER_CLIENTS.items() if "personalised_model_accuracy_gain" in metric.variables}
_OF_SEVERAL |= {"contribution_correlation"}
OF_ONE_EVALUATION = (
    *(name for name in SCALARS if name.removeprefix("unseen_") not in _OF_SEVERAL),
    "server_test_loss",
    "server_test_accuracy",
)
# Those that exist also for tasks without accuracies.
_ACCURACIES = {name for name, metric in OVER_CLIENTS.items() if any("accuracy" in of for of in metric.variables)}
OF_LOSSES = tuple(
    name
    for name in (*SCALARS, "server_test_loss")
    if name.removeprefix("unseen_") not in _ACCURACIES | set(OVER_SEEN_CLIENTS) - {"average_valid_loss"}
)
# Every possible name in results.
METRICS = SCALARS | _with_unseen(PER_CLIENT) | PER_SEEN_CLIENT | OTHERS


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
        if all(variable in variables for variable in metric.variables):
            scalars[name] = metric.compute(*(variables[variable] for variable in metric.variables))
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
