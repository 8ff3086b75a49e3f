"""Trained models in a run folder: arrays in NumPy's format; the run's config restores the models from them.

    from fljax import saved_models

    models = saved_models.load("runs/my-run", "incfl")
    logits = models.predict(client=3, x=x)

A file has the state of one algorithm (server and clients, all seeds) and its arguments by seed, such as thresholds. It
has no code and no pickle. Loading reads the data again, and names in the config must be importable.
"""

from __future__ import annotations

import io
import pathlib
import zipfile

import jax
import jax.numpy as jnp
import numpy as np

from fljax import config as configuration
from fljax import experiment, folders
from fljax.engine import Models, Plan, arrays_of, restore
from fljax.naming import file_name, unknown
from fljax.results import Result
from fljax.setup import resolve_setup

_STATE, _GIVEN = "state", "by_seed"


def path_of(directory: str | pathlib.Path, label: str) -> pathlib.Path:
    """The file of an algorithm's models: ``models/LABEL.npz``, with the label as ``naming.file_name`` writes it."""
    return pathlib.Path(directory) / folders.MODELS / f"{file_name(label)}.npz"


def save(directory: str | pathlib.Path, label: str, plan: Plan, result: Result) -> pathlib.Path:
    """Writes the models of one algorithm atomically: the file is complete or absent.

    Args:
      directory: the run folder.
      label: label of the algorithm.
      plan: the algorithm's plan, from ``fljax.plans.build_plan``.
      result: the Result of ``simulate`` for this plan.

    Returns:
      The path of the file.

    Raises:
      OSError: if the file cannot be written.
    """
    path = path_of(directory, label)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {_STATE + name: values for name, values in arrays_of(result.state).items()}
    arrays |= {_GIVEN + name: values for name, values in arrays_of(dict(plan.by_seed)).items()}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    folders.write(path, buffer.getvalue())
    return path


def load(directory: str | pathlib.Path, label: str) -> Models:
    """The models of one algorithm of a run with ``--save-models``.

    Args:
      directory: the run folder, with ``config.toml``.
      label: label of the algorithm.

    Returns:
      ``deployed(client)`` and ``predict(client, x)`` as in ``Result``, and the state, from which ``simulate`` can
      continue.

    Raises:
      ValueError: if there are no models of this label, or they do not fit the config.
    """
    path, written = path_of(directory, label), pathlib.Path(directory) / "config.toml"
    if not written.is_file():
        raise ValueError(f"expected a run folder with config.toml, got {str(directory)!r}")
    config = configuration.load(written)
    folders.check_origin(pathlib.Path(directory), configuration.dumps(config))
    entries = {entry.label: entry for entry in config.algorithms}
    if label not in entries:
        raise ValueError(unknown("label", label, entries))
    if not path.is_file():
        raise ValueError(f"expected {str(path)!r}, which fljax run --save-models writes, got no such file")
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"expected whole models in {str(path)!r}, got a damaged file ({error})") from None
    setup = resolve_setup(config)
    # The plan's arguments by seed are placeholders here; the stored arguments replace them.
    plan = experiment.check(setup, rehearsed=False)[label]
    paths, structure = jax.tree_util.tree_flatten_with_path(dict(plan.by_seed))
    names = [_GIVEN + jax.tree_util.keystr(each) for each, _ in paths]
    if {name for name in stored if name.startswith(_GIVEN)} != set(names):
        raise ValueError(f"expected models of {label} as the config has it, got those of another algorithm")
    by_seed = jax.tree.unflatten(structure, [jnp.asarray(stored[name]) for name in names])
    state = {name.removeprefix(_STATE): values for name, values in stored.items() if name.startswith(_STATE)}
    plan, precision = plan._replace(by_seed=by_seed), setup.execution.precision
    return restore(plan, setup.federation, state, seeds=setup.seeds, precision=precision)
