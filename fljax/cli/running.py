"""What commands share that run experiments: options, how JAX starts, the folder of results, how they save and go on.

At the first signal that stops a command a run saves, the second one ends; exit code 130 or 143. Python's handlers wait
for compiled code, so a thread reads the wake-up descriptor: the second signal ends the process.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import inspect
import itertools
import os
import pathlib
import re
import shlex
import signal
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer

from fljax.core.errors import ProcessLost, writing_to
from fljax.core.plain import tell
from fljax.experiments.progress_bars import listener, progress_bars

Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds, from 0.")]
Out = Annotated[pathlib.Path | None, typer.Option(help="Folder of the results; runs/NAME-TIME if not given.")]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with --out, or the latest run of this name; if finished, with more rounds."),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Go on where JAX's settings, own code or data have changed; the results say so."),
]
Cache = Annotated[
    bool, typer.Option("--cache/--no-cache", help="Keep compiled programs for later runs, in ~/.cache/fljax.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors only.")]
NoReport = Annotated[bool, typer.Option("--no-report", help="Draw no pictures.")]
NoImport = Annotated[
    bool,
    typer.Option("--no-import", help="Refuse import paths, as FLJAX_NO_IMPORT=1 does for all commands."),
]
CheckpointEvery = Annotated[
    float, typer.Option("--checkpoint-every", metavar="SECONDS", help="Seconds between two checkpoints, at least.")
]
KeepCheckpoints = Annotated[int, typer.Option("--keep-checkpoints", metavar="N", help="How many checkpoints are kept.")]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Write event files for TensorBoard into the run folder.")
]
ConfigFile = Annotated[pathlib.Path, typer.Argument(help="A TOML file, or a name of fljax list configs.")]


Metrics = Annotated[
    list[str] | None, typer.Option("--metric", metavar="NAME", help="A metric to show; may be repeated.")
]

# What ``fljax list`` has, with the singular.
KINDS = {
    "algorithms": "algorithm",
    "datasets": "dataset",
    "partitions": "partition",
    "models": "model",
    "metrics": "metric",
    "tables": "table",
    "scenarios": "scenario",
    "contributions": "contribution",
    "callbacks": "callback",
    "configs": "config",
}


class RunOptions(NamedTuple):
    """Options of ``fljax run`` and ``fljax sweep``: what runs, and what is kept and printed."""

    overrides: Overrides = None
    seeds: Seeds = None
    out: Out = None
    resume: Resume = False
    as_json: Json = False
    cache: Cache = True
    quiet: Quiet = False
    no_report: NoReport = False
    no_import: NoImport = False
    checkpoint_every: CheckpointEvery = 30.0
    keep_checkpoints: KeepCheckpoints = 2
    force: Force = False


class FigureOptions(NamedTuple):
    """Options of ``fljax report`` and ``fljax export``: which figures, of which clients and metrics."""

    figures: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Kinds of figure, such as client_curves; all: those that have data."),
    ] = None
    clients: Annotated[
        str | None, typer.Option(metavar="ID,...", help="Clients to draw, with client_curves or confusion_matrices.")
    ] = None
    metric: Metrics = None


class ReproduceOptions(NamedTuple):
    """Options of ``fljax reproduce``: which rows of a table, what runs for them, and what is kept and printed."""

    dataset: Annotated[str | None, typer.Option(help="Only rows about this data set, as the table names it.")] = None
    partition: Annotated[str | None, typer.Option(help="Only rows whose partition contains this.")] = None
    costs: Annotated[bool, typer.Option("--list", help="Say what each table, or TABLE, costs and needs.")] = False
    no_run: Annotated[bool, typer.Option("--no-run", help="Run nothing; print what is there.")] = False
    quick: Annotated[bool, typer.Option("--quick", help="Two rounds of one seed, to see that everything runs.")] = False
    seeds: Seeds = None
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="Folder with a run folder for each config; runs/reproduced if not given."),
    ] = None
    save: Annotated[
        pathlib.Path | None, typer.Option(metavar="FILE.csv", help="Add our numbers to a file of measured cells.")
    ] = None
    as_json: Json = False
    cache: Cache = True
    quiet: Quiet = False
    checkpoint_every: CheckpointEvery = 30.0
    keep_checkpoints: KeepCheckpoints = 2
    force: Force = False


class WholeRunOptions(NamedTuple):
    """Options of commands of whole runs: what the config is, and what is kept and printed."""

    overrides: Overrides = None
    seeds: Seeds = None
    out: Out = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with --out, or the latest run of this name, after its last block.")
    ] = False
    as_json: Json = False
    cache: Cache = True
    quiet: Quiet = False
    no_report: NoReport = False
    no_import: NoImport = False
    force: Force = False
    # Not options of these commands.
    checkpoint_every = RunOptions._field_defaults["checkpoint_every"]
    keep_checkpoints = RunOptions._field_defaults["keep_checkpoints"]


def changes_of(options: RunOptions | WholeRunOptions) -> list[str]:
    """What the options change in the config."""
    return [*(options.overrides or ()), *([] if options.seeds is None else [f"seeds={options.seeds}"])]


class WorthOptions(NamedTuple):
    """Options of ``fljax worth`` alone: which coalitions run and how they are judged."""

    value: Annotated[
        str,
        typer.Option(help="Value of a coalition: a metric of fljax list metrics, or module:function of one's own."),
    ] = "average_accuracy"
    among: Annotated[
        str | None,
        typer.Option(
            metavar="COALITIONS",
            help="leave_one_out, or clients by number, such as 0+1,0+1+2,none; all coalitions if not given.",
        ),
    ] = None
    baseline: Annotated[
        str, typer.Option(help="Value of nobody: initial (the untrained model), chance (1 / classes), or a number.")
    ] = "initial"
    max_runs: Annotated[int, typer.Option(metavar="N", help="Refuse more runs than this.")] = 4096
    estimators: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help="Compare estimators with retraining: names, or all that have what they need."
        ),
    ] = None


class PlayOptions(NamedTuple):
    """Options of ``fljax certify`` and ``fljax design``: what clients get, and how they deviate."""

    deviations: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES|FILE.toml",
            help="Names of usual deviations or module:function with commas, or a file of them; all usual ones that are "
            "read if not given.",
        ),
    ] = None
    metric: Annotated[
        str | None,
        typer.Option(help="What a client gets of its model on its test rows: test_accuracy or test_loss."),
    ] = None
    cost: Annotated[
        float, typer.Option(help="Of the local steps of an honest client in all rounds, in units of the metric.")
    ] = 0.0
    price: Annotated[float, typer.Option(help="Of a token that a client has at the end.")] = 0.0
    token_budget: Annotated[float | None, typer.Option(help="Tokens that are paid at most; all if not given.")] = None
    deviators: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="Ids of the clients that deviate, with commas; all of them if not given."),
    ] = None
    outside: Annotated[
        str,
        typer.Option(help="What clients get without joining: standalone (models), mechanism (of one member) or none."),
    ] = "standalone"


class CertifyOptions(NamedTuple):
    """Options of ``fljax certify`` alone: how deviations are judged."""

    tolerance: Annotated[float, typer.Option(help="Gains up to this do not count, in units of the utility.")] = 0.01
    confidence: Annotated[float, typer.Option(help="Of the bounds, for all deviations of all clients at once.")] = 0.95
    method: Annotated[str, typer.Option(help="Of the bounds: bonferroni or max_t.")] = "bonferroni"
    identities: Annotated[
        int, typer.Option(metavar="K", help="Each client also joins as K clients that share its rows; 1: it does not.")
    ] = 1
    candidates: Annotated[
        int, typer.Option(metavar="N", help="Strategies that an attacker tries on half of the seeds; 0: no attack.")
    ] = 50
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="Certify FedAvg with inflated sizes on the same data, too.")
    ] = True
    max_runs: Annotated[int, typer.Option(metavar="N", help="Refuse more runs of one algorithm than this.")] = 20_000


class DesignOptions(NamedTuple):
    """Options of ``fljax design`` alone: what is searched, for what, and how it is judged."""

    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[LABEL.]OPTION=RANGE",
            help="What is searched: LOW:HIGH, LOW:HIGH:log, or around:SCALE of a list in the config; may be repeated. "
            "With the label of another algorithm, it is tuned.",
        ),
    ] = None
    algorithm: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Whose options are searched; the first one if not given.")
    ] = None
    objective: Annotated[
        str, typer.Option(help="Of honest payoffs: mean, participation, worst_decile, nash, or module:function.")
    ] = "mean"
    tolerance: Annotated[
        str, typer.Option(metavar="NUMBERS", help="What lies may gain, with commas, each with a search of its own.")
    ] = "0.03"
    worse_off: Annotated[float, typer.Option(help="Share of clients that may have less than without joining.")] = 0.1
    search: Annotated[str, typer.Option(help="cma (CMA-ES), random or gradient.")] = "cma"
    budget: Annotated[int, typer.Option(metavar="N", help="Runs of the search, for all tolerances.")] = 20_000
    budget_of_baselines: Annotated[
        int, typer.Option("--budget-of-baselines", metavar="N", help="As --budget, of each other algorithm.")
    ] = 2_000
    pool: Annotated[int, typer.Option(metavar="N", help="Federations (seeds) that are searched.")] = 40
    resample: Annotated[int, typer.Option(metavar="N", help="How many of them a generation draws.")] = 5
    validation: Annotated[int, typer.Option(metavar="N", help="Further ones that choose among candidates.")] = 10
    fresh: Annotated[int, typer.Option(metavar="N", help="Further ones that judge.")] = 40
    exchangeable: Annotated[
        bool, typer.Option("--exchangeable", help="A client has no role: gains are means over all that deviate.")
    ] = False
    candidates: Annotated[
        int, typer.Option(metavar="N", help="Strategies that an attacker tries on half of the fresh ones; 0: none.")
    ] = 20
    seed: Annotated[int, typer.Option(help="Of the search.")] = 0


def check_choice(name: str, got: str | None, names: tuple[str | None, ...]) -> None:
    """Raises a ValueError unless an option is one of ``names``; None: it is not given."""
    if got not in names:
        raise ValueError(f"expected --{name} to be {' or '.join(filter(None, names))}, got {got!r}")


def check_play(play: PlayOptions) -> None:
    """Raises a ValueError for an option that is out of range, before JAX starts."""
    ids_of(play)
    check_choice("metric", play.metric, (None, "test_accuracy", "test_loss"))
    check_choice("outside", play.outside, ("standalone", "mechanism", "none"))


def ids_of(play: PlayOptions) -> tuple[int, ...] | None:
    """The ids of clients that deviate, in order; None: all."""
    if play.deviators is None:
        return None
    parts = [part.strip() for part in play.deviators.split(",")]
    ids = sorted(int(part) for part in parts if part.isdecimal())
    if len(set(ids)) < len(parts):
        raise ValueError(f"expected --deviators to be different ids with commas, got {play.deviators!r}")
    return tuple(ids)


def played(play: PlayOptions, *, imports: bool) -> dict[str, Any]:
    """The options as fields of the question that an experiment is asked."""
    from fljax.experiments.inputs.entrants import deviations_of
    from fljax.games import Utility

    metric: Any = play.metric
    return {
        "deviations": deviations_of(play.deviations, imports=imports),
        "utility": Utility(metric, play.cost, play.price, play.token_budget),
        "deviators": ids_of(play),
        "outside": None if play.outside == "none" else play.outside,
    }


# Of commands that compute in a folder.
Computing = RunOptions | WholeRunOptions | ReproduceOptions


class ProcessOptions(NamedTuple):
    """Options of one run in several processes."""

    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed",
            help="Run together with other processes that were started likewise; on Slurm, Open MPI, Kubernetes and "
            "Cloud TPUs JAX finds them.",
        ),
    ] = False
    coordinator_address: Annotated[
        str | None, typer.Option("--coordinator-address", metavar="HOST:PORT", help="Of process 0, with --distributed.")
    ] = None
    num_processes: Annotated[
        int | None, typer.Option("--num-processes", help="Number of processes, with --distributed.")
    ] = None
    process_id: Annotated[
        int | None, typer.Option("--process-id", help="Number of this process, from 0, with --distributed.")
    ] = None
    initialization_timeout: Annotated[
        float,
        typer.Option("--initialization-timeout", metavar="SECONDS", help="Wait so long for all, with --distributed."),
    ] = 60.0


def with_options(command: Callable[..., int]) -> Callable[..., int]:
    """A command whose parameters of the types above are an option for each field, in their place."""
    # typer reads options off a signature, and knows no parameter with several options.
    types = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in types.items() if hasattr(kind, "_fields")}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        group = groups.get(name)
        fields = {name: types[name]} if group is None else get_type_hints(group, include_extras=True)
        defaults = {name: parameter.default} if group is None else group._field_defaults
        parameters += [
            inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, default=defaults[field], annotation=kind)
            for field, kind in fields.items()
        ]

    @functools.wraps(command)
    def with_each(**values: Any) -> int:
        # JAX comes first, from a shallow stack: its import makes some 40,000 calls (metadata of all distributions), and
        # Python maps and unmaps memory at each call that crosses the end of a chunk of frames (.28 s of a run).
        import jax  # noqa: F401

        made = {name: group(**{field: values.pop(field) for field in group._fields}) for name, group in groups.items()}
        return command(**values, **made)

    told: Any = with_each
    told.__signature__ = inspect.Signature(parameters)
    told.__annotations__ = {option.name: option.annotation for option in parameters}
    return told


if TYPE_CHECKING:
    from fljax.config import Config
    from fljax.engine.checkpoints import StopRequest
    from fljax.experiments.conductor import Saving
    from fljax.experiments.inputs.setup import CallbackSetup


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal has stopped the command. Not a subclass of KeyboardInterrupt, as Click handles that itself."""

    def __init__(self, number: int, words: str = "interrupted") -> None:
        super().__init__(words)
        self.number = number

    @property
    def code(self) -> int:
        """The exit code, as in shells: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.number


class Ended(Exception):
    """A run has stopped itself. The message says why, and where its results are; the exit code is 1."""


class Signals:
    """Signals to stop that have come, and the request to stop of the run, which may still save what it has computed."""

    def __init__(self) -> None:
        self._stop: StopRequest | None = None
        self._arrived = 0
        self.seen: list[int] = []  # by the handler

    @property
    def stop(self) -> StopRequest:
        if self._stop is None:
            from fljax.engine.checkpoints import StopRequest  # imported here, since it imports JAX

            self._stop = StopRequest()
        return self._stop

    @property
    def _heard(self) -> bool:
        return self._stop is not None and self._stop.heard

    def arrive(self, number: int) -> None:
        """Called from another thread at every signal, since the handler waits until compiled code returns."""
        self._arrived += 1
        if self._arrived > 1:
            os._exit(128 + number)
        if self._heard:
            tell("stopping after these rounds, and saving; again: stopping at once", file=sys.stderr, flush=True)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler. Raises Interrupted unless a run stops by itself and saves."""
        if self._heard:
            self.seen.append(number)
            self.stop.make()
        elif _is_importing(frame):
            self.again(number)
        else:
            self.seen.append(number)
            raise Interrupted(number)

    def again(self, number: int) -> None:
        """Lets a signal come once more, a moment later, since an exception did not arrive or would not arrive."""
        self._arrived -= 1
        sender = threading.Timer(0.05, signal.pthread_kill, [threading.main_thread().ident, number])
        sender.daemon = True
        sender.start()


