"""The loss rho_k that each client requires of a model, the same for all algorithms of a comparison.

The weights of INCFL and MW-Fed, appeal-based participation and GM-Appeal read the same numbers. They come from
standalone models, from the user, or from a function of both.

Source: MaxFL, Definition 1 ("self-defined threshold of the client") and section 3.
"""

from __future__ import annotations

import inspect
import math
import os
import pathlib
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Real

from fljax import results
from fljax.core import users
from fljax.core.names import check_unlabelled, describe, name_of, nearest, shown
from fljax.core.signatures import accepts, takes_anything
from fljax.core.values import as_number
from fljax.protocol import AnyArray, Federation, Names
from fljax.results import Reference

StandaloneRows = Literal["train", "valid", "test"]
Losses = float | Sequence[float] | Real[AnyArray, " N"] | Mapping[Any, float]
_NAMED = 5  # clients in a sentence
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
        close = nearest(strange, known)
        question = "" if close is None else f" (did you mean {close!r}?)"
        raise ValueError(
            f"expected a requirement of the clients {_few(list(known))}, got one of {shown(strange)}{question}"
        )
    return reference._replace(required=required, unseen_required=unseen)


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
