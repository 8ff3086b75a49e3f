"""A user's own data in several files, in a config: test rows apart, a file for each client, paths of images."""

from __future__ import annotations

import numpy as np
import pandas
import pytest

import fljax
from fljax.config import load
from fljax.experiments.inputs.setup import resolve_setup
from tests.toys import command
from tests.toys.configs import config_text

pytestmark = pytest.mark.usefixtures("quick_compilation")

Image = pytest.importorskip("PIL.Image")
TEXT = config_text("{data}", head="rounds = 2", standalone=2)
DATA = {
    "test_file": 'dataset = "study/train.csv"\ntest_file = "test.csv"\nlabel = "ill"\nclient = "site"',
    "tables": 'dataset = "hospitals/"\nlabel = "ill"',
    "arrays": 'dataset = "arrays/"',
    "images": 'dataset = "scans/labels.csv"\nlabel = "ill"\nclient = "site"\nimages = "file"\nsize = [4, 4]',
}
CLIENTS = {
    "test_file": ("h0", "h1"),
    "tables": ("north", "south"),
    "arrays": (2, 10),
    "images": ("h0", "h1"),
}


def table(rows):
    draw = np.random.default_rng(rows)
    columns = {"age": draw.integers(20, 80, rows), "dose": draw.normal(size=rows), "ill": ["no", "yes"] * (rows // 2)}
    return pandas.DataFrame(columns)


@pytest.fixture
def folder(tmp_path):
    """Data in all forms, beside one config for each."""
    for name in ("study", "hospitals/train", "hospitals/test", "arrays", "scans/images"):
        (tmp_path / name).mkdir(parents=True)
    for name, rows in (("train", 20), ("test", 8)):
        site = [f"h{row // 2 % 2}" for row in range(rows)]
        table(rows).assign(site=site).to_csv(tmp_path / "study" / f"{name}.csv", index=False)
        for client in ("north", "south"):
            table(rows).to_csv(tmp_path / "hospitals" / name / f"{client}.csv", index=False)
    for client in (2, 10):
        np.savez(tmp_path / "arrays" / f"{client}.npz", x=np.ones((10, 3)), y=np.arange(10) % 2)
    rows = []
    for place in range(20):
        Image.fromarray(np.full((6, 5), 13 * place, np.uint8)).save(tmp_path / "scans" / "images" / f"{place}.png")
        rows.append((f"images/{place}.png", place % 2, f"h{place // 2 % 2}"))
    pandas.DataFrame(rows, columns=["file", "ill", "site"]).to_csv(tmp_path / "scans" / "labels.csv", index=False)
    for name, text in DATA.items():
        (tmp_path / f"{name}.toml").write_text(TEXT.format(data=text))
    return tmp_path


@pytest.mark.in_turn
@pytest.mark.parametrize("form", DATA)
def test_clients_are_counted_and_paths_are_relative_to_the_config(folder, form, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    found = load(folder / f"{form}.toml")
    assert (found.data.partition, found.data.clients) == ("natural", 2)
    federation = resolve_setup(found).federation
    assert federation.names.clients == CLIENTS[form]
    tests = {"test_file": [[4, 4]], "tables": [[8, 8]], "arrays": [[4, 4]], "images": [[4, 4]]}
    assert federation.clients.test.size.tolist() == tests[form]


def test_a_file_of_one_more_client_is_counted(folder):
    assert load(folder / "tables.toml").data.clients == 2
    table(4).to_csv(folder / "hospitals" / "train" / "west.csv", index=False)
    assert load(folder / "tables.toml").data.clients == 3


@pytest.mark.thorough
@pytest.mark.parametrize("form", DATA)
def test_every_form_runs_and_predicts(folder, form):
    command.run(folder / f"{form}.toml", "--out", folder / "run", "--save-models", "last")
    run = fljax.load(folder / "run")
    assert run.names.clients == CLIENTS[form]
    assert np.isfinite(run.last["average_accuracy"].values).all()
    examples = {"arrays": np.ones((3, 3)), "images": np.zeros((3, 4, 4, 1), np.uint8)}
    logits = run.predict("fedavg", 1, examples.get(form, table(4)[:3]))
    assert logits.shape == (3, 2)
