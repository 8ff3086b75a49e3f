"""Results as labelled arrays: metrics over evaluated rounds, records over rounds, and the trained models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PyTree

from fljax import metrics as formulas
from fljax.infinite_losses import InfiniteLoss
from fljax.naming import renamed
from fljax.scalar_metrics import over_clients
from fljax.types import Labelled, unlabelled

# Entries of a table over rounds and clients; a larger one is left out of the records.
LARGEST_TABLE = 10**8
# What is known of the standalone models, whatever the algorithm.
OF_STANDALONE = frozenset({"threshold", "standalone_test_loss", "standalone_test_accuracy"})
# What joined results hold once: standalone models, and the first algorithm where scenarios compare with it.
_OF_ALL = OF_STANDALONE | {"decision_test_accuracy", "decision_valid_accuracy"}


class Reference(NamedTuple):
    """Every client's standalone model, judged: what ``standalone`` returns and ``simulate`` compares with.

    Attributes:
      threshold: ``[seeds, N]`` training loss of the standalone model on all of the client's training rows: INCFL's rho.
      test_loss: ``[seeds, N]`` on the client's test rows.
      test_accuracy: ``[seeds, N]``, a fraction; None where the task has no score.
      unseen_threshold, unseen_test_loss, unseen_test_accuracy: ``[seeds, U]``; None without unseen clients.
      params: the standalone models ``[seeds, N, ...]``, if they were asked for.
      required: ``[seeds, N]`` the loss that each client requires (MaxFL's rho); None: ``threshold``. See
        ``with_threshold``.
      unseen_required: ``[seeds, U]``; None: ``unseen_threshold``.
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


def with_threshold(reference: Reference, threshold: Any) -> Reference:
    """The reference with the losses that an algorithm was told its clients require.

    Args:
      reference: standalone models.
      threshold: one number for everybody, or numbers of the seen clients, ``[N]`` or ``[seeds, N]``. Unseen clients
        then keep their standalone thresholds. Anything else is not a threshold of clients and changes nothing.
    """
    shape = np.shape(reference.threshold)
    values = np.asarray(threshold)
    if values.dtype.kind not in "iuf" or values.shape not in ((), shape[1:], shape):
        return reference
    required = np.broadcast_to(values.astype(reference.threshold.dtype), shape)
    if values.ndim or reference.unseen_threshold is None:
        return reference._replace(required=required)
    return reference._replace(required=required, unseen_required=np.full_like(reference.unseen_threshold, values))


class Result(NamedTuple):
    """What a simulation gives back.

    Attributes:
      metrics: over ``seed, evaluated_round`` (number of rounds done) and ``client`` or ``unseen``, with scalars over
        clients beside them; see ``fljax list metrics``. Where the server keeps a model of its own and test rows,
        ``server_test_loss`` and ``server_test_accuracy``.
      records: over ``seed, round, row``: the cohort, the algorithm's Info, bytes on the wire.
      state: of all seeds; ``simulate(..., initial=state)`` goes on from it.
      deployed: ``(client, *, seed=0, unseen=False) -> Deployed``: the model that a client would use now; ``seed`` is
        the position in the list of seeds. A Result goes through pickle; what ``deployed`` and ``predict`` need for that
        is said in ``fljax.engine.trained.DeployedModels``.
      predict: ``(client, x, *, seed=0, unseen=False) -> logits`` of that model on raw examples ``x [b, ...]``.
      diverged: ``((seed, round), ...)`` of the seeds in which a NaN or infinity appeared and the state was frozen.
      infinite: evaluations in which a loss is infinite although the parameters are sound: ``fljax.infinite_losses``.
    """

    metrics: xr.Dataset
    records: xr.Dataset
    state: PyTree
    deployed: Callable[..., PyTree]
    predict: Callable[..., Array]
    diverged: tuple[tuple[int, int], ...]
    infinite: tuple[InfiniteLoss, ...] = ()


def metrics_dataset(
    seeds: Sequence[int],
    evaluated: Sequence[tuple[int, Mapping[str, Labelled]]],
    reference: Reference | None,
) -> xr.Dataset:
    """Joins evaluations to a Dataset and adds every scalar metric that can be had.

    Args:
      seeds: coordinate.
      evaluated: ``(rounds done, Info)`` in order, of arrays ``[seeds, ...]``.
      reference: standalone models; without it the metrics that compare with them are absent.

    Without accuracies (the task has no score) every metric that is made of them is absent.
    """
    coordinates: dict[str, Any] = {"seed": list(seeds), "evaluated_round": [done for done, _ in evaluated]}
    variables: dict[str, Any] = {}
    for name, entry in evaluated[0][1].items():
        values, axes = np.stack([np.asarray(found[name].values) for _, found in evaluated], axis=1), entry.dimensions
        variables[name] = (("seed", "evaluated_round", *axes), values)
        coordinates |= {axis: np.arange(size) for axis, size in zip(axes, values.shape[2:], strict=True)}
    if reference is not None:
        variables |= _reference_variables(reference, coordinates)
    for prefix, axis in (("", "client"), ("unseen_", "unseen")):
        per_client = {}
        for name, (dimensions, values) in variables.items():
            if name.startswith(prefix) and dimensions[-1] == axis:
                # Standalone models are the same at every evaluation.
                per_client[name.removeprefix(prefix)] = values if len(dimensions) == 3 else np.asarray(values)[:, None]
        for name, values in over_clients(per_client).items():
            variables[prefix + name] = (("seed", "evaluated_round"), np.asarray(values))
    if "valid_accuracy" in variables:
        average = formulas.average_accuracy(variables["valid_accuracy"][1])
        variables["average_valid_accuracy"] = (("seed", "evaluated_round"), average)
    return xr.Dataset(variables, coordinates)


def _reference_variables(reference: Reference, coordinates: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for prefix, axis in (("", "client"), ("unseen_", "unseen")):
        names = {"threshold": "threshold", "test_loss": "standalone_test_loss"}
        names |= {"test_accuracy": "standalone_test_accuracy"}
        for source, target in names.items():
            values = getattr(reference, prefix + source)
            if values is not None and axis in coordinates:
                found[prefix + target] = (("seed", axis), np.asarray(values))
        if prefix + "threshold" in found:
            required = getattr(reference, prefix + "required")
            standalone = found[prefix + "threshold"]
            found[prefix + "required_loss"] = standalone if required is None else (("seed", axis), np.asarray(required))
    return found


def metrics_of_runs(
    seeds: Sequence[int], evaluated: Mapping[str, Labelled], references: Sequence[Reference | None]
) -> dict[str, np.ndarray]:
    """Every metric at one evaluation of several runs, by the functions that ``metrics_dataset`` uses.

    Args:
      seeds: of each plan.
      evaluated: Info of arrays ``[runs, ...]``: all seeds of the first plan, then those of the second, and so on.
      references: standalone models of each plan.

    Returns:
      What was evaluated and, ``[runs]``, every scalar metric that can be had. NaN for the runs of a plan that lacks a
      metric of another one.
    """
    joined = _joined(references)
    if joined is not None or not any(references):  # one table for all: a Dataset for each plan of a sweep is slow
        found = metrics_dataset(range(len(seeds) * len(references)), [(0, evaluated)], joined)
        return {str(name): v.values[:, 0] for name, v in found.items() if "evaluated_round" in v.dims}
    parts = []
    for place, reference in enumerate(references):
        own = slice(place * len(seeds), (place + 1) * len(seeds))
        mine = {name: Labelled(entry.values[own], entry.dimensions) for name, entry in evaluated.items()}
        found = metrics_dataset(seeds, [(0, mine)], reference)
        parts.append({str(name): v.values[:, 0] for name, v in found.items() if "evaluated_round" in v.dims})
    names = list(dict.fromkeys(name for part in parts for name in part))
    missing = np.full(len(seeds), np.nan)  # only scalars that compare with a reference can be missing
    return {name: np.concatenate([part.get(name, missing) for part in parts]) for name in names}


def _joined(references: Sequence[Reference | None]) -> Reference | None:
    """The references of several plans, one after the other; None where some lack what others have."""
    found = []
    for each in references:
        if each is None:
            return None
        required = each.threshold if each.required is None else each.required
        unseen = each.unseen_threshold if each.unseen_required is None else each.unseen_required
        found.append(each._replace(params=None, required=required, unseen_required=unseen))
    columns: list[Any] = list(zip(*found, strict=True))
    if any(len({value is None for value in column}) > 1 for column in columns):
        return None
    joined: list[Any] = [None if column[0] is None else np.concatenate(column) for column in columns]
    return Reference(*joined)


class Wire(NamedTuple):
    """Bytes of messages.

    Attributes:
      down: what one client that trains receives.
      shown: what one client receives before it is asked for a ballot.
      up: what one row of the cohort sends.
      ballot: what one client answers.
    """

    down: int
    shown: int
    up: int
    ballot: int


def records_dataset(
    seeds: Sequence[int],
    first: int,
    blocks: Sequence[Mapping[str, Any]],
    wire: Wire,
    population: int,
) -> xr.Dataset:
    """Joins the Info of blocks, ``[seeds, rounds, ...]`` each, and adds bytes on the wire.

    Entries that are not ``Labelled`` get numbered dimensions.

    Args:
      seeds: coordinate.
      first: round of the first record.
      blocks: in order; may be empty.
      wire: bytes of messages.
      population: seen clients.

    Returns:
      The records, with ``bytes_down``, ``bytes_up``, ``participation`` over ``client`` (in how many rows of the round a
      client trained) and, where the algorithm records a ``weight`` by row, ``client_weight`` over ``client`` (NaN for
      those who did not train). Tables over clients are left out where they would have more than 10^8 entries.
    """
    if not blocks:
        return xr.Dataset(coords={"seed": list(seeds), "round": np.arange(first, first)})
    parts = [unlabelled(dict(block)) for block in blocks]
    joined = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    variables: dict[str, Any] = {}
    for name, entry in blocks[0].items():
        numbered = tuple(f"{name}_axis_{i}" for i in range(joined[name].ndim - 2))
        extra = entry.dimensions if isinstance(entry, Labelled) else numbered
        variables[name] = (("seed", "round", *extra), joined[name])
    rows = joined["cohort_present"].sum(axis=-1, dtype=np.int64)
    polled = joined["polled"].astype(np.int64)
    by_row = "weight" in variables and variables["weight"][0] == ("seed", "round", "row")
    variables |= _by_client(joined, by_row, population)
    variables["bytes_down"] = (("seed", "round"), rows * wire.down + polled * wire.shown)
    variables["bytes_up"] = (("seed", "round"), rows * wire.up + polled * wire.ballot)
    rounds = np.arange(first, first + joined["polled"].shape[1])
    found = xr.Dataset(variables, {"seed": list(seeds), "round": rounds})
    # Numbered, so that algorithms with cohorts of different sizes can be put side by side.
    return found.assign_coords({dim: np.arange(size) for dim, size in found.sizes.items() if dim not in found.coords})


def with_contribution_correlation(metrics: xr.Dataset, records: xr.Dataset) -> xr.Dataset:
    """Adds the correlation of accuracies and contributions where the algorithm records a ``contribution`` by client.

    Args:
      metrics: over ``seed, evaluated_round`` and ``client``.
      records: of the same run, over ``seed, round``.

    Returns:
      The Dataset with ``contribution_correlation`` over ``seed, evaluated_round``: of the test accuracy after that many
      rounds and the contribution in the last of them; NaN before the first round that is recorded (also where a run is
      taken up again) and where either is constant. Absent where there are no accuracies.
    """
    if "test_accuracy" not in metrics:
        return metrics
    if "contribution" not in records or records["contribution"].dims != ("seed", "round", "client"):
        return metrics
    # A round that was not recorded is NaN; whole numbers become floats for its sake.
    before = records["contribution"].reindex(round=metrics["evaluated_round"].values - 1)
    accuracy = metrics["test_accuracy"].transpose("seed", "evaluated_round", "client")
    found = formulas.contribution_correlation(accuracy.values, before.values)
    return metrics.assign(contribution_correlation=(("seed", "evaluated_round"), found))


def with_decisions(metrics: xr.Dataset, decisions: Sequence[int], evaluate_every: int) -> xr.Dataset:
    """Moves what was evaluated for decisions alone out of the usual evaluations.

    Args:
      metrics: of the first algorithm, evaluated every so many rounds and at ``decisions``.
      decisions: numbers of rounds; none: the metrics stay as they are.
      evaluate_every: rounds between two usual evaluations.

    Returns:
      The metrics at the usual evaluations, with ``decision_test_accuracy`` and, where clients have validation rows,
      ``decision_valid_accuracy`` over ``seed, decision_round, client``.
    """
    if not decisions:
        return metrics
    at = metrics["evaluated_round"].values
    found = metrics.isel(evaluated_round=np.flatnonzero((at % evaluate_every == 0) | (at == at[-1])))
    there = [each for each in decisions if each in at]  # all of them, unless the run was stopped
    for split in ("valid", "test"):
        if f"{split}_accuracy" in metrics:
            values = metrics[f"{split}_accuracy"].sel(evaluated_round=there)
            found[f"decision_{split}_accuracy"] = values.rename(evaluated_round="decision_round")
    return found


def _by_client(joined: Mapping[str, np.ndarray], weighed: bool, population: int) -> dict[str, Any]:
    """Who trained, and where rows are ``weighed`` with what weight, by client instead of by row."""
    id, present = joined["cohort_id"], joined["cohort_present"]
    seeds, rounds, _ = id.shape
    if seeds * rounds * population > LARGEST_TABLE:
        return {}
    seed, round, row = np.nonzero(present)
    place = (seed, round, id[seed, round, row])
    count = np.zeros((seeds, rounds, population), np.int16)
    np.add.at(count, place, 1)
    dims = ("seed", "round", "client")
    found: dict[str, Any] = {"participation": (dims, count)}
    if weighed:
        weight = np.zeros(count.shape, joined["weight"].dtype)
        np.add.at(weight, place, joined["weight"][seed, round, row])
        found["client_weight"] = (dims, np.where(count > 0, weight, np.nan))
    return found


def join(datasets: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Puts results of several algorithms side by side along ``algorithm``; what one lacks is NaN there.

    Variables of the standalone models and of decisions do not depend on the algorithm and keep their dimensions.
    ``required_loss`` does: every algorithm may be given thresholds of its own.
    """
    apart, common = [], xr.Dataset()
    for label, dataset in datasets.items():
        same = [str(name) for name in dataset.data_vars if str(name).removeprefix("unseen_") in _OF_ALL]
        common = common.merge(dataset[same], compat="override")
        own = dataset.drop_vars(same)
        # NaN may have to stand beside bools, and only numbers can be saved with it.
        own = own.assign({name: values.astype(np.int8) for name, values in own.items() if values.dtype == bool})
        apart.append(own.expand_dims(algorithm=[label]))
    joined = xr.concat(apart, dim="algorithm", data_vars="all", coords="minimal", join="outer")
    return joined.merge(common, compat="override")


def with_gains(metrics: xr.Dataset, baseline: str) -> xr.Dataset:
    """Adds IP-FL's PMA and opt-outs of every algorithm against the model that ``baseline`` gives its clients.

    Args:
      metrics: joined over ``algorithm``; the cells of a sweep are compared each with the same cell of ``baseline``.
      baseline: a label among them; IP-FL compares with FedAvg.

    Returns:
      The Dataset with ``personalised_model_accuracy_gain`` (per client), ``average_gain``, ``opt_outs`` (a number of
      clients) and ``participation_rate`` (the share of the others).
    """
    found = metrics.copy()
    for prefix, axis in (("", "client"), ("unseen_", "unseen")):
        name = prefix + "test_accuracy"
        if name not in metrics:
            continue
        accuracy = metrics[name].transpose("algorithm", ..., "seed", "evaluated_round", axis)
        other = accuracy.sel(algorithm=baseline, drop=True)
        gain = formulas.personalised_model_accuracy_gain(accuracy.values, other.values[None])
        dims = accuracy.dims[:-1]
        found[prefix + "personalised_model_accuracy_gain"] = ((*dims, axis), gain)
        for scalar, values in over_clients({"personalised_model_accuracy_gain": gain}).items():
            found[prefix + scalar] = (dims, values)
    return found.assign_attrs(baseline=baseline)


if not TYPE_CHECKING:
    __getattr__ = renamed("fljax.results", "fljax.results", {"requiring": "with_threshold"})
