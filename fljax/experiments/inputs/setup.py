"""The values that an experiment runs with: federation, task, local training, algorithms, execution, requirements.

``[model] initial`` of a config: the model from which clients, server and standalone models start, in all seeds.
It is ``RUN:LABEL``, the common model of that algorithm (``initial_seed`` says whose), or a file of parameters. A run's
file of models has its common models apart, so they are read without the data and the code that trained them. A run
splits its data by seed, so the training rows of a seed of that run may be test rows of another seed here.

The loss rho_k that each client requires of a model is the same for all algorithms of a comparison: the weights of INCFL
and MW-Fed, appeal-based participation and GM-Appeal read the same numbers. They come from standalone models, from the
user, or from a function of both. Source: MaxFL, Definition 1 ("self-defined threshold of the client") and section 3.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
import pathlib
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Real

from fljax import data, models, results
from fljax.config import AlgorithmEntry, Config
from fljax.config.forms import Call, Named
from fljax.config.name_resolution import resolved_of, schedule_of
from fljax.contributions import Contribution, Measure
from fljax.core import users, values
from fljax.core.files import part_of, read_npz
from fljax.core.names import check_unlabelled, describe, did_you_mean, name_of, shown, unknown
from fljax.core.values import accepts, argument_of, arguments_for, as_number, is_required, parameters_of, takes_anything
from fljax.engine import Execution, Plan, Schedule, StopEarly, stop_early
from fljax.engine.callbacks import Callback
from fljax.engine.rounds.standalone import Initial
from fljax.experiments.inputs.clustering import ByF1
from fljax.metrics.registry import OF_LOSSES, OF_ONE_EVALUATION, ON_REQUEST, needs_of
from fljax.metrics.scores import Score
from fljax.protocol import Algorithm, AnyArray, Federation, Names, Task
from fljax.results import Reference, folders
from fljax.results.events import WEIGHTS, EventLog
from fljax.results.non_finite import NonFinite
from fljax.training import Local, RateSchedule, StopAlone

StandaloneRows = Literal["train", "valid", "test"]
Losses = float | Sequence[float] | Real[AnyArray, " N"] | Mapping[Any, float]
_NAMED = 5  # clients in a sentence
_DEFAULT = "default"  # in a table by names: the number of all others
_CLOSE = 1e-5  # relative; numbers of this difference are one requirement, since programs round differently


class Requirement(NamedTuple):
    """The loss that each client requires, ``rho_k``; at most one of the first four is given.

    Attributes:
      rows: the loss of the client's standalone model on its rows of this kind. A client without such rows has the loss
        on its training rows.
      value: one number for all clients; or numbers of the seen clients by id, ``[N]``; or losses by client, by the
        names in ``Federation.names`` (by number, if clients have no names). Only a client without training rows may
        have NaN.
      file: a CSV file with the columns ``client`` and ``loss``, in place of ``value``.
      function: ``function(train, valid, test)`` of the standalone losses, arrays ``[seeds, N]``; it returns the
        required losses. It may have any of these parameters. Losses on rows that a client does not have are NaN. It is
        called again for unseen clients.
      factor: multiplies the required losses.

    The same holds for unseen clients. With numbers by client they have the number of their name, or else the standalone
    training loss.
    """

    rows: StandaloneRows = "train"
    value: Losses | None = None
    file: str | os.PathLike[str] | None = None
    function: Callable[..., Any] | None = None
    factor: float = 1.0


class Clients(NamedTuple):
    """The clients that require a loss."""

    trains: Bool[np.ndarray, "seeds N"]  # whether a seen client has training rows, by id
    names: tuple[Names, ...]  # of each seed


class Given(NamedTuple):
    """A threshold that an algorithm or a scenario was given; ``by`` names it."""

    by: str
    threshold: Any


def requirement_of(given: Any) -> Requirement | None:
    """The requirement that a user gives, also its value or function alone, checked; ``value`` is its file's content."""
    if given is None:
        return None
    if isinstance(given, Requirement):
        found = given
    elif callable(given):
        found = Requirement(function=given)
    else:
        found = Requirement(value=given)
    _check(found, given)
    if found.file is not None:
        return found._replace(file=None, value=read_losses(pathlib.Path(found.file)))
    return found


