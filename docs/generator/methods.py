"""A page for each algorithm and each scenario, and their tables: what ``fljax show`` says, as Markdown."""

from __future__ import annotations

import functools
import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from docs.generator.markdown import paragraph, table
from fljax import algorithms, scenarios
from fljax.cli.catalogue import Description, Parameter, changed_fields, describe, written
from fljax.core.values import is_required

WORDS = {"algorithm": "hyper-parameter", "scenario": "option"}
EQUATIONS = pathlib.Path(__file__).parent.parent / "equations.toml"


class Equations(NamedTuple):
    """The equations of a method.

    Attributes:
      equations: in LaTeX, in their order.
      where: what the symbols mean: Markdown with LaTeX between ``\\(`` and ``\\)``.
    """

    equations: tuple[str, ...]
    where: str


def pages() -> dict[str, str]:
    """The pages by path."""
    found = {"methods/index.md": _index(), "methods/scenarios/index.md": _scenarios()}
    for name, entry in algorithms.REGISTRY.items():
        found[f"methods/{name}.md"] = _algorithm(described(name), entry)
    for name, entry in scenarios.REGISTRY.items():
        found[f"methods/scenarios/{name}.md"] = _scenario(described(name), entry)
    return found


@functools.cache
def described(name: str) -> Description:
    """What fljax knows of an algorithm or a scenario."""
    return next(each for each in describe(name) if each.kind in WORDS)


@functools.cache
def equations() -> dict[str, Equations]:
    """The equations of all methods, by name."""
    found = tomllib.loads(EQUATIONS.read_text(encoding="utf-8"))
    return {name: Equations(tuple(each["equations"]), each["where"]) for name, each in found.items()}


def _equations(found: Description) -> str:
    shown, where = equations()[found.name]
    words = " ".join(where.split())
    if any(each.name == "server_optimizer" for each in found.parameters):
        words += " The step of the server is for the default `server_optimizer`."
    words += " [All methods](index.md#symbols) share the other symbols."
    return "\n\n".join([*(f"\\[\n{each}\n\\]" for each in shown), words])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _texts(found: Description) -> str:
    return "\n\n".join([_sentence(found.summary), *map(paragraph, found.about)])


def _parameters(found: Description) -> str:
    word, gradients = WORDS[found.kind], found.kind in ("algorithm", "scenario")
    if not found.parameters:
        return f"It has no {word}s."
    head = [word, "type", "default", "meaning", *(["gradient"] if gradients else [])]
    listing = table(head, [_cells(each)[: len(head)] for each in found.parameters])
    return f'<div class="parameters" markdown>\n\n{listing}\n\n</div>'


def _cells(each: Parameter) -> list[str]:
    kind = re.sub(r'"[^"]*"', r"`\g<0>`", each.type)
    default = re.sub(r"^default (.*?)(?=$|; in a config)", r"`\1`", each.default_in_words)
    return [f"`{each.name}`", kind, default, each.text, each.gradient]


def _users(configs: Mapping[str, tuple[str, ...]]) -> str:
    if not configs:
        return "No shipped config names it."
    rows = [(f"`{name}`", ", ".join(f"`{each}`" for each in tables)) for name, tables in configs.items()]
    listing = table(("config", "published table"), rows)
    if len(rows) <= 8:
        return listing
    return f'It is in {len(rows)} of them.\n\n??? note "All {len(rows)}"\n\n' + _indented(listing)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())


def _ending(found: Description) -> str:
    """What pages of algorithms and of scenarios have in common."""
    error, _, why = found.raises.partition(":")
    raises = f"## Raises\n\n`{error}`:{why}\n\n" if error else ""
    cite = f"\n\n## Cite\n\n```bibtex\n{found.bibtex}\n```\n" if found.bibtex else ""
    return f"""## Returns

{found.returns}

{raises}## Source and deviations

{_sentence(found.source)}

## Shipped configs that use it

`fljax run NAME` runs one.

{_users(found.configs)}{cite}"""


def _algorithm(found: Description, entry: Any) -> str:
    own = [each.name for each in found.parameters if "." not in each.name and is_required(entry.build, each.name)]
    arguments = "".join(f", {each}={each}" for each in own)
    return f"""# {found.name}

{_texts(found)}

=== "config"

    ```toml
    [[algorithms]]
    name = "{found.name}"
    ```

=== "Python"

    ```py
    from fljax import algorithms

    algorithm = algorithms.{entry.build.__name__}(task, local{arguments})
    ```

## Equations

{_equations(found)}

## Hyper-parameters

{_parameters(found)}

*Gradient*: *yes* if rounds are differentiable in it ([how](../howto/gradients.md)), *zero* if its gradient is zero by
construction.

## What it needs

<div class="facts" markdown>

{table(("", ""), found.facts.items())}

</div>

{_ending(found)}"""


