"""Tables, sentences, picture and page of what clients are worth."""

from __future__ import annotations

import csv
import io
import pathlib
from typing import Any

import numpy as np
import pytest

from fljax import games
from fljax.report.worth import worth_picture, worth_rows, worth_sentences, worth_table, write_worth
from tests.contributions.games import GLOVE, THREE
from tests.games.known import THREE_SEEDS, among, comparison_of, table_of


@pytest.fixture(scope="module")
def several() -> Any:
    """Datasets of two algorithms with three seeds, of which one lost a coalition."""
    values = THREE_SEEDS - 0.1
    values[2, 5] = np.nan
    tables = {"fedavg": table_of(THREE_SEEDS), "other": table_of(values, diverged=np.isnan(values))}
    return (
        {label: games.to_dataset(table) for label, table in tables.items()},
        {label: games.worth(table) for label, table in tables.items()},
    )


def test_a_row_for_each_client() -> None:
    head, *rows, sums = worth_rows(games.worth(table_of(THREE)))
    assert head == ["client", "Shapley", "Banzhaf", "Beta Shapley (4, 1)", "leave one out", "least core"]
    assert [row[0] for row in rows] == ["a", "b", "c"]
    assert rows[1][1:] == ["0.3767", "0.3700", "0.4453", "0.2800", "0.3900"]
    assert sums[:2] == ["sum", "0.8000"]


def test_intervals_and_what_is_not_known(several: Any) -> None:
    _, worths = several
    rows = worth_rows(worths["fedavg"])
    row = worths["fedavg"].sel(measure="banzhaf", client=0)
    half = float(row["high"] - row["mean"])
    assert rows[1][2] == f"{float(row['mean']):.4f} ± {half:.4f}"
    assert "±" not in rows[1][-1]
    assert worth_rows(worths["other"])[1][1] == "-"


def test_sentences() -> None:
    said = " ".join(worth_sentences(games.worth(table_of(THREE))))
    assert "v(S) is average_accuracy: 0.9000 with all clients, 0.1000 with nobody." in said
    assert "One seed has no error bars." in said
    assert "The core is empty: whatever the payoffs, some coalition gets 0.1100 less than its value." in said
    assert "the sum of both, or more): 6 violations (100.0 %), the largest of 0.2200." in said
    assert "Monotonicity (no client makes a coalition worse): no violation." in said
    assert "The core is not empty" in " ".join(worth_sentences(games.worth(table_of(GLOVE))))
    of_seeds = " ".join(worth_sentences(games.worth(table_of([GLOVE, GLOVE, THREE]))))
    assert "±: half of a 95 % t-interval over 3 seeds." in of_seeds
    assert "With 67 % of the seeds it is not empty." in of_seeds
    alike = " ".join(worth_sentences(games.worth(table_of([THREE, THREE, THREE]))))
    assert "less than its value. So it is with every seed." in alike
    some = worth_sentences(games.worth(among(table_of(THREE), [0, 1])))
    assert some == ["v(S) is average_accuracy: 0.1000 with nobody.", "One seed has no error bars."]


def test_the_table_as_csv(several: Any) -> None:
    _, worths = several
    lines = list(csv.DictReader(io.StringIO(worth_table(worths).decode())))
    assert len(lines) == 2 * 5 * 3
    (line,) = [
        each for each in lines if (each["algorithm"], each["measure"], each["name"]) == ("fedavg", "shapley", "b")
    ]
    assert float(line["mean"]) == pytest.approx(float(worths["fedavg"]["mean"].sel(measure="shapley", client=1)))
    by_seed = [float(line[f"seed_{seed}"]) for seed in range(3)]
    np.testing.assert_allclose(by_seed, worths["fedavg"]["worth"].sel(measure="shapley", client=1))


def test_the_picture_has_three_panels(several: Any) -> None:
    tables, worths = several
    figure = worth_picture(tables, worths, "a heading")
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[0].startswith("Shapley values of clients\n95 % intervals")
    assert titles[1].startswith("Value of coalitions by size")
    assert titles[2].startswith("Test accuracy of clients\nfilled: all together; hollow: alone")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["fedavg", "other"]
    figure.draw_without_rendering()


def test_the_picture_of_few_coalitions() -> None:
    table = among(table_of(THREE), [3, 5, 6, 7])._replace(metric="-average_loss", payoff="-test_loss")
    figure = worth_picture({"x": games.to_dataset(table)}, {"x": games.worth(table)})
    titles = [axes.get_title() for axes in figure.axes]
    assert (titles[0], titles[2]) == ("leave one out values of clients", "Minus test loss of clients\nall together")
    assert not figure.legends
    figure.draw_without_rendering()


def test_the_files_of_a_folder(several: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.toml").write_text('name = "<x>"')
    tables, worths = several
    table = table_of(THREE_SEEDS)
    compared = {"other": comparison_of(table, cosine=games.shapley(table))}
    path, page = write_worth(tmp_path, tables, worths, "a <heading>", {"other": ["1 run of 24 diverged."]}, compared)
    assert path.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "a &lt;heading&gt;" in text
    assert "1 run of 24 diverged." in text
    assert "&lt;x&gt;" in text
    assert text.count("<table>") == 3
    assert "<td>cosine</td><td>1.00</td>" in text
