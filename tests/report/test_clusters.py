"""Panels about clusters and tokens, from made-up results."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from fljax import algorithms, report, simulate
from fljax.metrics import gini_coefficient
from fljax.report.clusters import GROUPS
from fljax.results import join
from fljax.results.events import Results
from fljax.testing.bench import LOCAL, TASK
from tests.toys.federation import tiny_federation

ALGORITHMS = ("fedavg", "ipfl", "ifca")


def metrics_of(clients=40, distributions=2, clusters=2, seeds=2, evaluations=6, rounds=120) -> xr.Dataset:
    """FedAvg and two algorithms with clusters; IFCA's are numbered the other way round in the second seed."""
    random = np.random.default_rng(0)
    evaluated = np.linspace(0, rounds, evaluations).astype(int)
    progress = 1 - np.exp(-evaluated / rounds * 4)
    gain = np.zeros((3, seeds, evaluations, clients))
    gain[1] = progress[:, None] * random.normal(0.06, 0.04, (seeds, evaluations, clients))
    gain[2] = progress[:, None] * random.normal(0.01, 0.06, (seeds, evaluations, clients))
    gain[..., -1] = np.nan  # no test rows
    accuracy = np.full((3, seeds, evaluations, clusters, distributions), np.nan)
    fit = np.where(np.eye(clusters, distributions) > 0, 0.7, 0.25)
    noise = random.normal(0, 0.015, (2, seeds, evaluations, clusters, distributions))
    accuracy[1:] = np.array([1.0, 0.8])[:, None, None, None, None] * progress[:, None, None] * fit + noise
    accuracy[2, 1:] = accuracy[2, 1:, :, ::-1].copy()
    four = ("algorithm", "seed", "evaluated_round")
    return xr.Dataset(
        {
            "personalised_model_accuracy_gain": ((*four, "client"), gain),
            "cluster_accuracy": ((*four, "cluster", "distribution"), accuracy),
            "average_accuracy": (four, np.broadcast_to(0.6 * progress, (3, seeds, evaluations))),
        },
        {"algorithm": list(ALGORITHMS), "seed": np.arange(seeds) + 7, "evaluated_round": evaluated},
        {"baseline": "fedavg"},
    )


def records_of(clients=40, clusters=2, seeds=2, rounds=120) -> xr.Dataset:
    """Clients buy training of the cluster that fits their half of the ids, ever more often; FedAvg records nothing."""
    random = np.random.default_rng(1)
    member = np.full((3, seeds, rounds, clients, clusters), np.nan)
    tokens, pool = np.full((3, seeds, rounds, clients), np.nan), np.full((3, seeds, rounds, clusters), np.nan)
    home = np.arange(clients) * clusters // clients
    ability = random.gamma(2, 1, clients)
    for place, seed in np.ndindex(2, seeds):
        purse, pools = np.full(clients, 100.0), np.zeros(clusters)
        for t in range(rounds):
            trained = np.zeros((clients, clusters))
            for c in range(clusters):
                wants = (home == c) | (random.random(clients) < 0.6 * np.exp(-4 * t / rounds))
                able = np.flatnonzero(wants & (purse >= 1))
                who = random.choice(able, min(5, len(able)), replace=False)
                trained[who, c] = 1
                purse[who] -= 1
                pools[c] += len(who)
                paid = np.floor(0.8 * pools[c] * ability[who] / ability[who].sum())
                purse[who] += paid
                pools[c] -= paid.sum()
            member[place + 1, seed, t] = trained
            if place == 0:
                tokens[1, seed, t], pool[1, seed, t] = purse, pools
    three = ("algorithm", "seed", "round")
    return xr.Dataset(
        {
            "membership": ((*three, "client", "cluster"), member),
            "tokens": ((*three, "client"), tokens),
            "pool": ((*three, "cluster"), pool),
        },
        {"algorithm": list(ALGORITHMS), "seed": np.arange(seeds) + 7, "round": np.arange(rounds)},
    )


