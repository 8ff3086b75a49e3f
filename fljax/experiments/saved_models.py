"""Trained models in a run folder: arrays in NumPy's format; the run's config restores the models from them.

    from fljax import saved_models

    models = saved_models.load("runs/my-run", "incfl")
    logits = models.predict(client=3, x=x)

models/LABEL.npz            of the last round
models/best/LABEL.npz       of the best evaluation of each seed, by validation rows
models/round-20/LABEL.npz   of the evaluation after 20 rounds

A file has the state of one algorithm (server and clients, all seeds) and its arguments by seed, such as thresholds. It
has no code and no pickle. The files of an algorithm are written before its results, which say that it is finished.
Checkpoints of an algorithm in progress are refused if one of two runs keeps the best models and the other does not.

Loading needs no data (``fljax.experiments.outlines``), and names in the config must be importable. Only a model that
depends on its client's rows when it is used reads them, and refuses data that have changed. ``fljax.load`` is a run
folder as a value, with metrics and models.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fljax import config as configuration
from fljax.contributions import RoundMeasure
from fljax.core import processes
from fljax.core.files import part_of, read_npz, write, write_npz
from fljax.core.names import unknown
from fljax.core.trees import path_of as path_of_leaf
from fljax.engine import Models, Plan, arrays_of, checksum_of, common_models, restore
from fljax.experiments import outlines
from fljax.experiments.inputs.preparation import models_by_client, setup_of, with_pool
from fljax.experiments.inputs.setup import COMMON, SEEDS, Setup, assemble, build_task, build_world, resolve_setup
from fljax.experiments.programs import check_setup
from fljax.protocol import Federation
from fljax.results import BestModels, Result, folders

__all__ = ["load", "path_of", "save"]

STATE, GIVEN, BEST = "state", "by_seed", "best."
BEGIN = "begin.npz"
_ROUND = "round-"
WHICH = ("last", "best")


def path_of(directory: str | pathlib.Path, label: str, which: str = "last", round: int | None = None) -> pathlib.Path:
    """The file of an algorithm's models: of the last round, the "best" evaluation, or the evaluation after a round."""
    part = f"{_ROUND}{round}" if round is not None else "" if which == "last" else which
    return folders.models_of(pathlib.Path(directory), label, part)


def rounds_of(directory: str | pathlib.Path, label: str) -> list[int]:
    """The rounds after which models of an algorithm were saved."""
    names = [path.name for path in (pathlib.Path(directory) / folders.MODELS).glob(f"{_ROUND}*")]
    rounds = [int(name.removeprefix(_ROUND)) for name in names if name.removeprefix(_ROUND).isdigit()]
    return sorted(round for round in rounds if path_of(directory, label, round=round).is_file())


def save(
    directory: str | pathlib.Path, label: str, plan: Plan, result: Result, more: Mapping[str, np.ndarray] | None = None
) -> pathlib.Path:
    """Writes the models of one algorithm after its last round, atomically: the file is complete or absent.

    Args:
      directory: the run folder.
      label: label of the algorithm.
      plan: the algorithm's plan, from ``fljax.experiments.inputs.preparation.build_plan``.
      result: the Result of ``simulate`` for this plan.
      more: further arrays of the file, by names of their own.

    Returns:
      The path of the file.

    Raises:
      OSError: if the file cannot be written.
    """
    return _write(path_of(directory, label), plan, result.state, **_shared(result), **(more or {}))


def _shared(result: Result | BestModels) -> dict[str, np.ndarray]:
    """The seeds, and the common model of each, from which a config may start (``inputs.setup``)."""
    common = common_models(result.deployed)  # type: ignore[arg-type]
    leaves = jax.tree_util.tree_leaves_with_path(common)
    arrays = {COMMON + path_of_leaf(path): np.asarray(leaf) for path, leaf in leaves}
    return arrays | {SEEDS: np.asarray(result.state.seed)}


def _write(path: pathlib.Path, plan: Plan, state: PyTree, **more: np.ndarray) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {STATE + name: values for name, values in arrays_of(state).items()}
    arrays |= {GIVEN + name: values for name, values in arrays_of(dict(plan.by_seed)).items()}
    arrays |= more
    write_npz(path, arrays)
    return path