def _check(requirement: Requirement, given: Any) -> None:
    rows, value, _, function, factor = requirement
    sources = [name for name in ("value", "file", "function") if getattr(requirement, name) is not None]
    if rows not in get_args(StandaloneRows):
        raise ValueError(f"expected requirement.rows to be 'train', 'valid' or 'test', got {shown(rows)}")
    if len(sources) > 1 or (sources and rows != "train"):
        both = " and ".join(sources if len(sources) > 1 else ["rows", *sources])
        raise ValueError(f"expected requirement to have one of rows, value, file and function, got {both}")
    number = as_number(factor)
    if number is None or not 0 < number < math.inf:
        raise ValueError(f"expected requirement.factor to be one finite number above 0, got {shown(factor)}")
    if function is not None:
        _check_function(function)
    check_unlabelled("requirement", value, "a dictionary has losses by client's name, such as a Series' to_dict()")
    if isinstance(value, Mapping):
        wrong = next((each for each in value.values() if as_number(each) is None), None)
        if wrong is not None or not value:
            raise ValueError(f"expected requirement to have a number for each client, got {shown(wrong or value)}")
    elif value is not None and not _is_numbers(value):
        what = "a number, numbers by client, losses by client's name, a function or a fljax.Requirement"
        got = describe(given) if isinstance(given, Requirement) else shown(given)
        raise ValueError(f"expected requirement to be {what}, got {got}")


def _is_numbers(value: Any) -> bool:
    """Whether it is one number other than NaN, or a list of numbers."""
    number = as_number(value)
    if number is not None:
        return not math.isnan(number)
    try:
        found = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return found.ndim == 1 and found.dtype.kind in "iuf" and found.size > 0


def _check_function(function: Any) -> None:
    """Raises a ValueError unless all that a function must be given are losses."""
    losses = get_args(StandaloneRows)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise ValueError(
            f"expected requirement.function to be a function of train, valid and test, got {shown(function)}"
        ) from None
    for each in parameters:
        named = each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) and each.name in losses
        if not named and each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
            raise ValueError(
                f"expected the requirement's function {name_of(function)} to have parameters among "
                f"{', '.join(losses)}, got {each.name}"
            )


def read_losses(path: pathlib.Path) -> dict[str, float]:
    """The losses by client of a CSV file with the columns ``client`` and ``loss``."""
    from fljax.data.own.frames import TableOptions  # imported here, since pandas takes long
    from fljax.data.own.table_files import read_text

    about = f"requirement.file {str(path)!r}"
    try:
        table = read_text(path, TableOptions("loss", "client", regression=True))
    except ValueError as error:  # without the options of data sets, which this file does not have
        words = re.sub(r"; (say separator|name the file's own).*", "", str(error))
        raise ValueError(f"{about}: {words}") from None
    lacking = [name for name in ("client", "loss") if name not in table.columns]
    if lacking:
        got = ", ".join(map(str, table.columns))
        raise ValueError(f"{about}: expected the columns client and loss, got {got}")
    found: dict[str, float] = {}
    for client, text in zip(table["client"].tolist(), table["loss"].tolist(), strict=True):
        if client is None:
            raise ValueError(f"{about}: expected a client in every row, got an empty cell")
        if client in found:
            raise ValueError(f"{about}: expected every client once, got {shown(client)} twice")
        try:
            found[client] = float(text)
        except (TypeError, ValueError):
            got = "an empty cell" if text is None else shown(text)
            raise ValueError(f"{about}: expected a number as the loss of {client}, got {got}") from None
    return found


def needs_validation(requirement: Requirement | None, federation: Federation) -> bool:
    """Whether the requirement reads losses of standalone models on validation rows."""
    if requirement is None or requirement.function is None:
        return requirement is not None and requirement.rows == "valid"
    groups = [clients for clients in (federation.clients, federation.unseen) if clients is not None]
    there = any(np.any(np.asarray(clients.valid.size) > 0) for clients in groups)
    return there and accepts(requirement.function, "valid")


def clients_of(federation: Federation, names: Sequence[Names], seeds: int) -> Clients:
    """The clients of a federation, by id. ``names`` are of each seed, or of all."""
    clients = federation.clients
    size = np.take_along_axis(np.asarray(clients.train.size), np.argsort(np.asarray(clients.id), axis=-1), axis=-1)
    trains = np.broadcast_to(size > 0, (seeds, size.shape[-1]))
    return Clients(trains, tuple(names) if len(names) == seeds else (names[0],) * seeds)


