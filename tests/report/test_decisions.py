"""The table of who would leave agrees with the metrics that count them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from fljax import report
from fljax.metrics import global_model_appeal, incentivised_participation_rate
from fljax.results.events import Results
from fljax.results.values import with_gains
from tests.report.kinds.small import LABELS, UNSEEN, small


@pytest.fixture(scope="module")
def results() -> Results:
    metrics, records = small()
    opted = np.zeros((3, 2, 6, 5))
    opted[0, 0, 3:, 2] = 1
    records["opted_out"] = (("algorithm", "seed", "round", "client"), opted)
    return Results(with_gains(metrics, "fedavg", [0.1] * 5), records)


def rows(table: Any, label: str, kind: str = "seen") -> Any:  # pandas types a column as several things
    return table[(table["algorithm"] == label) & (table["clients"] == kind)]


def test_a_line_for_each_method_seed_and_client(results: Results) -> None:
    table: Any = report.leaving(results)
    assert len(table) == len(LABELS) * 2 * (5 + UNSEEN)
    assert table["seed"].unique().tolist() == [7, 8]
    last = results.metrics.sel(algorithm="iafl").isel(evaluated_round=-1)
    seen = rows(table, "iafl")
    for column, name in (("test_accuracy", "test_accuracy"), ("gain", "personalised_model_accuracy_gain")):
        np.testing.assert_array_equal(seen[column], last[name].values.ravel())
    np.testing.assert_array_equal(seen["standalone_loss"], results.metrics["standalone_test_loss"].values.ravel())
    np.testing.assert_array_equal(
        rows(table, "iafl", "unseen")["required_loss"], last["unseen_required_loss"].values.ravel()
    )


@pytest.mark.in_turn
def test_a_sweep_has_the_table_of_every_cell(results: Results) -> None:
    named = results.metrics.assign_coords(client_name=("client", list("abcde")))
    cells = [results._replace(metrics=named), results._replace(metrics=named.assign(test_loss=named["test_loss"] + 9))]
    metrics = xr.concat([cell.metrics for cell in cells], "mu", data_vars="all")
    records = xr.concat([cell.records for cell in cells], "mu", data_vars="all")
    metrics = metrics.assign_coords(mu=[0.1, 0.2]).assign_attrs(grid='{"mu": "local.mu"}')
    table: Any = report.leaving(Results(metrics, records))
    assert table.columns[1] == "mu"
    part = table[table["mu"] == 0.2].drop(columns="mu").reset_index(drop=True)
    pd.testing.assert_frame_equal(part, report.leaving(cells[1]))
    assert len(table) == 2 * len(part)
    assert rows(table, "iafl")["name"].tolist()[:5] == list("abcde")
    assert rows(table, "iafl", "unseen")["name"].tolist()[:2] == ["0", "1"]


def test_decisions_are_those_that_metrics_count(results: Results) -> None:
    table: Any = report.leaving(results)
    for label in LABELS:
        last = results.metrics.sel(algorithm=label).isel(evaluated_round=-1)
        for kind, prefix, size in (("seen", "", 5), ("unseen", "unseen_", UNSEEN)):
            part = rows(table, label, kind)
            loss, required = last[f"{prefix}test_loss"].values, last[f"{prefix}required_loss"].values
            alone = results.metrics[f"{prefix}standalone_test_loss"].values
            found = {
                column: part[column].to_numpy(float, na_value=np.nan).reshape(2, size)
                for column in ("prefers_standalone", "requirement_unmet", "opts_out")
            }
            np.testing.assert_allclose(
                np.nanmean(found["prefers_standalone"], axis=1), 1 - incentivised_participation_rate(loss, alone)
            )
            np.testing.assert_allclose(
                np.nanmean(found["requirement_unmet"], axis=1), 1 - global_model_appeal(loss, required)
            )
            np.testing.assert_allclose(np.nansum(found["opts_out"], axis=1), last[f"{prefix}opt_outs"])


def test_reasons_and_what_is_unknown(results: Results) -> None:
    table: Any = report.leaving(results)
    without_rows = table[(table["clients"] == "seen") & (table["client"] == 4)]  # no test rows
    assert without_rows["would_leave"].isna().all()
    assert (without_rows["reasons"] == "").all()
    others = table[table["would_leave"].notna()]
    assert ((others["reasons"] != "") == others["would_leave"]).all()
    both = others[others["prefers_standalone"] & others["requirement_unmet"].fillna(value=False)]
    assert both["reasons"].str.startswith("no lower loss than alone; requirement not met").all()
    assert len(both) > 0


def test_what_a_method_records_of_its_clients(results: Results) -> None:
    table: Any = report.leaving(results)
    seen, records = rows(table, "iafl"), results.records.sel(algorithm="iafl")
    for column, name in (("contribution", "contribution"), ("reward", "rate"), ("tokens", "tokens")):
        np.testing.assert_array_equal(seen[column], records[name].isel(round=-1).values.ravel())
        assert rows(table, "fedavg")[column].isna().all()
    np.testing.assert_allclose(seen["participation"], (records["participation"] > 0).mean("round").values.ravel())
    assert rows(table, "fedavg")["left"].tolist() == [False, False, True, *[False] * 7]
    assert rows(table, "iafl", "unseen")["left"].isna().all()


def test_standalone_training_is_not_compared_with_itself(results: Results) -> None:
    metrics = results.metrics.copy(deep=True)
    metrics["incentivised_participation_rate"].loc[{"algorithm": "incfl"}] = np.nan
    table: Any = report.leaving(Results(metrics, results.records))
    assert rows(table, "incfl")["prefers_standalone"].isna().all()
    assert rows(table, "incfl")["requirement_unmet"].notna().any()


def test_results_without_standalone_models_and_records() -> None:
    metrics, _ = small()
    table: Any = report.leaving(Results(metrics[["test_accuracy"]], xr.Dataset()))
    assert table["would_leave"].isna().all()
    assert len(table) == 3 * 2 * 5
