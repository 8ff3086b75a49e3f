"""``fljax.compare`` and ``fljax.run_config``: what ``fljax run`` does, as functions of Python values.

comparison = fljax.compare(["fedavg", "incfl"], federation, task, local, rounds=50, seeds=3)
comparison.table()
comparison.report("report.html")
comparison.results["incfl"].predict(3, x)
"""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import xarray as xr

from fljax import config as configuration
from fljax.config.reading import override
from fljax.contributions import Contribution, Measure
from fljax.core import processes
from fljax.core.names import html_table
from fljax.core.signatures import is_whole
from fljax.data import stack
from fljax.engine import Execution, replay
from fljax.engine.callbacks.contract import Callback
from fljax.engine.checkpoints import StopRequest
from fljax.engine.rounds.alone import Initial
from fljax.engine.rounds.keys import Seeds, seeds_of
from fljax.experiments import run
from fljax.experiments.compare_checks import check_cohorts, check_folder, fingerprint, locked, opt_out_threshold_of
from fljax.experiments.inputs.entrants import Algorithms, describe_comparison, entrants, settings_text
from fljax.experiments.inputs.requirements import Losses, Requirement, requirement_of
from fljax.experiments.inputs.setup import CallbackSetup, Setup, world_of
from fljax.experiments.outputs import saved_comparisons
from fljax.experiments.outputs.following import Watch
from fljax.experiments.outputs.model_files import ModelFiles
from fljax.experiments.outputs.progress_bars import listener, progress_bars
from fljax.experiments.outputs.progress_files import ProgressFiles, Saving
from fljax.experiments.outputs.saved_comparisons import SavedModels
from fljax.experiments.run import Outcome, Outputs
from fljax.protocol import Federation, Task
from fljax.results import Result, checkpoint_origins, folders
from fljax.results.endings import at_end
from fljax.results.folders import COMPARISON, CONFIG, OnEvent
from fljax.results.infinite_losses import InfiniteLoss
from fljax.results.non_finite import NonFinite, diverged_seeds
from fljax.training import Local, StopAlone

if TYPE_CHECKING:
    import pandas as pd


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
      outline: what saved models need to know of the data, without rows (``fljax.experiments.outputs.outlines``).
    """

    name: str
    metrics: xr.Dataset
    records: xr.Dataset
    results: Mapping[str, Result]
    diverged: tuple[tuple[str, int, int], ...] = ()
    infinite: tuple[InfiniteLoss, ...] = ()
    origin: Mapping[str, str] = {}
    outline: Mapping[str, Any] = {}

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the algorithms, in order; the others are compared with the first one."""
        return tuple(str(label) for label in self.metrics["algorithm"].values)

    @property
    def last(self) -> xr.Dataset:
        """The metrics at each algorithm's last evaluation, which may be an earlier one if it stopped early."""
        return at_end(self.metrics)

    def table(self) -> pd.DataFrame:
        """The table that ``fljax run`` prints, ``mean ± std`` over seeds at the last evaluation, as text."""
        import pandas as pd

        found = self._overview()
        index = pd.Index(list(found.lines), name="algorithm")
        return pd.DataFrame(list(found.lines.values()), index=index, columns=list(found.columns))

    def summary(self) -> pd.DataFrame:
        """Every scalar metric as numbers, a line for each algorithm and metric; ``diverged`` says which seeds did."""
        import pandas as pd

        from fljax import report

        found = pd.DataFrame(report.summary(self.metrics), columns=list(report.Row._fields))
        marks = diverged_seeds(self.metrics)
        return found.assign(diverged=[marks.get(str(label), "") for label in found["algorithm"]])

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

        found = pathlib.Path(path)
        found = found / "report.html" if found.is_dir() else found
        try:
            report.write_page(found, self.metrics, self.records, self.name, self.origin)
        except OSError as error:
            raise ValueError(f"expected a file to write the page to, got {str(path)!r} ({error.strerror})") from None
        return found

    def save(
        self, folder: str | pathlib.Path, *, models: SavedModels = "none", overwrite: bool = False
    ) -> pathlib.Path:
        """Writes metrics and records, and models if they are asked for, to a folder that ``fljax.load`` opens.

        Args:
          folder: is made if it does not exist.
          models: "last": the models of all algorithms after the last round, too, as arrays without code. The folder
            gets names, sizes and moments of the data, and no rows. To use the models of ``fljax.compare``, give
            ``fljax.load`` the algorithms, the task and the local training again.
          overwrite: whether earlier results and models of ``save`` in this folder are replaced.

        Returns:
          The folder.

        Raises:
          ValueError: if the folder has results already, or cannot be written; or if there are no models of an
            algorithm.
        """
        ((name, text),) = self.origin.items()
        return saved_comparisons.save(
            pathlib.Path(folder),
            saved_comparisons.Contents(self.metrics, self.records, self.results, name, text, self.outline),
            models,
            overwrite,
        )

    def __repr__(self) -> str:
        found = self._overview()
        lines = [f"  {label}: {', '.join(_pairs(found.columns, cells))}" for label, cells in found.lines.items()]
        return "\n".join([f"Comparison of {len(lines)} algorithms. {found.title}", *lines])

    def _repr_html_(self) -> str:
        found = self._overview()
        lines = [(label, *cells) for label, cells in found.lines.items()]
        return html_table(("algorithm", *found.columns), lines, f"{found.title}. {found.caption}.")

    def _overview(self) -> Any:
        from fljax import report

        seeds = self.metrics.sizes["seed"]
        return report.overview(report.summary(self.metrics), seeds, diverged_seeds(self.metrics))