def with_requirement(
    reference: Reference,
    requirement: Requirement | None,
    given: Sequence[Given],  # must be equal, also to the requirement; other forms than numbers are ignored
    clients: Clients,
    *,
    trial: bool = False,  # the reference has placeholders: no function is called
) -> Reference:
    """The reference with ``required`` and ``unseen_required``; None: ``given`` thresholds, else standalone losses."""
    bare = reference._replace(required=None, unseen_required=None)
    found = [(each, results.with_threshold(bare, each.threshold)) for each in given]
    found = [(each, own) for each, own in found if own is not bare]
    if requirement is not None:
        chosen, first = _required(requirement, bare, clients, trial), None
    elif found:
        # One number says what unseen clients require, too.
        first, chosen = min(found, key=lambda pair: np.ndim(pair[0].threshold))
    else:
        return bare._replace(required=bare.threshold, unseen_required=bare.unseen_threshold)
    unknown = trial and requirement is not None and requirement.value is None
    for each, own in found:
        same = np.ndim(each.threshold) > 0 if unknown else _same(chosen.required, own.required)
        if not same:
            lying = "misreporting(report='threshold') lets clients report another one"
            both = (
                f"{_words(each)} beside another requirement" if first is None else f"{_words(first)} and {_words(each)}"
            )
            raise ValueError(f"expected one requirement for all algorithms of a comparison, got {both}; {lying}")
    if requirement is None or requirement.value is not None or requirement.function is not None:
        _check_known(chosen.required, clients)
    return chosen if chosen.unseen_required is not None else chosen._replace(unseen_required=bare.unseen_threshold)


def _words(given: Given) -> str:
    return f"the threshold {describe(given.threshold)} of {given.by}"


def _same(first: Any, second: Any) -> bool:
    return np.allclose(first, second, rtol=_CLOSE, atol=0, equal_nan=True)


def _check_known(required: Any, clients: Clients) -> None:
    wrong = np.argwhere(np.isnan(required) & clients.trains)
    if len(wrong):
        seed, client = wrong[0]
        name = _names(clients.names[seed].clients, clients.trains.shape[1])[client]
        raise ValueError(f"expected a required loss of every client with training rows, got NaN for client {name}")


def _required(requirement: Requirement, reference: Reference, clients: Clients, trial: bool) -> Reference:
    """The reference with the requirement of seen and unseen clients."""
    seen, unseen = reference.threshold, reference.unseen_threshold
    factor = requirement.factor
    if isinstance(requirement.value, Mapping):
        return _by_name(requirement.value, factor, reference, clients)
    if requirement.value is not None:
        value = np.asarray(requirement.value)
        if value.ndim and len(value) != seen.shape[-1]:
            raise ValueError(
                f"expected requirement to be one number or one for each of {seen.shape[-1]} clients, got {len(value)}"
            )
        return results.with_threshold(reference, value.astype(seen.dtype) * factor)
    if requirement.function is not None:
        if not trial:
            seen = _called(requirement.function, seen, reference.valid_loss, reference.test_loss)
        if not trial and unseen is not None:
            others = reference.unseen_valid_loss, reference.unseen_test_loss
            unseen = _called(requirement.function, unseen, *others)
    elif requirement.rows != "train" and not trial:
        seen = _known(getattr(reference, f"{requirement.rows}_loss"), seen)
        unseen = None if unseen is None else _known(getattr(reference, f"unseen_{requirement.rows}_loss"), unseen)

    def times_factor(losses: Any) -> Any:
        return None if losses is None else (losses * factor).astype(reference.threshold.dtype)

    return reference._replace(required=times_factor(seen), unseen_required=times_factor(unseen))


def _known(loss: Any, otherwise: Any) -> np.ndarray:
    """A loss, and that on training rows for clients without such rows."""
    return np.where(np.isnan(loss), otherwise, loss)


def _called(function: Callable[..., Any], train: Any, valid: Any, test: Any) -> np.ndarray:
    """The losses that a user's function requires."""
    nothing = np.full_like(train, np.nan)
    losses = {"train": train, "valid": nothing if valid is None else valid, "test": test}
    asked = {
        name: np.array(loss) for name, loss in losses.items() if takes_anything(function) or accepts(function, name)
    }
    kind, wanted = "the requirement's function", f"one loss for each of its arguments' {train.shape} seeds and clients"
    given = users.call(kind, "(train, valid, test), or some of them", function, **asked)
    found = users.numbers(kind, function, wanted, given, (...,), np.asarray).astype(train.dtype)
    if found.shape not in ((), train.shape):
        raise users.refused(kind, function, wanted, given)
    return np.broadcast_to(found, train.shape)


