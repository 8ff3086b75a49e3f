"""The keys of a config, their types and defaults, as frozen values; ``name_resolution`` checks names and options.

Errors of a config are one sentence each: the key, the expected value, the value found. Unknown keys are errors, too.
"""

from __future__ import annotations

import contextlib
import math
import re
import typing
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import BaseModel, BeforeValidator, Field, model_validator

from fljax.config.forms import (
    LARGEST_INTEGER,
    MOST_CLIENTS,
    MOST_ENTRIES,
    MOST_ROUNDS,
    ClientStrategy,
    Count,
    Devices,
    Label,
    LateClients,
    Name,
    Named,
    NonNegative,
    NumberOrNumbers,
    Positive,
    Printable,
    Resolvable,
    Seeds,
    Strategy,
    Table,
    UnseenClients,
    as_tuple,
    ceiling_of,
    different_values,
)
from fljax.core.names import nearest, shown, unknown
from fljax.protocol.algorithm import usual_spacing


class Data(Table):
    """The data set and its partition among clients.

    ``dataset`` is a name (``fljax list datasets``), the path of a file or folder of one's own, relative to the config,
    ``"tfds:NAME"``, ``"hf:NAME"``, or ``"module:function"``. With data of one's own, ``partition`` is "natural" and
    ``clients`` is counted where they are left out, and options such as ``label`` may stand among these keys.
    ``train_fraction`` and ``valid_fraction`` are shares of a client's own examples; ``held_fraction`` is the share of
    all training examples that the server keeps. ``test`` selects the rows on which accuracy is measured: each client's
    own test rows or one global test set. ``dataset_options`` and ``partition_options`` are passed to the data set's
    source and to the partitioner. ``unseen`` is a number of clients, a list of them by name, or "test": all clients
    whose rows are test rows.
    """

    dataset: Printable
    partition: Printable
    clients: Annotated[int, Field(gt=0, le=MOST_CLIENTS)]
    unseen: UnseenClients = 0
    train_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.6
    valid_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    test: Literal["own", "global"] = "own"
    held_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    folder: str | None = None
    dataset_options: dict[str, Any] = {}
    partition_options: dict[str, Any] = {}

    @property
    def unseen_count(self) -> int:
        """The number of unseen clients that the config itself says; 0 for "test", which only the data know."""
        if isinstance(self.unseen, int):
            return self.unseen
        return 0 if self.unseen == "test" else len(self.unseen)


class Model(Named):
    """The model; other keys are passed to its builder.

    Attributes:
      initial: what it starts from (``fljax.experiments.inputs.setup``).
    """

    initial: Printable | None = None
    initial_seed: Annotated[int, Field(ge=0)] | None = None


class RateSchedule(Named):
    """A schedule of optax over rounds, a factor of the learning rate; other keys are passed to optax's function.

    ``boundaries_and_scales`` is a table of rounds and factors, as ``{"50" = 0.1}``, or a list of pairs.
    """


class Local(Table):
    """Local training of a client: at ``learning_rate * decay**round``, for steps or epochs (exactly one of the two).

    ``optimizer`` is the name of an optax optimizer, and ``options`` are its other arguments. ``weight_decay`` is
    coupled L2: ``weight_decay`` times the parameters is added to the gradient. Without ``shuffle`` batches are rows in
    their order.
    """

    learning_rate: Positive
    batch_size: Count
    steps: Count | None = None
    epochs: Count | None = None
    optimizer: str = "sgd"
    decay: Positive = 1.0
    weight_decay: NonNegative | None = None
    shuffle: bool = True
    options: dict[str, Any] = {}
    keep: bool = False
    clip_norm: Positive | None = None
    decay_of: Literal["all", "weights"] | None = None
    schedule: RateSchedule | None = None

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> Local:
        if (self.steps is None) == (self.epochs is None):
            got = "neither" if self.steps is None else f"steps = {self.steps} and epochs = {self.epochs}"
            raise ValueError(f"expected exactly one of steps and epochs, got {got}")
        return self


