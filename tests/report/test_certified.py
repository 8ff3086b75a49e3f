"""The files of certificates: a table of all cells, pictures, and a page."""

from __future__ import annotations

import csv
import io
import pathlib
import re

import pytest
import xarray as xr

from fljax import games
from fljax.report.certificates import certificate_table, write_certificates
from tests.games.played import GAINS, unilateral


@pytest.fixture(scope="module")
def datasets() -> dict[str, xr.Dataset]:
    attack = games.Attack(1, (("own", 2.5),), 50, 0.4, 0.3, 0.2, 0.4)
    first = games.certificate(unilateral(GAINS), tolerance=0.01)._replace(attack=attack)
    second = games.certificate(unilateral(GAINS, outside=None), tolerance=0.05)
    return {"a<b": games.certificate_dataset(first), "second": games.certificate_dataset(second)}


def test_a_line_for_each_cell(datasets: dict[str, xr.Dataset]) -> None:
    lines = list(csv.DictReader(io.StringIO(certificate_table(datasets).decode())))
    assert len(lines) == 2 * 3
    first = lines[0]
    assert (first["algorithm"], first["client"], first["deviation"], first["verdict"]) == (
        "a<b",
        "0",
        "lie",
        "INCONCLUSIVE",
    )
    assert [float(first[f"seed_{seed}"]) for seed in range(5)] == pytest.approx(GAINS[:, 0].tolist())
    assert float(first["gain"]) == pytest.approx(0.015)
    assert float(first["loss"]) == pytest.approx(0.0015)
    assert float(first["loss_low"]) < 0.0015 < float(first["loss_high"])
    assert float(first["above"]) == pytest.approx(3 / 5)
    assert first["participation"] == "0.0"
    assert (lines[3]["algorithm"], lines[3]["participation"], lines[3]["participation_low"]) == ("second", "", "")


@pytest.mark.in_turn
def test_clients_have_their_names(tmp_path: pathlib.Path) -> None:
    """In the table, in sentences and in the picture, whose file has a name for every system and link."""
    names = ("Ann <b>", "Bo", "Café")
    table = unilateral(GAINS, outside=0.545)._replace(names=names, outside_is="standalone")
    datasets = {"FedAvg by size (control)": games.certificate_dataset(games.certificate(table, tolerance=0.01))}
    lines = csv.DictReader(io.StringIO(certificate_table(datasets).decode()))
    assert tuple(line["client"] for line in lines) == names
    picture, page = write_certificates(tmp_path, datasets, "x", {})
    assert re.fullmatch(r"certificate_[a-z0-9_-]+\.png", picture.name)
    text = page.read_text()
    assert "<td>Ann &lt;b&gt;</td>" in text
    assert "Largest mean gain: client Ann &lt;b&gt;, lie" in text
    assert "have less than without joining, by standalone models" in text


@pytest.mark.in_turn
def test_a_page_and_a_picture_of_each(datasets: dict[str, xr.Dataset], tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.toml").write_text('name = "<x>"')
    paths = write_certificates(tmp_path, datasets, "a <heading>", {"second": ["1 run diverged."]})
    assert [path.suffix for path in paths] == [".png", ".png", ".html"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths[:2])
    text = paths[-1].read_text()
    assert "a &lt;heading&gt;" in text
    assert "<h2>a&lt;b</h2>" in text
    assert text.count("<table>") == 4
    assert "1 run diverged." in text
    # Who should not have joined stands before the table of deviations.
    assert text.index("have less than without joining") < text.index("<table>")