def _by_name(losses: Mapping[Any, float], factor: float, reference: Reference, clients: Clients) -> Reference:
    """The requirement by clients' names; a seed's clients have names of their own."""
    texts: dict[str, float] = {}
    for name, loss in losses.items():
        if texts.setdefault(_text(name), float(loss) * factor) != float(loss) * factor:
            raise ValueError(f"expected one required loss of each client, got two of {_text(name)}")
    required = np.full_like(reference.threshold, np.nan)
    unseen = None if reference.unseen_threshold is None else np.array(reference.unseen_threshold)
    known: dict[str, None] = {}
    for seed, names in enumerate(clients.names):
        seen = [_text(name) for name in _names(names.clients, required.shape[-1])]
        others = [_text(name) for name in names.unseen or ()]
        known |= dict.fromkeys([*seen, *others])
        required[seed] = [texts.get(name, np.nan) for name in seen]
        training = [name for name, trains in zip(seen, clients.trains[seed], strict=True) if trains]
        lacking = [name for name in training if name not in texts]
        if lacking:
            few = _few(lacking)
            raise ValueError(f"expected a required loss of every client with training rows, got none of {few}")
        if unseen is not None and others:
            unseen[seed] = [texts.get(name, alone) for name, alone in zip(others, unseen[seed], strict=True)]
    strange = next((name for name in texts if name not in known), None)
    if strange is not None:
        question = did_you_mean(strange, known)
        raise ValueError(
            f"expected a requirement of the clients {_few(list(known))}, got one of {shown(strange)}{question}"
        )
    return reference._replace(required=required, unseen_required=unseen)


def numbers_by_client(
    build: Callable[..., Any], options: Mapping[str, Any], names: Sequence[Sequence[Any] | None], count: int
) -> dict[str, Any]:
    """A builder's options, in which tables of numbers by clients' ``names`` (of each seed) are lists by id."""
    annotations = values.annotations_of(build)

    def listed(option: str, table: Mapping[Any, Any]) -> tuple[Any, ...]:
        texts = {_text(name): value for name, value in table.items()}
        several = next((name for name, value in texts.items() if np.ndim(value)), None)
        if several is not None:  # [N, rounds] would be read as [rounds, N]
            raise ValueError(
                f"expected one number for each client in a table {option}, got several for {shown(several)}"
            )
        seen, *others = dict.fromkeys(tuple(map(_text, _names(of_seed, count))) for of_seed in names)
        if len(texts) < len(table) or len({*seen, _DEFAULT}) <= len(seen):
            different = f"expected clients and keys with different names, none of which is {_DEFAULT},"
            raise ValueError(f"{different} for a table {option}, got {_few([*map(str, table)])} of {_few(seen)}")
        if others:
            raise ValueError(
                f"expected clients of the same names in all seeds for a table {option}, got others by seed"
            )
        strange = next((name for name in texts if name not in (*seen, _DEFAULT)), None)
        if strange is not None:
            question = did_you_mean(strange, seen)
            raise ValueError(f"expected {option} of the clients {_few(seen)}, got one of {shown(strange)}{question}")
        lacking = [name for name in seen if name not in texts and _DEFAULT not in texts]
        if lacking:
            raise ValueError(f"expected {option} of every client, or a {_DEFAULT}, got none of {_few(lacking)}")
        return tuple(texts.get(name, texts.get(_DEFAULT)) for name in seen)

    def found(option: str, value: Any) -> Any:
        if values.is_record(type(value)):
            return type(value)(**numbers_by_client(type(value), value._asdict(), names, count))
        by_name = isinstance(value, Mapping) and values.is_by_client(annotations.get(option))
        return listed(option, value) if by_name else value

    return {option: found(option, value) for option, value in options.items()}


def _names(given: Sequence[Any] | None, count: int) -> list[Any]:
    """The names of clients, or their numbers."""
    return list(range(count)) if given is None else list(given)


