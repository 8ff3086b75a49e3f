"""Several algorithms side by side, and their folder, which has models whose code the caller gives again.

    comparison = fljax.compare(["fedavg", "incfl"], federation, task, local, rounds=50)
    comparison.save("runs/mine", models="last")

    run = fljax.load("runs/mine", algorithms=["fedavg", "incfl"], task=task, local=local)
    run.predict("incfl", client=3, x=x)

The folder has arrays and no code. Arguments of the caller are compared with the arguments that made the models, so
other hyper-parameters, or another model of the same shapes, are refused.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import tomllib
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import xarray as xr

from fljax.contributions import Measure
from fljax.core.errors import writing_to
from fljax.core.files import read_npz, write
from fljax.core.plain import plain
from fljax.core.sameness import without_later
from fljax.data import stack
from fljax.engine import Execution, Models, Plan, checksum_of, plan_identity
from fljax.engine.programs.program import Inputs, Spec, partition_plan
from fljax.engine.rounds.states import by_id
from fljax.experiments import outlines, saved_models
from fljax.experiments.conductor import Outcome
from fljax.experiments.inputs.entrants import DOUBLE, described, entrants, marks_of, settings_text
from fljax.experiments.inputs.setup import AlgorithmSetup, Setup
from fljax.experiments.programs import check_setup
from fljax.protocol import AbsentRows, Federation, Task
from fljax.report.tables import Row, best_cell_rows, main_table, summary
from fljax.results import Result, Results, folders
from fljax.results.clients import gains_frame
from fljax.results.events import at_end
from fljax.results.folders import COMPARISON, CONFIG, ENVIRONMENT, LOCK, LOG, MODELS, RESULTS
from fljax.results.identity import differences, write_environment
from fljax.results.non_finite import InfiniteLoss, diverged_seeds
from fljax.results.stores import copy, is_long
from fljax.results.sweeps import axes_of
from fljax.training import Local

if TYPE_CHECKING:
    import pandas as pd

SavedModels = Literal["none", "last"]
_IDENTITY = "identity"


class Comparison(NamedTuple):
    """Several algorithms side by side, from ``fljax.compare`` or ``fljax.run_config``.

    Attributes:
      name: of the experiment.
      metrics: over ``algorithm, seed, evaluated_round, client | unseen``; see ``fljax list metrics``.
      records: over ``algorithm, seed, round, row``.
      results: the Result of each algorithm by label, with trained models. Algorithms that a resumed run did not repeat
        have none.
      diverged: ``(label, seed, round)`` of runs in which a NaN or infinity appeared.
      infinite: evaluations with an infinite loss of finite parameters.
      origin: the text that says how it was run, by the name of its file: ``config.toml`` or ``comparison.toml``.
      outline: the facts about the data that saved models need, without rows (``fljax.experiments.outlines``).
    """

    name: str
    metrics: xr.Dataset
    records: xr.Dataset
    results: Mapping[str, Result]
    diverged: tuple[tuple[str, int, int], ...] = ()
    infinite: tuple[InfiniteLoss, ...] = ()
    origin: Mapping[str, str] = {}
    outline: Mapping[str, Any] = {}

    @classmethod
    def of(cls, name: str, outcome: Outcome, origin: Mapping[str, str]) -> Comparison:
        """The comparison of an experiment that has run."""
        metrics, records, diverged, models, infinite, outline, _ = outcome
        return cls(name, metrics, records, models, diverged, infinite, origin, outline)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the algorithms, in order; the others are compared with the first one."""
        return tuple(str(label) for label in self.metrics["algorithm"].values)

    @property
    def last(self) -> xr.Dataset:
        """The metrics at each algorithm's last evaluation, which may be an earlier one if it stopped early."""
        return at_end(self.metrics)

    def table(self) -> pd.DataFrame:
        """The table that ``fljax run`` prints, ``mean ± std`` over seeds at the last evaluation, as text.

        For a sweep, its best cells, as ``fljax sweep`` prints them.
        """
        import pandas as pd

        head, *lines = main_table(self.metrics)[0]
        return pd.DataFrame(lines, columns=pd.Index(head)).set_index("algorithm")

    def summary(self) -> pd.DataFrame:
        """Every scalar metric as numbers, a line for each algorithm and metric; ``diverged`` lists seeds that diverged.

        For a sweep, in the best cell of each algorithm; its label names the cell.
        """
        import pandas as pd

        if axes_of(self.metrics):
            rows, marks = best_cell_rows(self.metrics)
        else:
            rows, marks = summary(self.metrics), diverged_seeds(self.metrics)
        table = pd.DataFrame(rows, columns=list(Row._fields))
        return table.assign(diverged=[marks.get(str(label), "") for label in table["algorithm"]])

    def clients(self) -> pd.DataFrame:
        """Which clients gain: a line for each algorithm and client, by name if clients have names.

        The columns are the fields of ``fljax.results.clients.ClientGain``.
        """
        return gains_frame(self.metrics)

    def report(self, path: str | pathlib.Path = "report.html") -> pathlib.Path:
        """Writes the HTML page that ``fljax report`` writes for a run: tables and pictures, in one file.

        Args:
          path: the file; of a folder, ``report.html`` in it.

        Returns:
          The path of the file.

        Raises:
          ValueError: if the file cannot be written.
        """
        from fljax import report

        file = pathlib.Path(path)
        file = file / "report.html" if file.is_dir() else file
        with writing_to("a file to write the page to", path):
            report.write_page(file, self.metrics, self.records, self.name, self.origin)
        return file

    def save(
        self, folder: str | pathlib.Path, *, models: SavedModels = "none", overwrite: bool = False
    ) -> pathlib.Path:
        """Writes metrics and records, and models on request, to a folder that ``fljax.load`` opens.

        Args:
          folder: is made if it does not exist. If it already has results, another folder beside it is used and a
            warning says which, so that nothing is lost at the end of a script.
          models: "last": the models of all algorithms after the last round, too, as arrays without code. The folder
            gets names, sizes and moments of the data, and no rows. To use the models of ``fljax.compare``, give
            ``fljax.load`` the algorithms, the task and the local training again.
          overwrite: whether earlier results and models of ``save`` in this folder are replaced.

        Returns:
          The folder that was written.

        Raises:
          ValueError: if the folder belongs to a run, or cannot be written; or if an algorithm has no models. The
            results are still in this value: save them elsewhere.
        """
        return _save(self, _free(pathlib.Path(folder), overwrite), models)

    def __repr__(self) -> str:
        (head, *lines), title, _ = main_table(self.metrics)
        words = [f"Comparison of {len(self.labels)} algorithms. {title}"]
        for label, *cells in lines:
            told = (f"{column} {cell}" for column, cell in zip(head[1:], cells, strict=True) if cell)
            words.append(f"  {label}: {', '.join(told)}")
        return plain("\n".join(words))

    def _repr_html_(self) -> str:
        from fljax.core.pages import table  # imported here, since it takes a template

        lines, title, caption = main_table(self.metrics)
        return table(lines, f"{title}. {caption}.")


