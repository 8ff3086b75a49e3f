"""The reference: keys of configs, metrics, lists of names, the command line, and the public names of the package."""

from __future__ import annotations

import importlib
import inspect
import pathlib
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import fljax
from docs.generator.markdown import prose, table
from fljax.cli.catalogue import KINDS, entries, line, parameters, plain, written
from fljax.cli.entry import app
from fljax.config import keys
from fljax.config.forms import LARGEST_INTEGER
from fljax.config.name_resolution import offer_of
from fljax.metrics.registry import METRICS, OVER_CLIENTS, OVER_SEEN_CLIENTS, PER_CLIENT, PER_SEEN_CLIENT

KEYS = pathlib.Path(__file__).parent.parent / "config_keys.toml"

# Tables of a config in the order of the page, each with the way it is written.
TABLES: Mapping[str, type[BaseModel]] = {
    "": keys.Config,
    "[data]": keys.Data,
    "[model]": keys.Model,
    "[local]": keys.Local,
    "[local.schedule]": keys.RateSchedule,
    "[standalone]": keys.Standalone,
    "[standalone.stop]": keys.StandaloneStop,
    "[requirement]": keys.Requirement,
    "[participation]": keys.Participation,
    "[[algorithms]]": keys.AlgorithmEntry,
    "[[scenarios]]": keys.Scenario,
    "[execution]": keys.Execution,
    "[metrics]": keys.Metrics,
    "metrics.scores": keys.ScoreEntry,
    "[stop]": keys.Stop,
    "[[callbacks]]": keys.Callback,
    "[sweep]": keys.Sweep,
    "[published]": keys.Published,
    "algorithms.local": keys.OwnLocal,
    "algorithms.contribution": keys.Contribution,
    "algorithms.clustering": keys.Clustering,
}
# Modules of the API reference: those of the face, and what algorithms outside the package import. Algorithms and
# scenarios have pages of their own.
_MORE = (
    "algorithms.cohorts",
    "algorithms.entries",
    "algorithms.measuring",
    "algorithms.single_model",
    "contributions.estimators",
    "engine.callbacks",
    "engine.checkpoints",
    "protocol.messages",
    "protocol.roles",
    "protocol.sums",
)
_VALUES = (getattr(fljax, name) for name in dir(fljax))
_FACE = (value.__name__.removeprefix("fljax.") for value in _VALUES if inspect.ismodule(value))
MODULES = tuple(sorted({*_MORE, *_FACE} - {"algorithms", "scenarios"}))


def pages() -> dict[str, str]:
    """The pages by path."""
    found = {
        "reference/config.md": _config(),
        "reference/metrics.md": _metrics(),
        "reference/lists.md": _lists(),
        "reference/command_line.md": _command_line(),
        "reference/api/fljax.md": _face(),
    }
    return found | {f"reference/api/{name}.md": _module(name) for name in MODULES}


class Key(NamedTuple):
    """What ``config_keys.toml`` says of a key; ``default`` where the schema does not know it."""

    text: str
    default: str | None = None


def described() -> dict[str, dict[str, Key]]:
    """The sentences about keys, by table and key."""
    raw = tomllib.loads(KEYS.read_text(encoding="utf-8"))
    return {
        name: {key: Key(value) if isinstance(value, str) else Key(**value) for key, value in own.items()}
        for name, own in raw.items()
    }


