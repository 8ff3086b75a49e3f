"""Results as labelled arrays: metrics over evaluated rounds, and the trained models; records are in ``records``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PyTree

from fljax import metrics as formulas
from fljax.core.names import check_unlabelled
from fljax.metrics.registry import COMPARED_WITH_STANDALONE, OVER_CLIENTS, of_gains, over_clients
from fljax.metrics.uncertainty import over_seeds
from fljax.protocol import Labelled
from fljax.results.events import ends, held_after_end
from fljax.results.non_finite import Divergence, InfiniteLoss

# Variables of the standalone models, which do not depend on the algorithm.
OF_STANDALONE = frozenset({"threshold", "standalone_test_loss", "standalone_test_accuracy", "standalone_valid_loss"})
# Variables that joined results hold once: standalone models, the baselines of scenarios (first algorithm), and rows.
_OF_ALL = OF_STANDALONE | {"test_rows", "decision_test_accuracy", "decision_valid_accuracy"}


class Reference(NamedTuple):
    """Scores of every client's standalone model, from ``standalone``; ``simulate`` compares with them.

    Attributes:
      threshold: ``[seeds, N]`` training loss of the standalone model on all of the client's training rows: INCFL's rho.
      test_loss: ``[seeds, N]`` on the client's test rows.
      test_accuracy: ``[seeds, N]``, a fraction; None if the task has no score.
      unseen_threshold, unseen_test_loss, unseen_test_accuracy: ``[seeds, U]``; None without unseen clients.
      params: the standalone models ``[seeds, N, ...]`` if ``keep_models``, else None.
      required: ``[seeds, N]`` the loss that each client requires (MaxFL's rho); None: ``threshold``. See
        ``with_threshold``.
      unseen_required: ``[seeds, U]``; None: ``unseen_threshold``.
      valid_loss: ``[seeds, N]`` on the client's validation rows; None if ``standalone`` was not asked for it.
      unseen_valid_loss: ``[seeds, U]``, as ``valid_loss``.
    """

    threshold: Float[np.ndarray, "seeds N"]
    test_loss: Float[np.ndarray, "seeds N"]
    test_accuracy: Float[np.ndarray, "seeds N"] | None
    unseen_threshold: Float[np.ndarray, "seeds U"] | None = None
    unseen_test_loss: Float[np.ndarray, "seeds U"] | None = None
    unseen_test_accuracy: Float[np.ndarray, "seeds U"] | None = None
    params: PyTree | None = None
    required: Float[np.ndarray, "seeds N"] | None = None
    unseen_required: Float[np.ndarray, "seeds U"] | None = None
    valid_loss: Float[np.ndarray, "seeds N"] | None = None
    unseen_valid_loss: Float[np.ndarray, "seeds U"] | None = None


def with_threshold(reference: Reference, threshold: Any) -> Reference:
    """The reference with the ``threshold`` of an algorithm as the loss that clients require.

    It is one number for all clients, or numbers of the seen clients, ``[N]`` or ``[seeds, N]``, and unseen clients keep
    theirs. Values of any other form are ignored, but those with labels are refused.
    """
    check_unlabelled("threshold", threshold)
    shape = np.shape(reference.threshold)
    values = np.asarray(threshold)
    if values.dtype.kind not in "iuf" or values.shape not in ((), shape[1:], shape):
        return reference
    required = np.broadcast_to(values.astype(reference.threshold.dtype), shape)
    if values.ndim or reference.unseen_threshold is None:
        return reference._replace(required=required)
    return reference._replace(required=required, unseen_required=np.full_like(reference.unseen_threshold, values))


class BestModels(NamedTuple):
    """The models of each seed at the evaluation that was the best by validation rows.

    Attributes:
      state: of all seeds, each as it was after its own round.
      round: ``[seeds]``, the number of rounds done at the best evaluation; the first one if no value is finite.
      value: ``[seeds]``, the mean over clients of ``valid_accuracy`` there, or of ``valid_loss`` if the task has no
        score; NaN if no value is finite.
      deployed: as ``Result.deployed``.
      predict: as ``Result.predict``.
    """

    state: PyTree
    round: np.ndarray
    value: np.ndarray
    deployed: Callable[..., PyTree]
    predict: Callable[..., Array]


class Result(NamedTuple):
    """The result of a simulation.

    Attributes:
      metrics: over ``seed, evaluated_round`` (number of rounds done) and ``client`` or ``unseen``, and scalars over
        clients; see ``fljax list metrics``. Also ``server_test_loss`` and ``server_test_accuracy`` if the server has a
        model of its own and test rows.
      records: over ``seed, round, row``: the cohort, the algorithm's Info, bytes on the wire. Those of a run with
        checkpoints that need more than 256 MB are on the disk, and what is asked for is read
        (``fljax.results.stores``).
      state: of all seeds; ``simulate(..., initial=state)`` continues from it.
      deployed: ``(client, *, seed=0, unseen=False) -> Deployed``: the model that a client would use now; ``seed`` is
        the position in the list of seeds. A Result can be pickled; ``fljax.engine.loop.trained.DeployedModels``
        describes the conditions for ``deployed`` and ``predict``.
      predict: ``(client, x, *, seed=0, unseen=False) -> logits`` of that model on raw examples ``x [b, ...]``.
      diverged: ``((seed, round), ...)`` of the seeds in which a NaN or infinity appeared and the state was frozen.
      infinite: evaluations with an infinite loss of finite parameters: ``fljax.results.non_finite``.
      best: the best models by validation rows, if ``simulate`` was asked to keep them; else None.
      divergences: the seeds of ``diverged``, with the clients that were not finite (``fljax.results.non_finite``).
    """

    metrics: xr.Dataset
    records: xr.Dataset
    state: PyTree
    deployed: Callable[..., PyTree]
    predict: Callable[..., Array]
    diverged: tuple[tuple[int, int], ...]
    infinite: tuple[InfiniteLoss, ...] = ()
    best: BestModels | None = None
    divergences: tuple[Divergence, ...] = ()

    def __repr__(self) -> str:
        """Sizes, and the main metrics at the last evaluation: mean and standard deviation over seeds."""
        values = [f"{name} {text}" for name, text in _main_values(self.metrics).items()]
        gone = [f"diverged: {self._gone()}"] if self.diverged else []
        return f"Result({_sizes(self.metrics)}: {', '.join([*values, *gone])})"

    def _repr_html_(self) -> str:
        lines = [*_main_values(self.metrics).items(), *([("diverged", self._gone())] if self.diverged else [])]
        from fljax.core.pages import table  # imported here, since it takes a template

        return table([("metric", "last evaluation"), *lines], f"Result: {_sizes(self.metrics)}")

    def _gone(self) -> str:
        return ", ".join(f"seed {seed} in round {round}" for seed, round in self.diverged)


# The metrics of a Result's text, as far as they exist.
_MAIN = (
    "incentivised_participation_rate",
    "average_accuracy",
    "average_loss",
    "unseen_incentivised_participation_rate",
    "unseen_average_accuracy",
)


def _sizes(metrics: xr.Dataset) -> str:
    rounds = int(metrics["evaluated_round"].values[-1]) if metrics.sizes.get("evaluated_round") else 0
    sizes = {"seed": metrics.sizes.get("seed", 0), "round": rounds, "client": metrics.sizes.get("client", 0)}
    sizes |= {"unseen client": metrics.sizes["unseen"]} if metrics.sizes.get("unseen") else {}
    return ", ".join(f"{count} {word}{'s' * (count != 1)}" for word, count in sizes.items())


def _main_values(metrics: xr.Dataset) -> dict[str, str]:
    """``0.712 ± 0.020`` by name: mean and standard deviation (n - 1) over seeds with a number, last evaluation."""
    texts = {}
    for name in _MAIN:
        if name not in metrics or not metrics.sizes.get("evaluated_round"):
            continue
        mean, std, count = over_seeds(np.asarray(metrics[name].isel(evaluated_round=-1).values, float).ravel())
        spread = f" ± {std:.3f}" if count > 1 else ""
        texts[name] = f"{mean:.3f}{spread}" if count else "none"
    return texts


def metrics_dataset(
    seeds: Sequence[int],
    evaluated: Sequence[tuple[int, Mapping[str, Labelled]]],
    reference: Reference | None,
    alone: bool = False,
    test_rows: Mapping[str, np.ndarray] | None = None,
) -> xr.Dataset:
    """Joins evaluations to a Dataset and adds all scalar metrics whose variables exist.

    Args:
      seeds: coordinate.
      evaluated: ``(rounds done, Info)`` in order, of arrays ``[seeds, ...]``.
      reference: standalone models; without it the metrics that compare with them are absent.
      alone: whether clients train alone; then metrics that compare with standalone models are NaN.
      test_rows: by client, ``test_rows`` ``[seeds, N]`` and ``unseen_test_rows`` ``[seeds, U]``, for standard errors.

    Without accuracies (the task has no score) all metrics of accuracies are absent.
    """
    coordinates: dict[str, Any] = {"seed": list(seeds), "evaluated_round": [done for done, _ in evaluated]}
    variables: dict[str, Any] = {}
    for name, entry in evaluated[0][1].items():
        values, axes = np.stack([np.asarray(info[name].values) for _, info in evaluated], axis=1), entry.dimensions
        variables[name] = (("seed", "evaluated_round", *axes), values)
        coordinates |= {axis: np.arange(size) for axis, size in zip(axes, values.shape[2:], strict=True)}
    if reference is not None:
        variables |= _reference_variables(reference, coordinates)
    for prefix, axis in (("", "client"), ("unseen_", "unseen")):
        if test_rows is not None and axis in coordinates:
            variables[prefix + "test_rows"] = (("seed", axis), test_rows[prefix + "test_rows"])
        per_client = {}
        for name, (dimensions, values) in variables.items():
            if name.startswith(prefix) and dimensions[-1] == axis:
                # Standalone models are the same at every evaluation.
                per_client[name.removeprefix(prefix)] = values if len(dimensions) == 3 else np.asarray(values)[:, None]
        for name, values in over_clients(per_client).items():
            undefined = alone and name in COMPARED_WITH_STANDALONE
            values = np.full(np.shape(values), np.nan) if undefined else np.asarray(values)
            variables[prefix + name] = (("seed", "evaluated_round"), values)
    for name in [name for name in ("valid_accuracy", "valid_loss") if name in variables]:
        variables[f"average_{name}"] = (("seed", "evaluated_round"), formulas.average_accuracy(variables[name][1]))
    return xr.Dataset(variables, coordinates)


def _reference_variables(reference: Reference, coordinates: Mapping[str, Any]) -> dict[str, Any]:
    variables = {}
    for prefix, axis in (("", "client"), ("unseen_", "unseen")):
        for source in ("threshold", "test_loss", "test_accuracy", "valid_loss"):
            target = source if source == "threshold" else f"standalone_{source}"
            if (values := getattr(reference, prefix + source)) is not None and axis in coordinates:
                variables[prefix + target] = (("seed", axis), np.asarray(values))
        if prefix + "threshold" in variables:
            required = getattr(reference, prefix + "required")
            losses = variables[prefix + "threshold"] if required is None else (("seed", axis), np.asarray(required))
            variables[prefix + "required_loss"] = losses
    return variables


def metrics_of_runs(
    seeds: Sequence[int],
    evaluated: Mapping[str, Labelled],
    references: Sequence[Reference | None],
    alone: bool = False,
    test_rows: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Every metric at one evaluation of several runs, computed as in ``metrics_dataset``.

    Args:
      seeds: the seeds of each plan.
      evaluated: Info of arrays ``[runs, ...]``: all seeds of the first plan, then all seeds of the second, and so on.
      references: standalone models of each plan.
      alone: as for ``metrics_dataset``.
      test_rows: likewise, for the seeds of one plan.

    Returns:
      The evaluated arrays, and all scalar metrics ``[runs]``: NaN in runs of a plan that lacks a metric's variables.
    """
    joined = _joined(references)
    if joined is not None or not any(references):  # one Dataset for all plans: one per plan is slow
        by_run = {name: np.tile(rows, (len(references), 1)) for name, rows in (test_rows or {}).items()} or None
        dataset = metrics_dataset(range(len(seeds) * len(references)), [(0, evaluated)], joined, alone, by_run)
        return {str(name): v.values[:, 0] for name, v in dataset.items() if "evaluated_round" in v.dims}
    parts = []
    for place, reference in enumerate(references):
        runs = slice(place * len(seeds), (place + 1) * len(seeds))
        mine = {name: Labelled(entry.values[runs], entry.dimensions) for name, entry in evaluated.items()}
        dataset = metrics_dataset(seeds, [(0, mine)], reference, alone, test_rows)
        parts.append({str(name): v.values[:, 0] for name, v in dataset.items() if "evaluated_round" in v.dims})
    missing = np.full(len(seeds), np.nan)  # only scalars that need a reference can be missing
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: np.concatenate([part.get(name, missing) for part in parts]) for name in names}