def state_of(
    directory: pathlib.Path, label: str, plan: Plan, setup: Setup, rounds: int, *, trial: bool = False
) -> PyTree:
    """The state in an algorithm's models after the last round, from which ``simulate`` goes on; process 0 reads it."""
    # ``keep_beginning`` copies what later models replace.
    copied, path = folders.checkpoints_of(directory, label) / BEGIN, path_of(directory, label)

    def state_in(file: pathlib.Path) -> PyTree:
        arrays = processes.agreed(lambda: _after(file, rounds))
        try:
            # A trial has placeholders.
            if not trial:
                earlier = arrays.get(f"{GIVEN}['contribution']")
                _check_contribution(earlier, plan.by_seed.get("contribution"), rounds, label)
            return restore(plan, setup.federation, part_of(arrays, STATE), seeds=setup.seeds).state
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None

    if processes.agreed(copied.is_file):
        with contextlib.suppress(ValueError):  # a damaged copy is made again
            return state_in(copied)
    return state_in(path)


def _check_contribution(earlier: Any, now: Any, rounds: int, label: str) -> None:
    """Raises a ValueError if contributions ``[seeds, *rounds, N]`` of the rounds done were others."""
    if earlier is None or now is None:
        return
    first, second = (
        numbers[:, None] if numbers.ndim == 2 else numbers[:, np.minimum(np.arange(rounds), numbers.shape[1] - 1)]
        for numbers in (np.asarray(earlier), np.asarray(now))
    )
    if not np.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True):  # devices round differently
        raise ValueError(
            f"expected the contributions that {label} had until round {rounds}, got others; they need another folder"
        )


def keep_beginning(directory: pathlib.Path, label: str, rounds: int) -> None:
    """Copies the models from which an algorithm goes on, which its later models replace; process 0 does."""
    copied = folders.checkpoints_of(directory, label) / BEGIN
    if not processes.is_first():
        return
    with contextlib.suppress(ValueError):
        _after(copied, rounds)
        return
    copied.parent.mkdir(exist_ok=True, parents=True)
    write(copied, path_of(directory, label).read_bytes())


def _after(path: pathlib.Path, rounds: int) -> dict[str, np.ndarray]:
    """The arrays of a file; raises a ValueError unless they are of a state after so many rounds."""
    arrays = read_npz(path, "models")
    done = sorted(set(arrays.get(f"{STATE}.round", np.zeros(0, int)).ravel().tolist()))
    if done != [rounds]:
        got = " and ".join(map(str, done)) or "none"
        raise ValueError(f"expected models after round {rounds} in {str(path)!r}, got those after round {got}")
    return arrays


class ModelFiles(NamedTuple):
    """What a run saves of its models."""

    directory: pathlib.Path | None  # None: nothing is saved
    which: str  # "none", "last", "best" or "all": every evaluation, the last and, by validation rows, the best

    def begin(self, setup: Setup) -> None:
        """Writes the facts about the data that models need; with several processes, process 0 does."""
        if self.directory is None or self.which == "none" or setup.world is None or not processes.is_first():
            return
        federation, dataset, names = setup.world
        outlines.save_outline(self.directory, outlines.contents(federation, dataset, names), checksum_of(federation))

    def arguments(self, setup: Setup, label: str, plan: Plan) -> Mapping[str, Any]:
        """Arguments of ``simulate`` by which a run keeps the models to save."""
        if self.directory is None or self.which in ("none", "last"):
            return {}
        # Not the evaluations for decisions of scenarios, which the first algorithm alone has.
        usual = {*range(0, setup.rounds, setup.evaluate_every), setup.rounds}
        judged = bool(np.any(np.asarray(setup.federation.clients.valid.size) > 0))
        arguments: dict[str, Any] = {"keep_best": usual} if self.which == "best" or judged else {}
        return arguments | ({"on_evaluated": self._writer(label, plan, usual)} if self.which == "all" else {})

    def _writer(self, label: str, plan: Plan, usual: set[int]) -> Callable[[int, PyTree], None]:
        def evaluated(done: int, state: PyTree) -> None:
            if self.directory is not None and done in usual:
                _write(path_of(self.directory, label, round=done), plan, state)

        return evaluated

    def save(self, label: str, plan: Plan, result: Result) -> None:
        """Writes the models of an algorithm that is finished; of several processes, process 0 does."""
        if self.directory is None or self.which == "none" or not processes.is_first():
            return
        best = result.best
        if best is not None:
            path = path_of(self.directory, label, "best")
            chosen = {f"{BEST}round": best.round, f"{BEST}value": best.value}
            _write(path, plan, best.state, **chosen, **_shared(best))
        if self.which != "best":
            save(self.directory, label, plan, result)

    def absent(self, labels: list[str]) -> list[str]:
        """The algorithms without models of the requested kind."""
        if self.directory is None or self.which == "none":
            return []
        kind = "best" if self.which == "best" else "last"
        return [label for label in labels if not path_of(self.directory, label, kind).is_file()]


