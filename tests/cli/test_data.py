"""``fljax data show``: a table of what clients have, and a picture of it."""

from __future__ import annotations

import functools
import json

import matplotlib.image
import numpy as np
import pandas
import pytest

from fljax import data
from fljax.report import data_picture
from tests.toys.command import call
from tests.toys.configs import config_text

TEXT = config_text('dataset = "patients.csv"\nlabel = "ill"\nclient = "hospital"', head="rounds = 2", model="mlp")


show = functools.partial(call, "data", "show")


@pytest.fixture
def config(tmp_path):
    columns = {
        "age": np.arange(40),
        "income": np.arange(40) * 1000.5,
        "hospital": [f"[bold]h{i % 4}:moon:" for i in range(40)],
        "ill": ["yes" if i % 3 else "no" for i in range(40)],
    }
    pandas.DataFrame(columns).to_csv(tmp_path / "patients.csv", index=False)
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    return path


def test_a_line_for_each_client(config):
    code, out, _ = show(config)
    assert code == 0
    rows = [line.strip("│ ").split("│") for line in out.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert [row[0] for row in cells] == [f"[bold]h{i}:moon:" for i in range(4)] + ["all"]
    assert [int(row[1]) for row in cells] == [6, 6, 6, 6, 24]
    assert all(sum(int(each.replace("·", "0")) for each in row[3:5]) == int(row[1]) for row in cells)


def test_many_clients_are_summarised(config):
    changes = ["--set", "data.partition=iid", "--set", "data.clients=20", "--set", "data.unseen=20"]
    assert "unseen" in show(config, *changes)[1]
    changes = ["--set", "data.dataset=blobs", "--set", "data.dataset_options={samples=600,classes=12}"]
    lines = TEXT.replace('label = "ill"\n', "").replace(
        'client = "hospital"\n', "partition = 'dirichlet'\nclients = 50\n"
    )
    config.write_text(lines)
    code, out, _ = show(config, *changes, "--set", "data.partition_options={alpha=1.0,minimum=2}")
    assert code == 0
    assert "50 clients of blobs, dirichlet" in out
    assert "share of its most frequent label" in out
    assert "clients that have it" in out


def test_numbers_to_predict_have_means(config):
    change = ["--set", "data.label=income", "--set", 'data.features=["age"]']
    code, out, _ = show(config, *change)
    assert code == 0
    assert {"mean", "std", "min", "median", "max"} <= set(out.replace("┃", " ").split())


def test_rows_of_changed_data_are_counted(tmp_path):
    path, options = tmp_path / "swapped.toml", "partition_options = {complement = true, drift_fraction = 0.5}"
    where = f'[data]\ndataset = "digits"\npartition = "mixture"\nclients = 4\nvalid_fraction = 0.25\n{options}\n'
    path.write_text(TEXT[: TEXT.index("[data]")] + where + TEXT[TEXT.index("[model]") :])
    code, out, _ = show(path)
    assert code == 0
    assert "deployment" in out
    assert "later" in out
    found = json.loads(show(path, "--json")[1])
    for deployed, later, tests in zip(found["deployment"], found["later"], found["test"], strict=True):
        assert deployed == round((deployed + later + tests) / 4)
        assert abs(later - (deployed + later + tests) / 2) <= 1


def test_json(config):
    found = json.loads(show(config, "--json")[1])
    assert found["classes"] == ["no", "yes"]
    assert np.sum(found["labels"], axis=1).tolist() == found["train"] == [6] * 4
    assert found["picture"] is None


@pytest.mark.in_turn
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture(config, ending):
    path = config.parent / f"clients.{ending}"
    code, out, _ = show(config, "--out", path)
    assert code == 0
    assert f"Picture: {path}" in out
    if ending == "png":
        pixels = matplotlib.image.imread(path)
        assert pixels.shape[0] > 500
        assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 20


def drawn(clients, classes, **options):
    made = data.federate(data.load("blobs", samples=40 * clients, classes=classes), "iid", clients=clients, **options)
    figure = data_picture(data.count_clients(made, classes), "a $heading$ that is long " * 8)
    figure.canvas.draw()
    return figure


def test_bars_have_a_colour_for_each_label():
    figure = drawn(5, 9)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [str(i) for i in range(9)]
    assert len(figure.axes[0].patches) == 45
    assert len({patch.get_facecolor() for patch in figure.axes[0].patches}) == 9


def test_more_clients_or_labels_are_a_map():
    for clients, classes in ((70, 4), (5, 40)):
        figure = drawn(clients, classes, unseen=2)
        assert np.asarray(figure.axes[0].images[0].get_array()).shape == (classes, clients + 2)


def test_ranges_of_numbers():
    draw = np.random.default_rng(0)
    for clients in (3, 80):
        given = {f"client {i}": (draw.normal(size=(5, 2)), draw.normal(size=5)) for i in range(clients)}
        figure = data_picture(data.count_clients(data.from_clients(given), None))
        figure.canvas.draw()
        assert figure.axes[0].get_ylabel() == "number to predict (training rows)"