@contextlib.contextmanager
def interruptible() -> Iterator[Signals]:
    """At the first signal, raises Interrupted or lets a run save and stop; the second ends the process at once."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    # Signals that the shell set to be ignored stay ignored.
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    with _noticing(signals), _nothing_lost(signals):
        for number in before:
            signal.signal(number, signals.handle)
        try:
            yield signals
        except Exception as error:
            # Libraries may wrap Interrupted in their own errors: after a signal, any error becomes it.
            if signals.seen:
                raise Interrupted(signals.seen[0]) from error
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether Python imports something: C code that imports prints an exception, or aborts the process."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _nothing_lost(signals: Signals) -> Iterator[None]:
    """Python ignores exceptions in callbacks of its garbage collector and in finalizers; such a signal comes again."""
    # JAX has a callback there: while it starts, a quarter of all signals come in it.
    before = sys.unraisablehook

    def hook(lost: Any) -> None:
        if isinstance(lost.exc_value, Interrupted):
            signals.seen.pop()
            signals.again(lost.exc_value.number)
        else:
            before(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def _noticing(signals: Signals) -> Iterator[None]:
    """A thread that calls ``signals.arrive`` as soon as a signal comes."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def read() -> None:
        while (number := os.read(reading, 1)[0]) != 0:
            if number in SIGNALS:
                signals.arrive(number)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writing, b"\0")  # no signal has this number
        thread.join()
        os.close(reading)
        os.close(writing)