def _text(name: Any) -> str:
    """A client's name as it is written in a file."""
    return unicodedata.normalize("NFC", str(name)).strip()


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def describe_requirement(requirement: Requirement | None) -> dict[str, Any] | None:
    """A requirement as settings for a file that says how a comparison was made; losses by client in a few words."""
    if requirement is None:
        return None
    rows, value, _, function, factor = requirement
    found: dict[str, Any] = {} if factor == 1 else {"factor": float(factor)}
    if function is not None:
        return {"function": name_of(function), **found}
    if value is None:
        return {"rows": rows, **found}
    if isinstance(value, Mapping):
        return {"value": f"of {len(value)} clients by name", **found}
    return {"value": np.asarray(value).tolist(), **found}


COMMON, SEEDS = "common/", "seeds"


def with_initial(task: Task, initial: str | None, seed: int | None = None) -> Task:
    """The task that starts from what a config names (``seed``: one of ``RUN``'s seeds); None: the task itself."""
    # All seeds start from one model, since ``Task.init`` knows no seed but its key.
    if initial is None:
        if seed is not None:
            raise ValueError(f"model.initial_seed: expected model.initial = 'RUN:LABEL' with it, got {seed} alone")
        return task
    try:
        run = _run_of(initial)
        if run is None:
            if seed is not None:
                raise ValueError(f"expected no initial_seed for a file of parameters, got {seed}")
            return models.start_from(task, models.load_params(initial, task))
        return models.start_from(task, models.params_of(_common(*run, seed), task, initial))
    except ValueError as error:
        raise ValueError(f"model.initial: {error}") from None


def _run_of(initial: str) -> tuple[pathlib.Path, str] | None:
    """The run folder and the label; a label may have colons, too. None: it is no run folder."""
    places = [place for place, letter in enumerate(initial) if letter == ":"]
    for place in places:
        if _is_run(pathlib.Path(initial[:place])):
            return pathlib.Path(initial[:place]), initial[place + 1 :]
    if _is_run(pathlib.Path(initial)):
        raise ValueError(f"expected a run folder with a label, '{initial}:LABEL', got {initial!r}")
    if places and not pathlib.Path(initial).exists():
        got = initial[: places[-1]]
        raise ValueError(f"expected a run folder, or a file of parameters, got {got!r}, which is no run folder")
    return None


def _writer(folder: pathlib.Path) -> str:
    """What writes models to a folder."""
    of_a_run = (folder / folders.CONFIG).is_file()
    return "fljax run --save-models last" if of_a_run else "Comparison.save(folder, models='last')"


def _is_run(folder: pathlib.Path) -> bool:
    return any((folder / name).is_file() for name in (folders.CONFIG, folders.COMPARISON))


def _common(folder: pathlib.Path, label: str, seed: int | None) -> dict[str, np.ndarray]:
    """The common model of an algorithm of a run, by path: the last one, or the best one if only that was saved."""
    folders.check_own_files(folder)
    labels = folders.labels_of(folder)
    if label not in labels:
        raise ValueError(unknown("label", label, labels))
    paths = [folders.models_of(folder, label, part) for part in ("", "best")]
    path = next((each for each in paths if each.is_file()), None)
    if path is None:
        raise ValueError(f"expected {str(paths[0])!r}, which {_writer(folder)} writes, got no such file")
    arrays = read_npz(path, "models", (COMMON, SEEDS))
    common, seeds = part_of(arrays, COMMON), arrays[SEEDS].tolist() if SEEDS in arrays else []
    if not common:
        raise ValueError(f"expected an algorithm with a model that all clients share, got {label!r}, which has none")
    if seed is None and len(seeds) > 1:
        raise ValueError(f"expected model.initial_seed, one of the seeds {seeds} of {str(folder)!r}, got none")
    if seed is not None and seed not in seeds:
        raise ValueError(f"expected model.initial_seed to be one of the seeds {seeds} of {str(folder)!r}, got {seed}")
    return jax.tree.map(lambda values: values[0 if seed is None else seeds.index(seed)], common)


OptOut = float | tuple[float, ...]


