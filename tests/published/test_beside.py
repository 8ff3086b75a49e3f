"""Published tables, and ours beside them."""

from __future__ import annotations

import csv
import math
import pathlib

import numpy as np
import pytest
import xarray as xr

from fljax.published import beside, verdicts
from fljax.published import tables as published_tables
from fljax.published.tables import tables
from fljax.results import with_gains

FOLDER = pathlib.Path(beside.__file__).parent
SPLITS = {"seen", "unseen", "clients-global-test", "client6", "clients-local-test"}
SPLITS |= {f"{kind} D_{letter}" for kind in ("cluster-holdout", "best-distribution") for letter in "AB"}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.csv")))
def test_every_table_can_be_read(name):
    with open(FOLDER / f"{name}.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    rows = published_tables.read(name)
    assert len(rows) == len(lines) > 0
    assert {row.split for row in rows} <= SPLITS
    assert all(published_tables.plain_metric(row.metric) in beside.METRICS for row in rows)
    assert name in tables()
    for line, row in zip(lines, rows, strict=True):
        assert all(value == value.strip() for value in line.values())
        assert math.isnan(row.mean) if line["mean"] == "undefined" else float(line["mean"]) == row.mean
        assert math.isnan(row.std) if line["std"] == "" else float(line["std"]) == row.std


def test_rows_of_one_setting():
    rows = published_tables.select(["maxfl_table2_byzantine"], "FMNIST", "byz=0.05")
    assert {row.partition for row in rows} == {"5 clusters x 2 labels; byz=0.05"}
    assert {row.algorithm for row in rows} == {"MW-Fed", "MaxFL"}
    with pytest.raises(ValueError, match=r"expected rows about FMNIST, byz=0\.5, got none; there are EMNIST, "):
        published_tables.select(["maxfl_table2_byzantine"], "FMNIST", "byz=0.5")
    with pytest.raises(ValueError, match=r"expected one of the tables iafl_table10_acc_sent140, .*, got '\.\./secret'"):
        published_tables.read("../secret")


def test_ours_stand_beside_theirs():
    dims = ("algorithm", "seed", "evaluated_round")
    share = np.array([[[0.0, 0.5], [0.0, 0.7]], [[0.0, 0.1], [0.0, np.nan]]])
    metrics = xr.Dataset(
        {
            "incentivised_participation_rate": (dims, share),
            "unseen_preferred_model_accuracy": (dims, share),
        },
        {"algorithm": ["incfl", "qffl_q1"], "seed": [0, 1], "evaluated_round": [0, 9]},
    )
    rows = published_tables.select(["incfl_table4_fair", "incfl_table1_unseen"], "FMNIST")
    found = {(c.published.algorithm, c.published.metric, c.published.split): c for c in beside.beside(metrics, rows)}
    ours = found["INCFL", "IPR", "seen"]
    assert (ours.published.mean, ours.mean) == (0.55, pytest.approx(0.6))
    assert ours.spread == pytest.approx(np.std([0.5, 0.7], ddof=1))
    assert found["INCFL", "pref_model_test_acc_pct", "unseen"].mean == pytest.approx(60)
    assert found["q-FFL(q=1)", "IPR", "seen"].mean == pytest.approx(0.1)  # the finite seed
    assert math.isnan(found["q-FFL(q=10)", "IPR", "seen"].mean)  # not run
    assert math.isnan(found["INCFL", "IPR", "unseen"].mean)  # not evaluated


def test_numbers_of_diverged_seeds_are_marked():
    dims = ("algorithm", "seed", "evaluated_round")
    metrics = xr.Dataset(
        {
            "unseen_incentivised_participation_rate": (dims, np.full((2, 2, 1), 0.5)),
            "diverged": (dims[:2], [[-1, -1], [4, 3]]),
        },
        {"algorithm": ["fedavg", "incfl"], "seed": [0, 1], "evaluated_round": [9]},
    )
    rows = published_tables.select(["incfl_table1_unseen"], "FMNIST")
    found = {c.published.algorithm: c.diverged for c in beside.beside(metrics, rows) if c.published.metric == "IPR"}
    assert (found["FedAvg"], found["INCFL"]) == ("", "2 of 2 seeds, from round 3")


def test_a_partition_is_found_by_its_whole_name_first():
    both = published_tables.select(["iafl_table1_IPR_accu"], "FMNIST")
    assert {"Dir(0.5)", "quantity-Dir(0.5)"} < {row.partition for row in both}
    assert {row.partition for row in published_tables.select(["iafl_table1_IPR_accu"], "FMNIST", "Dir(0.5)")} == {
        "Dir(0.5)"
    }
    assert {row.partition for row in published_tables.select(["iafl_table1_IPR_accu"], "FMNIST", "antity")} == {
        "quantity-Dir(0.5)"
    }


def iafl(**variables):
    """A run of two seeds and four clients, at its first and last evaluation."""
    return xr.Dataset(
        {name: (("algorithm", "seed", "evaluated_round", *dims), values) for name, (dims, values) in variables.items()},
        {"algorithm": ["iafl", "fedavg_finetune"], "seed": [0, 1], "evaluated_round": [0, 50]},
    )


def test_iafl_prints_standard_errors_and_so_do_we():
    share = np.array([[[0.0, 0.5], [0.0, 0.7]], [[0.0, 0.1], [0.0, np.nan]]])
    metrics = iafl(ipr_accuracy=((), share), accuracy_increase=((), share))
    rows = published_tables.select(["iafl_table1_IPR_accu", "iafl_table6_avg_acc_increase"], "MNIST", "Dir(0.5)")
    found = {(c.published.algorithm, c.published.metric): c for c in beside.beside(metrics, rows)}
    ours = found["IAFL", "IPR_accu"]
    assert (ours.mean, ours.spread) == (pytest.approx(0.6), pytest.approx(np.std([0.5, 0.7], ddof=1) / np.sqrt(2)))
    assert found["IAFL", "avg_acc_increase_pct"].spread == pytest.approx(100 * ours.spread)
    assert found["FedAvg-finetune", "IPR_accu"].mean == pytest.approx(0.1)
    assert math.isnan(found["FedAvg-finetune", "IPR_accu"].spread)  # one finite seed
    assert found["LG-FedAvg", "avg_acc_increase_pct"].published.mean == 15.0
    assert verdicts.spread("IAFL") == "standard error over seeds"
    assert verdicts.spread("INCFL") == "standard deviation over seeds"


def test_numbers_about_single_clients_and_of_contributions():
    accuracy = np.zeros((2, 2, 2, 7))
    accuracy[0, :, 1] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.05, 0.7], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    accuracy[1, :, 1] = accuracy[0, :, 1, ::-1]
    correlation = np.array([[[np.nan, 0.9], [np.nan, 0.8]], [[np.nan, 0.1], [np.nan, 0.1]]])
    metrics = iafl(test_accuracy=(("client",), accuracy), contribution_correlation=((), correlation))
    metrics = metrics.assign_coords(algorithm=["iafl", "iafl_q0_kappa0.8"], client=np.arange(7))
    found = {
        (c.published.algorithm, c.published.metric): c
        for c in beside.beside(metrics, published_tables.read("iafl_table3_participation_textonly"))
    }
    rider = found["IAFL(q=0,kappa=0.8)", "client_acc_pct"]
    assert (rider.published.mean, rider.mean) == (19.2, pytest.approx(20))  # client 6 of 1..7
    assert found["IAFL", "pearson_rho_acc_vs_p"].mean == pytest.approx(0.85)
    assert math.isnan(found["IAFL", "avg_client_acc_pct"].mean)  # not evaluated
    few = metrics.isel(client=slice(3))
    assert all(math.isnan(c.mean) for c in beside.beside(few, [rider.published]))