class _LocalChanges(Table):
    """Keys that replace those of ``local``; at most one of steps and epochs is given."""

    steps: Count | None = None
    epochs: Count | None = None
    learning_rate: Positive | None = None
    batch_size: Count | None = None
    shuffle: bool | None = None

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> _LocalChanges:
        if self.steps is not None and self.epochs is not None:
            got = f"steps = {self.steps} and epochs = {self.epochs}"
            raise ValueError(f"expected at most one of steps and epochs, got {got}")
        return self


class StandaloneStop(Table):
    """Early stopping of each standalone model, by its client's validation loss: ``fljax.training.StopAlone``."""

    every: Count = 1
    patience: Count = 5
    minimum_change: NonNegative = 0.0


class Standalone(_LocalChanges):
    """Training of the standalone models: 100 steps unless steps or epochs are given, at a constant rate.

    All other settings are those of ``local``, except for the keys given here.

    ``local.decay`` and ``local.schedule`` do not apply: they are per round, and standalone training is one long round.
    Models start from the initial model of the algorithms, which is ``shared``, or from weights that each client draws
    on its ``own``.
    """

    initial: Literal["shared", "own"] = "shared"
    weight_decay: NonNegative | None = None
    stop: StandaloneStop | None = None

    @model_validator(mode="before")
    @classmethod
    def _default(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping) or raw.get("steps") is not None or raw.get("epochs") is not None:
            return raw
        return {**raw, "steps": 100}


class OwnLocal(_LocalChanges):
    """Local settings of one algorithm that replace keys of ``local``."""

    decay: Positive | None = None
    optimizer: str | None = None
    weight_decay: NonNegative | None = None
    keep: bool | None = None
    clip_norm: Positive | None = None
    decay_of: Literal["all", "weights"] | None = None
    schedule: RateSchedule | None = None
    options: dict[str, Any] | None = None  # replace all of ``local``'s; a new ``optimizer`` without options has none


class Participation(Table):
    """The clients that train in a round; if there are fewer than ``clients_per_round``, all clients train."""

    clients_per_round: Count


class Execution(Table):
    """The mapping of clients and seeds to devices (a strategy, or the number side by side), and the precision.

    ``execution = "debug"`` is short for a table with ``clients = "debug"``: nothing is compiled.
    """

    clients: ClientStrategy = "auto"
    seeds: Strategy = "auto"
    evaluation: Strategy = "auto"
    devices: Devices = "all"
    precision: Literal["default", "high", "highest"] = "default"
    examples: Literal["auto", "device", "host"] = "auto"
    client_states: Literal["auto", "device", "host"] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _short(cls, raw: Any) -> Any:
        return {"clients": raw} if raw == "debug" else raw


class Scenario(Named):
    """A wrapper around an algorithm; other keys are passed to its builder."""


class AlgorithmEntry(Named):
    """One algorithm of the comparison; other keys are its hyper-parameters.

    ``local`` replaces keys of the experiment's ``local`` for this algorithm alone (papers tune learning rates for each
    method). Requirements (``threshold``) and standalone models are the same for all algorithms. A ``pooled`` algorithm
    trains on the rows of all clients in one.
    """

    label: Label
    local: OwnLocal = OwnLocal()
    scenarios: Annotated[tuple[Scenario, ...], BeforeValidator(as_tuple), Field(max_length=MOST_ENTRIES)] = ()
    pooled: bool = False

    @model_validator(mode="before")
    @classmethod
    def _label(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping) and "label" not in raw and "name" in raw:
            return {**raw, "label": raw["name"]}
        return raw