def line(figure: Figure, label: str) -> Any:
    return next(each for each in figure.axes[0].lines if each.get_label() == label)


def key(figure: Figure) -> dict[str, Any]:
    """What the panel's own legend shows, by its words."""
    legend: Any = figure.axes[0].get_legend()
    return dict(zip([text.get_text() for text in legend.get_texts()], legend.legend_handles, strict=True))


@pytest.mark.in_turn
def test_panels_are_there_where_the_numbers_are():
    metrics, records = metrics_of(), records_of()
    drawn = report.figures(metrics, records)
    about_metrics = {"personalised_model_accuracy_gain", "cluster_accuracy_0", "cluster_accuracy_1"}
    about_records = {"membership_ipfl", "membership_ifca", "tokens", "ledger_ipfl"}
    assert set(drawn) == {"average_accuracy"} | about_metrics | about_records
    assert set(report.figures(metrics, xr.Dataset())) == {"average_accuracy"} | about_metrics
    assert set(report.figures(metrics[["average_accuracy"]], records[["tokens"]])) == {
        "average_accuracy",
        "tokens",
        "ledger_ipfl",
    }
    few = records.assign(tokens=records["tokens"].where(False), membership=records["membership"].isel(cluster=0))
    assert set(report.figures(metrics[["average_accuracy"]], few)) == {"average_accuracy"}
    for figure in drawn.values():
        figure.canvas.draw()
    report.picture(metrics, records).canvas.draw()


@pytest.mark.in_turn
@pytest.mark.parametrize("missing", ALGORITHMS)
def test_records_without_an_algorithm_and_single_seeds(missing):
    metrics = metrics_of(seeds=1, evaluations=1)
    records = records_of(seeds=1, rounds=3).drop_sel(algorithm=missing)
    for figure in report.figures(metrics, records).values():
        figure.canvas.draw()
    assert (f"membership_{missing}" in report.figures(metrics, records)) is False


def test_cluster_models_are_numbered_by_what_they_fit():
    metrics = metrics_of()
    figure = report.figures(metrics, xr.Dataset())["cluster_accuracy_0"]
    accuracy = metrics["cluster_accuracy"].sel(algorithm="ifca").values
    own = (accuracy[0, :, 0, 0] + accuracy[1, :, 1, 0]) / 2
    np.testing.assert_allclose(line(figure, "ifca").get_ydata(), own)
    assert len(figure.axes[0].lines) == 4


def test_many_distributions_share_a_panel():
    metrics = metrics_of(distributions=6, clusters=6)
    drawn = report.figures(metrics, xr.Dataset())
    assert "cluster_accuracy_0" not in drawn
    accuracy = metrics["cluster_accuracy"].sel(algorithm="ipfl").values
    own = np.trace(accuracy, axis1=2, axis2=3) / 6
    np.testing.assert_allclose(line(drawn["cluster_accuracy"], "ipfl").get_ydata(), own.mean(axis=0))


def test_more_distributions_than_clusters():
    metrics = metrics_of(distributions=3, clusters=2)
    metrics["cluster_accuracy"] = metrics["cluster_accuracy"].isel(distribution=[2, 0, 1])
    drawn = report.figures(metrics, xr.Dataset())
    accuracy = metrics["cluster_accuracy"].sel(algorithm="ipfl").values.mean(axis=0)
    np.testing.assert_allclose(line(drawn["cluster_accuracy_1"], "ipfl").get_ydata(), accuracy[:, 0, 1])
    assert np.isnan(line(drawn["cluster_accuracy_0"], "ipfl").get_ydata()).all()  # nobody's