def personalised():
    """Two algorithms, two seeds, four clients; the last client has no test rows."""
    accuracy = np.zeros((2, 2, 2, 4))
    accuracy[0, :, 1] = [0.5, 0.6, 0.7, np.nan]
    accuracy[1, :, 1] = [[0.4, 0.6, 0.9, np.nan], [0.5, 0.5, 0.8, np.nan]]
    metrics = xr.Dataset(
        {"test_accuracy": (("algorithm", "seed", "evaluated_round", "client"), accuracy)},
        {"algorithm": ["fedavg", "ipfl"], "seed": [0, 1], "evaluated_round": [0, 50], "client": np.arange(4)},
    )
    metrics["average_accuracy"] = metrics["test_accuracy"].mean("client")
    return with_gains(metrics, "fedavg")


def test_ipfl_prints_the_spread_over_clients_and_so_do_we():
    rows = published_tables.select(["ipfl_table10_emnist_4classes"])
    found = {
        (c.published.algorithm, c.published.metric): (c.mean, c.spread) for c in beside.beside(personalised(), rows)
    }
    std = lambda values: np.std(values, ddof=1)  # noqa: E731
    own = 100 * np.mean([std([0.4, 0.6, 0.9]), std([0.5, 0.5, 0.8])])
    gain = 100 * np.mean([std([-0.1, 0, 0.2]), std([0, -0.1, 0.1])])
    assert found["IP-FL", "personalized_acc_pct"] == pytest.approx((100 * (1.9 + 1.8) / 6, own))
    assert found["IP-FL", "avg_PMA_pct"] == pytest.approx((100 * 0.1 / 6, gain))
    assert found["FedAvg", "personalized_acc_pct"] == pytest.approx((60, 10))
    assert found["IP-FL", "optout_ratio"] == pytest.approx((1 / 3, math.nan), nan_ok=True)
    assert np.isnan(found["Ditto", "optout_ratio"]).all()
    assert verdicts.spread("IP-FL") == "standard deviation over clients"
    assert beside.caption(rows) == "mean ± standard deviation over clients"