def _save(comparison: Comparison, folder: pathlib.Path, models: SavedModels) -> pathlib.Path:
    """Writes a comparison; arguments, result and errors are those of ``Comparison.save``."""
    ((name, text),) = comparison.origin.items()
    if models not in ("none", "last"):
        raise ValueError(f"expected models to be 'none' or 'last', got {models!r}")
    folders.check_own_files(folder)
    trained = _trained(comparison) if models == "last" else {}
    checksum = _checksum(next(iter(trained.values()))[1].federation) if trained else 0
    text = _with_models(name, text, models)
    with writing_to("a folder to write in", folder):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_models(folder)
        for other in {CONFIG, COMPARISON} - {name}:
            (folder / other).unlink(missing_ok=True)
        write(folder / name, text.encode())
        write_environment(folder / ENVIRONMENT, resumed=False)
        if trained:  # before the results, which say that all is there
            outlines.save_outline(folder, comparison.outline, checksum)
        for label, (spec, inputs) in trained.items():
            plan = Plan(spec.build, {}, inputs.by_seed)
            more = {_IDENTITY: np.asarray(json.dumps(plan_identity(spec, inputs)))}
            saved_models.save(folder, label, plan, comparison.results[label], more)
        folders.save_results(folder, Results(comparison.metrics, comparison.records), text)
        for label, result in comparison.results.items():
            if is_long(result.records):
                copy(result.records, folders.records_of(folder, label))
    return folder


