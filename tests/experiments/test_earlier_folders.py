"""Run folders of fljax 0.2, from ``tests/fixtures``: they are read, drawn, resumed and given more rounds."""

from __future__ import annotations

import json
import pathlib
import zipfile
from typing import Any

import numpy as np
import pytest
import xarray as xr

import fljax
from fljax import games
from fljax.core import version
from fljax.experiments import certify, run, sweep, worth
from fljax.experiments.load import Run
from tests.fixtures import write
from tests.toys.command import printed

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_programs")]

X = np.arange(8, dtype=np.float32).reshape(2, 4) / 10
# Labels, rounds done, and the average loss of every seed at the end, as 0.2 printed them.
FOLDERS: dict[str, tuple[tuple[str, ...], Any, list[float]]] = {
    "finished": (("fedavg", "a:b/c"), [4, 4], [0.44551358, 1.00789535, 0.46714115, 0.87214643]),
    "half_done": (("fedavg", "a:b/c"), [4], [0.44551358, 1.00789535]),
    "going_on": (("fedavg", "a:b/c"), [8, 4], [0.30113909, 0.55637711, 0.46714115, 0.87214643]),
    "all_models": (("fedavg",), [4], [0.44551358, 1.00789535]),
    "long_records": (("fedavg",), [4], [0.44551358, 1.00789535]),
    "compared": (("iafl", "a:b/c"), [2, 2], [1.2175120, 1.3399903, 1.1587975, 1.2884645]),
    "half_swept": (
        ("fedavg", "a:b/c"),
        [[[4, 4], [4, 4]]],
        [0.53858823, 1.08323753, 0.44551358, 1.00789535, 0.39643207, 0.64679199, 0.30525911, 0.62292051],
    ),
}
COHORTS = [[[0, 1], [0, 1], [1, 2], [1, 0]], [[0, 1], [0, 2], [0, 2], [1, 0]]]


@pytest.fixture
def unpacked(tmp_path: pathlib.Path) -> Any:
    """Unpacks folders by name; 0.2.0 wrote them."""

    def unpack(name: str) -> pathlib.Path:
        with zipfile.ZipFile(write.HERE / f"{name}.zip") as archive:
            archive.extractall(tmp_path / name)
        return tmp_path / name

    return unpack


def close(found: xr.Dataset, expected: xr.Dataset) -> None:
    """All numbers but times are the same up to rounding: another machine may have written the folder."""
    assert set(found.data_vars) == set(expected.data_vars)
    names = [name for name in expected.data_vars if not str(name).startswith(("seconds_", "execution_"))]
    xr.testing.assert_allclose(
        found[names].transpose(*expected.dims), expected[names].transpose(*expected.dims), rtol=1e-4, atol=1e-5
    )


def same_runs(found: Run, expected: Any) -> None:
    close(found.metrics, expected.metrics)
    close(found.records, expected.records)


@pytest.mark.quick
@pytest.mark.parametrize("name", FOLDERS)
def test_numbers_are_read(unpacked: Any, name: str) -> None:
    labels, rounds, losses = FOLDERS[name]
    folder = fljax.load(unpacked(name))
    assert (folder.labels, folder.metrics["rounds_done"].values.tolist()) == (labels, rounds)
    np.testing.assert_allclose(folder.last["average_loss"].values.ravel(), losses, rtol=1e-6)
    if name == "long_records":
        assert folder.records["stored_apart"].values.tolist() == [1]
    elif name != "compared":
        first = folder.records["cohort_id"].sel(algorithm="fedavg").transpose(..., "seed", "round", "row")
        assert first.values.reshape(-1, 2, *first.shape[-2:])[0, :, :1].tolist() == [[[0, 1]], [[0, 1]]]
    if name not in ("compared", "half_swept", "going_on"):
        assert folder.records_of("fedavg")["cohort_id"].values.tolist() == COHORTS
    assert len(folder.table()) >= len(folder.metrics["algorithm"])


@pytest.mark.quick
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "label", "arguments", "logits"),
    [
        ("finished", "a:b/c", {"client": 1, "seed": 1}, [-0.133348495, -0.009901151, 0.030268937]),
        ("finished", "a:b/c", {"client": 0, "unseen": True}, [0.008675925, 0.141660571, -0.072246112]),
        ("all_models", "fedavg", {"client": 1}, [0.012228616, 0.140730143, -0.074868344]),
        ("all_models", "fedavg", {"client": 1, "which": "best"}, [0.012228616, 0.140730143, -0.074868344]),
        ("all_models", "fedavg", {"client": 1, "round": 2}, [0.031860430, 0.074608304, -0.028378338]),
        ("compared", "iafl", {"client": 1}, [-0.18252563, -0.23052950, 0.17686816]),
        ("compared", "a:b/c", {"client": 1, "seed": 1}, [-0.015650623, -0.014016060, 0.038831674]),
    ],
)
def test_models_predict(unpacked: Any, name: str, label: str, arguments: dict[str, Any], logits: list[float]) -> None:
    folder = fljax.load(unpacked(name), **(write.COMPARED if name == "compared" else {}))
    np.testing.assert_allclose(folder.predict(label, x=X, **arguments)[0], logits, rtol=1e-4, atol=1e-6)