@pytest.mark.parametrize(
    ("table", "metric", "expected"),
    [("ipfl_table5_featureshift", "optouts_count_or_pct_of_100", 1), ("ipfl_table11_emnist_4060", "optouts_pct", 33.3)],
)
def test_opt_outs_as_numbers_and_shares(table, metric, expected):
    rows = [row for row in published_tables.read(table) if row.metric == metric]
    (ours,) = [c.mean for c in beside.beside(personalised(), rows) if c.published.algorithm == "IP-FL"]
    assert ours == pytest.approx(expected, abs=0.05)


def clusters():
    """IP-FL with its clusters numbered differently in both seeds; FedAvg without any."""
    one = np.array([[0.6, 0.1], [0.3, 0.7]])
    accuracy = np.full((2, 2, 2, 2, 2), np.nan)
    accuracy[1, :, 0] = 0.2
    accuracy[1, :, 1] = [one, one[::-1] + 0.1]
    return xr.Dataset(
        {"cluster_accuracy": (("algorithm", "seed", "evaluated_round", "cluster", "distribution"), accuracy)},
        {"algorithm": ["fedavg", "ipfl"], "seed": [0, 1], "evaluated_round": [0, 50]},
    )


def test_cluster_models_are_compared_by_what_they_fit():
    rows = published_tables.select(["ipfl_table1_cifar10_clusters"], "CIFAR10", "10:90")
    found = {
        (c.published.split[-1], c.published.metric[-2]): c
        for c in beside.beside(clusters(), rows)
        if c.published.algorithm == "IP-FL"
    }
    ours = {place: c.mean for place, c in found.items()}
    assert ours == pytest.approx({("A", "0"): 65, ("A", "1"): 35, ("B", "0"): 15, ("B", "1"): 75})
    assert found["A", "0"].published.mean == 63.7
    best = published_tables.select(["ipfl_table2_synthcifar10_clusters"], partition="30:70")
    means = [c.mean for c in beside.beside(clusters(), best) if c.published.algorithm == "IP-FL"]
    assert means == pytest.approx([65, 75])
    assert "where our cluster's model is best" in beside.caption(best)
    assert beside.caption(rows) == ""
    none = clusters().sel(cluster=[0])
    assert [math.isnan(c.mean) for c in beside.beside(none, [found["A", "0"].published, best[1]])] == [False, True]


def test_numbers_as_they_are_printed():
    assert beside.number(63.7, math.nan, "cluster_model_acc_pct[c0]") == "63.7"
    assert beside.number(0.5549, 0.005, "IPR") == "0.55 ± 0.01"
    assert beside.number(70.86, 2.18, "avg_test_acc_pct") == "70.9 ± 2.2"
    assert (beside.number(0.5, math.nan, "IPR"), beside.number(math.nan, math.nan, "IPR")) == ("0.50", "–")


def test_published_files_parse_and_hold_nothing_but_values():
    files = sorted(FOLDER.glob("*.csv"))
    assert len(files) > 20
    for file in files:
        text = file.read_bytes().decode("ascii")
        lines = list(csv.reader(text.splitlines()))
        assert {len(line) for line in lines} == {9}, file.name
        assert all(value == value.strip() and "\t" not in value for line in lines for value in line), file.name
        for line in lines[1:]:
            assert line[7] == "undefined" or math.isfinite(float(line[7])), (file.name, line)
            assert line[8] in ("", "undefined") or float(line[8]) >= 0, (file.name, line)
        assert len(published_tables.read(file.stem)) == len(lines) - 1