def check_kinds(arguments: Mapping[str, tuple[Any, type]]) -> None:
    """Raises a ValueError if an argument is a value of another kind, for example in another's place."""
    for name, (value, kind) in arguments.items():
        if not isinstance(value, kind):
            raise ValueError(f"expected {name} to be a {kind.__name__}, got {type(value).__name__}")


class Arguments(NamedTuple):
    """What models of a comparison need again: arguments of ``fljax.compare``."""

    algorithms: tuple[AlgorithmSetup, ...]
    task: Task
    local: Local
    federation: Federation | None  # for models that depend on their client's rows when they are used


def arguments_of(algorithms: Any, task: Any, local: Any, federation: Any) -> Arguments:
    """What the caller gives."""
    needed = {"algorithms": algorithms, "task": task, "local": local}
    if lacking := [name for name, value in needed.items() if value is None]:
        raise ValueError(
            "expected algorithms, task and local together, as fljax.compare was given them, got no "
            f"{' and no '.join(lacking)}"
        )
    federation = stack(federation) if isinstance(federation, list) and federation else federation
    check_kinds({"task": (task, Task), "local": (local, Local)})
    check_kinds({} if federation is None else {"federation": (federation, Federation)})
    return Arguments(entrants(algorithms, local, Measure()), task, local, federation)


def load_models(folder: pathlib.Path, label: str, which: str, round: int | None, arguments: Arguments | None) -> Models:
    """The models of one algorithm of a comparison, after its last round, for the arguments that made them."""
    outline, path = outlines.load_outline(folder), saved_models.path_of(folder, label)
    if which != "last" or round is not None:
        asked = f"which={which!r}" if round is None else f"round={round}"
        raise ValueError(f"expected which='last', since a comparison has the models after the last round, got {asked}")
    if outline is None or not path.is_file():
        raise ValueError(
            f"expected models in {str(folder)!r}, which Comparison.save(folder, models='last') writes, got none"
        )
    if arguments is None:
        raise ValueError(
            "expected what fljax.compare was given, since a folder has no code, as in fljax.load(folder, "
            f"algorithms=..., task=..., local=...), got the folder {str(folder)!r} alone"
        )
    text = (folder / COMPARISON).read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    federation = outline.federation if arguments.federation is None else arguments.federation
    if arguments.federation is not None and checksum_of(by_id(federation)) != outline.checksum:
        raise ValueError("expected the federation of the comparison, got one with other rows or other clients")
    _check_text(raw, settings_text(described(arguments.algorithms, arguments.local)))
    before, now = raw.get("task", {}), marks_of(arguments.task, federation)
    _check_task(before, now)
    setup = Setup(
        name=raw["name"],
        federation=federation,
        task=arguments.task,
        algorithms=arguments.algorithms,
        standalone=arguments.local,
        clients_per_round=raw["clients_per_round"],
        rounds=raw["rounds"],
        seeds=tuple(raw["seeds"]),
        evaluate_every=raw["evaluate_every"],
        execution=Execution(precision=raw["precision"]),
    )
    setup = saved_models.with_placeholders(setup)
    plan, stored = check_setup(setup, rehearsed=False)[label], read_npz(path, "models")
    earlier, identity = json.loads(str(stored.pop(_IDENTITY, "{}"))), plan_identity(*partition_plan(plan, federation))
    if len({DOUBLE in of.get("jax", "") for of in (before, now)}) > 1:  # in which numbers have other bytes
        earlier, identity = ({key: of[key] for key in of if "numbers of" not in key} for of in (earlier, identity))
    _check_plan(label, earlier, identity)
    return saved_models.restored(setup, plan, label, stored, _no_rows if arguments.federation is None else None)