class AlgorithmSetup(NamedTuple):
    """One algorithm of an experiment, with the builders in place of their names."""

    label: str
    build: Callable[..., Algorithm]
    options: Mapping[str, Any]
    scenarios: tuple[tuple[Callable[..., Algorithm], Mapping[str, Any]], ...]  # the innermost first
    local: Local
    contribution: Contribution = Measure()
    clustering: ByF1 | None = None  # None: the algorithm draws its clusters
    plan: Plan | None = None  # is run as it is; None: it is made of the builders
    pooled: bool = False  # whether it trains on the rows of all clients in one

    def by_id(self, names: Sequence[Sequence[Any] | None], count: int) -> AlgorithmSetup:
        """The entry with lists in place of tables by clients' names."""
        scenarios = tuple((wrap, numbers_by_client(wrap, given, names, count)) for wrap, given in self.scenarios)
        named = isinstance(self.contribution, Mapping)
        given = {**self.options, **({"contribution": self.contribution} if named else {})}
        options = numbers_by_client(self.build, given, names, count)
        contribution = options.pop("contribution") if named else self.contribution
        return self._replace(options=options, scenarios=scenarios, contribution=contribution)


class CallbackSetup(NamedTuple):
    """A callback of every algorithm, with its builder in place of its name, and the options that the config gives."""

    build: Callable[..., Callback]
    options: Mapping[str, Any] = {}


class World(NamedTuple):
    """The data of a config."""

    federation: Federation
    dataset: data.Dataset  # of the first seed
    names: tuple[Names, ...]  # of each seed


class Setup(NamedTuple):
    """An experiment; fields are as for ``fljax.compare``, if nothing else is said."""

    name: str
    federation: Federation  # of all seeds, stacked
    task: Task
    algorithms: tuple[AlgorithmSetup, ...]  # the first one is what the others are compared with
    standalone: Local
    clients_per_round: int  # as in the config, where it may be more than there are
    rounds: int
    seeds: tuple[int, ...]
    evaluate_every: int
    execution: Execution
    non_finite: NonFinite = "freeze"
    callbacks: tuple[CallbackSetup, ...] = ()
    stop: Callable[[], StopEarly] | None = None  # makes what may stop an algorithm early
    standalone_initial: Initial = "shared"
    standalone_stop: StopAlone | None = None
    world: World | None = None  # what the federation was made of; None: unknown
    opt_out_threshold: OptOut = 0.0
    requirement: Requirement | None = None
    extra_metrics: tuple[str, ...] = ()
    scores: tuple[Score, ...] = ()
    score_every: int | None = None  # evaluations between two that have scores; None: the last one alone
    clients_per_evaluation: int | None = None
    pool: Federation | None = None  # of pooled algorithms; None: it is made when it is asked for

    @property
    def clients(self) -> int:
        """The number of clients that may train."""
        return self.federation.clients.id.shape[-1]

    @property
    def unseen(self) -> int:
        """The number of clients that are evaluated and never train."""
        return 0 if self.federation.unseen is None else self.federation.unseen.id.shape[-1]

    @property
    def schedule(self) -> Schedule:
        """What each run does, beside evaluations at further rounds."""
        return Schedule(**{name: getattr(self, name) for name in Schedule._fields if name in self._fields})

    @property
    def alone(self) -> dict[str, Any]:
        """The settings of standalone models beside the local training, as arguments of ``fljax.standalone``."""
        valid = needs_validation(self.requirement, self.federation) or self.judges_alone
        started = {"initial": self.standalone_initial, "stop": self.standalone_stop, "valid": valid}
        return {"seeds": self.seeds, "execution": self.execution, **started}

    @property
    def judges_alone(self) -> bool:
        """Whether a metric reads losses of standalone models on validation rows."""
        return "standalone_valid_loss" in needs_of(self.extra_metrics)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(entry.label for entry in self.algorithms)


def resolve_setup(config: Config, log: EventLog | None = None) -> Setup:
    """Reads the data and builds the model of a config; ``log`` gets notes on them."""
    world = build_world(config, log)
    return assemble(config, world.federation, build_task(config, world.dataset, log))._replace(world=world)


def resolve_cells(cells: Sequence[Config], log: EventLog | None = None) -> list[Setup]:
    """The setup of every cell of a sweep; equal data and seeds share a federation, and equal models a task."""
    worlds: dict[str, World] = {}
    tasks: dict[str, Task] = {}
    setups = []
    for cell in cells:
        examples = repr((cell.data, cell.seeds))
        if examples not in worlds:
            worlds[examples] = build_world(cell, log)
        world, model = worlds[examples], repr((examples, cell.model))
        if model not in tasks:
            tasks[model] = build_task(cell, world.dataset, log)
        setups.append(assemble(cell, world.federation, tasks[model])._replace(world=world))
    return setups


