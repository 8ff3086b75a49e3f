"""The definition of every variable of ``Result.metrics``, one sentence each.

``f`` is a loss, ``w`` the global model, ``w_k`` the model that client k would use and ``what_k`` its standalone model.
If an algorithm has no global model, metrics of the global model are absent (NaN beside other algorithms). Metrics that
compare with standalone models are NaN for an algorithm whose clients train alone. Accuracies are fractions. Averages
count only clients with a value.

``global_*`` metrics are those of the common model; metrics without a prefix are those of the deployed model.
"""

from __future__ import annotations

from fljax.metrics.registry import OVER_CLIENTS

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

# One number per seed and evaluation, besides those of ``fljax.metrics.registry``.
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
SCALARS = _with_unseen({name: each.sentence for name, each in OVER_CLIENTS.items()}) | OVER_SEEN_CLIENTS
# Those that an evaluation of one algorithm has by itself: others compare with another algorithm, or need records.
_OF_SEVERAL = {name for name, each in OVER_CLIENTS.items() if "personalised_model_accuracy_gain" in each.variables}
_OF_SEVERAL |= {"contribution_correlation"}
OF_ONE_EVALUATION = (
    *(name for name in SCALARS if name.removeprefix("unseen_") not in _OF_SEVERAL),
    "server_test_loss",
    "server_test_accuracy",
)
# Those that exist also for tasks without accuracies.
_ACCURACIES = {name for name, each in OVER_CLIENTS.items() if any("accuracy" in of for of in each.variables)}
OF_LOSSES = tuple(
    name
    for name in (*SCALARS, "server_test_loss")
    if name.removeprefix("unseen_") not in _ACCURACIES | set(OVER_SEEN_CLIENTS) - {"average_valid_loss"}
)
# Every possible name in results.
METRICS = SCALARS | _with_unseen(PER_CLIENT) | PER_SEEN_CLIENT | OTHERS