@pytest.mark.quick
def test_worth_and_certificates_are_read(unpacked: Any) -> None:
    tables = games.load(unpacked("valued") / worth.TABLES).tables
    assert list(tables) == ["fedavg", "fedprox"]
    third = tables["fedprox"].values[:, :3]
    np.testing.assert_allclose(third, [[0.3333333, 0.8111112, 0.6888888], [0.3333333, 0.3722222, 0.4944445]], rtol=1e-6)
    assert list(games.load(unpacked("half_valued") / worth.TABLES).tables) == ["fedavg"]
    certificates = games.load_certificates(unpacked("certified") / "certificates.nc").certificates
    assert list(certificates) == ["fedavg", "fedprox"]
    gains = [
        [0.0333333, -0.0166667],
        [0.0, 0.0166667],
        [-0.0666667, 0.0333333],
        [0.0166667, 0],
        [0.0333333, -0.0333333],
    ]
    np.testing.assert_allclose(certificates["fedprox"].gains.gains, gains, atol=1e-6)
    assert "INCONCLUSIVE at 0.01, largest gain in [-0.03403, 0.06396]" in repr(certificates["fedavg"])


def test_commands_read_them(unpacked: Any) -> None:
    places = {name: str(unpacked(name)) for name in write.FOLDERS}
    assert "a:b/c" in printed("compare", places["finished"], places["compared"])
    assert "fedavg" in printed("export", places["finished"], "--csv")
    for name in ("finished", "going_on", "all_models", "long_records", "swept", "compared"):
        printed("report", places[name])
        assert "a:b/c" in (pathlib.Path(places[name]) / "report.html").read_text() or name in (
            "all_models",
            "long_records",
        )
    again = ("--out", places["valued"], "--resume", "--baseline", "chance")
    assert "fedprox" in printed("worth", f"{places['valued']}/config.toml", *again)


def test_a_half_done_run_ends_as_one_in_one_piece(unpacked: Any) -> None:
    folder = unpacked("half_done")
    run.run(write.config(), directory=folder, resume=True)
    log = (folder / "log.jsonl").read_text()
    assert "goes on after round 2 of 4, from a checkpoint" in log
    assert all(f"fljax 0.2.0 wrote the {what}" in log for what in ("results", "checkpoints"))
    same_runs(fljax.load(folder), fljax.load(unpacked("finished")))
    np.testing.assert_allclose(
        fljax.load(folder).predict("a:b/c", 1, X, seed=1)[0], [-0.133348495, -0.009901151, 0.030268937], rtol=1e-4
    )


@pytest.mark.parametrize("name", ["finished", "going_on"])
def test_more_rounds(unpacked: Any, name: str) -> None:
    folder = unpacked(name)
    outcome = run.run(write.config(8), directory=folder, resume=True)
    assert outcome.metrics["rounds_done"].values.tolist() == [8, 8]
    same_runs(fljax.load(folder), run.run(write.config(8)))


def test_a_half_done_sweep_ends_as_one_in_one_piece(unpacked: Any) -> None:
    folder = unpacked("half_swept")
    sweep.run(write.grid(), directory=folder, resume=True)
    log = (folder / "log.jsonl").read_text()
    assert [f"goes on after round {done} of 4" in log for done in (2, 4)] == [True, True]
    same_runs(fljax.load(folder), fljax.load(unpacked("swept")))


def test_parts_of_a_sweep_are_joined(unpacked: Any) -> None:
    folder = unpacked("in_parts")
    grid = write.grid()
    first, second = (sweep.begin_part(grid, folder, number, 2) for number in (1, 2))
    assert first is not None
    assert second is not None
    assert sweep.is_finished(first, sweep.folder_of(folder, 1, 2))
    sweep.run_part(second, sweep.folder_of(folder, 2, 2))
    outcome, unfinished, _ = sweep.join_parts(grid, folder, 2)
    assert unfinished == ()
    assert outcome is not None
    assert outcome.metrics.attrs["forced"] == f"fljax 0.2.0 and {version.__version__} wrote the parts"
    close(fljax.load(folder).metrics, fljax.load(unpacked("swept")).metrics)


def test_whole_runs_go_on(unpacked: Any) -> None:
    valued, certified = unpacked("half_valued"), unpacked("half_certified")
    tables = worth.run(write.of_runs(), write.WORTH, directory=valued, resume=True).tables
    whole = games.load(unpacked("valued") / worth.TABLES).tables
    for label, table in whole.items():
        np.testing.assert_allclose(tables[label].values, table.values, rtol=1e-5)
    found = certify.run(write.of_runs(seeds=5), write.CERTIFY, directory=certified, resume=True)
    for label, certificate in games.load_certificates(unpacked("certified") / "certificates.nc").certificates.items():
        np.testing.assert_allclose(found[label].gains.gains, certificate.gains.gains, atol=1e-5)
    for folder in (valued, certified):  # the four runs that were there are not repeated
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        done = [line["round"] for line in lines if line["stage"] == "train" and line["label"] == "fedprox"]
        assert done == sorted(set(done))
