"""Trained models in a run folder: arrays in NumPy's format; the run's config restores the models from them.

    from fljax import saved_models

    models = saved_models.load("runs/my-run", "incfl")
    logits = models.predict(client=3, x=x)

A file has the state of one algorithm (server and clients, all seeds) and its arguments by seed, such as thresholds. It
has no code and no pickle. Loading needs no data (``fljax.experiments.outputs.outlines``), and names in the config must
be importable. Only a model that depends on its client's rows when it is used reads them, and refuses data that have
changed. ``fljax.load`` is a run folder as a value, with metrics and models.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from fljax import config as configuration
from fljax.core.files import read_npz
from fljax.core.names import unknown
from fljax.engine import Models, Plan, checksum_of, restore
from fljax.experiments.inputs.setup import Setup, assemble, build_task, build_world, resolve_setup
from fljax.experiments.outputs import outlines
from fljax.experiments.outputs.model_files import GIVEN, STATE, path_of, rounds_of, save
from fljax.experiments.programs import check
from fljax.protocol import Federation
from fljax.results import folders

__all__ = ["load", "path_of", "save"]

WHICH = ("last", "best")


def load(
    directory: str | pathlib.Path,
    label: str,
    which: str = "last",
    round: int | None = None,
    *,
    setup: Setup | None = None,
) -> Models:
    """The models of one algorithm of a run with ``--save-models``.

    Args:
      directory: the run folder, with ``config.toml``.
      label: label of the algorithm.
      which: "last": after the last round. "best": of each seed's best evaluation by validation rows.
      round: the number of rounds done at an evaluation, in place of ``which``; for runs with ``--save-models all``.
      setup: of the run's config, if it is resolved already, with its data.

    Returns:
      ``deployed(client)`` and ``predict(client, x)`` as in ``Result``, and the state, from which ``simulate`` can
      continue.

    Raises:
      ValueError: if there are no models of this label, or they do not fit the config.
    """
    written = pathlib.Path(directory) / "config.toml"
    if not written.is_file():
        raise ValueError(f"expected a run folder with config.toml, got {str(directory)!r}")
    outline = outlines.load(pathlib.Path(directory))
    config = configuration.load(written, needs_data=outline is None)
    folders.check_origin(pathlib.Path(directory), configuration.dumps(config))
    entries = {entry.label: entry for entry in config.algorithms}
    if label not in entries:
        raise ValueError(unknown("label", label, entries))
    stored = read_npz(find(directory, label, which, round), "models")
    config, rows = config.model_copy(update={"requirement": None}), None  # its numbers are among the stored ones
    if setup is None and outline is not None:
        setup = assemble(config, outline.federation, build_task(config, outline.dataset, initial=False))
        rows = functools.partial(_read_rows, written, outline.checksum)
    setup = resolve_setup(config) if setup is None else setup
    if rows is None and setup.federation.moments is not None:
        raise ValueError(
            f"expected {outlines.FILE} with the scale of the features in {str(directory)!r}, got none: an older fljax, "
            "which scaled them otherwise, saved these models, and can use them"
        )
    setup = with_placeholders(setup)
    return restored(setup, check(setup, rehearsed=False)[label], label, stored, rows)


def with_placeholders(setup: Setup) -> Setup:
    """A setup whose contributions are any numbers, since those of the run are stored beside its models.

    Files of contributions are then not read, and no task needs a score.
    """
    numbers = (0.5,) * setup.clients
    return setup._replace(algorithms=tuple(each._replace(contribution=numbers) for each in setup.algorithms))


def restored(
    setup: Setup, plan: Plan, label: str, stored: Mapping[str, np.ndarray], rows: Callable[[], Federation] | None
) -> Models:
    """The models in a file.

    Args:
      setup: of the run.
      plan: of the algorithm, with placeholders in place of arguments by seed; the stored arguments replace them.
      label: of the algorithm.
      stored: the arrays of the file.
      rows: as for ``fljax.engine.restore``.

    Raises:
      ValueError: if the arrays do not fit the plan.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(dict(plan.by_seed))
    names = [GIVEN + jax.tree_util.keystr(each) for each, _ in paths]
    if {name for name in stored if name.startswith(GIVEN)} != set(names):
        raise ValueError(f"expected models of {label} as the config or the call has it, got those of another algorithm")
    by_seed = jax.tree.unflatten(structure, [jnp.asarray(stored[name]) for name in names])
    state = {name.removeprefix(STATE): values for name, values in stored.items() if name.startswith(STATE)}
    plan, precision = plan._replace(by_seed=by_seed), setup.execution.precision
    return restore(plan, setup.federation, state, seeds=setup.seeds, precision=precision, rows=rows)


def _read_rows(written: pathlib.Path, checksum: int) -> Federation:
    """The federation of a run with its rows, when a model needs them.

    Raises:
      ValueError: if the data are not there, or have changed.
    """
    needed = "expected the data of the run for a model that depends on its client's rows when it is used"
    try:
        config = configuration.load(written)
        federation = build_world(config).federation
    except ValueError as error:
        raise ValueError(f"{needed}, got none: {error}") from None
    if checksum_of(federation) != checksum:
        raise ValueError(f"{needed}, got data that have changed: {config.data.dataset}")
    return federation


def find(directory: str | pathlib.Path, label: str, which: str = "last", round: int | None = None) -> pathlib.Path:
    """The file of some models.

    Raises:
      ValueError: if it does not exist; the sentence says which option writes it.
    """
    if which not in WHICH:
        raise ValueError(unknown("model", which, WHICH))
    path = path_of(directory, label, which, round)
    if path.is_file():
        return path
    rounds = rounds_of(directory, label)
    if round is not None and rounds:
        there = ", ".join(map(str, rounds))
        raise ValueError(f"expected one of the rounds {there}, after which models of {label} were saved, got {round}")
    option = "all" if round is not None else which
    others = [each for each in WHICH if path_of(directory, label, each).is_file()]
    got = f"models of {' and '.join(others)} only" if others else "no such file"
    raise ValueError(f"expected {str(path)!r}, which fljax run --save-models {option} writes, got {got}")