def test_gains_leave_the_baseline_out():
    metrics = metrics_of()
    figure = report.figures(metrics, xr.Dataset())["personalised_model_accuracy_gain"]
    assert {"ipfl", "ifca"} < {each.get_label() for each in figure.axes[0].lines}
    assert "fedavg" not in {each.get_label() for each in figure.axes[0].lines}
    steps = line(figure, "ipfl")
    values = metrics["personalised_model_accuracy_gain"].sel(algorithm="ipfl").isel(evaluated_round=-1).values
    below = np.interp(0, steps.get_xdata()[1:], steps.get_ydata()[1:])
    assert below == pytest.approx(np.mean(values[np.isfinite(values)] < 0), abs=0.02)
    assert "gained over fedavg" in figure.axes[0].get_title()
    alone = report.figures(metrics.sel(algorithm=["fedavg"]), xr.Dataset())
    assert "personalised_model_accuracy_gain" not in alone


def test_tokens_and_their_gini_coefficient():
    records = records_of()
    figure = report.figures(metrics_of(), records)["tokens"]
    last = records["tokens"].sel(algorithm="ipfl").isel(round=-1).values
    assert list(key(figure)) == [f"{np.mean(gini_coefficient(last)):.4f}"]
    curve = line(figure, "ipfl").get_ydata()
    assert (curve[0], curve[-1]) == (0, pytest.approx(1))
    poorest = np.sort(last, axis=-1)[:, :10].sum(axis=-1) / last.sum(axis=-1)
    assert curve[10] == pytest.approx(poorest.mean())
    nothing = records.assign(tokens=0 * records["tokens"])
    assert list(key(report.figures(metrics_of(), nothing)["tokens"])) == ["0.0000"]


def test_the_ledger_balances():
    figure = report.figures(metrics_of(), records_of())["ledger_ipfl"]
    assert {"median client", "mean client", "pools, per client", "mean client + pools"} < set(key(figure))
    np.testing.assert_allclose(np.asarray(figure.axes[0].lines[-1].get_ydata(), float), 0, atol=1e-9)
    tokens = records_of()["tokens"].sel(algorithm="ipfl").transpose("seed", "round", "client").values
    moved = (tokens - tokens[:, :1]).mean(axis=-1).mean(axis=0)
    np.testing.assert_allclose(np.asarray(figure.axes[0].lines[1].get_ydata(), float), moved, atol=1e-9)
    assert np.ptp(moved) > 0
    without = report.figures(metrics_of(), records_of().drop_vars("pool"))["ledger_ipfl"]
    assert list(key(without)) == ["smallest to largest client", "median client", "mean client"]


@pytest.mark.parametrize("rounds", [6, 120])
def test_whose_model_clients_train(rounds):
    records = records_of(rounds=rounds)
    figure = report.figures(metrics_of(), records)["membership_ipfl"]
    mesh: Any = figure.axes[0].collections[0]
    shown = np.ma.asarray(mesh.get_array()).reshape(40, -1)
    groups = np.array_split(np.arange(rounds), min(GROUPS, rounds))
    member = records["membership"].sel(algorithm="ipfl", seed=7).values
    for place, group in enumerate(groups):
        first, second = member[group].sum(axis=0).T
        expected = np.ma.masked_where(first + second == 0, np.where(first == second, 2, (second > first).astype(int)))
        np.testing.assert_array_equal(shown[:, place].filled(-1), expected.filled(-1))
    assert list(key(figure))[:2] == ["cluster 0", "cluster 1"]


def test_many_clusters_have_colours_of_their_own():
    drawn = report.figures(metrics_of(), records_of(clients=39, clusters=13, rounds=20))
    colours = {patch.get_facecolor() for word, patch in key(drawn["membership_ipfl"]).items() if "cluster" in word}
    assert len(colours) == 13


SEEDS, ROUNDS, ROWS, CLIENTS, CLUSTERS = 2, 4, 3, 5, 3


