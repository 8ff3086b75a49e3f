"""Who goes on with results of other settings of JAX, code or data is refused, or goes on by force and says so."""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import jax
import numpy as np
import pytest

import fljax
from fljax import algorithms, data, games, models, report
from fljax import config as configuration
from fljax.config import reading
from fljax.core.sameness import FORCED, SETTINGS, WENT_ON
from fljax.experiments import certify, run, sweep, worth
from fljax.experiments.conductor import Saving
from fljax.results import folders
from fljax.results.identity import CHECKPOINTS, begin_checkpoints
from tests.toys.configs import BASE, results

pytestmark = pytest.mark.usefixtures("quick_compilation")

OWN = """
import numpy as np
from fljax import algorithms, data, models
from fljax.data import PARTITIONERS
import own_helpers

OPTIONS = {"scale": 1.0}

def algorithm(task, local, clients_per_round=None):
    inner = algorithms.fedavg(task, local=local, clients_per_round=clients_per_round)
    return inner._replace(aggregate=lambda *given: own_helpers.kept(inner.aggregate(*given)))

def partition(labels, *, clients, unseen, seed):
    return PARTITIONERS["iid"](labels, clients=clients, unseen=unseen, seed=seed + 0)

def model(input_shape, classes):
    task = models.logistic_regression(input_shape, classes)
    return task._replace(loss=lambda logits, labels: OPTIONS["scale"] * task.loss(logits, labels))

def dataset():
    rows = np.loadtxt("rows.csv", delimiter=",")
    return data.Dataset(rows[:, :2].astype(np.float32), rows[:, 2].astype(np.int32), 2, len(rows), 0.0, 1.0)
"""
HELPERS = """
def kept(value):
    return value
"""
RAW: dict[str, Any] = {
    "seeds": 5,
    "rounds": 2,
    "evaluate_every": 1,
    "data": {"dataset": "own_parts:dataset", "partition": "own_parts:partition", "clients": 3},
    "model": {"name": "own_parts:model"},
    "local": {"learning_rate": 0.1, "batch_size": 4, "steps": 1},
    "standalone": {"steps": 1},
    "algorithms": [{"name": "fedavg"}, {"name": "own_parts:algorithm", "label": "own"}],
}
GRID = {"sweep": {"grid": {"local.learning_rate": [0.1, 0.2]}, "metric": "average_accuracy"}}
OTHER = {
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
    "jax_random_seed_offset": 7,
    "jax_numpy_dtype_promotion": "strict",
    "jax_default_matmul_precision": "bfloat16",
}
SET = [name for name in SETTINGS if hasattr(jax.config, name)]
# What is edited, and the words about it. Each changes what the run computes, or its data.
EDITS = {
    "the algorithm": ("own_parts.py", "kept(inner.aggregate(*given))", "kept(inner.aggregate(*given[:]))", "algorithm"),
    "its helper": ("own_helpers.py", "return value", "return value or None", "algorithm"),
    "the partition": ("own_parts.py", "seed + 0", "seed + 1", "partition"),
    "a constant of the model": ("own_parts.py", '"scale": 1.0', '"scale": 0.5', "model"),
    "the data file": ("rows.csv", "0.25", "0.5", "data"),
}


def other(name: str) -> Any:
    now: Any = getattr(jax.config, name)
    if name in OTHER:
        return OTHER[name]
    return not now if isinstance(now, bool) else next(each for each in cast(Any, type(now)) if each != now)


@contextlib.contextmanager
def setting(name: str) -> Iterator[None]:
    """JAX with another value of a setting."""
    before = getattr(jax.config, name)
    jax.config.update(name, other(name))
    try:
        yield
    finally:
        jax.config.update(name, before)


