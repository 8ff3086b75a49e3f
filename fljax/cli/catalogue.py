"""Everything with a name, for ``fljax list`` and ``fljax show``: parts of docstrings, parameters in words, properties.

Properties are read from the code: what an algorithm keeps and sends, where data are, which shipped configs use a name.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import pathlib
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fljax.cli.running import KINDS
from fljax.config import reading
from fljax.config.name_resolution import OVERRIDABLE, Offer, offer_of
from fljax.config.reading import read
from fljax.core.names import did_you_mean, resolve, shown, unknown
from fljax.core.values import accepts

_SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Yields", "Example", "Examples")
# What only equations have, between double backticks.
_EQUATION = re.compile(r"<-| = | ~ |\|\||\b(?:sum|min|max|argmin|argmax|mean)_")

_NOTHING = Offer()
# Parameters that the experiment gives, and that an option may replace.
_REPLACEABLE = (*OVERRIDABLE, "contribution", "clustering")
# Parameters whose types have words of their own.
_SHAPES = {
    "contribution": "name, table or list of numbers",
    "clustering": "name or table",
    "server_optimizer": "name or table of an optax optimizer",
}
_WORDS = {float: "number", int: "integer", bool: "true or false", str: "text", None: "none", type(None): "none"}
# Arrays by their axes. Lists are another form of them.
_ARRAYS = {"N": "one for each client", "*rounds N": "one for each client (and round)"}


class Docstring(NamedTuple):
    """The parts of a docstring, each without line breaks that say nothing."""

    paragraphs: tuple[str, ...]  # outside of sections, except for the source; a literal block keeps its lines
    arguments: Mapping[str, str]  # the lines of ``Args`` or ``Attributes``, by name
    sections: Mapping[str, str]  # the others, by heading
    source: str  # the paragraph that begins with "Source:", without this word; "" if there is none

    @property
    def equations(self) -> tuple[str, ...]:
        """The paragraphs that state an equation."""
        return tuple(paragraph for paragraph in self.paragraphs if states_equation(paragraph))


def docstring_of(value: Any) -> Docstring:
    """The parts of an object's own docstring, of a partial function's inner one; empty parts if it has none."""
    return parse(getattr(getattr(value, "func", value), "__doc__", None) or "")


def parse(text: str) -> Docstring:
    """The parts of a docstring in Google's style."""
    heading, blocks = "", {"": list[str]()}
    for line in inspect.cleandoc(text).splitlines():
        if line.rstrip(":") in _SECTIONS and line.endswith(":"):
            heading = line.rstrip(":")
        elif heading and line and not line.startswith(" "):
            heading = ""
        blocks.setdefault(heading, []).append("" if heading and line.rstrip(":") == heading else line)
    paragraphs = _paragraphs(blocks.pop(""))
    arguments: dict[str, str] = {}
    for name in ("Args", "Attributes"):
        arguments |= _entries(blocks.pop(name, []))
    sections = {name: " ".join(" ".join(lines).split()) for name, lines in blocks.items()}
    source = next((paragraph for paragraph in paragraphs if paragraph.startswith("Source:")), "")
    others = tuple(paragraph for paragraph in paragraphs if paragraph != source)
    return Docstring(others, arguments, sections, source.removeprefix("Source:").strip())


def first_sentence(text: str) -> str:
    """A text up to its first full stop at the end or before a capital letter, without the stop."""
    return re.split(r"(?<!et al)\.(?= [A-Z`]|$)", text, maxsplit=1)[0]


def states_equation(paragraph: str) -> bool:
    """Whether a paragraph has an equation between double backticks, or in a literal block that is no config."""
    sentence, _, literal = paragraph.partition("\n")
    block = sentence and literal and not literal.lstrip().startswith("[")
    return bool(block) or any(_EQUATION.search(code) for code in re.findall(r"``(.+?)``", paragraph))