def judged_by(metrics: xr.Dataset, reference: Reference) -> xr.Dataset:
    """The metrics of one run with the requirement of ``reference``: ``required_loss``, and what compares with it.

    Args:
      metrics: over ``seed, evaluated_round, client | unseen``.
      reference: standalone models of the same run, with what clients require.
    """
    judged = metrics.copy()
    for prefix, axis in (("", "client"), ("unseen_", "unseen")):
        name, required = f"{prefix}required_loss", getattr(reference, f"{prefix}required")
        if name not in metrics or required is None:
            continue
        judged[name] = (("seed", axis), np.asarray(required))
        for metric, (_, compute, variables, *_) in OVER_CLIENTS.items():
            earlier = metrics.get(prefix + metric)
            if "required_loss" in variables and earlier is not None:
                arrays = (judged[prefix + variable].transpose("seed", ..., axis).values for variable in variables)
                values = compute(*(array if array.ndim == 3 else array[:, None] for array in arrays))
                # What is not defined for the algorithm stays NaN.
                judged[prefix + metric] = earlier.copy(data=np.where(np.isnan(earlier), np.nan, values))
    return judged


def _joined(references: Sequence[Reference | None]) -> Reference | None:
    """The references of several plans, concatenated; None if they do not all have the same fields."""
    complete = []
    for reference in references:
        if reference is None:
            return None
        required = reference.threshold if reference.required is None else reference.required
        unseen = reference.unseen_threshold if reference.unseen_required is None else reference.unseen_required
        complete.append(reference._replace(params=None, required=required, unseen_required=unseen))
    columns: list[Any] = list(zip(*complete, strict=True))
    if any(len({value is None for value in column}) > 1 for column in columns):
        return None
    joined: list[Any] = [None if column[0] is None else np.concatenate(column) for column in columns]
    return Reference(*joined)