class Contribution(Named):
    """The contribution measure of an algorithm that uses contributions; other keys are passed to the measure.

    ``free_riders`` contribute ``level``, or the contribution for which they get the share ``induced_rate`` of all
    updates (IAFL's gamma') at ``kappa`` and ``ceiling`` ("max": the largest contribution of the other clients).
    ``file`` has contributions in place of a measure; its path is relative to the config.
    """

    name: Printable = "standalone_accuracy"
    file: Printable | None = None
    free_riders: Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(as_tuple)] = ()
    level: NonNegative = 0.0
    induced_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    kappa: Annotated[float, Field(ge=0, lt=1)] = 0.0
    ceiling: Annotated[Literal["max"] | Positive, BeforeValidator(ceiling_of)] = "max"

    @model_validator(mode="after")
    def _one_level(self) -> Contribution:
        named = self.model_fields_set
        if self.file is not None and "name" in named:
            raise ValueError(f"expected one of name and file, got {self.name!r} and {self.file!r}")
        if self.induced_rate is not None and "level" in named:
            raise ValueError(
                f"expected at most one of level and induced_rate, got {self.level} and {self.induced_rate}"
            )
        if not self.free_riders and named & {"level", "induced_rate"}:
            raise ValueError("expected free_riders, the ids of those that contribute so little, got none")
        if self.induced_rate is None and named & {"kappa", "ceiling"}:
            raise ValueError("expected induced_rate with kappa and ceiling, which it is turned to a level by, got none")
        if len(set(self.free_riders)) < len(self.free_riders):
            raise ValueError(f"expected different free_riders, got {list(self.free_riders)}")
        return self


class Clustering(Table):
    """The initial clusters of an algorithm: "random", or by "f1" after some ``rounds`` of FedAvg.

    K-means groups clients by F1 scores on the server's ``rows``, for the ``features`` classes in which clients differ
    most. ``late`` clients do not answer in time: a share of them, drawn for each seed, or a list of ids. They join
    random clusters.
    """

    name: Literal["random", "f1"] = "random"
    rounds: Count = 5
    features: Count = 10
    rows: str = "validation"
    late: LateClients = 0.0


class Published(Table):
    """Published numbers to print beside the results: rows of a table (``fljax list tables``)."""

    tables: Annotated[tuple[str, ...], BeforeValidator(as_tuple), Field(min_length=1)]
    dataset: str | None = None
    partition: str | None = None  # a part of the name, to separate the settings of one table


class Callback(Named):
    """A callback, called after every evaluation of each algorithm; other keys are passed to its builder.

    A builder of one's own gets the algorithm's ``label``, the run's ``folder``, ``seeds`` and ``rounds`` if it has
    parameters of these names (``cells`` in a sweep), and returns a callback for ``fljax.simulate``.
    """


class Stop(Table):
    """Early stopping of every algorithm, as ``fljax.engine.stop_early``; metrics of test rows are optimistic."""

    metric: str
    patience: Count = 5
    minimum_change: NonNegative = 0.0


class Sweep(Table):
    """The grid of ``fljax sweep``: ``grid`` maps paths, in the form of ``--set``, to lists of values.

    ``metric`` selects the best cell.
    """

    grid: dict[Printable, Annotated[tuple[Any, ...], BeforeValidator(different_values)]] = {}
    metric: str = "average_accuracy"


class ScoreEntry(Table):
    """A score by its name alone, or a table with its name and, for a function of one's own, its direction."""

    name: Printable
    lower: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, raw: Any) -> Any:
        return raw if isinstance(raw, Mapping | ScoreEntry) else {"name": raw}


class Metrics(Table):
    """Settings of metrics, which change no run."""

    opt_out_threshold: NumberOrNumbers = 0.0  # by client id: unseen ones have 0
    extra: Annotated[tuple[Printable, ...], BeforeValidator(as_tuple), Field(max_length=MOST_ENTRIES)] = ()
    scores: Annotated[tuple[ScoreEntry, ...], BeforeValidator(as_tuple), Field(max_length=MOST_ENTRIES)] = ()
    score_every: Count | None = None


def _losses(value: Any) -> Any:
    def is_number(number: Any) -> bool:
        return isinstance(number, int | float) and not isinstance(number, bool)

    if is_number(value) and not math.isnan(value):
        return float(value)
    if isinstance(value, list | tuple) and value and all(map(is_number, value)):
        return tuple(map(float, value))
    raise ValueError(f"expected a number or a list of numbers by client, got {shown(value)}")


_Losses = Annotated[
    float | tuple[float, ...], BeforeValidator(_losses), Field(description="number or list of numbers by client")
]