def plain(text: str, mark: str = "`") -> str:
    """A text with ``mark`` for double backticks."""
    return text.replace("``", mark)


def _paragraphs(lines: list[str]) -> tuple[str, ...]:
    joined: list[str] = []
    for block in re.split(r"\n\s*\n", "\n".join(lines)):
        if not block.strip():
            continue
        if block.startswith("  ") and joined:  # a literal block belongs to the sentence above it
            joined[-1] = f"{joined[-1].removesuffix(':')}\n{block.rstrip()}"
        elif block.startswith("==="):  # a table
            rows = [f"  {line}" for line in block.splitlines() if not line.startswith("===")]
            joined.append("\n".join(["", *rows]))
        else:
            joined.append("" if block.strip() == "::" else " ".join(block.split()))
    return tuple(filter(None, joined))


def _entries(lines: list[str]) -> dict[str, str]:
    """``name: text`` at the least indentation; what is indented more goes on with the text."""
    filled = [line for line in lines if line.strip()]
    least = min((len(line) - len(line.lstrip()) for line in filled), default=0)
    entries: dict[str, str] = {}
    name = ""
    for line in filled:
        match = re.match(rf"\s{{{least}}}(\*{{0,2}}\w[\w, *]*):\s*(.*)", line)
        if match:
            name = match[1]
            entries[name] = match[2]
        elif name:
            entries[name] += f" {line.strip()}"
    return entries


class Parameter(NamedTuple):
    """A hyper-parameter or option."""

    name: str  # dotted if it is a field of a table
    type: str  # in words, as a config writes values
    default: str | None  # as a config writes it; None: there is none, so that a value must be given
    by_experiment: bool  # whether a run of a config gives a value where the config gives none
    text: str  # what the docstring says
    gradient: str = ""  # "yes": rounds are differentiable in it; "zero": zero by construction; "": neither

    @property
    def default_in_words(self) -> str:
        """The default, and whether a run of a config has another one."""
        words = "required" if self.default is None else f"default {self.default}"
        return f"{words}; in a config, the experiment gives it" if self.by_experiment else words


def parameters(builder: Callable[..., Any], offer: Offer = _NOTHING, prefix: str = "") -> tuple[Parameter, ...]:
    """The parameters of a builder, or fields of a NamedTuple, that a user may give; ``offer`` is what others give."""
    from fljax.core.values import annotations_of, record_of

    annotations, texts = annotations_of(builder), docstring_of(builder).arguments
    described: list[Parameter] = []
    for place, parameter in enumerate(inspect.signature(builder).parameters.values()):
        by_experiment = parameter.name in offer.named
        usual = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if place < offer.positional or not usual or (by_experiment and parameter.name not in _REPLACEABLE):
            continue
        annotation, record = annotations[parameter.name], record_of(annotations[parameter.name])
        default = None if parameter.default is parameter.empty else written(parameter.default)
        name, text = f"{prefix}{parameter.name}", plain(texts.get(parameter.name, ""))
        if record is not None and isinstance(parameter.default, record):
            kind = f"table (in Python `{record.__module__}.{record.__name__}`)"
            described.append(Parameter(name, kind, "{}", by_experiment, text))
            described.extend(parameters(record, prefix=f"{name}."))
        else:
            described.append(
                Parameter(name, _SHAPES.get(name) or type_in_words(annotation), default, by_experiment, text)
            )
    return tuple(described)


