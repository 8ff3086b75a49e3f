"""Files of trained models in a run folder, plain arrays without code; ``saved_models`` and ``load`` read them.

models/LABEL.npz            of the last round
models/best/LABEL.npz       of the best evaluation of each seed, by validation rows
models/round-20/LABEL.npz   of the evaluation after 20 rounds

The files of an algorithm's models are written before its results, which say that it is finished. Checkpoints of an
algorithm in progress are refused if one of two runs keeps the best models and the other does not.
"""

from __future__ import annotations

import contextlib
import io
import pathlib
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from fljax.core import processes
from fljax.core.trees import path_of as path_of_leaf
from fljax.engine import Plan, arrays_of, checksum_of, common_models, restore
from fljax.experiments.inputs.initial_models import COMMON, SEEDS
from fljax.experiments.inputs.setup import Setup
from fljax.experiments.outputs import outlines
from fljax.results import BestModels, Result, folders

STATE, GIVEN, BEST = "state", "by_seed", "best."
BEGIN = "begin.npz"
_ROUND = "round-"


def path_of(directory: str | pathlib.Path, label: str, which: str = "last", round: int | None = None) -> pathlib.Path:
    """The file of an algorithm's models: of the last round, the "best" evaluation, or the evaluation after a round."""
    part = f"{_ROUND}{round}" if round is not None else "" if which == "last" else which
    return folders.models_of(pathlib.Path(directory), label, part)


def rounds_of(directory: str | pathlib.Path, label: str) -> list[int]:
    """The rounds after which models of an algorithm were saved."""
    found = (pathlib.Path(directory) / folders.MODELS).glob(f"{_ROUND}*")
    numbers = [each.name.removeprefix(_ROUND) for each in found]
    rounds = [int(each) for each in numbers if each.isdigit()]
    return sorted(each for each in rounds if path_of(directory, label, round=each).is_file())


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
    """The seeds, and the common model of each, from which a config may start.

    ``fljax.experiments.inputs.initial_models`` reads them.
    """
    common = common_models(result.deployed)  # type: ignore[arg-type]
    leaves = jax.tree_util.tree_leaves_with_path(common)
    found = {COMMON + path_of_leaf(path): np.asarray(leaf) for path, leaf in leaves}
    return found | {SEEDS: np.asarray(result.state.seed)}


def _write(path: pathlib.Path, plan: Plan, state: PyTree, **more: np.ndarray) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {STATE + name: values for name, values in arrays_of(state).items()}
    arrays |= {GIVEN + name: values for name, values in arrays_of(dict(plan.by_seed)).items()}
    arrays |= more
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    folders.write(path, buffer.getvalue())
    return path


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name.

    Raises:
      ValueError: if the file is damaged.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except OSError as error:
        raise ValueError(f"expected models in {str(path)!r}, got none: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error):  # their words are NumPy's own advice
        raise ValueError(f"expected whole models in {str(path)!r}, got a damaged file") from None


def state_of(
    directory: pathlib.Path, label: str, plan: Plan, setup: Setup, rounds: int, *, trial: bool = False
) -> PyTree:
    """The state in an algorithm's models after the last round, from which ``simulate`` goes on; process 0 reads it.

    The copy of ``keep_beginning`` is read first.

    Args:
      directory: the run folder.
      label: of the algorithm.
      plan: of the algorithm.
      setup: of the run.
      rounds: the number of rounds done.
      trial: whether the plan has placeholders; its contributions are then not compared.

    Raises:
      ValueError: if the file is damaged, has a state of another algorithm or after another number of rounds, or if
        contributions were others.
    """
    copied, path = folders.checkpoints_of(directory, label) / BEGIN, path_of(directory, label)

    def state_in(file: pathlib.Path) -> PyTree:
        arrays = processes.agreed(lambda: _after(file, rounds))
        state = {name.removeprefix(STATE): values for name, values in arrays.items() if name.startswith(STATE)}
        try:
            if not trial:
                earlier = arrays.get(f"{GIVEN}['contribution']")
                _check_contribution(earlier, plan.by_seed.get("contribution"), rounds, label)
            return restore(plan, setup.federation, state, seeds=setup.seeds).state
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
        each[:, None] if each.ndim == 2 else each[:, np.minimum(np.arange(rounds), each.shape[1] - 1)]
        for each in (np.asarray(earlier), np.asarray(now))
    )
    if not np.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True):  # devices round differently
        raise ValueError(
            f"expected the contributions that {label} had until round {rounds}, got others; they need another folder"
        )


def keep_beginning(directory: pathlib.Path, label: str, rounds: int) -> None:
    """Copies the models from which an algorithm goes on, which its later models replace; process 0 does.

    Raises:
      OSError: if the disk has no room.
    """
    copied = folders.checkpoints_of(directory, label) / BEGIN
    if not processes.is_first():
        return
    with contextlib.suppress(ValueError):
        _after(copied, rounds)
        return
    copied.parent.mkdir(exist_ok=True, parents=True)
    folders.write(copied, path_of(directory, label).read_bytes())


def _after(path: pathlib.Path, rounds: int) -> dict[str, np.ndarray]:
    """The arrays of a file; raises a ValueError unless they are of a state after so many rounds."""
    arrays = read(path)
    done = sorted(set(arrays.get(f"{STATE}.round", np.zeros(0, int)).ravel().tolist()))
    if done != [rounds]:
        got = " and ".join(map(str, done)) or "none"
        raise ValueError(f"expected models after round {rounds} in {str(path)!r}, got those after round {got}")
    return arrays


class ModelFiles(NamedTuple):
    """What a run saves of its models.

    Attributes:
      directory: the run folder; None: nothing is saved.
      which: "none", "last", "best" or "all" (every evaluation, the last and, with validation rows, the best).
    """

    directory: pathlib.Path | None
    which: str

    def begin(self, setup: Setup) -> None:
        """Writes what models need to know of the data; of several processes, process 0 does.

        Raises:
          ValueError: if the folder has models of other data.
          OSError: if the file cannot be written.
        """
        if self.directory is None or self.which == "none" or setup.world is None or not processes.is_first():
            return
        federation, dataset, names = setup.world
        outlines.save(self.directory, outlines.contents(federation, dataset, names), checksum_of(federation))

    def arguments(self, setup: Setup, label: str, plan: Plan) -> Mapping[str, Any]:
        """Arguments of ``simulate`` with which a run keeps what is to be saved."""
        if self.directory is None or self.which in ("none", "last"):
            return {}
        # Not the evaluations for decisions of scenarios, which the first algorithm alone has.
        usual = {*range(0, setup.rounds, setup.evaluate_every), setup.rounds}
        judged = bool(np.any(np.asarray(setup.federation.clients.valid.size) > 0))
        found: dict[str, Any] = {"keep_best": usual} if self.which == "best" or judged else {}
        return found | ({"on_evaluated": self._each(label, plan, usual)} if self.which == "all" else {})

    def _each(self, label: str, plan: Plan, usual: set[int]) -> Callable[[int, PyTree], None]:
        def evaluated(done: int, state: PyTree) -> None:
            if self.directory is not None and done in usual:
                _write(path_of(self.directory, label, round=done), plan, state)

        return evaluated

    def save(self, label: str, plan: Plan, result: Result) -> None:
        """Writes the models of an algorithm that is finished; of several processes, process 0 does.

        Raises:
          OSError: if a file cannot be written.
        """
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
        """The algorithms that have no models of the kind that was asked for."""
        if self.directory is None or self.which == "none":
            return []
        kind = "best" if self.which == "best" else "last"
        return [label for label in labels if not path_of(self.directory, label, kind).is_file()]
