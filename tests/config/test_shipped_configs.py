"""Every config that comes with fljax: it loads, its published rows exist, its algorithms can be built."""

from __future__ import annotations

import inspect
import pathlib
import tomllib

import jax.numpy as jnp
import pytest
import xarray as xr

from fljax import config, models
from fljax.config import Config
from fljax.config.reading import load_grid
from fljax.experiments import run
from fljax.experiments.inputs.setup import assemble
from fljax.protocol import ClientData, Examples, Federation, Rows
from fljax.published import beside, tables

ROOT = pathlib.Path(__file__).parent.parents[1]
EVERY = pytest.mark.parametrize("name", sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("configs/**/*.toml")))

# (shape of an example, classes, words) of each data set, as its source makes them.
SHAPES = {
    "cifar10": ((32, 32, 3), 10, None),
    "cifar100": ((32, 32, 3), 100, None),
    "digits": ((8, 8, 1), 10, None),
    "emnist": ((28, 28, 1), 62, None),
    "fashion_mnist": ((28, 28, 1), 10, None),
    "mnist": ((28, 28, 1), 10, None),
    "mnist_5k": ((28, 28, 1), 10, None),
    "sent140": ((200,), 2, None),
    "sst5": ((50,), 5, 1000),
    "svhn": ((32, 32, 3), 10, None),
    "synthetic": ((60,), 10, None),
    "tiny_imagenet": ((64, 64, 3), 200, None),
}


@pytest.mark.sampled(6)
@EVERY
def test_shipped_configs_load(name):
    loaded = config.load(ROOT / name)
    assert config.parse(tomllib.loads(config.dumps(loaded))) == loaded
    if loaded.sweep is not None and loaded.sweep.grid:
        assert len(load_grid(ROOT / name).cells) > 1
    elif loaded.published is not None:
        rows = tables.select(*loaded.published.model_dump().values())
        labels = xr.Dataset(coords={"algorithm": [entry.label for entry in loaded.algorithms]})
        assert any(beside.label_of(labels, row) for row in rows), "no algorithm has the label of a published one"


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "ipfl").glob("*.toml")), ids=lambda path: path.stem)
def test_contributions_are_not_measured_on_rows_that_judge_clusters(path):
    """``held["distribution_d"]`` judge the models of clusters. Validation rows of the server are upright: no tier B."""
    loaded = config.load(path)
    turned = loaded.data.partition_options.get("rotate", False)
    for entry in loaded.algorithms:
        if entry.name == "ipfl":
            assert entry.options.get("profile_on", "matched") == ("members" if turned else "matched")


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "maxfl").glob("*.toml")), ids=lambda path: path.stem)
def test_appeal_is_that_of_the_global_model_in_maxfl(path):
    """MaxFL, Definition 1: a client compares the global model with its requirement, and not a personal one."""
    loaded = config.load(path)
    scenarios = [*loaded.scenarios, *(each for entry in loaded.algorithms for each in entry.scenarios)]
    assert all(each.options.get("judged") == "global" for each in scenarios if each.name == "appeal_based")


def federation(loaded: Config) -> Federation:
    """Clients of a config without their data: one example, which each of them has ten times."""
    shape, _, words = SHAPES[loaded.data.dataset]
    seeds, clients = len(loaded.seeds), loaded.data.clients
    rows = Rows(jnp.zeros((seeds, clients, 10), jnp.int32), jnp.full((seeds, clients), 10))
    ids = jnp.broadcast_to(jnp.arange(clients), (seeds, clients))
    x = jnp.zeros((1, *shape), jnp.float32 if words is None else jnp.int32)
    held = {"validation": Rows(rows.index[:, 0], rows.size[:, 0])}
    return Federation(Examples(x, jnp.zeros(1, jnp.int32)), ClientData(ids, rows, rows, rows), held=held)


@pytest.mark.in_turn
@pytest.mark.sampled(60)
@EVERY
def test_algorithms_of_shipped_configs_can_be_built(name):
    loaded = config.load(ROOT / name)
    shape, classes, words = SHAPES[loaded.data.dataset]
    build = models.MODELS[loaded.model.name]
    known = {"vocabulary": words} if "vocabulary" in inspect.signature(build).parameters else {}
    task = build(shape, classes, **known, **loaded.model.options)
    plans = run.check_setup(assemble(loaded, federation(loaded), task), rehearsed=False)
    assert list(plans) == [entry.label for entry in loaded.algorithms]