def written(value: Any) -> str:
    """A default as a config writes it: ``true``, ``"size"``, ``none``."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float) and value == math.inf:
        return "inf"
    if hasattr(value, "_field_defaults"):
        fields = (f"{name} = {written(entry)}" for name, entry in changed_fields(value).items())
        return f"{{{', '.join(fields)}}}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, type) or callable(value):
        return str(getattr(value, "__name__", value))
    return repr(value)


def changed_fields(record: Any) -> dict[str, Any]:
    """The fields of a NamedTuple that are not its defaults."""
    defaults = record._field_defaults
    return {
        name: value
        for name, value in record._asdict().items()
        if name not in defaults or (value is not defaults[name] and value != defaults[name])
    }


def type_in_words(annotation: Any) -> str:
    """A type as words joined by "or"; numbers that may be traced arrays are numbers."""
    from fljax.core.values import parts_of

    parts = parts_of(annotation)
    words = [_word(part) for part in parts]
    if any(word in _ARRAYS.values() for word in words):
        words = [word for word in words if not word.startswith("list of ")]
    if int in parts and float not in parts:
        words = [word for word in words if word != "number"]
    return " or ".join(dict.fromkeys(words))


def _word(part: Any) -> str:
    import jax
    from jaxtyping import AbstractArray

    origin, inside = typing.get_origin(part), typing.get_args(part)
    if part in _WORDS:
        return _WORDS[part]
    if origin is Literal:
        return " or ".join(map(written, inside))
    if part is jax.Array:
        return "number"
    if isinstance(part, type) and issubclass(part, tuple) and hasattr(part, "_fields"):
        return "table"
    if isinstance(part, type) and issubclass(part, AbstractArray):
        axes = str(getattr(part, "dim_str", "")).strip()
        return _ARRAYS.get(axes, f"array [{axes}]") if axes else "number"
    if origin is Sequence or origin in (tuple, list):
        return "list" if inside[:1] in ((), (Any,)) else f"list of {_plural(type_in_words(inside[0]))}"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return "table"
    if origin is Callable or "Callable" in str(part):
        return "function"
    if part is pathlib.Path or "PathLike" in str(part):
        return "path"
    return "any value" if part is Any else str(getattr(part, "__name__", part))


def _plural(words: str) -> str:
    first, of, rest = words.partition(" of ")
    return f"{first}s{of}{rest}" if first in ("number", "integer", "text", "list") else words


AGGREGATION = {
    True: "streamed: a sum over clients; a round never holds all updates",
    False: "stacked: needs the updates of single clients, so that a round holds those of its cohort",
}
# What reports say, by their fields.
_SAID = {
    "loss": "a loss",
    "size": "its number of rows",
    "accuracy": "accuracies",
    "threshold": "its threshold",
    "contribution": "its contribution",
    "bid": "bids",
}
# Required hyper-parameters, for five clients.
_GIVEN = {"threshold": 0.5, "contribution": (1.0, 0.5, 0.8, 0.2, 0.6)}


def of_algorithm(name: str, entry: Any) -> dict[str, str]:
    """How an algorithm aggregates, what it polls, keeps and sends, by the shapes of a round; empty if it fails."""
    try:
        traced = _traced(getattr(entry, "build", entry))
    except Exception:  # what an algorithm of a user asks of its task, and of its options, is its own affair
        return {}
    traced |= secure_sums(traced["aggregation"].partition(":")[0], getattr(entry, "reads", ""))
    return traced | ({"needs all clients": _who_is_needed(entry)} if hasattr(entry, "needs_all") else {})


def secure_sums(aggregation: str, reads: str) -> dict[str, str]:
    """Whether the server needs updates of single clients, and whether sums that hide them are enough."""
    if aggregation == "none":
        return {"single updates": "none are sent", "secure sums": "not needed: nothing leaves a client"}
    if aggregation == "stacked":
        return {"single updates": "needed", "secure sums": f"not possible: the server reads {reads or 'updates'}"}
    if reads:
        return {"single updates": "not needed", "secure sums": f"possible for updates; the server also reads {reads}"}
    return {"single updates": "not needed", "secure sums": "possible: the server needs sums over clients alone"}


def _leaving(sent: Any, ballot: Any) -> str:
    """What leaves a client: the parts of its message in a round, and of its answer to a poll."""
    parts = [f"{', '.join(said)}{when}" for said, when in ((_said(sent), ""), (_said(ballot), " when polled")) if said]
    return "; ".join(parts) or "nothing"


def _said(message: Any) -> list[str]:
    """The parts of a message by name; of a report, what it says."""
    import jax

    from fljax.protocol.messages import NOT_ASKED, Report

    if isinstance(message, Report):
        return [_SAID[name] for name, value in message._asdict().items() if value is not NOT_ASKED]
    if not jax.tree.leaves(message):
        return []
    if not hasattr(message, "_fields"):
        return ["update"]
    found: list[str] = []
    for name, part in message._asdict().items():
        if isinstance(part, Report):
            found += _said(part)
        elif jax.tree.leaves(part):
            found.append(name.replace("_", " "))
    return found


def _who_is_needed(entry: Any) -> str:
    excepted = ", ".join(f"{name} = {value!r}" for name, value in getattr(entry, "needs_all_unless", {}).items())
    return _yes(entry.needs_all) + (f", unless {excepted}" if excepted else "")


def _traced(build: Callable[..., Any]) -> dict[str, str]:
    import jax
    import jax.numpy as jnp

    from fljax.core.values import is_required
    from fljax.engine.rounds.round import train_one
    from fljax.engine.rounds.states import as_vectors, initial_state
    from fljax.protocol.sums import Streamed
    from fljax.training import Local

    task, federation, zero = _classifier(), _shapes(), jnp.zeros((), jnp.int32)
    examples = {name: value for name, value in _GIVEN.items() if is_required(build, name)}
    built = build(task, Local(0.1, 4, steps=1), **examples)
    one = functools.partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype))

    def train(server: Any, client_state: Any, client_data: Any, federation: Any) -> Any:
        return train_one(built, as_vectors(federation), zero, zero, server, client_data, zero, client_state)[0]

    state = jax.eval_shape(lambda federation: initial_state(built, federation, jnp.uint32(0)), federation)
    model = jax.eval_shape(task.init, jax.eval_shape(lambda: jax.random.key(0)))
    sent = jax.eval_shape(train, state.server, one(state.clients), one(federation.clients), federation)
    asked = "no" if built.poll is None else "yes" if built.poll.every == 1 else f"every {built.poll.every} rounds"
    sends = _models(sent, model)
    return {
        "clients of a round": _cohort(build),
        "weights of clients": _weights(build, sent),
        "aggregation": "none" if sends == "nothing" else AGGREGATION[isinstance(built.aggregate, Streamed)],
        "server keeps": _models(state.server, model),
        "a client keeps": _models(one(state.clients), model),
        "a client sends": sends,
        "leaves a client": _leaving(sent, one(state.ballots)),
        "polls clients": asked,
        "global model": _yes(built.common is not None),
        "personal models": _yes(built.personal is not None),
    }


def _cohort(build: Callable[..., Any]) -> str:
    """How many clients train in a round by default, from the builder's signature."""
    for name, parameter in inspect.signature(build).parameters.items():
        if name.startswith("clients_per_"):
            default = "all" if parameter.default is None else written(parameter.default)
            words = "required" if parameter.default is parameter.empty else default
            by_experiment = (
                "; in a config or `fljax.compare` all, unless it says how many" if name == "clients_per_round" else ""
            )
            return f"{words} (`{name}`){by_experiment}"
    return "no option"