def kind_in_words(annotation: Any, metadata: Iterable[Any] = (), plural: bool = False) -> str:
    """The type of a value in a config, in words; ``plural`` of several values."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        inner = [one for each in arguments[1:] for one in (each.metadata if isinstance(each, FieldInfo) else [each])]
        return kind_in_words(arguments[0], inner, plural)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind_in_words(each, plural=plural) for each in arguments if each is not type(None))
    if origin is Literal:
        return " or ".join(f'`"{each}"`' for each in arguments)
    if origin is tuple:
        return f"list{'s' * plural} of {kind_in_words(arguments[0], plural=True)}"
    if annotation is bool:
        return "true or false"
    is_table = dict in (origin, annotation) or (isinstance(annotation, type) and issubclass(annotation, BaseModel))
    word = "table" if is_table else {int: "integer", float: "number", str: "text"}.get(annotation, "value")
    return word + "s" * plural + _bounds(metadata)


def _bounds(metadata: Iterable[Any]) -> str:
    found: list[str] = []
    for each in metadata:
        for name, sign in (("gt", "above"), ("ge", "from"), ("lt", "below"), ("le", "to")):
            bound = getattr(each, name, None)
            if bound is not None and bound < 2**24 and bound != LARGEST_INTEGER:
                found.append(f"{sign} {bound:g}")
    return f" {' '.join(dict.fromkeys(found))}" if found else ""


def _toml(value: Any) -> str:
    if isinstance(value, BaseModel):
        return "{" + ", ".join(f"{name} = {_toml(getattr(value, name))}" for name in value.model_fields_set) + "}"
    return written(value)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = "" if field.default is None else _toml(field.default)
    return "" if default in ("", "{}", "[]") else f"`{default}`"


def _config() -> str:
    says = described()
    parts: list[str] = []
    for path, model in TABLES.items():
        own = says.get(model.__name__, {})
        rows = [
            (
                f"`{name}`",
                field.description or kind_in_words(field.annotation, field.metadata),
                own.get(name, Key("")).default or _default(field),
                own.get(name, Key("")).text,
            )
            for name, field in model.model_fields.items()
            if not (name == "options" and issubclass(model, keys.Named))
        ]
        title = f"## `{path}`" if path else "## Top level"
        anchor = f" {{ #{model.__name__.lower()} }}"
        parts.append(f"{title}{anchor}\n\n{prose(inspect.getdoc(model) or '')}\n\n")
        parts.append(table(("key", "type", "default", "meaning"), rows) + "\n\n")
    return f"""# Config

A config is a TOML file. `fljax run FILE` runs it. `--set table.key=value` overrides a key. `base = "other.toml"` takes
everything else from another file: tables are merged key by key, other values are replaced.

The shortest config has `rounds`, `[data]`, `[model]`, `[local]` and one `[[algorithms]]`. fljax reports all errors of a
config at once: a sentence for each with the key, the expected value, the given value and, for names, the nearest valid
name.

{"".join(parts)}"""


def _metrics() -> str:
    groups = {
        "Over clients": ("one number per seed and evaluation", {**_over_clients(), **OVER_SEEN_CLIENTS}),
        "By client": ("one number per seed, evaluation and client", {**PER_CLIENT, **PER_SEEN_CLIENT}),
    }
    known = set().union(*(group for _, group in groups.values()))
    others = {name: text for name, text in METRICS.items() if name.removeprefix("unseen_") not in known}
    groups["Others"] = ("about the server, clusters, and the run itself", others)
    parts = [
        f"## {title}\n\n{what.capitalize()}.\n\n"
        + table(("name", "definition"), [(f"`{name}`", text) for name, text in found.items()])
        for title, (what, found) in groups.items()
    ]
    return f"""# Metrics

These are the variables of `Result.metrics`. Accuracies are fractions. Averages count only clients with a value. *The
model that it would use* is the deployed model: the global model, or the client's personal model if the method makes
one.

Metrics over clients and by client also exist with the prefix `unseen_`, over clients that did not train, except those
that need validation rows or records. `fljax list metrics` prints this page.

[Scores](../howto/scores.md) of a task, such as the AUROC, exist on request: `score_NAME` by client,
`average_score_NAME` and `pooled_score_NAME`.

