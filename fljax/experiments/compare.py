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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fljax import config as configuration
from fljax.algorithms import REGISTRY
from fljax.config.reading import override
from fljax.contributions import Contribution, Measure
from fljax.core import processes
from fljax.core.errors import attach
from fljax.core.files import locked
from fljax.core.names import check_text, check_unlabelled, shown
from fljax.core.sameness import Differences, codes_of
from fljax.core.values import is_whole
from fljax.data import stack
from fljax.engine import Execution, replay
from fljax.engine.callbacks import Callback, checked
from fljax.engine.checkpoints import StopRequest
from fljax.engine.rounds.standalone import Initial
from fljax.engine.rounds.states import Seeds, seeds_of
from fljax.experiments import run
from fljax.experiments.comparison import Comparison, check_kinds
from fljax.experiments.conductor import Outputs, ProgressFiles, Saving
from fljax.experiments.inputs.entrants import Algorithms, describe_comparison, entrants, marks_of, settings_text
from fljax.experiments.inputs.setup import CallbackSetup, Losses, OptOut, Requirement, Setup, requirement_of, world_of
from fljax.experiments.progress_bars import listening
from fljax.metrics.registry import needs_of
from fljax.metrics.scores import Asked, scores_of
from fljax.protocol import Federation, Task
from fljax.protocol.algorithm import usual_spacing
from fljax.results import folders
from fljax.results.events import EventLog, OnEvent
from fljax.results.folders import COMPARISON, CONFIG, LOCK, RESULTS, OpenFolder
from fljax.results.identity import check_checkpoints
from fljax.results.non_finite import NonFinite
from fljax.training import Local, StopAlone


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
    extra_metrics: Sequence[str] = (),
    evaluate_every: int | None = None,
    clients_per_evaluation: int | None = None,
    scores: Sequence[Asked] = (),
    score_every: int | None = None,
    execution: Execution | None = None,
    non_finite: NonFinite = "freeze",
    callbacks: Sequence[Callback] = (),
    checkpoint: str | pathlib.Path | None = None,
    stop: StopRequest | None = None,
    force: bool = False,
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
        the innermost first. Options that are arrays by client may be mappings from clients' names (ids, if they have
        none) to numbers, with ``default`` for all others. A Plan or an Algorithm runs as it is. The others are compared
        with the first one.
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
        ``fljax.contributions.measure``); or what the server measures in rounds: a name in ``ROUND_MEASURES``, a
        function of the updates or a ``RoundMeasure``. None: the accuracies of standalone models.
      opt_out_threshold: the gain in accuracy below which a client counts among ``opt_outs``, for all clients or by id.
      extra_metrics: metrics that take more computation, as for ``simulate``.
      evaluate_every: rounds between two evaluations; None: a tenth of the rounds.
      clients_per_evaluation: as for ``simulate``.
      scores: scores of the task beside its accuracy, as for ``simulate``.
      score_every: as for ``simulate``.
      execution: how clients and seeds map to devices.
      non_finite: as for ``simulate``.
      callbacks: as for ``simulate``, called in the run of every algorithm. One that returns True stops this algorithm.
        ``block.label`` says which it is. Callbacks with a history, such as ``stop_early``, begin anew with each. An
        exception of one has the attribute ``comparison``, too, with the algorithms before, if there are any.
      checkpoint: a folder. The same call with the same folder goes on where an earlier process ended: scores of
        standalone models and finished algorithms are read, and the algorithm in progress goes on after its newest
        checkpoint. More algorithms may be added.
      stop: a request to stop after the next checkpoint; it needs ``checkpoint``.
      force: whether it goes on although JAX's settings, the code of own functions or the data differ from those of the
        folder; the attribute ``forced`` of its metrics then says what does.
      progress: whether bars show the progress on stderr; or a function that is called with each
        ``fljax.results.events.Event``.
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
    check_kinds({"federation": (federation, Federation), "task": (task, Task), "local": (local, Local)})
    assert isinstance(federation, Federation)
    counts = {"clients_per_round": clients_per_round, "clients_per_evaluation": clients_per_evaluation}
    _check_counts(rounds=rounds, evaluate_every=evaluate_every, **counts)
    needs_of(extra_metrics)
    check_text("comparisons", [name])
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
        evaluate_every=usual_spacing(rounds) if evaluate_every is None else evaluate_every,
        execution=execution or Execution(),
        non_finite=non_finite,
        callbacks=tuple(CallbackSetup(_again(callback)) for callback in checked(callbacks)),
        standalone_initial=standalone_initial,
        standalone_stop=standalone_stop,
        opt_out_threshold=_opt_out_threshold_of(opt_out_threshold, federation.clients.id.shape[-1]),
        requirement=requirement_of(requirement),
        extra_metrics=tuple(extra_metrics),
        scores=scores_of(scores),
        score_every=score_every,
        clients_per_evaluation=clients_per_evaluation,
        world=world_of(federation, [part.names for part in parts] or [federation.names] * len(seeds)),
    )
    names = ("labels", "rounds", "seeds", "evaluate_every", "clients_per_round", "clients_per_evaluation")
    processes.check_same(lambda: {name: repr(getattr(setup, name)) for name in names})
    _check_cohorts(setup)
    directory = None if checkpoint is None else pathlib.Path(checkpoint)
    if stop is not None and directory is None:
        raise ValueError("expected a checkpoint with stop, got none")
    text, differ = "", Differences()
    if directory is not None:
        processes.agreed(lambda: _check_folder(directory))
        settings: dict[str, Any] = {"seeds": list(seeds), "standalone": alone._asdict()}
        settings["standalone_initial"] = standalone_initial
        settings["standalone_stop"] = standalone_stop and standalone_stop._asdict()
        settings["standalone_valid"] = setup.alone["valid"] or None
        mark = marks_of(task, federation)
        loss = f"JAX {mark.get('jax')}:{mark.get('checksum')}"
        settings["code"] = {**codes_of((task, setup.requirement)), "the task's loss": loss}
        text = settings_text(settings)
    with listening(progress) as on_event, contextlib.ExitStack() as opened:
        if directory is not None:
            processes.agreed(lambda: opened.enter_context(locked(directory / LOCK)))
            differ = processes.agreed(lambda: check_checkpoints(directory, text, None, force))
        log = EventLog(None, on_event)
        for words in differ.sentences:
            log.note(words)
        files = ProgressFiles(directory, text, None, Saving(stop=stop, force=force), log, lasting=True)
        told = {COMPARISON: describe_comparison(setup, local)}
        try:
            return Comparison.of(name, run.run_setup(setup, Outputs(log, files), OpenFolder({})), told)
        except Exception as error:
            if (finished := getattr(error, "finished", None)) is not None:
                attach(error, comparison=Comparison.of(name, finished, told))
            raise


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
        for change in overrides:
            override(raw, change)
        chosen = configuration.parse(raw, imports=imports)
    else:
        chosen = configuration.load(config, overrides, imports=imports)
    extra = tuple(CallbackSetup(_again(callback)) for callback in checked(callbacks))
    directory = None if folder is None else pathlib.Path(folder)
    with listening(progress) as on_event:
        how: dict[str, Any] = {"resume": resume, "on_event": on_event, "saving": saving, "callbacks": extra}
        outcome = run.run(chosen, directory=directory, **how)
    return Comparison.of(chosen.name, outcome, {CONFIG: configuration.dumps(chosen)})