def _weights(build: Callable[..., Any], sent: Any) -> str:
    """How clients count by default: from the builder's signature, or from what a client reports."""
    import jax

    from fljax.protocol.messages import NOT_ASKED, Report

    parameter = inspect.signature(build).parameters.get("weights")
    if parameter is not None and parameter.default is not parameter.empty:
        return f"{written(parameter.default)} (`weights`)"
    reports = jax.tree.leaves(sent, is_leaf=lambda node: isinstance(node, Report))
    by_size = any(isinstance(report, Report) and report.size is not NOT_ASKED for report in reports)
    return "no option; clients report their numbers of rows" if by_size else "no option; not by numbers of rows"


def _shapes() -> Any:
    """The shapes of a federation of five clients."""
    import jax
    import jax.numpy as jnp

    from fljax.protocol import ClientData, Examples, Federation, Rows

    def shape(*lengths: int, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct(lengths, dtype)

    examples = Examples(shape(60, 4, dtype=jnp.float32), shape(60))
    rows, held = Rows(shape(5, 8), shape(5)), Rows(shape(8), shape())
    return Federation(examples, ClientData(shape(5), rows, rows, rows), None, {"validation": held, "test": held})


def _classifier() -> Any:
    """A task with all that some algorithm asks for: BatchNorm, a head, and a representation."""
    import jax
    import jax.numpy as jnp

    from fljax.testing import logistic_regression

    def features(params: Any, x: Any) -> Any:
        x = jax.nn.relu(x @ params["dense_0"]["kernel"]) * params["norm"]["scale"][None] - params["norm"]["mean"][None]
        return jax.nn.relu(x @ params["dense_1"]["kernel"])

    return logistic_regression()._replace(
        init=lambda key: {
            "dense_0": {"kernel": jnp.zeros((4, 8))},
            "norm": {"scale": jnp.ones(8), "mean": jnp.zeros(8)},
            "dense_1": {"kernel": jnp.zeros((8, 8))},
            "head": {"kernel": jnp.zeros((8, 3))},
        },
        logits=lambda params, x, key=None: features(params, x) @ params["head"]["kernel"],
        features=features,
        roles=lambda tree: {
            "dense_0": {"kernel": "trained"},
            "norm": {"scale": "trained", "mean": "statistic"},
            "dense_1": {"kernel": "trained"},
            "head": {"kernel": "head"},
        },
        width=8,
    )


def _models(tree: Any, model: Any) -> str:
    """How many models a pytree of shapes holds: leaves of the model's shapes, with any leading axes."""
    import jax

    shapes = [leaf.shape for leaf in jax.tree.leaves(model)]
    numbers = [leaf.shape for leaf in jax.tree.leaves(tree)]

    def count(shape: tuple[int, ...]) -> int:
        count_of_models = sum(
            math.prod(shape_of_leaf[: -len(shape)])
            for shape_of_leaf in numbers
            if shape_of_leaf[-len(shape) :] == shape
        )
        return count_of_models // shapes.count(shape)

    whole = min(map(count, shapes))
    if whole == 0:
        return "less than a model" if any(map(math.prod, numbers)) else "nothing"
    clients = len(_GIVEN["contribution"])
    return "a model for each client" if whole >= clients else f"{whole} model{'s' * (whole > 1)}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _of_metric(name: str, entry: Any) -> dict[str, str]:
    from fljax.metrics.registry import OVER_CLIENTS, is_lower_better

    metric = OVER_CLIENTS.get(name.removeprefix("unseen_"))
    if metric is None:
        return {}
    better = "lower" if is_lower_better(name) else "higher"
    return {"computed from": ", ".join(metric.variables), "better": better}


def _of_dataset(name: str, entry: Any) -> dict[str, str]:
    from fljax.data import status

    states = status()
    return {"where it is": states[name]} if name in states else {}


def _of_config(name: str, entry: Any) -> dict[str, str]:
    path = reading.shipped_configs()[name]
    used = {kind: sorted(names) for kind, names in names_in(path).items() if names}
    return {"file": str(path)} | {kind: ", ".join(names) for kind, names in used.items()}


def names_in(path: pathlib.Path) -> dict[str, set[str]]:
    """The names that a config uses, with those of its bases, by the kind of what they name."""
    raw = read(path)
    entries = _tables(raw.get("algorithms"))
    scenarios = [
        *_tables(raw.get("scenarios")),
        *(scenario for entry in entries for scenario in _tables(entry.get("scenarios"))),
    ]
    data = raw.get("data", {})
    return {
        "algorithms": _named(entries),
        "scenarios": _named(scenarios),
        "datasets": {str(data.get("dataset"))},
        "partitions": {str(data.get("partition"))},
        "models": _named([raw.get("model", {})]),
        "callbacks": _named(_tables(raw.get("callbacks"))),
        "contributions": _named([_table(entry["contribution"]) for entry in entries if "contribution" in entry]),
        "metrics": {str(raw[key]["metric"]) for key in ("stop", "sweep") if "metric" in raw.get(key, {})},
        "tables": set(raw.get("published", {}).get("tables", ())),
    }


@functools.cache  # the files are those of the package
def uses() -> dict[str, dict[str, dict[str, tuple[str, ...]]]]:
    """The configs that use a name, by kind and name; each with its published tables."""
    users: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {}
    for config, path in reading.shipped_configs().items():
        used = names_in(path)
        for kind, names in used.items():
            for name in names:
                users.setdefault(kind, {}).setdefault(name, {})[config] = tuple(sorted(used["tables"]))
    return users


def _tables(value: Any) -> list[Mapping[str, Any]]:
    return [table for table in value if isinstance(table, Mapping)] if isinstance(value, list) else []


def _table(value: Any) -> Mapping[str, Any]:
    """A value that may be a name or a table with one."""
    return value if isinstance(value, Mapping) else {"name": value}


def _named(tables: list[Mapping[str, Any]]) -> set[str]:
    return {str(table["name"]) for table in tables if isinstance(table.get("name"), str)}


# By kind: from a name and its entry to the facts.
FACTS: Mapping[str, Callable[[str, Any], dict[str, str]]] = {
    "algorithms": of_algorithm,
    "metrics": _of_metric,
    "datasets": _of_dataset,
    "configs": _of_config,
}


_EMPTY = Docstring((), {}, {}, "")
_REGISTRIES = {
    "algorithms": ("fljax.algorithms", "REGISTRY"),
    "scenarios": ("fljax.scenarios", "REGISTRY"),
    "contributions": ("fljax.contributions", "MEASURES"),
    "callbacks": ("fljax.engine.callbacks", "CALLBACKS"),
    "partitions": ("fljax.data", "PARTITIONERS"),
    "models": ("fljax.models", "MODELS"),
    "metrics": ("fljax.metrics.registry", "METRICS"),
}


def entries(kind: str) -> Mapping[str, Any]:
    """What fljax has of a kind, by name; ``kind`` is a key of ``KINDS``."""
    if kind not in KINDS:
        raise ValueError(unknown("list", kind, KINDS))
    if kind == "configs":
        return {name: first_sentence(reading.about_config(path)) for name, path in reading.shipped_configs().items()}
    if kind == "datasets":
        from fljax import data

        return {**data.SOURCES, **data.own_forms()}
    if kind == "tables":
        from fljax.published.tables import tables

        return tables()
    module, name = _REGISTRIES[kind]
    return getattr(importlib.import_module(module), name)


def line(entry: Any) -> str:
    """One entry in one sentence."""
    if isinstance(entry, str):
        return entry
    return getattr(entry, "summary", None) or first_sentence(next(iter(docstring_of(entry).paragraphs), ""))


def find(name: str, *, imports: bool = True) -> dict[str, Any]:
    """The entries with this name by kind, a key of ``KINDS``; of an import path the algorithm's builder."""
    every = {kind: entries(kind) for kind in KINDS}
    names = (name, f"{name.partition(':')[0]}:NAME")  # such as "tfds:NAME"
    by_kind = {
        kind: entries_of_kind[form]
        for kind, entries_of_kind in every.items()
        for form in names
        if form in entries_of_kind
    }
    if not by_kind and ":" in name:
        builder = resolve(name, every["algorithms"], "algorithm", imports=imports)
        if not callable(builder) or not accepts(builder, "task"):
            raise ValueError(
                f"expected an algorithm, a function of (task, local, ...), got {shown(name)}, which is none"
            )
        return {"algorithms": builder}
    if not by_kind:
        question = did_you_mean(name, [form for entries_of_kind in every.values() for form in entries_of_kind])
        raise ValueError(f"expected a name that fljax list prints (of {', '.join(KINDS)}), got {shown(name)}{question}")
    return by_kind


class Description(NamedTuple):
    """What is known about one name. Code in texts stands between backticks; what is not known is empty."""

    name: str  # in configs
    kind: str  # in the singular
    summary: str  # one line; "" if the first line of the text below is all there is
    about: tuple[str, ...]  # the paragraphs of its text
    equation: tuple[str, ...]  # those of them that state an equation
    parameters: tuple[Parameter, ...]
    returns: str  # what is returned, and what is recorded
    raises: str  # the errors of mistakes
    facts: Mapping[str, str]  # properties, by what they are about
    source: str  # the publication, with deviations from it
    bibtex: str
    configs: Mapping[str, tuple[str, ...]]  # names of shipped ones with it, each with the tables of its results


def describe(name: str, *, imports: bool = True) -> tuple[Description, ...]:
    """Everything of a name (or the import path of one's own algorithm): a description for each kind that has it."""
    by_kind = find(name, imports=imports)
    return tuple(_description(kind, name, entry) for kind, entry in by_kind.items())


def _description(kind: str, name: str, entry: Any) -> Description:
    builder = getattr(entry, "build", entry)
    docstring = docstring_of(builder) if callable(builder) else _EMPTY
    return Description(
        name=name,
        kind=KINDS[kind],
        summary=_summary(kind, name, entry),
        about=tuple(map(plain, docstring.paragraphs)),
        equation=tuple(map(plain, docstring.equations)),
        parameters=_parameters(kind, name, entry),
        returns=plain(docstring.sections.get("Returns", "")),
        raises=plain(docstring.sections.get("Raises", "")),
        facts=FACTS[kind](name, entry) if kind in FACTS else {},
        source=plain(docstring.source or _header(kind, builder).source),
        bibtex=_bibtex(getattr(entry, "references", ())),
        configs={} if kind == "configs" else uses().get(kind, {}).get(name, {}),
    )


def _bibtex(keys: tuple[str, ...]) -> str:
    if not keys:
        return ""
    from fljax.algorithms.entries import bibtex  # imported here, since algorithms import JAX

    return bibtex(keys)


def _summary(kind: str, name: str, entry: Any) -> str:
    """The registry's line, or for a file about this name alone the longer line at its top."""
    if kind == "configs":
        return reading.about_config(reading.shipped_configs()[name])
    if callable(entry):
        return ""  # the first sentence of the text below
    build = getattr(entry, "build", None)
    alone = build is not None and build.__module__.rpartition(".")[2] == name
    return plain(_header(kind, build).paragraphs[0]) if alone else line(entry)


def _header(kind: str, builder: Any) -> Docstring:
    """What the file of an algorithm or a scenario says of itself."""
    if kind not in ("algorithms", "scenarios"):
        return _EMPTY
    return docstring_of(sys.modules[inspect.unwrap(builder).__module__])


def _parameters(kind: str, name: str, entry: Any) -> tuple[Parameter, ...]:
    builder = getattr(entry, "build", entry)
    if not callable(builder):
        return ()
    described = parameters(builder, offer_of(KINDS[kind], builder))
    gradients: dict[str, str] = dict.fromkeys(getattr(entry, "differentiable", ()), "yes")
    gradients |= dict.fromkeys(getattr(entry, "flat", ()), "zero")
    return tuple(parameter._replace(gradient=gradients.get(parameter.name, "")) for parameter in described)
