"""Of an outsider a coalition sees shapes and declared categories alone: other rows change no bit of the members."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

import fljax
from fljax import algorithms, data, models
from fljax.algorithms import REGISTRY
from fljax.config import parse
from fljax.core.values import accepts
from fljax.experiments import worth
from fljax.protocol import Federation
from tests.toys.configs import build_federation

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROWS, CLIENTS, COLUMNS = 12, ("a", "b", "c", "d"), ["h", "k"]
WHO = np.repeat(CLIENTS, ROWS)
# Models of theirs are chosen or tuned by a client's rows when it uses them.
PERSONAL = (
    "fedavg_finetune",
    "apfl",
    "ditto",
    "fedala",
    "fedavg",
    "fedbabu",
    "fedem",
    "fedfomo",
    "fedrep",
    "ifca",
    "perfedavg",
    "pfedme",
    "standalone",
)
COALITIONS = [(0,), (0, 1, 2), (1, 2)]  # without d
LOCAL = fljax.Local(0.1, 4, steps=2)
SEEDS = 2


def frame(x: np.ndarray, y: np.ndarray) -> pandas.DataFrame:
    return pandas.DataFrame(x, columns=COLUMNS).assign(who=WHO, kind=np.where(y, "p", "q"))


def from_file(x: np.ndarray, y: np.ndarray, folder: pathlib.Path) -> list[Federation]:
    frame(x, y).to_csv(folder / "rows.csv", index=False)
    return data.federations(data.load(str(folder / "rows.csv"), label="kind", client="who"), "natural", seeds=SEEDS)


TABLE: dict[str, Any] = {"label": "kind", "client": "who", "standardise": True}
READERS: dict[str, Callable[..., list[Federation]]] = {
    "csv": from_file,
    "dataset_from_frame": lambda x, y, folder: data.federations(
        data.dataset_from_frame(frame(x, y), **TABLE), "natural", seeds=SEEDS
    ),
    "from_frame": lambda x, y, folder: [data.from_frame(frame(x, y), **TABLE, seed=seed) for seed in range(SEEDS)],
    "from_arrays": lambda x, y, folder: [data.from_arrays(x, y, WHO, classes=2, seed=seed) for seed in range(SEEDS)],
    "from_clients": lambda x, y, folder: [
        data.from_clients({who: (x[who == WHO], y[who == WHO]) for who in CLIENTS}, seed=seed) for seed in range(SEEDS)
    ],
}
PLAN = fljax.Plan(
    algorithms.fedavg, {"task": models.mlp([2], 2, hidden=(3,)), "local": LOCAL, "clients_per_round": None}
)
STANDARD = np.random.default_rng(0).normal(size=(len(WHO), 2))
KIND = (STANDARD[:, 0] + STANDARD[:, 1] > 0).astype(int)
CONFIG: dict[str, Any] = {
    "model": {"name": "logistic_regression"},
    "local": {"learning_rate": 0.1, "batch_size": 4, "steps": 2},
    "participation": {"clients_per_round": 2},
    "rounds": 2,
    "seeds": [0],
}
# Anything that a table of floats may hold, by column; the other column has numbers that are large enough.
other_rows = arrays(np.float64, (ROWS, 2), elements=st.floats(-(2.0**100), 2.0**100, width=32))
# Members are not shifted where they are read, which depends on all rows: it is declared.
scales = st.tuples(st.floats(-5, 5), st.sampled_from([1e-20, 1e-3, 1.0, 1e6, 1e20]))


def losses(federation: Federation, plan: fljax.Plan = PLAN, seeds: Any = SEEDS) -> np.ndarray:
    """``[runs, seeds, N]``, the test losses of members; 0 of others."""
    member = np.array([[client in some for client in range(len(CLIENTS))] for some in COALITIONS])
    found = fljax.runs(plan, federation, fljax.Over(member=member), rounds=2, seeds=seeds)
    return np.where(member[:, None], found["test_loss"].transpose("run", "seed", "client"), 0)


@pytest.mark.parametrize(
    "reader",
    [pytest.param(name, marks=() if name == "dataset_from_frame" else pytest.mark.in_turn) for name in READERS],
)
@settings(phases=[Phase.generate])
@given(scale=scales, rows=other_rows, labels=st.integers(0, 2**ROWS - 1))
def test_other_rows_change_no_bit(tmp_path_factory, reader, scale, rows, labels):
    offset, size = scale
    x, y, folder = (STANDARD + offset) * size, KIND.copy(), tmp_path_factory.mktemp("rows")
    changed, kinds = x.copy(), y.copy()
    changed[WHO == "d"], kinds[WHO == "d"] = rows, [labels >> place & 1 for place in range(ROWS)]
    found = [losses(data.stack(READERS[reader](*each, folder))) for each in ((x, y), (changed, kinds))]
    np.testing.assert_array_equal(found[0], found[1])


SIDE = 2
other_pixels = arrays(np.uint8, (ROWS, SIDE, SIDE, 1))


def write_table(folder: pathlib.Path, pixels: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    made = pandas.DataFrame(pixels.reshape(len(y), -1), columns=list("hijk")).assign(
        who=WHO, kind=np.where(y, "p", "q")
    )
    made.to_csv(folder / "rows.csv", index=False)
    return {"dataset": str(folder / "rows.csv"), "label": "kind", "client": "who"}


def write_pixels(folder: pathlib.Path, pixels: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    return write_table(folder, pixels, y) | {"shape": [SIDE, SIDE, 1]}


def write_arrays(folder: pathlib.Path, pixels: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    np.savez(folder / "rows.npz", x=pixels, y=y, who=WHO)
    return {"dataset": str(folder / "rows.npz"), "client": "who"}


def write_images(folder: pathlib.Path, pixels: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    for number, (image, label, who) in enumerate(zip(pixels, y, WHO, strict=True)):
        place = folder / "scans" / who / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(place / f"{number:02}.png")
    return {"dataset": f"{folder}/scans", "client": True}


def write_source(folder: pathlib.Path, pixels: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    np.savez(folder / "rows.npz", x=pixels, y=y, who=WHO)
    options = {"place": str(folder / "rows.npz")}
    return {"dataset": f"{__name__}:own_source", "dataset_options": options, "partition": "natural", "clients": 4}


def own_source(place: str) -> data.Dataset:
    found = np.load(place)
    return data.dataset(found["x"], found["y"], owner=np.unique(found["who"], return_inverse=True)[1])


CONFIGS = (write_table, write_pixels, write_arrays, write_images, write_source)


@pytest.mark.parametrize("write", [pytest.param(write, marks=pytest.mark.in_turn) for write in CONFIGS])
@settings(phases=[Phase.generate], max_examples=3)
@given(pixels=other_pixels)
def test_other_rows_of_a_config_change_no_bit(tmp_path_factory: Any, write: Callable, pixels: np.ndarray) -> None:
    """Nothing that the model of a config does to pixels is learnt from rows."""
    own = np.random.default_rng(0).integers(0, 256, (len(WHO), SIDE, SIDE, 1), np.uint8)
    changed, kinds = own.copy(), KIND.copy()
    changed[WHO == "d"], kinds[WHO == "d"] = pixels, 1 - KIND[WHO == "d"]
    found = []
    for x, y in ((own, KIND), (changed, kinds)):
        rows = write(tmp_path_factory.mktemp("rows"), x, y)
        federation, task = build_federation(
            parse(CONFIG | {"data": rows, "algorithms": [{"name": "fedavg"}]}, name="rows")
        )
        found.append(losses(federation, PLAN._replace(arguments={**PLAN.arguments, "task": task}), [0]))
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.thorough
def test_thresholds_of_members_are_theirs(tmp_path: pathlib.Path) -> None:
    """``fljax worth`` learns them by training each client alone."""
    found = []
    for place, factor in enumerate((1.0, 1000.0)):
        path = tmp_path / f"{place}.csv"
        frame(STANDARD * np.where(WHO == "d", factor, 1.0)[:, None], KIND).to_csv(path, index=False)
        rows = {"dataset": str(path), "label": "kind", "client": "who"}
        config = parse(CONFIG | {"data": rows, "algorithms": [{"name": "incfl"}]}, name="rows")
        table = worth.run(config, worth.Question("average_loss", among=COALITIONS)).tables["incfl"]
        found.append(np.where(table.members, table.payoffs, 0))
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "fedavg_finetune" else pytest.mark.thorough) for name in PERSONAL],
)
def test_all_clients_judge_a_coalition_and_outsiders_tune_nothing(name: str) -> None:
    """Test rows of all clients count, also for nobody. What outsiders train on changes no bit of any score."""
    parts = np.tile(["train", "train", "valid", "test"], len(WHO) // 4)
    table = frame(STANDARD, KIND).assign(part=parts)
    outside = (WHO == "d") & (parts != "test")
    other = table.assign(h=np.where(outside, 1 - table.h, table.h), kind=np.where(outside, "p", table.kind))
    build = REGISTRY[name].build
    plan = fljax.Plan(build, {key: value for key, value in PLAN.arguments.items() if accepts(build, key)})
    member = np.array([[False] * 4, [True, True, False, False]])
    found = []
    for rows in (table, other):
        made = data.dataset_from_frame(rows, label="kind", client="who", part="part", standardise=True)
        runs = fljax.runs(plan, data.federate(made, "natural"), fljax.Over(member=member), rounds=2)
        found.append(runs["test_loss"].values)
    assert np.isfinite(found[0]).all()
    np.testing.assert_array_equal(found[0], found[1])
