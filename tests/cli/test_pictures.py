"""``--figures`` of ``fljax report`` and ``fljax export``, and ``fljax export --leaving``, as a user types them."""

from __future__ import annotations

import csv
import io
import json
import pathlib

import pytest
import xarray as xr

import fljax
from fljax.report import surrogate_weights
from fljax.report.kinds.registry import KINDS
from fljax.results import Results, folders, stores
from tests.report.kinds.small import small
from tests.results.test_clients import made_up_sweep
from tests.toys.command import call

CONFIG = "rounds = 6\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run folder that has data for two kinds of figure."""
    metrics, records = small(clients=3)
    metrics = metrics[["test_accuracy", "test_loss", "standalone_test_loss", "incentivised_participation_rate"]]
    records = records[["participation"]]
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.toml").write_text(CONFIG)
    folders.save_results(folder, Results(metrics, records), CONFIG)
    return folder


@pytest.mark.in_turn
def test_export_writes_the_named_figures(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    arguments = ("export", str(run), "--figures", "client_curves", "--clients", "0,2", "--out", str(tmp_path / "here"))
    code, out, err = call(*arguments)
    names = ["client_curves.pdf", "client_curves.svg"]
    assert (code, err, out.splitlines()) == (0, "", [str(tmp_path / "here" / name) for name in names])
    svg = (tmp_path / "here" / "client_curves.svg").read_text()
    assert "<!-- client 2: " in svg
    assert "<!-- client 1" not in svg


@pytest.mark.in_turn
def test_report_shows_all_figures_that_have_data(run: pathlib.Path) -> None:
    code, out, err = call("report", str(run), "--figures", "all", "--json")
    names = ["client_curves", "client_spread"]
    paths = [run / "report.png", run / "report.html", *(run / "pictures" / f"{name}.png" for name in names)]
    assert (code, json.loads(out)) == (0, {str(run): [str(path) for path in paths]})
    missing = err.splitlines()
    assert len(missing) == len(KINDS) - 2
    assert missing[-1] == (
        f"fljax: {run}: expected records gap and weight by row for the figure surrogate_weights, "
        "got results without them"
    )
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count("<img") == 1 + len(names)
    assert all(f'alt="{KINDS[name].sentence}"' in page for name in names)
    assert "for the figure surrogate_weights, got results without them.</p>" in page


def test_export_who_would_leave(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code, out, _ = call("export", str(run), "--leaving")
    lines = list(csv.DictReader(io.StringIO(out)))
    assert (code, len(lines)) == (0, 3 * 2 * 3)
    assert {line["would_leave"] for line in lines} == {"True", "False", ""}
    assert {line["clients"] for line in lines} == {"seen"}
    call("export", str(run), "--csv", "--leaving", "--out", str(tmp_path / "table.csv"))
    assert (tmp_path / "table.csv").read_text() == out


@pytest.mark.in_turn
def test_export_which_clients_gain_in_a_sweep(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    folders.save_results(tmp_path, Results(made_up_sweep(), xr.Dataset()), CONFIG)
    code, out, _ = call("export", str(tmp_path), "--gains")
    lines = list(csv.DictReader(io.StringIO(out)))
    assert (code, len(lines)) == (0, 2 * 2 * 2)
    assert [line["rate"] for line in lines[:4]] == ["1.0", "1.0", "1.0", "1.0"]
    assert {line["algorithm"] for line in lines[:4]} == {"fedavg", "incfl"}


@pytest.mark.in_turn
def test_long_records_are_read_from_their_store(tmp_path: pathlib.Path) -> None:
    metrics, records = small(("incfl",), seeds=1, clients=3)
    (whole, *_) = surrogate_weights(folders.Results(metrics, records)).axes[0].collections
    records = records.sel(algorithm="incfl", drop=True)
    stores.save_records(folders.records_of(tmp_path, "incfl"), [records])
    (tmp_path / "config.toml").write_text(CONFIG)
    folders.save_results(tmp_path, Results(metrics, stores.by_round(records).expand_dims(algorithm=["incfl"])), CONFIG)
    for source in (tmp_path, fljax.load(tmp_path)):
        (stored, *_) = surrogate_weights(source).axes[0].collections
        assert (stored.get_offsets() == whole.get_offsets()).all()  # type: ignore[attr-defined]