class Requirement(Table):
    """The loss that each client requires, the same for all algorithms, scenarios and metrics: ``fljax.Requirement``.

    It is the loss of the client's standalone model on its ``rows``; or the ``value``; or that of a ``file``, which is
    relative to the config; or what a ``function`` makes of standalone losses. ``factor`` multiplies it. Without this
    table the ``threshold`` of an algorithm or scenario is the requirement of all, or else the standalone training loss.

    Our GM-Appeal compares losses with it. MaxFL's printed GM-Appeals do not stand beside this metric: those for unseen
    clients equal INCFL's IPR, so they stand beside our comparison of test losses
    (``global_incentivised_participation_rate``), and those of Table 4 beside the appeal of deployed models.
    """

    rows: Literal["train", "valid", "test"] = "train"
    value: _Losses | None = None
    file: Printable | None = None
    function: Printable | None = None
    factor: Positive = 1.0

    @model_validator(mode="after")
    def _one_source(self) -> Requirement:
        sources = [name for name in ("value", "file", "function") if getattr(self, name) is not None]
        sources = ["rows", *sources] if self.rows != "train" else sources
        if len(sources) > 1:
            raise ValueError(f"expected one of rows, value, file and function, got {' and '.join(sources)}")
        return self


class Config(Resolvable):
    """An experiment: the same data, model and seeds for every algorithm.

    ``scenarios`` wrap every algorithm, outside the algorithm's own scenarios; the last scenario is the outermost.
    ``save_models`` selects the trained models that ``fljax run`` saves: of the "last" round, the "best" evaluation by
    validation rows, or of "all" evaluations.
    ``non_finite`` says what happens to clients whose messages or states have a NaN or infinity (``fljax.simulate``).
    ``callbacks`` are called after every evaluation, and ``stop`` may end an algorithm before ``rounds``.
    """

    name: Name
    seeds: Seeds = (0,)
    rounds: Annotated[int, Field(ge=0, le=MOST_ROUNDS)]
    evaluate_every: Count
    clients_per_evaluation: Count | None = None
    save_models: Literal["none", "last", "best", "all"] = "none"
    non_finite: Literal["freeze", "drop", "stop"] = "freeze"
    data: Data
    model: Model
    local: Local
    standalone: Standalone = Standalone(steps=100)
    requirement: Requirement | None = None
    participation: Participation
    execution: Execution = Execution()
    metrics: Metrics = Metrics()
    published: Published | None = None
    scenarios: Annotated[tuple[Scenario, ...], BeforeValidator(as_tuple), Field(max_length=MOST_ENTRIES)] = ()
    callbacks: Annotated[tuple[Callback, ...], BeforeValidator(as_tuple), Field(max_length=MOST_ENTRIES)] = ()
    stop: Stop | None = None
    sweep: Sweep | None = None
    algorithms: Annotated[
        tuple[AlgorithmEntry, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=MOST_ENTRIES)
    ]

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, raw: Any) -> Any:
        """Sets defaults: about ten evaluations in a run, and all clients in every round."""
        if not isinstance(raw, Mapping):
            return raw
        rounds, data = raw.get("rounds"), raw.get("data")
        filled = dict(raw)
        if type(rounds) is int and rounds >= 0:
            filled.setdefault("evaluate_every", usual_spacing(rounds))
        clients = data.get("clients") if isinstance(data, Mapping) else getattr(data, "clients", None)
        if type(clients) is int and clients > 0:
            filled.setdefault("participation", {"clients_per_round": clients})
        return filled

    @model_validator(mode="after")
    def _labels(self) -> Config:
        labels = [entry.label for entry in self.algorithms]
        if (twice := next((each for place, each in enumerate(labels) if each in labels[:place]), None)) is not None:
            raise ValueError(f"expected a different label for each of the algorithms, got {twice!r} twice")
        return self

    @model_validator(mode="after")
    def _sizes(self) -> Config:
        """Raises a ValueError if an array of results has more entries than JAX can index, or thresholds are too few."""
        deltas, clients = self.metrics.opt_out_threshold, self.data.clients
        if isinstance(deltas, tuple) and len(deltas) != clients:
            raise ValueError(f"metrics.opt_out_threshold: expected numbers of {clients} clients, got {len(deltas)}")
        everybody, seeds = self.data.clients + self.data.unseen_count, len(self.seeds)
        if everybody > MOST_CLIENTS:
            raise ValueError(f"expected at most {MOST_CLIENTS} clients, seen and unseen, got {everybody}")
        rows = min(self.participation.clients_per_round, self.data.clients)
        evaluations = -(-self.rounds // self.evaluate_every)
        sizes = {
            "seeds x rounds x clients_per_round": seeds * self.rounds * rows,
            "seeds x evaluations x clients": seeds * evaluations * everybody,
        }
        for what, count in sizes.items():
            if count > LARGEST_INTEGER:
                raise ValueError(f"expected {what} to be at most {LARGEST_INTEGER}, got {count}")
        return self


_Checked = TypeVar("_Checked")


class ConfigError(ValueError):
    """The errors of a config; the message has a line for each, which is one sentence."""

    def __init__(self, *errors: str) -> None:
        super().__init__(*errors)

    @property
    def errors(self) -> tuple[str, ...]:
        """The sentences."""
        return self.args

    def __str__(self) -> str:
        return "\n".join(self.args)


def tried(errors: list[ConfigError], check: Callable[..., _Checked], *arguments: Any) -> _Checked | None:
    """The result of ``check(*arguments)``; None if it raises a ConfigError, which is added to ``errors``."""
    try:
        return check(*arguments)
    except ConfigError as error:
        errors.append(error)
        return None


def raise_all(errors: Sequence[ConfigError]) -> None:
    """Raises all errors as one ConfigError, if there are any; a single one with its cause."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ConfigError(*dict.fromkeys(sentence for error in errors for sentence in error.errors))


@contextlib.contextmanager
def at(path: str) -> Iterator[None]:
    """Turns a ValueError inside into the ConfigError of a key, with the same cause."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error.__cause__


# Keys whose default is made of another key beside them, so that an error there leaves them without one.
_DEFAULT_OF = {"evaluate_every": "rounds", "participation": "data", "label": "name"}


def sentences(error: pydantic.ValidationError, raw: Mapping[str, Any], known: Container[str] = ()) -> list[str]:
    """One sentence about each error, without errors that follow from another one; unknown keys come first."""
    errors = sorted(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
    places = [entry["loc"] for entry in errors]
    strange = [entry["loc"] for entry in errors if entry["type"] == "extra_forbidden"]

    def follows(entry: Any) -> bool:
        *table, key = entry["loc"] or ("",)
        if key in _DEFAULT_OF and not _is_given(entry["loc"], raw):
            beside = (*table, _DEFAULT_OF[str(key)])
            if beside[0] in known or any(place[: len(beside)] == beside for place in places):
                return True
        misspelt = (str(place[-1]) for place in strange if list(place[:-1]) == table)
        return entry["type"] == "missing" and any(nearest(name, [str(key)]) for name in misspelt)

    told = [entry for entry in errors if not entry["loc"] or str(entry["loc"][0]) not in known]
    first = [entry for entry in told if not follows(entry)]
    # Without errors that were found before, something must be told.
    return list(dict.fromkeys(_sentence(entry, raw) for entry in (first if known else first or told)))


def _is_given(location: Sequence[int | str], raw: Any) -> bool:
    try:
        for key in location:
            raw = raw[key]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _sentence(error: Any, raw: Mapping[str, Any]) -> str:
    location = list(error["loc"])
    path = _path(location, raw)
    if error["type"] == "extra_forbidden":
        table: Any = Config
        for key in location[:-1]:
            if isinstance(key, str):
                table = _table(table.model_fields[key].annotation)
        return f"{path}: {unknown('key', str(location[-1]), table.model_fields)}"
    prefix = f"{path}: " if path else ""
    return f"{prefix}{_mistake(error)}"


def _table(annotation: Any) -> Any:
    """The table class in a key's annotation, also inside a list or an optional type; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((inner for part in typing.get_args(annotation) if (inner := _table(part)) is not None), None)


def option_sentences(error: pydantic.ValidationError, path: str, kind: str, names: Sequence[str]) -> list[str]:
    """One sentence about each option that has an error; unknown ones come first."""
    by_name: dict[str, list[Any]] = {}
    for each in sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden"):
        by_name.setdefault(str(each["loc"][0]), []).append(each)
    strange = [name for name, (first, *_) in by_name.items() if first["type"] == "extra_forbidden"]
    said: list[str] = []
    for name, (first, *others) in by_name.items():
        if first["type"] == "extra_forbidden":
            said.append(f"{path}: {unknown(kind, name, names)}")
        elif first["type"] == "missing" and any(nearest(each, [name]) for each in strange):
            continue  # it is there under another name
        elif not others:
            said.append(f"{path}.{name}: {_mistake(first)}")
        else:  # pydantic reports one error for each member of a union; the members are alternatives
            alike = [each for each in (first, *others) if each["input"] is first["input"]]  # not of a list around it
            expected = " or ".join(dict.fromkeys(map(_expected, alike)))
            said.append(f"{path}.{name}: expected {expected}, got {shown(first['input'])}")
    return said


def _path(location: Sequence[int | str], raw: Mapping[str, Any]) -> str:
    """The key's path in the form of overrides, with the names of algorithms and scenarios instead of positions."""
    words, here = [], raw
    for key in location:
        try:
            here = here[key]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            here = {}
        label = here.get("label", here.get("name")) if isinstance(here, Mapping) else None
        words.append(str(label) if isinstance(key, int) and label is not None else str(key))
    return ".".join(words)


def _mistake(error: Any) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "missing":
        return "expected a value (there is no default), got none"
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        valid = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        return unknown("value", error["input"], valid)
    return f"expected {_expected(error)}, got {shown(error['input'])}"


_EXPECTED = {
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "finite_number": "a finite number",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "literal_error": "{expected}",
    "dict_type": "a table",
    "mapping_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "tuple_type": "a list",
    "list_type": "a list",
    "sequence_str": "a list",
    "is_instance_of": "a list",  # among the types of options, only sequences give this error
    "none_required": "nothing",
    "too_long": "at most {max_length} of them",
    "too_short": "at least {min_length} of them",
}


def _expected(error: Any) -> str:
    template = _EXPECTED.get(error["type"])
    # Limits of floats are floats: print 1 instead of 1.0.
    limits = {key: int(limit) if limit == 1 or limit == 0 else limit for key, limit in error.get("ctx", {}).items()}
    return template.format(**limits) if template is not None else error["msg"]


# Valid values in place of required keys that are wrong; nothing is said of what depends on them.
_STAND_INS: Mapping[str, Any] = {
    "rounds": 1,
    "data": {"dataset": "-", "partition": "-", "clients": 1},
    "model": {"name": "-"},
    "local": {"learning_rate": 1.0, "batch_size": 1, "steps": 1},
    "algorithms": [{"name": "-"}],
}


def without_errors(
    raw: Mapping[str, Any], error: pydantic.ValidationError, broken: frozenset[str]
) -> tuple[Config | None, frozenset[str]]:
    """The config without faulty tables and entries (None: it cannot be checked), and the names of replaced tables."""
    remaining, wrong = dict(raw), set(broken)
    entries: dict[str, set[int]] = {}
    for key, *rest in (part["loc"] for part in error.errors() if part["loc"]):
        if rest and isinstance(rest[0], int):
            entries.setdefault(str(key), set()).add(rest[0])
        else:
            wrong.add(str(key))
    for key, places in entries.items():
        if key not in wrong:
            remaining[key] = [part for place, part in enumerate(raw[key]) if place not in places]
            wrong |= set() if remaining[key] else {key}
    for key in wrong:
        remaining.pop(key, None)
    remaining |= {key: value for key, value in _STAND_INS.items() if key in wrong}
    try:
        return Config.model_validate(remaining), frozenset(wrong)
    except pydantic.ValidationError:
        return None, frozenset(wrong)
