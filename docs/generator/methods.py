"""A page for each algorithm and each scenario, and their tables."""

from __future__ import annotations

import functools
import inspect
import math
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

import fljax
from docs.generator.docstrings import (
    default_in_words,
    in_toml,
    items,
    own_parameters,
    prose,
    sections,
    table,
    type_in_words,
    value_in_words,
)
from fljax import algorithms, data, models, scenarios
from fljax.config.reading import read
from fljax.engine.round import as_vectors, train_one
from fljax.streaming import Streamed

ROOT = pathlib.Path(__file__).parent.parent.parent
CLIENTS = 5  # for which the examples of the registry are


def pages() -> dict[str, str]:
    """The pages by path."""
    used = users()
    found = {"methods/index.md": _index(), "methods/scenarios/index.md": _scenarios()}
    for name, entry in algorithms.REGISTRY.items():
        found[f"methods/{name}.md"] = _algorithm(name, entry, used)
    for name, entry in scenarios.REGISTRY.items():
        found[f"methods/scenarios/{name}.md"] = _scenario(name, entry, used)
    return found


def shipped() -> dict[str, dict[str, Any]]:
    """The configs that come with fljax, merged with their bases, by path."""
    folder = next(each for each in (ROOT / "configs", ROOT / "fljax" / "configs") if each.is_dir())
    return {path.relative_to(folder).as_posix(): read(path) for path in sorted(folder.rglob("*.toml"))}


def users() -> dict[str, list[tuple[str, str]]]:
    """By name of an algorithm or scenario: the shipped configs that name it, with their published tables."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path, raw in shipped().items():
        entries = raw.get("algorithms", [])
        names = {each["name"] for each in entries}
        around = [*raw.get("scenarios", []), *(one for each in entries for one in each.get("scenarios", []))]
        names |= {each["name"] for each in around}
        tables = ", ".join(f"`{each}`" for each in raw.get("published", {}).get("tables", []))
        for name in names:
            found.setdefault(name, []).append((path, tables))
    return found


class _Network(nn.Module):
    """A network with all that some algorithm asks for: BatchNorm, a head, and a representation."""

    def setup(self) -> None:
        self.dense_0, self.dense_1 = nn.Dense(8), nn.Dense(8)
        self.norm = nn.BatchNorm()
        self.head = nn.Dense(3)

    def features(self, x: Any, train: bool = False) -> Any:
        return nn.relu(self.dense_1(self.norm(self.dense_0(x), use_running_average=not train)))

    def __call__(self, x: Any, train: bool = False) -> Any:
        return self.head(self.features(x, train))


@functools.cache
def _example() -> tuple[Any, Any]:
    blobs = data.load("blobs")
    federation = data.federate(blobs, "iid", clients=CLIENTS, valid_fraction=0.2, held_fraction=0.1)
    task = models.task_from_module(_Network(), blobs.x[:1], head=lambda path: path.startswith("head"))
    return task, federation


def _models(tree: Any, model: Any) -> str:
    """How many models a pytree of shapes holds: leaves of the model's shapes, with any leading axes."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(model)]
    numbers = [leaf.shape for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape")]

    def count(shape: tuple[int, ...]) -> int:
        found = sum(math.prod(each[: -len(shape)]) for each in numbers if each[-len(shape) :] == shape)
        return found // shapes.count(shape)

    models_held = min(map(count, shapes))
    if models_held == 0:
        return "less than a model" if any(map(math.prod, numbers)) else "nothing"
    return "a model for each client" if models_held >= CLIENTS else f"{models_held} model" + "s" * (models_held > 1)


@functools.cache
def facts(name: str) -> dict[str, str]:
    """What an algorithm needs: how it aggregates, what it polls, what server and clients keep, and what is sent."""
    task, federation = _example()
    entry = algorithms.REGISTRY[name]
    given = {each: entry.example[each] for each in _required(entry.build)}
    built = entry.build(task, fljax.Local(0.1, 4, steps=1), **given)
    zero = jnp.zeros((), jnp.int32)
    one = functools.partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype))

    def train(server: Any, kept: Any, own: Any, federation: Any) -> Any:
        return train_one(built, as_vectors(federation), zero, zero, server, own, zero, kept)[0]

    state, _ = jax.eval_shape(lambda federation: fljax.rollout(built, federation, rounds=0), federation)
    model = jax.eval_shape(task.init, jax.eval_shape(lambda: jax.random.key(0)))
    sent = jax.eval_shape(train, state.server, one(state.clients), one(federation.clients), federation)
    asked = "no" if built.poll is None else "yes" if built.poll.every == 1 else f"every {built.poll.every} rounds"
    sends = _models(sent, model)
    streamed = "streamed" if isinstance(built.aggregate, Streamed) else "stacked"
    return {
        "aggregation": "none" if sends == "nothing" else streamed,
        "server keeps": _models(state.server, model),
        "a client keeps": _models(one(state.clients), model),
        "a client sends": sends,
        "polls clients": asked,
        "global model": "no" if built.common is None else "yes",
        "personal models": "no" if built.personal is None else "yes",
    }