@pytest.fixture
def place(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A folder with a user's module and data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    draws = np.random.default_rng(0)
    rows = np.column_stack([draws.integers(0, 4, (60, 2)) / 4, np.arange(60) % 2])
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", fmt="%g")
    (tmp_path / "own_parts.py").write_text(OWN)
    (tmp_path / "own_helpers.py").write_text(HELPERS)
    yield tmp_path
    forget()


def forget() -> None:
    """As in a new process."""
    for name in ("own_parts", "own_helpers"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def edit(place: pathlib.Path, what: str) -> str:
    name, old, new, words = EDITS[what]
    text = (place / name).read_text()
    assert old in text
    (place / name).write_text(text.replace(old, new))
    return words


def build(**changes: Any) -> Any:
    forget()
    return configuration.parse(RAW | changes, name="tiny")


def result_of(folder: pathlib.Path) -> dict[str, str]:
    return {
        "forced": folders.load_results(folder).metrics.attrs.get(FORCED, ""),
        "page": report.write(folder)[1].read_text(),
    }


def worth_of(folder: pathlib.Path) -> dict[str, str]:
    return {"notes": "; ".join(table.notes for table in games.load(folder / folders.WORTH).tables.values())}


def certified(folder: pathlib.Path) -> dict[str, str]:
    saved = games.load_certificates(folder / folders.CERTIFICATES)
    return {"forced": "; ".join(entry.forced for entry in saved.certificates.values())}


def swept() -> Any:
    forget()
    return reading.parse_grid(RAW | GRID, name="tiny")


ASKED = certify.Question(candidates=0, deviations=("size times 10",), control=False)
# How each command runs in a folder, and where its results say what differs.
COMMANDS: dict[str, tuple[Callable[..., Any], Callable[[pathlib.Path], dict[str, str]]]] = {
    "run": (lambda **how: run.run(build(), **how), result_of),
    "sweep": (lambda **how: sweep.run(swept(), **how), result_of),
    "worth": (lambda **how: worth.run(build(seeds=1), **how), worth_of),
    "certify": (lambda **how: certify.run(build(), ASKED, **how), certified),
}


class Interrupted(Exception):
    pass


def begun(command: Callable[..., Any], folder: pathlib.Path, stage: str) -> None:
    """Results of a command that ended after an event of this stage; its last one is "saved"."""

    def end(event: Any) -> None:
        if event.stage == stage and (stage == "saved" or event.round > 0):
            raise Interrupted

    with pytest.raises(Interrupted):
        command(directory=folder, on_event=end, saving=Saving(every=0.0))


@pytest.mark.parametrize("name", SET)
def test_folders_name_the_settings_that_differ(tmp_path: pathlib.Path, name: str) -> None:
    """Of results, and of checkpoints; those of an older fljax go on, and it is said."""
    text = "rounds = 4\n"
    with folders.claim(tmp_path, text):
        folders.save_results(tmp_path, results("fedavg"), text)
        begin_checkpoints(tmp_path, text, None)
    for what in ("checkpoints", "results"):
        with setting(name):
            with pytest.raises(ValueError, match=rf"{what} .*: {name} is .* there and .* here \(--force"):
                folders.claim(tmp_path, text, resume=True).__enter__()
            with folders.claim(tmp_path, text, resume=True, force=True) as claimed:
                assert f"{WENT_ON}{name} is" in claimed.notes[0]
        shutil.rmtree(tmp_path / CHECKPOINTS, ignore_errors=True)
    with folders.claim(tmp_path, text, resume=True) as claimed:
        assert claimed.notes == ()
    folders.save_results(tmp_path, results("fedavg"), text, record="")
    with setting(name), folders.claim(tmp_path, text, resume=True) as claimed:
        assert claimed.notes == ("JAX's settings and the code of own functions are not recorded (results)",)


@pytest.mark.in_turn
@pytest.mark.parametrize("what", ["jax_random_seed_offset", "task", "algorithm", "data"])
def test_comparisons_go_on_by_force_alone(tmp_path: pathlib.Path, what: str) -> None:
    """Of a finished comparison, too: its results are those of the checkpoints."""

    def compared(**how: Any) -> Any:
        changed = what if how.pop("changed", False) else ""
        rows = data.load("blobs")
        rows = rows._replace(x=rows.x + 1) if changed == "data" else rows
        plain = models.logistic_regression(rows.x.shape[1:], rows.classes or 2)
        judge, aggregate = (lambda *given: plain.loss(*given)), (lambda *given: inner.aggregate(*given))
        if changed == "task":
            judge = lambda *given: plain.loss(*given[:])  # noqa: E731
        if changed == "algorithm":
            aggregate = lambda *given: inner.aggregate(*given[:])  # noqa: E731
        task, local = plain._replace(loss=judge), fljax.Local(0.1, 4, steps=1)
        federation = data.federate(rows, "iid", clients=3)
        inner = algorithms.fedavg(task, local, clients_per_round=3)
        with setting(changed) if changed in OTHER else contextlib.nullcontext():
            given = {"own": inner._replace(aggregate=aggregate)}
            return fljax.compare(given, federation, task, local, rounds=2, progress=False, checkpoint=tmp_path, **how)

    assert FORCED not in compared().metrics.attrs
    assert FORCED not in compared().metrics.attrs
    words = {"task": "code of .*compared.*lambda", "algorithm": "code of .*compared.*lambda"}.get(what, what)
    with pytest.raises(ValueError, match=rf"{words}.*force=True"):
        compared(changed=True)
    found = compared(changed=True, force=True)
    assert re.search(words, found.metrics.attrs[FORCED])
    assert re.search(words, found.report(tmp_path / "page.html").read_text())


@pytest.mark.thorough
def test_parts_of_a_sweep_are_of_one_experiment(tmp_path: pathlib.Path) -> None:
    grid = reading.parse_grid(BASE | GRID | {"algorithms": [{"name": "fedavg"}]}, name="tiny")
    for number, part in enumerate(sweep.split(grid, 2), 1):
        with setting("jax_random_seed_offset") if number == 2 else contextlib.nullcontext():
            sweep.run_part(part, sweep.folder_of(tmp_path, number, 2))
    with pytest.raises(ValueError, match=r"got 2-of-2 that differs from 1-of-2: jax_random_seed_offset is 0 there and"):
        sweep.join_parts(grid, tmp_path, 2)
    assert sweep.join_parts(grid, tmp_path, 2, force=True)[0] is not None
    assert "jax_random_seed_offset" in result_of(tmp_path)["forced"]


@pytest.mark.thorough
@pytest.mark.parametrize("stage", ["train", "saved"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_change_is_refused_or_told_in_the_results(place: pathlib.Path, name: str, stage: str) -> None:
    command, said = COMMANDS[name]
    begun(command, place / "begun", stage)
    sources = {path: path.read_bytes() for path in place.iterdir() if path.is_file()}
    changes = [*EDITS, *(each for each in OTHER if "promotion" not in each)][stage == "saved" :: 2]
    for number, what in enumerate(["nothing", *changes]):
        folder = place / str(number)
        shutil.copytree(place / "begun", folder)
        words = edit(place, what) if what in EDITS else what
        with setting(what) if what in OTHER else contextlib.nullcontext():
            if what != "nothing":
                with pytest.raises(ValueError, match=words):
                    command(directory=folder, resume=True)
            events: list[Any] = []
            command(directory=folder, resume=True, saving=Saving(force=True), on_event=events.append)
        told = [event.message for event in events if event.message.startswith(WENT_ON)]
        assert any(words in message for message in told) == (what != "nothing"), (what, told)
        for where, text in said(folder).items():
            assert words in text if told else WENT_ON not in text, (what, where)
        for path, content in sources.items():
            path.write_bytes(content)
