"""Every variable of ``Result.metrics``: its definition in one sentence, and how those over clients are computed.

An entry of ``OVER_CLIENTS`` adds a metric, also ``unseen_...``, to results, sweeps and ``fljax list metrics``.
``global_*`` are of the common model, absent (NaN beside other algorithms) without one; others are of the deployed
model. Those that compare with standalone models are NaN where clients train alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax.core.names import check_unlabelled, shown, unknown
from fljax.metrics import formulas, uncertainty
from fljax.metrics.arrays import Array


class Metric(NamedTuple):
    """One number for all clients; it exists if all of ``variables`` do."""

    sentence: str  # its definition, with the names of variables of results
    compute: Callable[..., Any]  # of ``variables``, each ``[..., client]``; the result is ``[...]``
    variables: tuple[str, ...]
    lower: bool = False  # whether lower is better, for sweeps
    unseen: bool = True  # whether it exists for unseen clients, too, with the prefix ``unseen_``


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
    "valid_incentivised_participation_rate": Metric(
        "fraction of clients with valid_loss < standalone_valid_loss: the IPR on validation rows (INCFL, section 2)",
        formulas.incentivised_participation_rate,
        ("valid_loss", "standalone_valid_loss"),
        unseen=False,
    ),
    "valid_global_model_appeal": Metric(
        "fraction of clients with global_valid_loss < required_loss: GM-Appeal on validation rows",
        formulas.global_model_appeal,
        ("global_valid_loss", "required_loss"),
        unseen=False,
    ),
    "objective": Metric(
        "mean over clients of sigmoid(global_train_loss - required_loss), which INCFL and MaxFL minimise",
        formulas.surrogate_objective,
        ("global_train_loss", "required_loss"),
        lower=True,
        unseen=False,
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
    "incentive_margin": Metric(
        "sum over clients of standalone_test_loss minus test_loss where this is positive (INCFL, section 2)",
        formulas.incentive_margin,
        ("test_loss", "standalone_test_loss"),
    ),
    "appeal_margin": Metric(
        "sum over clients of required_loss minus global_test_loss where this is positive (INCFL's margin, with rho_k)",
        formulas.incentive_margin,
        ("global_test_loss", "required_loss"),
    ),
    "worse_off_by_noise": Metric(
        (
            "fraction of clients with test_accuracy < standalone_test_accuracy by at most two standard errors of the "
            "difference (sum of the binomial ones, by test_rows)"
        ),
        uncertainty.worse_off_by_noise,
        ("test_accuracy", "standalone_test_accuracy", "test_rows"),
        lower=True,
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
    "average_loss": Metric("mean over clients of test_loss", formulas.average_accuracy, ("test_loss",), lower=True),
    "average_accuracy": Metric("mean over clients of test_accuracy", formulas.average_accuracy, ("test_accuracy",)),
    "global_average_accuracy": Metric(
        "mean over clients of global_test_accuracy", formulas.average_accuracy, ("global_test_accuracy",)
    ),
    "maximum_accuracy": Metric(
        "largest test_accuracy over clients (IAFL)", formulas.maximum_accuracy, ("test_accuracy",)
    ),
    "accuracy_spread": Metric(
        "standard deviation over clients of test_accuracy, with M in the denominator",
        formulas.spread_over_clients,
        ("test_accuracy",),
        lower=True,
    ),
    "worst_decile_accuracy": Metric(
        "mean of test_accuracy over the tenth of the clients (rounded up) in which it is lowest",
        formulas.worst_share,
        ("test_accuracy",),
    ),
    "jain_index": Metric(
        "Jain's index of test_accuracy over clients: 1 if all are equal, 1/M if one client has everything",
        formulas.jain_index,
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
    "opt_outs_by_noise": Metric(
        (
            "number of clients among opt_outs whose personalised_model_accuracy_gain is within two gain_standard_error "
            "of opt_out_threshold"
        ),
        lambda gain, error, threshold: uncertainty.opt_outs_by_noise(gain, error, threshold=threshold),
        ("personalised_model_accuracy_gain", "gain_standard_error", "opt_out_threshold"),
        lower=True,
    ),
    "average_backdoor_success": Metric(
        "mean over clients of backdoor_success", formulas.average_accuracy, ("backdoor_success",), lower=True
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
    "backdoor_success": "per client: share of its triggered test rows that its model assigns to the backdoor's class",
    "standalone_test_loss": "per client: mean loss of its standalone model on its test rows",
    "standalone_test_accuracy": "per client: accuracy of its standalone model on its test rows",
    "standalone_valid_loss": (
        "per client: mean loss of its standalone model on its validation rows, if a metric or requirement asks for it"
    ),
    "threshold": "per client: mean loss of its standalone model on all of its training rows (rho_k in INCFL and MaxFL)",
    "required_loss": "per client: the loss that it requires, the same for all algorithms (fljax.Requirement)",
    "personalised_model_accuracy_gain": "per client: test_accuracy minus that of the baseline algorithm (IP-FL's PMA)",
    "gain_standard_error": (
        "per client: at most so large is the standard error of personalised_model_accuracy_gain: the sum of the "
        "binomial ones of both accuracies"
    ),
    "test_rows": "per client: the number of its test rows",
    "opt_out_threshold": "per client: the gain below which it opts out (IP-FL's delta; 0 unless a config has another)",
}
PER_SEEN_CLIENT = {
    "valid_loss": "per client: mean loss on its validation rows of the model that it would use",
    "global_train_loss": "per client: mean loss on its training rows of the global model, if a metric asks for it",
    "global_valid_loss": "per client: mean loss on its validation rows of the global model, if a metric asks for it",
    "client_gradient_steps": "per client: its part of gradient_steps",
    "client_forward_passes": "per client: its part of forward_passes",
    "valid_accuracy": "per client: accuracy on its validation rows of the model that it would use",
    "decision_test_accuracy": "per client: test_accuracy after the rounds at which a scenario compares with it",
    "decision_valid_accuracy": "per client: valid_accuracy after the rounds at which a scenario compares with it",
}

# One number per seed and evaluation, besides those of ``OVER_CLIENTS``.
OVER_SEEN_CLIENTS = {
    "average_valid_accuracy": "mean over clients of valid_accuracy",
    "average_valid_loss": "mean over clients of valid_loss",
    "gradient_steps": "gradients of one batch that all clients have computed so far in local training",
    "forward_passes": "passes over all rows of a subset, without a gradient, that all clients have made so far",
    "objective_gradient_norm": "norm of the gradient of objective in the global model; 0 at its stationary points",
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


def _with_unseen(lines: dict[str, str], seen_alone: Container[str] = ()) -> dict[str, str]:
    twins = [name for name in lines if name not in seen_alone]
    return lines | {f"unseen_{name}": f"as {name}, over clients that did not train" for name in twins}


# Names of single numbers per seed and evaluation, for tables and for the choice of sweeps.
SCALARS = OVER_SEEN_CLIENTS | _with_unseen(
    {name: metric.sentence for name, metric in OVER_CLIENTS.items()},
    {name for name, metric in OVER_CLIENTS.items() if not metric.unseen},
)
# Metrics that take another pass over rows, and so must be asked for, with the variables that this pass gives.
_PASSES = {"global_train_loss", "global_valid_loss", "standalone_valid_loss"}
ON_REQUEST: dict[str, tuple[str, ...]] = {
    name: tuple(sorted(_PASSES & set(metric.variables)))
    for name, metric in OVER_CLIENTS.items()
    if _PASSES & set(metric.variables)
}
ON_REQUEST["objective_gradient_norm"] = ("objective_gradient_norm",)
# Counted after the run, while some clients train once more.
COMPUTE = frozenset({"gradient_steps", "forward_passes"})
ON_REQUEST |= dict.fromkeys(sorted(COMPUTE), ())
# Those that an evaluation of one algorithm has by itself: others compare with another algorithm, or need records.
_OF_SEVERAL = {name for name, metric in OVER_CLIENTS.items() if "personalised_model_accuracy_gain" in metric.variables}
_OF_SEVERAL |= {"contribution_correlation", *COMPUTE}
_OF_SEVERAL |= {name for name, metric in OVER_CLIENTS.items() if "test_rows" in metric.variables}
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
    if name.removeprefix("unseen_") not in _ACCURACIES | set(OVER_SEEN_CLIENTS) - {"average_valid_loss", *ON_REQUEST}
)
# Every possible name in results.
METRICS = SCALARS | _with_unseen(PER_CLIENT) | PER_SEEN_CLIENT | OTHERS


def is_lower_better(name: str) -> bool:
    """Whether lower values are better: losses, costs, norms of gradients, what is dropped, and those with ``lower``."""
    plain = name.removeprefix("unseen_")
    if plain in OVER_CLIENTS:
        return OVER_CLIENTS[plain].lower
    return plain.endswith(("loss", "gradient_norm", "gradient_steps", "forward_passes", "dropped_messages"))


def needs_of(names: Sequence[str]) -> tuple[str, ...]:
    """The variables that metrics of ``ON_REQUEST`` need and that another pass over rows gives, sorted."""
    if isinstance(names, str) or not isinstance(names, Collection):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"expected a list of metrics, got {shown(names)}")
    for name in names:
        if name not in list(ON_REQUEST):
            always = f" ({name} is computed in every run)" if name in list(SCALARS) else ""
            raise ValueError(unknown("extra metric", name, ON_REQUEST) + always)
    return tuple(sorted({need for name in names for need in ON_REQUEST[name]}))


def over_clients(variables: Mapping[str, Any]) -> dict[str, Any]:
    """All metrics whose variables ``[..., client]`` exist, ``[...]`` by name; leading axes are broadcast."""
    scalars = {}
    for name, metric in OVER_CLIENTS.items():
        if all(variable in variables for variable in metric.variables):
            scalars[name] = metric.compute(*(variables[variable] for variable in metric.variables))
    return scalars


def of_gains(
    gain: Array, opt_out_threshold: float | Sequence[float], *, unseen: bool, error: Array | None = None
) -> tuple[np.ndarray, dict[str, Any]]:
    """The thresholds ``[client]``, and the metrics ``[...]`` by name, of gains in accuracy over a baseline."""
    # ``opt_out_threshold`` is IP-FL's ``delta_k``. If it is by client, unseen clients have 0.
    check_unlabelled("opt_out_threshold", opt_out_threshold)
    chosen = 0.0 if unseen and np.ndim(opt_out_threshold) else opt_out_threshold
    thresholds = np.broadcast_to(np.asarray(chosen, gain.dtype), gain.shape[-1:])
    variables = {"personalised_model_accuracy_gain": gain, "opt_out_threshold": thresholds}
    variables |= {} if error is None else {"gain_standard_error": error}
    return thresholds, over_clients(variables)