def with_contribution_correlation(metrics: xr.Dataset, records: xr.Dataset) -> xr.Dataset:
    """Adds the correlation of accuracies and contributions if the algorithm records a ``contribution`` by client.

    Args:
      metrics: over ``seed, evaluated_round`` and ``client``.
      records: of the same run, over ``seed, round``.

    Returns:
      The Dataset with ``contribution_correlation`` over ``seed, evaluated_round``: the correlation of the test accuracy
      after that many rounds with the contribution in the last of these rounds. NaN before the first recorded round
      (also the first evaluation of a continued run) and if accuracies or contributions are constant. Absent without
      accuracies.
    """
    if "test_accuracy" not in metrics:
        return metrics
    if "contribution" not in records or records["contribution"].dims != ("seed", "round", "client"):
        return metrics
    # Rounds without records become NaN, and whole numbers become floats.
    rounds = metrics["evaluated_round"].values - 1
    contribution = records["contribution"]
    # First those that exist, since records may be on the disk.
    before = contribution.sel(round=rounds[np.isin(rounds, contribution["round"].values)]).reindex(round=rounds)
    accuracy = metrics["test_accuracy"].transpose("seed", "evaluated_round", "client")
    correlation = formulas.contribution_correlation(accuracy.values, before.values)
    return metrics.assign(contribution_correlation=(("seed", "evaluated_round"), correlation))