def load(
    directory: str | pathlib.Path,
    label: str,
    which: str = "last",
    round: int | None = None,
    *,
    setup: Setup | None = None,
    imports: bool = True,
) -> Models:
    """The models of one algorithm of a run with ``--save-models``.

    Args:
      directory: the run folder, with ``config.toml``.
      label: label of the algorithm.
      which: "last": after the last round. "best": of each seed's best evaluation by validation rows.
      round: the number of rounds done at an evaluation, in place of ``which``; for runs with ``--save-models all``.
      setup: of the run's config, if it is resolved already, with its data.
      imports: as for ``fljax.config.load``.

    Returns:
      ``deployed(client)`` and ``predict(client, x)`` as in ``Result``, and the state, from which ``simulate`` can
      continue.

    Raises:
      ValueError: if there are no models of this label, or they do not fit the config.
    """
    folders.check_own_files(pathlib.Path(directory))
    written = pathlib.Path(directory) / "config.toml"
    if not written.is_file():
        raise ValueError(f"expected a run folder with config.toml, got {str(directory)!r}")
    outline = outlines.load_outline(pathlib.Path(directory))
    folders.check_origin(pathlib.Path(directory))
    config = configuration.load(written, imports=imports, needs_data=outline is None)
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
    if entries[label].pooled:
        setup = with_pool(setup)
        entry = setup.algorithms[setup.labels.index(label)]
        plan = check_setup(setup, rehearsed=False)[label]
        return models_by_client(restored(setup_of(setup, entry), plan, label, stored, None), setup)
    return restored(setup, check_setup(setup, rehearsed=False)[label], label, stored, rows)


def with_placeholders(setup: Setup) -> Setup:
    """A setup with any contributions, as those of the run are beside its models; measures of rounds have a state."""
    numbers = (0.5,) * setup.clients
    entries = (
        entry if isinstance(entry.contribution, RoundMeasure) else entry._replace(contribution=numbers)
        for entry in setup.algorithms
    )
    return setup._replace(algorithms=tuple(entries))


def restored(
    setup: Setup, plan: Plan, label: str, stored: Mapping[str, np.ndarray], rows: Callable[[], Federation] | None
) -> Models:
    """The models in a file, whose arrays ``stored`` replace the placeholders of the plan."""
    paths, structure = jax.tree_util.tree_flatten_with_path(dict(plan.by_seed))
    names = [GIVEN + jax.tree_util.keystr(path) for path, _ in paths]
    if {name for name in stored if name.startswith(GIVEN)} != set(names):
        raise ValueError(f"expected models of {label} as the config or the call has it, got those of another algorithm")
    by_seed = jax.tree.unflatten(structure, [jnp.asarray(stored[name]) for name in names])
    plan, precision = plan._replace(by_seed=by_seed), setup.execution.precision
    state = part_of(stored, STATE)
    return restore(plan, setup.federation, state, seeds=setup.seeds, precision=precision, rows=rows)


def _read_rows(written: pathlib.Path, checksum: int) -> Federation:
    """The federation of a run with its rows, when a model needs them."""
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
    """The file of some models."""
    if which not in WHICH:
        raise ValueError(unknown("model", which, WHICH))
    path = path_of(directory, label, which, round)
    if path.is_file():
        return path
    rounds = rounds_of(directory, label)
    if round is not None and rounds:
        known = ", ".join(map(str, rounds))
        raise ValueError(f"expected one of the rounds {known}, after which models of {label} were saved, got {round}")
    option = "all" if round is not None else which
    others = [kind for kind in WHICH if path_of(directory, label, kind).is_file()]
    got = f"models of {' and '.join(others)} only" if others else "no such file"
    raise ValueError(f"expected {str(path)!r}, which fljax run --save-models {option} writes, got {got}")