def assemble(config: Config, federation: Federation, task: Task) -> Setup:
    """The setup of a config whose data and model are built already."""
    local = local_training(config)
    own = config.standalone.model_dump(exclude_none=True, exclude={"initial", "stop"})
    resolved = resolved_of(config)
    decide = [table.metric for table in (config.stop, config.sweep) if table is not None]
    return Setup(
        name=config.name,
        federation=federation,
        task=task,
        algorithms=tuple(map(_algorithm, config.algorithms, resolved.algorithms, resolved.scenarios, repeat(local))),
        standalone=_with_changes(local, {"steps": None, "epochs": None} | own),
        clients_per_round=config.participation.clients_per_round,
        rounds=config.rounds,
        seeds=config.seeds,
        evaluate_every=config.evaluate_every,
        execution=Execution(**config.execution.model_dump()),
        non_finite=config.non_finite,
        callbacks=tuple(CallbackSetup(*call) for call in resolved.callbacks),
        stop=_stop(config, task),
        opt_out_threshold=config.metrics.opt_out_threshold,
        extra_metrics=tuple(dict.fromkeys([*config.metrics.extra, *(name for name in decide if name in ON_REQUEST)])),
        standalone_initial=config.standalone.initial,
        standalone_stop=None if config.standalone.stop is None else StopAlone(**config.standalone.stop.model_dump()),
        requirement=None if resolved.requirement is None else requirement_of(Requirement(**resolved.requirement)),
        scores=resolved.scores,
        score_every=config.metrics.score_every,
        clients_per_evaluation=config.clients_per_evaluation,
    )


def _stop(config: Config, task: Task) -> Callable[[], StopEarly] | None:
    """Makes callbacks for early stopping; raises a ValueError if the task has no such metric."""
    if config.stop is None:
        return None
    if task.score is None and config.stop.metric not in OF_LOSSES:
        raise ValueError(
            f"stop.metric: expected a metric of losses for a task without a score, got {config.stop.metric!r}; valid "
            f"names are {', '.join(name for name in OF_ONE_EVALUATION if name in OF_LOSSES)}"
        )
    return functools.partial(stop_early, **config.stop.model_dump())


def local_training(config: Config) -> Local:
    """Local training of all algorithms of a config."""
    settings: dict[str, Any] = config.local.model_dump()
    settings["options"] = tuple(sorted(config.local.options.items()))
    settings["schedule"] = _schedule(config.local.schedule)
    return Local(**settings)


def _schedule(table: Named | None) -> RateSchedule | None:
    return None if table is None else RateSchedule(*schedule_of(table))


def _with_changes(local: Local, changes: Mapping[str, Any]) -> Local:
    """``local`` with some settings replaced; steps replace epochs, and an optimizer the options of the other one."""
    found: dict[str, Any] = dict(changes)
    if found.keys() & {"steps", "epochs"}:
        found = {"steps": None, "epochs": None} | found
    if found.keys() & {"optimizer", "options"}:
        found["options"] = tuple(sorted(found.get("options", {}).items()))
    return local._replace(**found)


def _algorithm(entry: AlgorithmEntry, algorithm: Call, scenarios: Sequence[Call], local: Local) -> AlgorithmSetup:
    options, start = dict(algorithm.arguments), entry.options.get("clustering")
    own = entry.local.model_dump(exclude_none=True)
    own |= {} if entry.local.schedule is None else {"schedule": _schedule(entry.local.schedule)}
    return AlgorithmSetup(
        label=entry.label,
        build=algorithm.build,
        scenarios=tuple((wrapper.build, wrapper.arguments) for wrapper in scenarios),
        local=_with_changes(local, own),
        contribution=options.pop("contribution", Measure()),
        clustering=None if start is None or start.name == "random" else ByF1(**start.model_dump(exclude={"name"})),
        options=options,
        pooled=entry.pooled,
    )


