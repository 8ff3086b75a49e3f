"""Labelled results: names, dimensions, numbers, and the way to a file and back."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import xarray as xr

from fljax import metrics as formulas
from fljax.metrics.registry import COMPARED_WITH_STANDALONE, OVER_CLIENTS
from fljax.metrics.uncertainty import align_clusters
from fljax.protocol import Labelled
from fljax.results import Reference, join, metrics_dataset, with_contribution_correlation, with_gains
from fljax.results.records import Wire
from fljax.results.records import dataset as records_dataset
from tests.results.test_records import block

RNG = np.random.default_rng(0)
SCALARS = {
    "average_loss",
    "average_accuracy",
    "maximum_accuracy",
    "incentivised_participation_rate",
    "preferred_model_accuracy_by_accuracy",
    "ipr_loss",
    "ipr_accuracy",
    "preferred_model_accuracy",
    "accuracy_increase",
    "pearson_correlation",
}


def values(count, shift=0.0):
    return {
        "test_loss": RNG.uniform(0.5, 2, (2, count)) + shift,
        "test_accuracy": RNG.uniform(0.1, 0.9, (2, count)) + shift,
    }


def evaluated(shift=0.0, unseen=True):
    rounds = []
    for done in (0, 5, 7):
        found = values(4, shift)
        found |= {f"global_{name}": array for name, array in values(4).items()}
        found |= {f"unseen_{name}": array for name, array in values(3).items()} if unseen else {}
        rounds.append((done, found))
    return rounds


def dataset(seeds, rounds, solo, alone=False):
    """``metrics_dataset`` of arrays whose names and numbers of dimensions say what they are over."""

    def labelled(name, values):
        person = "unseen" if name.startswith("unseen_") else "client"
        return Labelled(values, {1: (), 2: (person,), 3: ("cluster", "distribution")}[values.ndim])

    found = [(done, {name: labelled(name, values) for name, values in arrays.items()}) for done, arrays in rounds]
    return metrics_dataset(seeds, found, solo, alone)


def reference(unseen=True):
    counts = [4] * 3 + [3] * 3 * unseen
    arrays: list[Any] = [RNG.uniform(0.2, 1.5, (2, count)) for count in counts]
    return Reference(*arrays)


def test_dimensions_and_coordinates():
    rounds = evaluated()
    found = dataset([3, 8], rounds, None)
    assert (found["seed"].values.tolist(), found["evaluated_round"].values.tolist()) == ([3, 8], [0, 5, 7])
    assert (found["client"].values.tolist(), found["unseen"].values.tolist()) == ([0, 1, 2, 3], [0, 1, 2])
    assert found["test_loss"].dims == ("seed", "evaluated_round", "client")
    assert found["unseen_test_loss"].dims == ("seed", "evaluated_round", "unseen")
    np.testing.assert_array_equal(found["test_accuracy"].sel(evaluated_round=5), rounds[1][1]["test_accuracy"])
    np.testing.assert_allclose(found["average_loss"], found["test_loss"].mean("client"))
    np.testing.assert_allclose(found["unseen_maximum_accuracy"], found["unseen_test_accuracy"].max("unseen"))
    assert "incentivised_participation_rate" not in found


@pytest.mark.parametrize("unseen", [True, False])
def test_metrics_that_compare_with_standalone_models(unseen):
    rounds, solo = evaluated(unseen=unseen), reference(unseen)
    found = dataset([0, 1], rounds, solo)
    prefixes = ("", "unseen_") if unseen else ("",)
    assert {prefix + name for prefix in prefixes for name in SCALARS} <= set(found.data_vars)
    for prefix, axis in zip(prefixes, ("client", "unseen"), strict=False):
        for name in SCALARS:
            assert found[prefix + name].dims == ("seed", "evaluated_round")
        loss, alone = found[prefix + "test_loss"], found[prefix + "standalone_test_loss"]
        assert alone.dims == ("seed", axis)
        rate = (loss < alone).mean(axis).transpose("seed", "evaluated_round")
        np.testing.assert_allclose(found[prefix + "incentivised_participation_rate"], rate)
        own, other = found[prefix + "test_accuracy"], found[prefix + "standalone_test_accuracy"]
        preferred = {
            "": own.where(loss < alone, other),
            "_by_accuracy": np.maximum(own, other),
        }
        for way, chosen in preferred.items():
            mean = chosen.mean(axis).transpose("seed", "evaluated_round")
            np.testing.assert_allclose(found[f"{prefix}preferred_model_accuracy{way}"], mean)
        gain = (found[prefix + "test_accuracy"] - found[prefix + "standalone_test_accuracy"]).mean(axis)
        np.testing.assert_allclose(found[prefix + "accuracy_increase"], gain.transpose("seed", "evaluated_round"))
    assert any(str(name).startswith("unseen_") for name in found.data_vars) == unseen


def test_clients_without_test_rows_do_not_count():
    rounds, solo = evaluated(unseen=False), reference(unseen=False)
    for _, found in rounds:
        for array in found.values():
            array[:, 1] = np.nan
    for array in (solo.test_loss, solo.test_accuracy):
        np.asarray(array)[:, 1] = np.nan
    whole = dataset([0, 1], rounds, solo)
    assert np.isfinite(whole["incentivised_participation_rate"]).all()
    np.testing.assert_allclose(whole["average_accuracy"], whole["test_accuracy"].mean("client", skipna=True))


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("whole", [False, True])
def test_accuracy_is_correlated_with_the_contribution_of_the_last_round(first, whole):
    metrics = dataset([3, 8], evaluated(unseen=False), None)
    rounds = np.arange(first, 7)
    contribution = RNG.uniform(0, 9, (2, len(rounds), 4))
    contribution = contribution.astype(int) if whole else contribution
    contribution[1, rounds == 4] = 2  # a constant has no correlation
    records = xr.Dataset(
        {"contribution": (("seed", "round", "client"), contribution)},
        {"seed": [3, 8], "round": rounds, "client": np.arange(4)},
    )
    found = with_contribution_correlation(metrics, records)["contribution_correlation"]
    assert found.dims == ("seed", "evaluated_round")
    assert np.isnan(found.sel(evaluated_round=0)).all()
    assert np.isnan(found.sel(seed=8, evaluated_round=5))
    for seed, place, done in ((3, 0, 5), (3, 0, 7), (8, 1, 7)):
        accuracy = metrics["test_accuracy"].sel(seed=seed, evaluated_round=done)
        expected = np.corrcoef(accuracy, contribution[place, rounds == done - 1][0])[0, 1]
        np.testing.assert_allclose(found.sel(seed=seed, evaluated_round=done), expected)


def test_no_correlation_without_contributions_of_clients():
    metrics = dataset([0, 1], evaluated(unseen=False), None)
    by_row = xr.Dataset({"contribution": (("seed", "round", "row"), np.ones((2, 7, 3)))}, {"round": np.arange(7)})
    for records in (by_row, by_row.drop_vars("contribution"), records_dataset([0, 1], 0, [], Wire(1, 1, 1, 1), 4)):
        assert "contribution_correlation" not in with_contribution_correlation(metrics, records)


def test_the_global_model_has_metrics_of_its_own():
    rounds, solo = evaluated(unseen=False), reference(unseen=False)
    shared = {
        name.removeprefix("global_"): np.stack([found[name] for _, found in rounds], 1)
        for name in rounds[0][1]
        if "global_" in name
    }
    found = dataset([0, 1], rounds, solo)
    np.testing.assert_allclose(found["global_average_accuracy"], shared["test_accuracy"].mean(-1))
    appeal = (shared["test_loss"] < np.asarray(solo.test_loss)[:, None]).mean(-1)
    np.testing.assert_allclose(found["global_incentivised_participation_rate"], appeal)
    appeal = (shared["test_loss"] < np.asarray(solo.threshold)[:, None]).mean(-1)
    np.testing.assert_allclose(found["global_model_appeal"], appeal)
    met = shared["test_loss"] < np.asarray(solo.threshold)[:, None]
    chosen = np.where(met, shared["test_accuracy"], np.asarray(solo.test_accuracy)[:, None])
    np.testing.assert_allclose(found["preferred_model_accuracy_by_threshold"], chosen.mean(-1))


def test_without_a_global_model_there_are_no_metrics_of_it():
    rounds = [
        (done, {name: each for name, each in found.items() if "global_" not in name}) for done, found in evaluated()
    ]
    found = dataset([0, 1], rounds, reference())
    about = [name for name, metric in OVER_CLIENTS.items() if any("global_" in of for of in metric.variables)]
    assert len(about) == 7
    assert not {prefix + name for prefix in ("", "unseen_") for name in about} & set(found.data_vars)


def test_clients_that_train_alone_are_not_compared_with_themselves():
    rounds, solo = evaluated(), reference()
    found, usual = dataset([0, 1], rounds, solo, alone=True), dataset([0, 1], rounds, solo)
    assert set(found.data_vars) == set(usual.data_vars)
    compared = {f"{prefix}{name}" for prefix in ("", "unseen_") for name in COMPARED_WITH_STANDALONE}
    assert {"incentivised_participation_rate", "unseen_accuracy_increase", "ipr_loss"} <= compared
    for name in map(str, usual.data_vars):
        if name in compared:
            assert found[name].isnull().all(), name
            assert found[name].dims == usual[name].dims
        else:
            xr.testing.assert_identical(found[name], usual[name])


def algorithms(solo):
    return {
        "fedavg": dataset([0, 1], evaluated(), solo),
        "mine": dataset([0, 1], evaluated(0.1), solo).assign(extra=("seed", np.ones(2))),
    }


def test_join():
    parts = algorithms(reference())
    found = join(parts)
    assert found["algorithm"].values.tolist() == ["fedavg", "mine"]
    for label, part in parts.items():
        for name in ("test_loss", "unseen_test_accuracy", "pearson_correlation"):
            one = found[name].sel(algorithm=label).transpose(*part[name].dims)
            np.testing.assert_array_equal(one, part[name])
    assert "algorithm" not in found["threshold"].dims
    assert "algorithm" not in found["unseen_standalone_test_loss"].dims
    np.testing.assert_array_equal(found["threshold"], parts["fedavg"]["threshold"])
    assert np.isnan(found["extra"].sel(algorithm="fedavg")).all()
    assert (found["extra"].sel(algorithm="mine") == 1).all()


@pytest.mark.parametrize("first", ["fedavg", "mine"])
def test_join_keeps_the_standalone_models_of_any(first):
    parts = algorithms(reference())
    parts = {"fedavg": parts["fedavg"], "mine": dataset([0, 1], evaluated(), None)}
    found = join({label: parts[label] for label in (first, *(name for name in parts if name != first))})
    np.testing.assert_array_equal(found["threshold"], parts["fedavg"]["threshold"])
    assert np.isnan(found["ipr_loss"].sel(algorithm="mine")).all()


def test_gains():
    joined = join(algorithms(None))
    found = with_gains(joined, "fedavg")
    assert "opt_outs" not in joined
    assert found.attrs["baseline"] == "fedavg"
    for prefix, axis in (("", "client"), ("unseen_", "unseen")):
        gain = found[prefix + "personalised_model_accuracy_gain"]
        assert gain.dims == ("algorithm", "seed", "evaluated_round", axis)
        accuracy = found[prefix + "test_accuracy"]
        expected = accuracy.sel(algorithm="mine") - accuracy.sel(algorithm="fedavg")
        np.testing.assert_allclose(gain.sel(algorithm="mine"), expected.transpose("seed", "evaluated_round", axis))
        assert (gain.sel(algorithm="fedavg") == 0).all()
        np.testing.assert_allclose(found[prefix + "average_gain"], gain.mean(axis))
        np.testing.assert_array_equal(found[prefix + "opt_outs"], formulas.opt_outs(gain.values))
        assert (found[prefix + "opt_outs"].sel(algorithm="fedavg") == 0).all()
        rate = 1 - found[prefix + "opt_outs"] / gain.sizes[axis]
        np.testing.assert_allclose(found[prefix + "participation_rate"], rate)


def test_opt_outs_of_clients_with_thresholds_of_their_own():
    joined = join(algorithms(None))
    gain = with_gains(joined, "fedavg")["personalised_model_accuracy_gain"]
    clients = gain.sizes["client"]
    one, each = with_gains(joined, "fedavg", 0.25), with_gains(joined, "fedavg", np.linspace(-1, 1, clients).tolist())
    np.testing.assert_array_equal(one["opt_out_threshold"], np.full(clients, 0.25))
    np.testing.assert_array_equal(one["opt_outs"], (gain < 0.25).sum("client"))
    np.testing.assert_array_equal(one["unseen_opt_outs"].sel(algorithm="fedavg"), one.sizes["unseen"])
    np.testing.assert_allclose(each["opt_outs"], (gain < each["opt_out_threshold"]).sum("client"))
    np.testing.assert_allclose(each["participation_rate"], (gain >= each["opt_out_threshold"]).mean("client"))
    # A list is of seen clients; unseen ones have 0.
    np.testing.assert_array_equal(each["unseen_opt_out_threshold"], np.zeros(each.sizes["unseen"]))
    assert (each["unseen_opt_outs"].sel(algorithm="fedavg") == 0).all()


def with_clusters():
    """Evaluations of three clusters on two distributions."""
    return [
        (done, found | {f"cluster_{kind}": RNG.uniform(0, 1, (2, 3, 2)) for kind in ("loss", "accuracy")})
        for done, found in evaluated()
    ]


def test_cluster_models():
    rounds = with_clusters()
    found = dataset([3, 8], rounds, None)
    assert found["cluster_loss"].dims == ("seed", "evaluated_round", "cluster", "distribution")
    assert (found["cluster"].values.tolist(), found["distribution"].values.tolist()) == ([0, 1, 2], [0, 1])
    np.testing.assert_array_equal(
        found["cluster_accuracy"].sel(evaluated_round=5, seed=8), rounds[1][1]["cluster_accuracy"][1]
    )


@pytest.mark.in_turn
@pytest.mark.parametrize("first", [True, False])
def test_algorithms_without_clusters_beside_one_with(first, tmp_path):
    parts = {"ipfl": dataset([0, 1], with_clusters(), None), "fedavg": algorithms(None)["fedavg"]}
    joined = with_gains(join(parts if first else dict(reversed(parts.items()))), "fedavg")
    assert joined["cluster_accuracy"].dims == ("algorithm", "seed", "evaluated_round", "cluster", "distribution")
    assert np.isnan(joined["cluster_accuracy"].sel(algorithm="fedavg")).all()
    np.testing.assert_array_equal(joined["cluster_loss"].sel(algorithm="ipfl"), parts["ipfl"]["cluster_loss"])
    joined.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "a.nc", engine="h5netcdf") as read:
        xr.testing.assert_identical(read.load(), joined)


def brute_force(accuracy):
    """The best matching of as many clusters as distributions, by trying all."""
    last = accuracy[-1]
    orders = itertools.permutations(range(len(last)))
    return max(sum(last[c, g] for g, c in enumerate(order[: last.shape[1]])) for order in orders)


@pytest.mark.parametrize(("clusters", "distributions"), [(2, 2), (4, 4), (4, 2), (1, 1), (3, 1)])
def test_aligned_clusters(clusters, distributions):
    accuracy = np.random.default_rng(clusters).random((3, 2, 5, clusters, distributions))
    found = align_clusters(accuracy)
    assert found.shape == accuracy.shape
    for place in np.ndindex(3, 2):
        own = np.trace(found[place][-1])
        assert own == pytest.approx(brute_force(accuracy[place]))
        # The same clusters in another order, all evaluations alike; those left over in their old order.
        order = [np.flatnonzero((accuracy[place] == found[place][:, [g]]).all(axis=(0, 2))) for g in range(clusters)]
        assert sorted(np.concatenate(order).tolist()) == list(range(clusters))
        assert np.all(np.diff(np.concatenate(order)[distributions:]) > 0)


def test_aligned_clusters_that_are_few_equal_or_absent():
    few = np.array([[[0.1, 0.2, 0.9], [0.8, 0.3, 0.1]]])
    np.testing.assert_array_equal(align_clusters(few), few[:, ::-1])
    np.testing.assert_array_equal(align_clusters(np.full((1, 3, 3), 0.5)), np.full((1, 3, 3), 0.5))
    nothing = np.full((2, 1, 3, 3), np.nan)
    np.testing.assert_array_equal(align_clusters(nothing), nothing)
    # The first is no cluster of this algorithm.
    padded = np.array([[[np.nan, np.nan], [0.0, 0.9], [0.8, 0.7]]])
    np.testing.assert_array_equal(align_clusters(padded)[0], padded[0][[2, 1, 0]])


@pytest.mark.thorough
def test_files(tmp_path):
    metrics = with_gains(join(algorithms(reference())), "fedavg")
    records = records_dataset([0, 1], 0, [block(2)], Wire(5, 5, 6, 7), 20)
    for name, dataset in (("metrics", metrics), ("records", records)):
        path = tmp_path / f"{name}.nc"
        dataset.to_netcdf(path, engine="h5netcdf")
        with xr.open_dataset(path, engine="h5netcdf") as read:
            xr.testing.assert_identical(read.load(), dataset)