def _free(folder: pathlib.Path, overwrite: bool) -> pathlib.Path:
    """The folder to write a comparison to, which is no run's: the given one or, if it has results, ``NAME-2`` etc."""
    of_a_run = any((folder / name).exists() for name in (LOCK, LOG, folders.CHECKPOINTS))
    if of_a_run or ((folder / MODELS).exists() and not (folder / outlines.FILE).is_file()):
        raise ValueError(f"expected a folder that no run writes to, got {str(folder)!r}, which is that of a run")
    if overwrite or not _is_taken(folder):
        return folder
    whole = pathlib.Path(os.path.abspath(folder))
    beside = (whole.with_name(f"{whole.name}-{number}") for number in itertools.count(2))
    free = next(each for each in beside if not _is_taken(each))
    warnings.warn(
        f"{str(folder)!r} has results already, so these go to {str(free)!r}; overwrite=True replaces them", stacklevel=3
    )
    return free


def _is_taken(folder: pathlib.Path) -> bool:
    return any((folder / name).exists() for name in (RESULTS, MODELS, LOCK, LOG, folders.CHECKPOINTS))


def _remove_models(folder: pathlib.Path) -> None:
    """Removes the models of an earlier ``save``, and no other file."""
    if not (folder / outlines.FILE).is_file():
        return
    with contextlib.suppress(OSError):
        for label in folders.labels_of(folder):
            saved_models.path_of(folder, label).unlink(missing_ok=True)
        (folder / MODELS).rmdir()
    (folder / outlines.FILE).unlink()


def _trained(comparison: Comparison) -> dict[str, tuple[Spec, Inputs]]:
    """The plan of every algorithm."""
    labels = comparison.labels
    if lacking := [label for label in labels if label not in comparison.results]:
        raise ValueError(
            f"expected the models of all algorithms, got none of {', '.join(lacking)}, which an earlier process "
            "finished; the key save_models keeps the models of a run in its own folder"
        )
    if not comparison.outline:
        raise ValueError("expected a comparison of fljax.compare or fljax.run_config, got one that was made otherwise")
    return {label: comparison.results[label].deployed.parts()[0] for label in labels}  # type: ignore[attr-defined]


def _checksum(federation: Federation) -> int:
    if isinstance(federation.examples.x, AbsentRows):
        raise ValueError(
            "expected results with their data, of which saved models have a checksum, got those of a pickle, which "
            "have no rows; save the models in the process that trained them"
        )
    return checksum_of(federation)


def _with_models(name: str, text: str, models: SavedModels) -> str:
    """The text of a config or a comparison that says which models are saved."""
    line = f'save_models = "{models}"'
    lines = [line if old.startswith("save_models = ") else old for old in text.split("\n")]
    return "\n".join(lines if name == CONFIG else [line, *lines])


def _no_rows() -> Federation:
    raise ValueError(
        "expected the federation of the comparison for a model that depends on its client's rows when it is used, as "
        "in fljax.load(..., federation=federation), got none"
    )


def _check_text(raw: Mapping[str, Any], now: str) -> None:
    labels = [", ".join(entry["label"] for entry in of["algorithms"]) for of in (raw, tomllib.loads(now))]
    if labels[0] != labels[1]:
        raise ValueError(f"expected the algorithms {labels[0]} of the comparison, got {labels[1]}")
    earlier = settings_text({key: raw[key] for key in ("local", "algorithms")})
    changed = differences(earlier, now)
    for key, (old, new) in changed.items():
        raise ValueError(
            f"expected the algorithms and the local training of the comparison, got others: {key} is {old} there "
            f"and {new} here"
        )


def _check_task(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises a ValueError if a task computes otherwise than the one that was trained; another JAX cannot tell."""
    if earlier and (not now or (earlier["jax"] == now["jax"] and earlier["checksum"] != now["checksum"])):
        raise ValueError(
            "expected the task of the comparison, got one that computes otherwise: another model, loss or scale of "
            "features"
        )


def _check_plan(label: str, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    now = without_later(earlier, now)
    for key in {**earlier, **now}:
        if earlier.get(key) != now.get(key):
            what = key.removeprefix("checksum of ")
            values = "differ" if what != key else f"is {earlier.get(key)!r} there and {now.get(key)!r} here"
            raise ValueError(f"expected {label} as the comparison had it, got another: {what} {values}")