def _list(value: Any) -> Any:
    if hasattr(value, "_fields"):
        return value
    return [_list(each) for each in value] if isinstance(value, tuple | list) else value


def _in_python(value: Any) -> str:
    """A value as Python writes it, with the package that has its class."""
    if not hasattr(value, "_fields"):
        return repr(_list(value))
    fields = ", ".join(f"{name}={_in_python(entry)}" for name, entry in changed_fields(value).items())
    return f"scenarios.{type(value).__name__}({fields})"


def _scenario(found: Description, entry: Any) -> str:
    supplied = [each.name for each in found.parameters if each.by_experiment and each.default is None]
    shown = {each: _list(value) for each, value in entry.example.items() if each not in ("threshold", "baseline")}
    arguments = "".join(f", {each}={each}" for each in supplied if each not in shown)
    arguments += "".join(f", {each}={_in_python(value)}" for each, value in shown.items())
    options = "".join(f"\n    {each} = {written(value)}" for each, value in shown.items())
    return f"""# {found.name}

{_texts(found)}

=== "config"

    ```toml
    [[scenarios]]
    name = "{found.name}"{options}
    ```

=== "Python"

    ```py
    from fljax import scenarios

    algorithm = scenarios.{entry.build.__name__}(algorithm{arguments})
    ```

## Options

{_parameters(found)}

{_ending(found)}"""


def _index() -> str:
    rows, defaults, gradients, secrets = [], [], [], []
    for name, entry in algorithms.REGISTRY.items():
        facts, link = described(name).facts, f"[`{name}`]({name}.md)"
        kept = (facts[each] for each in ("server keeps", "a client keeps", "a client sends", "polls clients"))
        rows.append((link, entry.summary, facts["aggregation"].partition(":")[0], *kept))
        defaults.append((link, facts["clients of a round"].partition(";")[0], facts["weights of clients"]))
        secrets.append((link, facts["leaves a client"], facts["single updates"], facts["secure sums"]))
        marked = {each.name: each.gradient for each in described(name).parameters}
        words = (", ".join(f"`{each}`" for each, mark in marked.items() if mark == kind) for kind in ("yes", "zero"))
        gradients.append((link, *words))
    head = ("name", "what the server does", "aggregation", "server keeps", "a client keeps", "a client sends", "polls")
    return f"""# Methods

Every method is one function of `fljax.algorithms`, and has the same name in a config.

{table(head, rows)}

- **Streamed**: the aggregation is a sum over clients. A round never holds all updates.
- **Stacked**: the method needs the individual updates of the whole cohort at once, so its memory grows with the cohort.
- Methods with one model at the server take any optax optimizer: `server_optimizer = "adam"`, or
  `{{name = "sgd", momentum = 0.9}}`.

[Scenarios](scenarios/index.md) make clients drop out, lie or leave. They can be wrapped around any method.

## Defaults

Methods have different defaults, as in their papers. Give the same values to methods that you compare.

{table(("name", "clients of a round", "weights of clients"), defaults)}

A config and `fljax.compare` give the same `clients_per_round` to all methods. The default is all clients.

## Secure sums

With secure aggregation the server learns sums over the clients of a round, and nothing about a single client. The table
says what each method needs, with its defaults; fljax simulates no cryptography. In all methods, clients can clip their
messages and add noise ([`clipped`](scenarios/clipped.md)). Measures of contributions in rounds need single updates.

{table(("name", "leaves a client", "single updates", "secure sums"), secrets)}

## Symbols

In the equations of the methods, \\(w\\) is the model of the server, \\(\\theta_k\\) the model of client \\(k\\), and
\\(w_c\\) the model of cluster \\(c\\). \\(S\\) is the cohort, and \\(N\\) the number of clients. \\(F_k\\) is the mean
loss on the training rows of client \\(k\\), and \\(F_k(w; B)\\) the loss on a batch \\(B\\) of them. \\(\\Delta_k\\) is
the update of client \\(k\\), its new model minus the received model, and LocalSGD\\((w, k)\\) the client's local
training from \\(w\\). \\(\\eta\\) is the learning rate of `local`, and \\(\\eta_g\\) the learning rate of the server.

## Gradients

The table lists the floats in which rounds are differentiable (`fljax.rollout`), and the floats with a gradient of zero
by construction. The learning rate of `Local` is differentiable as well.

{table(("name", "differentiable", "zero"), gradients)}
"""


def _scenarios() -> str:
    rows = [(f"[`{name}`]({name}.md)", entry.summary) for name, entry in scenarios.REGISTRY.items()]
    return f"""# Scenarios

A scenario changes how clients behave. It is wrapped around a method. Scenarios can be nested; the last scenario in a
config is the outermost. Around all methods:

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