def compare(
    algorithms: Algorithms,
    federation: Federation | list[Federation],
    task: Task,
    local: Local,
    *,
    rounds: int,
    seeds: Seeds = (0,),
    clients_per_round: int | None = None,
    standalone: Local | None = None,
    standalone_initial: Initial = "shared",
    standalone_stop: StopAlone | None = None,
    requirement: Requirement | Losses | Callable[..., Any] | None = None,
    contribution: Contribution | None = None,
    opt_out_threshold: float | Sequence[float] = 0.0,
    evaluate_every: int | None = None,
    execution: Execution | None = None,
    non_finite: NonFinite = "freeze",
    callbacks: Sequence[Callback] = (),
    checkpoint: str | pathlib.Path | None = None,
    stop: StopRequest | None = None,
    progress: bool | OnEvent = True,
    name: str = "comparison",
) -> Comparison:
    """Runs several algorithms on the same federation, seeds and standalone models.

    Standalone models are trained once. Builders get arguments by the names of their parameters, as in a config:
    ``task``, ``local``, ``clients_per_round``; from the standalone models ``threshold`` (the requirement),
    ``contribution`` and ``reference``. Options override these.

    Args:
      algorithms: a list, or a mapping from label to entry. An entry is a registered name (``"incfl"``), a builder
        (``fljax.algorithms.incfl``, or one's own), a tuple ``(name or builder, options)``, or
        ``(name or builder, options, scenarios)`` with scenarios as names, wrappers or ``(name or wrapper, options)``,
        the innermost first. A Plan or an Algorithm runs as it is. The others are compared with the first one.
      federation: shared by all seeds, or one per seed: a list (``fljax.data.federations``), or stacked
        (``fljax.data.stack``).
      task: model and loss.
      local: how clients train.
      rounds: number of rounds.
      seeds: integers, or a number of seeds: 3 means the seeds 0, 1 and 2.
      clients_per_round: of the builders that have this parameter; None: all clients.
      standalone: how standalone models are trained; None: as ``local`` with 100 steps.
      standalone_initial: where they start: "shared", or "own", as ``initial`` of ``fljax.standalone``.
      standalone_stop: early stopping of each of them, as ``stop`` of ``fljax.standalone``.
      requirement: the loss that each client requires, for all algorithms, scenarios and metrics: a Requirement, or its
        value or function alone. None: a ``threshold`` among the options, or else the standalone training losses.
        Another threshold beside it is refused; that of an Algorithm which runs as it is cannot be seen.
      contribution: for builders with a parameter ``contribution``: numbers by client id, a Measure, or an
        ``xarray.DataArray`` with the dimension ``client``, and ``round`` and ``seed`` where numbers differ by them (as
        ``fljax.contributions.measure``); None: the accuracies of standalone models.
      opt_out_threshold: the gain in accuracy below which a client counts among ``opt_outs``, for all clients or by id.
      evaluate_every: rounds between two evaluations; None: a tenth of the rounds.
      execution: how clients and seeds map to devices.
      non_finite: as for ``simulate``.
      callbacks: as for ``simulate``, called in the run of every algorithm. One that returns True stops this algorithm.
        Callbacks with a history, such as ``stop_early``, begin anew with each algorithm.
      checkpoint: a folder. The same call with the same folder goes on where an earlier process ended: scores of
        standalone models and finished algorithms are read, and the algorithm in progress goes on after its newest
        checkpoint. More algorithms may be added.
      stop: a request to stop after the next checkpoint; it needs ``checkpoint``.
      progress: whether bars show the progress on stderr; or a function that is called with each
        ``fljax.results.folders.Event``.
      name: title of the page.

    Returns:
      The comparison: ``metrics``, ``records``, ``results`` by label, ``table()``, ``report(path)``, ``save(folder)``.

    Raises:
      ValueError: if an argument is out of range, a name is unknown, or two entries have one label; and as ``simulate``.
      Stopped: if ``stop`` asks for it, after a checkpoint.
      AlgorithmError: if a function of an algorithm raises an exception, which is the cause.
      fljax.results.non_finite.NotFinite: with ``non_finite="stop"``, if something was not finite.
    """
    seeds = seeds_of(seeds)
    parts = federation if isinstance(federation, list) else []
    federation = stack(parts) if parts else federation
    _check_kinds({"federation": (federation, Federation), "task": (task, Task), "local": (local, Local)})
    assert isinstance(federation, Federation)
    _check_counts(rounds=rounds, evaluate_every=evaluate_every, clients_per_round=clients_per_round)
    alone = local._replace(steps=100, epochs=None) if standalone is None else standalone
    entries = entrants(algorithms, local, Measure() if contribution is None else contribution)
    setup = Setup(
        name=name,
        federation=federation,
        task=task,
        algorithms=entries,
        standalone=alone,
        clients_per_round=federation.clients.id.shape[-1] if clients_per_round is None else clients_per_round,
        rounds=rounds,
        seeds=tuple(seeds),
        evaluate_every=max(1, rounds // 10) if evaluate_every is None else evaluate_every,
        execution=execution or Execution(),
        non_finite=non_finite,
        callbacks=tuple(CallbackSetup(_again(each)) for each in callbacks),
        standalone_initial=standalone_initial,
        standalone_stop=standalone_stop,
        opt_out_threshold=opt_out_threshold_of(opt_out_threshold, federation.clients.id.shape[-1]),
        requirement=requirement_of(requirement),
        world=world_of(federation, [each.names for each in parts] or [federation.names] * len(seeds)),
    )
    names = ("labels", "rounds", "seeds", "evaluate_every", "clients_per_round")
    processes.check_same(lambda: {name: repr(getattr(setup, name)) for name in names})
    check_cohorts(setup)
    directory = None if checkpoint is None else pathlib.Path(checkpoint)
    if stop is not None and directory is None:
        raise ValueError("expected a checkpoint with stop, got none")
    text = ""
    if directory is not None:
        processes.agreed(lambda: check_folder(directory))
        settings = {"seeds": list(seeds), "standalone": alone._asdict(), "task": fingerprint(task, federation)}
        settings["standalone_initial"] = standalone_initial
        settings["standalone_stop"] = standalone_stop and standalone_stop._asdict()
        settings["standalone_valid"] = setup.alone["valid"] or None
        text = settings_text(settings)
    with _listening(progress) as on_event:
        tell = folders.teller(None, on_event)
        with locked(directory):
            if directory is not None:
                processes.agreed(lambda: checkpoint_origins.check(directory, text, None))
            files = ProgressFiles(directory, text, None, Saving(stop=stop), tell, lasting=True)
            outputs = Outputs(tell, files, ModelFiles(None, "none"), Watch.of(setup, None, tell))
            outcome = run.run_setup(setup, outputs)
    return _comparison(name, outcome, {COMPARISON: describe_comparison(setup, local)})


def run_config(
    config: str | pathlib.Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    folder: str | pathlib.Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    saving: Saving | None = None,
    imports: bool = True,
    progress: bool | OnEvent = True,
) -> Comparison:
    """Runs a config, as ``fljax run`` does.

    Args:
      config: a TOML file, or its content as nested dictionaries.
      overrides: each ``"table.key=value"``, as ``--set`` of the command line.
      folder: the run folder, which gets results, checkpoints and models; None: nothing is saved.
      resume: whether to go on with the run in the folder.
      callbacks: as for ``compare``, beside those of the config.
      saving: how often checkpoints are saved, and how many are kept; None: the defaults.
      imports: whether the config may name code by import paths.
      progress: as for ``compare``.

    Returns:
      The comparison.

    Raises:
      ConfigError: if the config has an error; it is a ValueError.
      ValueError, Stopped, OSError, NotFinite: as ``fljax.experiments.run.run``.
    """
    if isinstance(config, Mapping):
        raw = json.loads(json.dumps(config)) if overrides else dict(config)  # a copy, since overrides change it
        for each in overrides:
            override(raw, each)
        chosen = configuration.parse(raw, imports=imports)
    else:
        chosen = configuration.load(config, overrides, imports=imports)
    extra = tuple(CallbackSetup(_again(each)) for each in callbacks)
    directory = None if folder is None else pathlib.Path(folder)
    with _listening(progress) as on_event:
        how: dict[str, Any] = {"resume": resume, "on_event": on_event, "saving": saving, "callbacks": extra}
        outcome = run.run(chosen, directory=directory, **how)
    return _comparison(chosen.name, outcome, {CONFIG: configuration.dumps(chosen)})


def _comparison(name: str, outcome: Outcome, origin: Mapping[str, str]) -> Comparison:
    return Comparison(
        name,
        outcome.metrics,
        outcome.records,
        outcome.models,
        outcome.diverged,
        outcome.infinite,
        origin,
        outcome.outline,
    )


def _pairs(columns: Sequence[str], cells: Sequence[str]) -> list[str]:
    return [f"{column} {each}" for column, each in zip(columns, cells, strict=True) if each]


def _again(callback: Callback) -> Callable[[], Callback]:
    """Makes the callback of the next algorithm: the same one, without its history."""
    if not callable(callback):
        raise ValueError(f"expected callbacks to be functions of a Block, got {callback!r}")

    def build() -> Callback:
        replay([callback], [])
        return callback

    return build


@contextlib.contextmanager
def _listening(progress: bool | OnEvent) -> Iterator[OnEvent | None]:
    """The listener of a run's events: bars, the user's function, or None."""
    if callable(progress):
        yield progress
        return
    with progress_bars(quiet=not progress) as bars:
        yield listener(bars) if progress else None


def _check_kinds(given: Mapping[str, tuple[Any, type]]) -> None:
    """Raises a ValueError if an argument is a value of another kind, for example in another's place."""
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            raise ValueError(f"expected {name} to be a {kind.__name__}, got {type(value).__name__}")


def _check_counts(**counts: int | None) -> None:
    """Raises a ValueError unless counts are positive whole numbers or None."""
    for name, count in counts.items():
        if count is not None and (not is_whole(count) or count < 1):
            raise ValueError(f"expected {name} to be a positive whole number, got {count!r}")
