"""The picture and the table of which clients gain."""

from __future__ import annotations

import pathlib
import re
from typing import Any, cast

import numpy as np
import xarray as xr
from matplotlib.container import ErrorbarContainer

from fljax.protocol import Names
from fljax.report.clients import MOST_CLIENTS, gains_picture, gains_table
from fljax.report.page import write_page
from fljax.results.clients import with_names
from tests.results.test_clients import made_up, made_up_sweep


def test_few_clients_have_a_line_each_by_name_in_the_order_of_their_gain() -> None:
    figure: Any = gains_picture(with_names(made_up(), [Names(clients=("Elm", "Ivy"))] * 2))
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["Ivy", "Elm"]
    marks = [np.asarray(cast(ErrorbarContainer, box).lines[0].get_xdata(), float) for box in axes.containers]
    np.testing.assert_allclose(marks, [[0.15, 0.0], [0.25, -0.2]], atol=1e-9)


def test_long_names_that_differ_at_their_end_stay_different() -> None:
    names = ("Hospital of the northern district 1", "Hospital of the northern district 2")
    figure: Any = gains_picture(with_names(made_up(), [Names(clients=names)] * 2))
    ticks = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert [tick[:10] + tick[-10:] for tick in ticks] == [name[:10] + name[-10:] for name in names[::-1]]
    assert [len(tick) for tick in ticks] == [24, 24]


def test_names_that_no_font_has_are_boxes_without_a_warning(tmp_path: pathlib.Path) -> None:
    metrics = with_names(made_up(), [Names(clients=("北京", "Ivy"))] * 2)
    write_page(tmp_path / "page.html", metrics.drop_vars("test_loss"), xr.Dataset(), "names", {})
    assert "北京" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_many_clients_are_curves_and_no_gains_no_picture() -> None:
    count = MOST_CLIENTS + 1
    accuracy = np.linspace(0, 1, count)[None, None, None]
    axes = ("algorithm", "seed", "evaluated_round", "client")
    variables = {
        "test_accuracy": (axes, accuracy),
        "standalone_test_accuracy": (("seed", "client"), accuracy[0, 0] * 0),
    }
    variables["test_loss"] = (axes, accuracy)
    metrics = xr.Dataset(variables, {"algorithm": ["fedavg"], "seed": [0], "evaluated_round": [1]})
    figure: Any = gains_picture(metrics.assign_coords(client=np.arange(count)))
    assert "order of their gain" in figure.axes[0].get_xlabel()
    assert gains_table(metrics.assign_coords(client=np.arange(count))).startswith("<details>")
    assert gains_picture(made_up().drop_vars(["standalone_test_loss", "standalone_test_accuracy"])) is None


def test_a_sweep_has_gains_in_the_best_cells_and_shares_of_all_cells() -> None:
    figure: Any = gains_picture(made_up_sweep())
    marks = [[cast(ErrorbarContainer, box).lines[0].get_xdata() for box in axes.containers] for axes in figure.axes]
    np.testing.assert_allclose(np.array(marks[0], float), [[0.15, 0.0], [0.45, 0.0]], atol=1e-9)
    np.testing.assert_allclose(np.array(marks[1], float), [[0.5, 0.25], [1.0, 0.25]])
    text = gains_table(made_up_sweep())
    heads = re.findall(r"<th>(.*?)</th>", text)
    words = ("standalone accuracy", "accuracy", "gain", "gains in")
    assert heads == ["Client", *(f"{label}: {word}" for label in ("fedavg", "incfl") for word in words)]
    rows = [re.findall(r"<td>(.*?)</td>", line) for line in re.findall(r"<tr>(.*?)</tr>", text)[1:]]
    assert rows[0][:5] == ["0", "0.450", "0.600", "+0.150 ± 0.071", "50% of 4"]
    assert rows[0][5:] == ["0.550", "1.000", "+0.450 ± 0.071", "100% of 4"]


def test_a_table_has_a_line_for_each_client() -> None:
    text = gains_table(with_names(made_up(), [Names(clients=("Elm", "<Ivy>"))] * 2))
    rows = [re.findall(r"<td>(.*?)</td>", line) for line in re.findall(r"<tr>(.*?)</tr>", text)[1:]]
    assert rows[0] == ["Elm", "0.450", "0.600", "+0.150 ± 0.071", "0.700", "+0.250 ± 0.071"]
    assert rows[1][0] == "&lt;Ivy&gt;"