{chr(10).join(part + chr(10) for part in parts)}"""


def _over_clients() -> dict[str, str]:
    return {name: metric.sentence for name, metric in OVER_CLIENTS.items()}


# Lists by the words for what is listed, each with where a config names it.
LISTS = {
    "datasets": ("Data sets", "`data.dataset`; options go to `data.dataset_options`."),
    "partitions": ("Partitions", "`data.partition`; options go to `data.partition_options`."),
    "models": ("Models", "`model.name`; options are other keys of `[model]`."),
    "contributions": ("Contributions", "`contribution` of an algorithm that rewards contributions."),
    "callbacks": ("Callbacks", "`[[callbacks]]`."),
}


def _lists() -> str:
    parts: list[str] = []
    for kind, (title, where) in LISTS.items():
        rows = [(f"`{name}`", f"{plain(line(each))}.", _options(kind, each)) for name, each in entries(kind).items()]
        parts.append(f"## {title}\n\nIn a config: {where}\n\n{table(('name', 'what it is', 'options'), rows)}\n")
    tables = [(f"`{name}`", line(each)) for name, each in entries("tables").items()]
    about = "`fljax reproduce NAME` runs the missing parts of a table and prints our numbers beside it."
    parts.append(f"## Published tables\n\n{about}\n\n{table(('name', 'content'), tables)}\n")
    return f"""# Names

A config may use these names, besides import paths. `fljax show NAME` explains all options of a name.

{chr(10).join(parts)}"""


def _options(kind: str, build: Callable[..., Any]) -> str:
    """The options of a builder with their defaults."""
    own = {each.name: each.default for each in parameters(build, offer_of(KINDS[kind], build))}
    return ", ".join(f"`{name}`" if value in (None, "none") else f"`{name} = {value}`" for name, value in own.items())


def _command_line() -> str:
    group: Any = typer.main.get_command(app)
    parts: list[str] = []
    _commands(group, "fljax", parts)
    return f"""# Command line

Every command has `--help`. With `--json`, a command prints one JSON object instead of a table. A command that fails
prints one sentence, or a sentence for each error of a config; `FLJAX_TRACEBACK=1` prints the traceback.

{"".join(parts)}"""


def _commands(group: Any, path: str, parts: list[str]) -> None:
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            _commands(command, f"{path} {name}", parts)
            continue
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        options = [each for each in command.params if each.param_type_name == "option"]
        rows = [(f"`{each.name.upper()}`", getattr(each, "help", "") or "") for each in arguments]
        rows += [(_option(each), each.help or "") for each in options]
        usage = " ".join([path, name, *(each.name.upper() for each in arguments)])
        parts.append(f"## `{usage}` {{ #{name} }}\n\n{prose(inspect.cleandoc(command.help or ''))}\n\n")
        parts.append((table(("argument or option", "meaning"), rows) if rows else "It has no options.") + "\n\n")


def _option(option: Any) -> str:
    names = " / ".join(f"`{each}`" for each in [*option.opts, *option.secondary_opts])
    return names + ("" if option.is_flag else f" `{option.metavar or option.name.upper()}`")


def _face() -> str:
    modules = ", ".join(f"[`{name}`]({name}.md)" for name in MODULES)
    entries = "\n\n".join(f"::: fljax.{name}" for name in face())
    return f"""# fljax

The names of `import fljax`. Packages: {modules}.

{entries}
"""


def face() -> list[str]:
    """The public names of ``fljax`` that are no modules, functions first."""
    found = [name for name in dir(fljax) if not inspect.ismodule(getattr(fljax, name)) and not name.startswith("_")]
    return sorted(found, key=lambda name: (name[0].isupper(), name))


def public(name: str) -> list[str]:
    """The public functions and classes of a module of fljax: those of ``__all__``, else those that it defines."""
    module = importlib.import_module(f"fljax.{name}")
    names = getattr(module, "__all__", None)
    if names is None:  # a face that imports at first use says in ``dir`` what it has
        found = {each: getattr(getattr(module, each), "__module__", None) or "" for each in dir(module)}
        names = [each for each, home in found.items() if f"{home}.".startswith(f"{module.__name__}.")]
    shown = (inspect.isfunction, inspect.isclass)
    return [each for each in names if not each.startswith("_") and any(is_(getattr(module, each)) for is_ in shown)]


def _module(name: str) -> str:
    module = importlib.import_module(f"fljax.{name}")
    entries = "\n\n".join(f"::: fljax.{name}.{each}" for each in public(name))
    return f"# fljax.{name}\n\n{prose(inspect.getdoc(module) or '')}\n\n{entries}\n"