# typer hands over a context of its own class, of which the public name is a subclass.
if TYPE_CHECKING:
    Context = typer.Context
else:
    Context = typer.Context.__mro__[1]

RUNS = pathlib.Path("runs")


def start_jax(cache: bool = True) -> None:
    """Configures JAX before it starts: cores become devices, and compiled programs are cached between runs."""
    import jax

    from fljax.engine.devices import layout as programs
    from fljax.engine.devices.layout import PATIENT, use_cores

    with contextlib.suppress(RuntimeError):  # JAX is already running in this process
        use_cores(None if PATIENT else 1)
    if cache:
        programs.begin()
    else:
        jax.config.update("jax_enable_compilation_cache", False)


def join(
    distributed: bool, coordinator: str | None, processes: int | None, process: int | None, patience: float
) -> None:
    """Joins this process with others if it is asked to, before JAX starts."""
    from fljax.core import processes as hosts

    if not distributed:
        if any(value is not None for value in (coordinator, processes, process)):
            raise ValueError(
                "expected --distributed beside --coordinator-address, --num-processes and --process-id, got none"
            )
        return
    # What libraries print goes to stderr: gloo's greetings would stand in the output of --json.
    sys.stdout.flush()
    printed = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(printed, "w", encoding=sys.stdout.encoding)
    before = signal.getsignal(signal.SIGTERM)
    try:
        hosts.distributed(coordinator, processes, process, initialization_timeout=patience)
    except RuntimeError as error:
        raise Ended(str(error)) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # JAX's preemption service takes this signal for itself