WORDS = {
    "none": "none",
    "streamed": "streamed: a sum over clients, so that a round never holds all updates",
    "stacked": "stacked: it needs the individual updates of the whole cohort at once",
}


def _source(build: Any) -> tuple[str, str]:
    """The first sentence of the module's docstring, and the rest: source and deviations."""
    text = inspect.getdoc(sys.modules[build.__module__]) or ""
    first, _, rest = text.partition("\n\n")
    return " ".join(first.split()), prose(rest)


def _gradient(name: str, entry: Any) -> str:
    if name in entry.differentiable:
        return "yes"
    return "zero" if name in entry.flat else ""


def _parameters(build: Any, entry: Any, what: str) -> str:
    own, meanings = own_parameters(build), items(sections(build).get("Args", ""))
    if not own:
        return f"It has no {what}."
    gradients, names = hasattr(entry, "differentiable"), inspect.unwrap(build).__globals__
    rows: list[list[str]] = []
    for name, each in own.items():
        row = [f"`{name}`", type_in_words(each.annotation, names), default_in_words(each), meanings.get(name, "")]
        rows.append(row + ([_gradient(name, entry)] if gradients else []))
    head = [what.removesuffix("s"), "type", "default", "meaning", *(["gradient"] if gradients else [])]
    return table(head, rows) + "".join(_fields(name, each.default, entry) for name, each in own.items())


def _fields(name: str, value: Any, entry: Any) -> str:
    """The fields of a NamedTuple of hyper-parameters, e.g. ``tokens = {price = 1}`` in a config."""
    if not hasattr(value, "_fields"):
        return ""
    meanings = items(sections(type(value)).get("Attributes", ""))
    rows = [
        (
            f"`{field}`",
            value_in_words(getattr(value, field)),
            meanings.get(field, ""),
            _gradient(f"{name}.{field}", entry),
        )
        for field in value._fields
    ]
    kind = type(value)
    where = f"In Python `{kind.__module__}.{kind.__name__}(...)`, in a config a table."
    return f"\n\n### `{name}` {{ #{name} }}\n\n{where}\n\n" + table(("field", "default", "meaning", "gradient"), rows)


def _explained(build: Any) -> str:
    """What comes after the first paragraph of a docstring."""
    return prose(sections(build)[""].partition("\n\n")[2])


def _outcome(build: Any) -> str:
    """What a builder returns, with what is recorded, and what it raises."""
    found = sections(build)
    text = f"## Returns\n\n{prose(inspect.cleandoc(found['Returns']))}\n\n"
    raises = items(found.get("Raises", ""))
    if raises:
        text += "## Raises\n\n" + "\n".join(f"- `{error}` {why}" for error, why in raises.items())
    return text


def _users(name: str, used: Mapping[str, list[tuple[str, str]]]) -> str:
    if name not in used:
        return "No shipped config names it."
    rows = [(f"`{path}`", tables) for path, tables in used[name]]
    listing = table(("config", "published table"), rows)
    if len(rows) <= 8:
        return listing
    return f'It is in {len(rows)} of them.\n\n??? note "All {len(rows)}"\n\n' + _indented(listing)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())


def _cite(entry: Any) -> str:
    if not entry.reference:
        return ""
    return f"\n\n## Cite\n\n```bibtex\n{entry.reference.strip()}\n```\n"


def _required(build: Any) -> list[str]:
    return [name for name, each in own_parameters(build).items() if each.default is each.empty]


