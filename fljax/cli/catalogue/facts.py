"""Properties of what has a name: what an algorithm keeps and sends, where data are, which shipped configs use it."""

from __future__ import annotations

import functools
import inspect
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from fljax.cli.catalogue.docstrings import written
from fljax.config import reading
from fljax.config.reading import read

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

    from fljax.core.signatures import is_required
    from fljax.engine.rounds.federations import as_vectors
    from fljax.engine.rounds.round import train_one
    from fljax.engine.rounds.states import initial_state
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
