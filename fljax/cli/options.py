"""Options of several commands, and the values that commands get of those that belong together."""

from __future__ import annotations

import functools
import inspect
import pathlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

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
SaveModels = Annotated[
    str | None,
    typer.Option(
        "--save-models",
        metavar="last|best|all",
        help="Save trained models: of the last round, the best evaluation by validation rows, or all evaluations.",
    ),
]
CheckpointEvery = Annotated[
    float, typer.Option("--checkpoint-every", metavar="SECONDS", help="Seconds between two checkpoints, at least.")
]
KeepCheckpoints = Annotated[int, typer.Option("--keep-checkpoints", metavar="N", help="How many checkpoints are kept.")]
Distributed = Annotated[
    bool,
    typer.Option(
        "--distributed",
        help="Run together with other processes that were started likewise; on Slurm, Open MPI, Kubernetes and Cloud "
        "TPUs JAX finds them.",
    ),
]
Coordinator = Annotated[
    str | None, typer.Option("--coordinator-address", metavar="HOST:PORT", help="Of process 0, with --distributed.")
]
Processes = Annotated[int | None, typer.Option("--num-processes", help="Number of processes, with --distributed.")]
ProcessId = Annotated[
    int | None, typer.Option("--process-id", help="Number of this process, from 0, with --distributed.")
]
Patience = Annotated[
    float, typer.Option("--initialization-timeout", metavar="SECONDS", help="Wait so long for all, with --distributed.")
]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Write event files for TensorBoard into the run folder.")
]
ConfigFile = Annotated[pathlib.Path, typer.Argument(help="A TOML file, or a name of fljax list configs.")]


Metrics = Annotated[
    list[str] | None, typer.Option("--metric", metavar="NAME", help="A metric to show; may be repeated.")
]


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

    @property
    def changes(self) -> list[str]:
        """What the options change in the config."""
        return _changes(self.overrides, self.seeds)


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
    """Options of ``fljax worth`` and ``fljax certify``: what the config is, and what is kept and printed."""

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

    @property
    def changes(self) -> list[str]:
        """What the options change in the config."""
        return _changes(self.overrides, self.seeds)


def _changes(overrides: Sequence[str] | None, seeds: int | None) -> list[str]:
    return [*(overrides or ()), *([] if seeds is None else [f"seeds={seeds}"])]


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


class CertifyOptions(NamedTuple):
    """Options of ``fljax certify`` alone: which deviations run and how they are judged."""

    tolerance: Annotated[float, typer.Option(help="Gains up to this do not count, in units of the utility.")] = 0.01
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
    deviators: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="Ids of the clients that deviate, with commas; all of them if not given."),
    ] = None
    outside: Annotated[
        str,
        typer.Option(help="What clients get without joining: standalone (models), mechanism (of one member) or none."),
    ] = "standalone"


# Of commands that compute in a folder.
Computing = RunOptions | WholeRunOptions | ReproduceOptions


class Together(NamedTuple):
    """Options of one run in several processes."""

    distributed: Distributed = False
    coordinator_address: Coordinator = None
    num_processes: Processes = None
    process_id: ProcessId = None
    initialization_timeout: Patience = 60.0


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
        made = {name: group(**{field: values.pop(field) for field in group._fields}) for name, group in groups.items()}
        return command(**values, **made)

    told: Any = with_each
    told.__signature__ = inspect.Signature(parameters)
    told.__annotations__ = {option.name: option.annotation for option in parameters}
    return told