def _again(callback: Callback) -> Callable[[], Callback]:
    """Makes the callback of the next algorithm: the same one, without its history."""

    def build() -> Callback:
        replay([callback], [])
        return callback

    return build


def _check_counts(**counts: int | None) -> None:
    """Raises a ValueError unless counts are positive whole numbers or None."""
    for name, count in counts.items():
        if count is not None and (not is_whole(count) or count < 1):
            raise ValueError(f"expected {name} to be a positive whole number, got {count!r}")


def _check_cohorts(setup: Setup) -> None:
    """Raises a ValueError if an algorithm that asks all clients gets some of them, as a config does."""
    clients = setup.federation.clients.id.shape[-1]
    known = {entry.build: entry for entry in REGISTRY.values()}
    for entry in setup.algorithms:
        rows = entry.options.get("clients_per_round", setup.clients_per_round)
        asks_all = entry.plan is None and entry.build in known and known[entry.build].asks_all(entry.options)
        if asks_all and rows is not None and rows < clients:
            raise ValueError(
                f"{entry.label}: expected all {clients} clients in every round, which this algorithm asks, got {rows}"
            )


def _opt_out_threshold_of(delta: Any, clients: int) -> OptOut:
    """IP-FL's delta as a number, or as one for each client; raises a ValueError if it is neither."""
    check_unlabelled("opt_out_threshold", delta)
    try:
        numbers = np.asarray(None if isinstance(delta, str | bool) else delta)
    except ValueError:  # a ragged list
        numbers = np.empty((), object)
    if numbers.dtype.kind not in "iuf" or numbers.shape not in ((), (clients,)) or not np.isfinite(numbers).all():
        raise ValueError(
            "expected opt_out_threshold to be one finite number, or one for each of "
            f"{clients} clients by id, got {shown(delta)}"
        )
    return tuple(map(float, numbers)) if numbers.ndim else float(numbers)


def _check_folder(directory: pathlib.Path) -> None:
    """Raises a ValueError if a folder for checkpoints is that of a run or of a saved comparison."""
    taken = [name for name in (CONFIG, COMPARISON, RESULTS, folders.MODELS) if (directory / name).exists()]
    if taken:
        raise ValueError(
            f"expected a folder of its own for checkpoints, got {str(directory)!r}, which holds {taken[0]}"
        )