def build_world(config: Config, log: EventLog | None = None) -> World:
    """The data of all seeds; sources and partitioners are given ``clients``, ``unseen`` and ``seed`` if they ask."""
    resolved = resolved_of(config, needs_data=True)
    assert resolved.dataset is not None
    source, options = resolved.dataset
    counts = {"clients": config.data.clients, "unseen": config.data.unseen_count}
    by_seed = "seed" in parameters_of(source)
    datasets: dict[int, data.Dataset] = {}
    federations = []
    for seed in config.seeds:
        offered = counts | ({"seed": seed} if by_seed else {})
        which = seed if by_seed else config.seeds[0]
        if which not in datasets:
            # Placed once, so that the federations of all seeds share one copy.
            loaded = data.load(source, folder=config.data.folder, **arguments_for(source, offered, options))
            _check_pixels(loaded)
            datasets[which] = data.place(loaded, config.execution.examples)
            if log is not None:
                found = datasets[which]
                classes = "" if found.classes is None else f", {found.classes} classes"
                log.tell("data", "", 0, 0, f"{config.data.dataset}: {len(found.y)} examples{classes}")
        federations.append(
            data.federate(
                datasets[which],
                resolved.partition.build,
                clients=config.data.clients,
                unseen=config.data.unseen,
                seed=seed,
                train_fraction=config.data.train_fraction,
                valid_fraction=config.data.valid_fraction,
                test=config.data.test,
                held_fraction=config.data.held_fraction,
                examples=config.execution.examples,
                **resolved.partition.arguments,
            )
        )
    return World(data.stack(federations), datasets[config.seeds[0]], tuple(each.names for each in federations))


def _check_pixels(dataset: data.Dataset) -> None:
    """Raises a ValueError if a user's images, whose scale is not learnt from rows, use a small part of it."""
    x = dataset.x
    if x.dtype == np.uint8 and (dataset.mean, dataset.std) == (0.5, 0.5) and (most := x.max()) < 128:
        raise ValueError(
            f"data.dataset: expected pixels from 0 to 255, got a largest value of {most}; store them as floats such as "
            f"x / {max(most, 1)}, since the scale of images is not learnt from clients' rows"
        )


def weights_of(cells: Sequence[AlgorithmSetup]) -> dict[str, str]:
    """The attribute ``WEIGHTS`` of an algorithm's metrics; empty if it has no such option, or cells differ in it."""
    kinds = {None if each.pooled else argument_of(each.build, each.options, "weights", None) for each in cells}
    kind = kinds.pop()
    return {WEIGHTS: json.dumps({cells[0].label: kind})} if isinstance(kind, str) and not kinds else {}


def world_of(federation: Federation, names: Sequence[Names]) -> World:
    """A federation that no config made, as a World: its data set has the federation's own rows and no moments."""
    x, y = federation.examples[:2]
    return World(federation, data.Dataset(x, y, None, x.shape[0], 0.0, 1.0), tuple(names))  # type: ignore[arg-type]


def build_task(config: Config, dataset: data.Dataset, log: EventLog | None = None, *, initial: bool = True) -> Task:
    """The model of a config for a data set; ``initial``: it starts from what the config names."""
    builder, options = resolved_of(config).model
    known = {} if dataset.vocabulary is None else {"vocabulary": dataset.vocabulary}
    if known and not accepts(builder, "vocabulary"):
        texts = {name: each for name, each in models.MODELS.items() if accepts(each, "vocabulary")}
        raise ValueError(f"{unknown('model', config.model.name, texts)} for the texts of {config.data.dataset}")
    if not known and is_required(builder, "vocabulary"):
        asked = f"{config.model.name}, which asks for a vocabulary"
        raise ValueError(f"expected a data set of texts for the model {asked}, got {config.data.dataset}")
    if dataset.classes is None and builder in models.MODELS.values():
        single = "data.regression = false makes classes of numbers, and " if np.ndim(dataset.y) == 1 else ""
        raise ValueError(
            f"expected a dataset of classes for the model {config.model.name}, got {config.data.dataset}, whose labels "
            f"are no classes; {single}a model of one's own, module:function, may have another loss"
        )
    if not known and accepts(builder, "prepare"):
        known = {"prepare": models.standardise(dataset.mean, dataset.std)}
    elif not known and np.ndim(dataset.mean) and log is not None:  # moments that the user's own source gives
        words = f"the model {config.model.name} takes no prepare, so it sees the features of {config.data.dataset}"
        log.note(f"{words} as they are, not standardised")
    defaults = {"prepare": None, "dtype": jnp.float32}
    must = {name: value for name, value in defaults.items() if is_required(builder, name)}
    made: Any = builder(dataset.x.shape[1:], dataset.classes, **(must | known), **options)
    if not isinstance(made, Task):
        raise ValueError(
            f"model.name: expected {config.model.name} to return a Task, as models.task_from_module makes of a flax "
            f"module, got a {type(made).__name__}"
        )
    return with_initial(made, config.model.initial, config.model.initial_seed) if initial else made