def drawn(form: str, number: int) -> tuple[xr.Dataset, np.ndarray]:
    """Records of a form, and the last cluster of each client ``[seed, client]``, found round by round."""
    random, by_client = np.random.default_rng(number), form == "membership"
    id = random.permuted(np.tile(np.arange(CLIENTS), (SEEDS, ROUNDS, 1)), axis=-1)[..., :ROWS]
    who = np.broadcast_to(np.arange(CLIENTS), (SEEDS, ROUNDS, CLIENTS)) if by_client else id
    mass, present = random.integers(0, 2, (*who.shape, CLUSTERS)), random.random(id.shape) < 0.7
    if form == "chosen_cluster":
        mass = np.eye(CLUSTERS, dtype=int)[random.integers(0, CLUSTERS, who.shape)]
    expected = np.full((SEEDS, CLIENTS), np.nan)
    for seed, round, at in np.argwhere(mass.any(axis=-1) & (by_client or present)):
        expected[seed, who[seed, round, at]] = mass[seed, round, at].argmax()
    three = ("seed", "round", "row")
    values = ((*three[:2], "client" if by_client else "row", "cluster"), mass)
    values = (three, mass.argmax(axis=-1)) if form == "chosen_cluster" else values
    variables = {form: values, "cohort_id": (three, id), "cohort_present": (three, present)}
    return xr.Dataset(variables, {"seed": range(SEEDS), "round": range(ROUNDS), "client": range(CLIENTS)}), expected


@given(st.permutations(["chosen_cluster", "mixture", "membership"]), st.integers(1, 3), st.integers(0, 10**6))
def test_the_last_known_cluster_of_each_client(forms: list[str], count: int, number: int) -> None:
    found = {form: drawn(form, number) for form in forms[:count]}
    records = join({form: of_form for form, (of_form, _) in found.items()})
    table = report.client_clusters(Results(xr.Dataset(coords=records.coords), records))
    assert list(table) == [(form, seed) for form in found for seed in range(SEEDS)]
    for form, (_, expected) in found.items():
        np.testing.assert_array_equal(table[form].astype(float).to_numpy().T, expected)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [name for name, each in algorithms.REGISTRY.items() if "clusters" in inspect.signature(each.build).parameters],
)
def test_every_algorithm_with_clusters_is_in_the_table(name: str) -> None:
    entry = algorithms.REGISTRY[name]
    cohort = {"clients_per_round": 2} if "clients_per_round" in inspect.signature(entry.build).parameters else {}
    result = simulate(entry.build(TASK, LOCAL, **cohort, **entry.example), tiny_federation(), rounds=3)
    trained = (result.records["participation"] > 0).any("round").values[0]
    table = report.client_clusters(result)[("result", 0)]
    assert trained.any()
    assert table.notna().to_numpy()[trained].all()
    leaving = report.leaving(result).query("clients == 'seen'")
    np.testing.assert_array_equal(leaving["cluster"], table.astype(float))


def test_the_page_has_the_cluster_of_each_client(tmp_path: Any) -> None:
    metrics = metrics_of(clients=4)[["average_accuracy", "personalised_model_accuracy_gain"]]
    report.write_page(tmp_path / "x.html", metrics, records_of(clients=4), "", {})
    heads = [f"<th>{label}, seed {seed}</th>" for label in ALGORITHMS[1:] for seed in (7, 8)]
    assert "".join(heads) in "".join((tmp_path / "x.html").read_text(encoding="utf-8").split("\n"))


def test_records_that_another_one_of_the_same_name_has_spread_are_no_clusters() -> None:
    """As of AFL and FedEM in run folders of before."""
    mixed, _ = drawn("mixture", 0)
    other = mixed[["cohort_id", "cohort_present"]].assign(
        mixture=(("seed", "round", "client"), np.ones((SEEDS, ROUNDS, CLIENTS)))
    )
    chosen, expected = drawn("chosen_cluster", 0)
    records = join({"fedem": mixed, "afl": other, "ifca": chosen})
    table = report.client_clusters(Results(xr.Dataset(coords=records.coords), records))
    np.testing.assert_array_equal(table["ifca"].astype(float).to_numpy().T, expected)
    assert {label for label, _ in table} == {"ifca"}
