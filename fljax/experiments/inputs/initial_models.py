"""``[model] initial`` of a config: the model from which clients, server and standalone models start, in all seeds.

It is ``RUN:LABEL``, the common model of that algorithm (``initial_seed`` says whose), or a file of parameters. A run's
file of models has its common models apart, so they are read without the data and the code that trained them. A run
splits its data by seed, so the training rows of a seed of that run may be test rows of another seed here.
"""

from __future__ import annotations

import pathlib

import jax
import numpy as np

from fljax import models
from fljax.core.files import read_npz
from fljax.core.names import unknown
from fljax.protocol import Task
from fljax.results import folders

COMMON, SEEDS = "common/", "seeds"


def with_initial(task: Task, initial: str | None, seed: int | None = None) -> Task:
    """The task that starts from what a config names (``seed``: one of ``RUN``'s seeds); None: the task itself."""
    # All seeds start from one model, since ``Task.init`` knows no seed but its key.
    if initial is None:
        if seed is not None:
            raise ValueError(f"model.initial_seed: expected model.initial = 'RUN:LABEL' with it, got {seed} alone")
        return task
    try:
        run = _run_of(initial)
        if run is None:
            if seed is not None:
                raise ValueError(f"expected no initial_seed for a file of parameters, got {seed}")
            return models.start_from(task, models.load_params(initial, task))
        return models.start_from(task, models.params_of(_common(*run, seed), task, initial))
    except ValueError as error:
        raise ValueError(f"model.initial: {error}") from None


def _run_of(initial: str) -> tuple[pathlib.Path, str] | None:
    """The run folder and the label; a label may have colons, too. None: it is no run folder."""
    places = [place for place, letter in enumerate(initial) if letter == ":"]
    for place in places:
        if _is_run(pathlib.Path(initial[:place])):
            return pathlib.Path(initial[:place]), initial[place + 1 :]
    if _is_run(pathlib.Path(initial)):
        raise ValueError(f"expected a run folder with a label, '{initial}:LABEL', got {initial!r}")
    if places and not pathlib.Path(initial).exists():
        got = initial[: places[-1]]
        raise ValueError(f"expected a run folder, or a file of parameters, got {got!r}, which is no run folder")
    return None


def _writer(folder: pathlib.Path) -> str:
    """What writes models to a folder."""
    of_a_run = (folder / folders.CONFIG).is_file()
    return "fljax run --save-models last" if of_a_run else "Comparison.save(folder, models='last')"


def _is_run(folder: pathlib.Path) -> bool:
    return any((folder / name).is_file() for name in (folders.CONFIG, folders.COMPARISON))


def _common(folder: pathlib.Path, label: str, seed: int | None) -> dict[str, np.ndarray]:
    """The common model of an algorithm of a run, by path: the last one, or the best one if only that was saved."""
    folders.check(folder)
    labels = folders.labels_of(folder)
    if label not in labels:
        raise ValueError(unknown("label", label, labels))
    paths = [folders.models_of(folder, label, part) for part in ("", "best")]
    path = next((each for each in paths if each.is_file()), None)
    if path is None:
        raise ValueError(f"expected {str(paths[0])!r}, which {_writer(folder)} writes, got no such file")
    arrays = read_npz(path, "models", (COMMON, SEEDS))
    common = {name.removeprefix(COMMON): values for name, values in arrays.items() if name.startswith(COMMON)}
    seeds = arrays[SEEDS].tolist() if SEEDS in arrays else []
    if not common:
        raise ValueError(f"expected an algorithm with a model that all clients share, got {label!r}, which has none")
    if seed is None and len(seeds) > 1:
        raise ValueError(f"expected model.initial_seed, one of the seeds {seeds} of {str(folder)!r}, got none")
    if seed is not None and seed not in seeds:
        raise ValueError(f"expected model.initial_seed to be one of the seeds {seeds} of {str(folder)!r}, got {seed}")
    return jax.tree.map(lambda values: values[0 if seed is None else seeds.index(seed)], common)