def _algorithm(name: str, entry: Any, used: Mapping[str, list[tuple[str, str]]]) -> str:
    build = entry.build
    first, source = _source(build)
    equation = " ".join(sections(build)[""].partition("\n\n")[0].split())
    found = facts(name)
    shown = {
        **found,
        "aggregation": WORDS[found["aggregation"]],
        "needs all clients": "yes" if entry.needs_all else "no",
    }
    arguments = "".join(f", {each}={each}" for each in _required(build))
    given = ""
    if "threshold" in _required(build):
        given = "In a config the threshold is the client's standalone training loss, unless a number is given.\n\n"
    elif arguments:
        given = "In a config fljax supplies what is required.\n\n"
    return f"""# {name}

{first}

{equation}

{_explained(build)}

=== "config"

    ```toml
    [[algorithms]]
    name = "{name}"
    ```

=== "Python"

    ```py
    from fljax import algorithms

    algorithm = algorithms.{build.__name__}(task, local{arguments})
    ```

{given}## Hyper-parameters

{_parameters(build, entry, "hyper-parameters")}

*Gradient*: whether rounds are differentiable in it ([how](../howto/gradients.md)); *zero* by construction.

## What it needs

<div class="facts" markdown>

{table(("", ""), shown.items())}

</div>

{_outcome(build)}

## Source and deviations

{source or "None."}

## Shipped configs that use it

{_users(name, used)}{_cite(entry)}"""


# What a config need not say of a scenario, since fljax supplies it.
SUPPLIED = ("threshold", "baseline")


def _list(value: Any) -> Any:
    return [_list(each) for each in value] if isinstance(value, tuple | list) else value


def _scenario(name: str, entry: Any, used: Mapping[str, list[tuple[str, str]]]) -> str:
    build = entry.build
    first, source = _source(build)
    shown = {each: value for each, value in entry.example.items() if each not in SUPPLIED}
    arguments = "".join(f", {each}={each}" for each in _required(build) if each not in shown)
    arguments += "".join(f", {each}={_list(value)!r}" for each, value in shown.items())
    options = "".join(f"\n    {each} = {in_toml(_list(value))}" for each, value in shown.items())
    return f"""# {name}

{first}

{" ".join(sections(build)[""].partition(chr(10) * 2)[0].split())}

{_explained(build)}

=== "config"

    ```toml
    [[scenarios]]
    name = "{name}"{options}
    ```

=== "Python"

    ```py
    from fljax import scenarios

    algorithm = scenarios.{build.__name__}(algorithm{arguments})
    ```

## Options

{_parameters(build, entry, "options")}

{_outcome(build)}

## Source and deviations

{source or "None."}

## Shipped configs that use it

{_users(name, used)}{_cite(entry)}"""


def _index() -> str:
    rows, gradients = [], []
    for name, entry in algorithms.REGISTRY.items():
        found = facts(name)
        cells = [
            found[each] for each in ("aggregation", "server keeps", "a client keeps", "a client sends", "polls clients")
        ]
        rows.append((f"[`{name}`]({name}.md)", entry.summary, *cells))
        yes, zero = (", ".join(f"`{each}`" for each in group) for group in (entry.differentiable, entry.flat))
        gradients.append((f"[`{name}`]({name}.md)", yes, zero))
    head = ("name", "what the server does", "aggregation", "server keeps", "a client keeps", "a client sends", "polls")
    return f"""# Methods

Every method is one function of `fljax.algorithms`, and has the same name in a config.

{table(head, rows)}

- **Streamed**: the aggregation is a sum over clients. A round never holds all updates.
- **Stacked**: the method needs the individual updates of the whole cohort at once, so its memory grows with the cohort.
- All with one model at the server take any optax optimizer there: `server_optimizer = "adam"`, or
  `{{name = "sgd", momentum = 0.9}}`.

Clients that drop out, lie or leave are [scenarios](scenarios/index.md), which can be wrapped around any method.

## Gradients

In which floats rounds are differentiable (`fljax.rollout`), and which have a gradient of zero by construction. The
learning rate of `Local` is differentiable as well.

{table(("name", "differentiable", "zero"), gradients)}
"""


def _scenarios() -> str:
    rows = [(f"[`{name}`]({name}.md)", entry.summary) for name, entry in scenarios.REGISTRY.items()]
    return f"""# Scenarios

A scenario changes how clients behave. It is wrapped around a method. Scenarios can be nested; the last one in a config
is the outermost. Around all methods:

```toml
[[scenarios]]
name = "dropout"
rate = 0.2
```

Around one method:

```toml
[[algorithms]]
name = "fedavg"

[[algorithms.scenarios]]
name = "free_riding"
fraction = 0.1
```

{table(("name", "what clients do"), rows)}
"""