def memory() -> dict[str, str]:
    """The memory of the machine, and of each accelerator that reports it."""
    import jax

    sizes = {}
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        sizes["machine"] = f"{pages * size / 2**30:.1f} GiB"
    for device in jax.devices():
        limit = (device.memory_stats() or {}).get("bytes_limit")
        if limit:
            sizes[f"{device.platform}:{device.id}"] = f"{limit / 2**30:.1f} GiB"
    return sizes


def folder_of(config: Config, options: RunOptions | WholeRunOptions) -> pathlib.Path:
    """The folder for results, which is checked later: ``--out``, the latest run of this name, or a new folder."""
    if options.out is not None:
        return options.out
    if options.resume:
        return latest_run(config.name, RUNS)
    with writing_to("a folder to write in", RUNS):
        return new_folder(config.name, RUNS)


def new_folder(name: str, runs: pathlib.Path) -> pathlib.Path:
    """Makes ``runs/NAME-TIME``, or ``NAME-TIME-2`` and so on if the folder already exists."""
    stem = f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    runs.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = runs / (stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("unreachable")


def latest_run(name: str, runs: pathlib.Path) -> pathlib.Path:
    """The latest folder that ``new_folder`` made for exactly this name."""
    from fljax.results.folders import config_of  # it needs xarray

    folders = []
    for folder in runs.glob("*"):
        match = re.fullmatch(re.escape(name) + r"-(\d{8}-\d{6})(?:-(\d+))?", folder.name)
        if match and folder.is_dir() and tomllib.loads(config_of(folder) or "").get("name") in (None, name):
            folders.append((match[1], int(match[2] or 1), folder))
    if not folders:
        raise ValueError(f"expected an earlier run of {name!r} in {str(runs)!r} to resume, got none")
    return max(folders)[-1]


# Options that are not those of a command that resumes, with the number of words that follow them.
_LEFT_OUT = {
    "--out": 1,
    "--resume": 0,
    "--distributed": 0,
    "--coordinator-address": 1,
    "--num-processes": 1,
    "--process-id": 1,
}


class Invocation(NamedTuple):
    """How the command line was called: the arguments after ``fljax``, and the signals that have come."""

    arguments: tuple[str, ...]
    signals: Signals

    def again(self) -> str:
        """The same command, for those that go on by themselves."""
        return shlex.join(["fljax", *self.arguments])

    def command(self, folder: pathlib.Path) -> str:
        """The command that resumes this one in its folder, in one process."""
        words, chosen = list(self.arguments), []
        while words:
            word = words.pop(0)
            if word in _LEFT_OUT:
                words[: _LEFT_OUT[word]] = []
            elif word.partition("=")[0] not in _LEFT_OUT:
                chosen.append(word)
        return shlex.join(["fljax", *chosen, "--out", str(folder), "--resume"])


def saving_of(context: Context, options: Computing) -> Saving:
    """How a command saves checkpoints."""
    from fljax.engine.checkpoints import Checkpoint
    from fljax.experiments.conductor import Saving

    every, keep = options.checkpoint_every, options.keep_checkpoints
    Checkpoint(".", every, keep).check()
    return Saving(every, keep, context.obj.signals.stop, options.force)


@contextlib.contextmanager
def computing(
    context: Context, options: Computing, folder: Callable[[], pathlib.Path], again: str | None = None
) -> Iterator[tuple[pathlib.Path, Callable[..., Any]]]:
    """The folder of a command, and a function that calls an experiment with it, after ``start_jax``.

    The experiment saves there, and shows progress bars. An interruption says how to resume, see ``resumable``.
    """
    from fljax.core import processes

    saving = saving_of(context, options)
    place = processes.agreed(folder)

    def compute(experiment: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        with progress_bars(options.quiet or not processes.is_first()) as progress:
            return experiment(*arguments, directory=place, on_event=listener(progress), saving=saving, **more)

    with resumable(place, context, again):
        yield place, compute


@contextlib.contextmanager
def resumable(folder: pathlib.Path, context: Context, again: str | None = None) -> Iterator[None]:
    """Says how to resume an interrupted command (``again``), and where results are of a run that stopped itself."""
    from fljax.engine.checkpoints import Stopped

    called: Invocation = context.obj
    command = called.command(folder) if again is None else again
    try:
        yield
    except Stopped as stop:
        number = called.signals.seen[0] if called.signals.seen else signal.SIGTERM
        part()
        rounds = f"round {stop.saved} of {stop.rounds}"
        where = rounds if stop.unit == "rounds" else f"{stop.saved} of {stop.rounds} {stop.unit}"
        there = "nothing could be saved" if stop.saved is None else f"saved after {where}"
        raise Interrupted(number, f"interrupted; {there}; to go on: {command}") from None
    except (KeyboardInterrupt, Interrupted) as stop:
        number = stop.number if isinstance(stop, Interrupted) else signal.SIGINT
        words = f"interrupted; what was saved before is kept; to go on: {command}"
        raise Interrupted(number, words) from None
    except ProcessLost as lost:
        raise ProcessLost(f"{lost}; to go on in one process: {command}") from None
    except ArithmeticError as error:
        from fljax.results.non_finite import NotFinite

        if not isinstance(error, NotFinite):
            raise
        part()
        raise Ended(f"{error}; what was computed before is saved in {folder}") from None


def part() -> None:
    """Where all processes of a command end alike, each waits here for the others."""
    hosts: Any = sys.modules.get("fljax.core.processes")  # not imported here, since it imports JAX
    if hosts is not None:
        hosts.part()


def extra_callbacks(tensorboard: bool) -> tuple[CallbackSetup, ...]:
    """The callbacks that options ask for, beside those of the config."""
    from fljax.engine.callbacks import CALLBACKS
    from fljax.experiments.inputs.setup import CallbackSetup

    return (CallbackSetup(CALLBACKS["tensorboard"]),) if tensorboard else ()