def with_decisions(metrics: xr.Dataset, decisions: Sequence[int], evaluate_every: int) -> xr.Dataset:
    """Moves evaluations for scenarios' decisions out of the usual evaluations.

    Args:
      metrics: of the first algorithm, evaluated every ``evaluate_every`` rounds and at ``decisions``.
      decisions: numbers of rounds; empty: the metrics are returned unchanged.
      evaluate_every: rounds between two usual evaluations.

    Returns:
      The metrics at the usual evaluations, with ``decision_test_accuracy`` and, if clients have validation rows,
      ``decision_valid_accuracy`` over ``seed, decision_round, client``.
    """
    if not decisions:
        return metrics
    at = metrics["evaluated_round"].values
    usual = metrics.isel(evaluated_round=np.flatnonzero((at % evaluate_every == 0) | (at == at[-1])))
    decided = [round for round in decisions if round in at]  # all of them, unless the run was stopped
    for split in ("valid", "test"):
        if f"{split}_accuracy" in metrics:
            values = metrics[f"{split}_accuracy"].sel(evaluated_round=decided)
            usual[f"decision_{split}_accuracy"] = values.rename(evaluated_round="decision_round")
    return usual


def join(datasets: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Joins results of several algorithms along ``algorithm``; missing values are NaN.

    Variables of the standalone models and of decisions do not depend on the algorithm and keep their dimensions.
    ``required_loss`` does depend on it: algorithms may have different thresholds.
    """
    apart, common = [], xr.Dataset()
    for label, dataset in datasets.items():
        same = [str(name) for name in dataset.data_vars if str(name).removeprefix("unseen_") in _OF_ALL]
        common = common.merge(dataset[same], compat="override", join="outer")
        of_algorithm = dataset.drop_vars(same)
        # Joining may add NaN; bools with NaN cannot be saved, numbers can.
        bools = {name: values.astype(np.int8) for name, values in of_algorithm.items() if values.dtype == bool}
        of_algorithm = of_algorithm.assign(bools)
        apart.append(of_algorithm.expand_dims(algorithm=[label]))
    joined = xr.concat(apart, dim="algorithm", data_vars="all", coords="minimal", join="outer")
    return joined.merge(common, compat="override", join="outer")


def with_gains(metrics: xr.Dataset, baseline: str, opt_out_threshold: float | Sequence[float] = 0.0) -> xr.Dataset:
    """Adds IP-FL's PMA and opt-outs of every algorithm against the models of ``baseline``.

    Args:
      metrics: joined over ``algorithm``; each cell of a sweep is compared with the same cell of ``baseline``.
      baseline: the label of an algorithm in ``metrics``; IP-FL compares with FedAvg.
      opt_out_threshold: the gain below which a client opts out, as for ``of_gains``.

    Returns:
      The Dataset with ``personalised_model_accuracy_gain`` (per client), ``average_gain``, ``opt_outs`` (a number of
      clients) and ``participation_rate`` (the share of the others); with ``test_rows`` also standard errors of gains.
    """
    with_gain = metrics.copy()
    for prefix, axis in (("", "client"), ("unseen_", "unseen")):
        name = prefix + "test_accuracy"
        if name not in metrics:
            continue
        accuracy = metrics[name].transpose("algorithm", ..., "seed", "evaluated_round", axis)
        # A baseline that stopped early keeps the models that it ended with.
        of_baseline = held_after_end(accuracy, ends(metrics))[metrics["algorithm"].values.tolist().index(baseline)]
        gain = formulas.personalised_model_accuracy_gain(accuracy.values, of_baseline[None])
        dims = accuracy.dims[:-1]
        with_gain[prefix + "personalised_model_accuracy_gain"] = ((*dims, axis), gain)
        error = None
        if prefix + "test_rows" in metrics:
            rows = metrics[prefix + "test_rows"].broadcast_like(accuracy).transpose(*accuracy.dims)
            error = formulas.gain_standard_error(accuracy.values, of_baseline[None], rows.values)
            with_gain[prefix + "gain_standard_error"] = ((*dims, axis), error)
        thresholds, scalars = of_gains(gain, opt_out_threshold, unseen=bool(prefix), error=error)
        with_gain[prefix + "opt_out_threshold"] = (axis, thresholds)
        for scalar, values in scalars.items():
            with_gain[prefix + scalar] = (dims, values)
    return with_gain.assign_attrs(baseline=baseline)
