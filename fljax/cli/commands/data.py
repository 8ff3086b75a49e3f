"""``fljax data``: data sets, and what the clients of a config have; and ``fljax doctor``: what this machine has."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fljax.cli.printing import as_table, console, print_json
from fljax.cli.running import ConfigFile, Json, NoImport, Overrides, memory, start_jax
from fljax.core.errors import writing_to
from fljax.core.plain import tell

if TYPE_CHECKING:
    import numpy as np

    from fljax.data import ClientCounts

# More clients are summarised, and more labels are not columns of their own.
MOST_CLIENTS = 40
MOST_COLUMNS = 10
# The number of labels that a client's most frequent ones are named of.
MOST_FREQUENT = 3


def prepare(
    name: Annotated[str, typer.Argument(help="A data set.")],
    folder: Annotated[pathlib.Path | None, typer.Option(help="Folder with the upstream files.")] = None,
) -> None:
    """Load a data set once, so that later runs find it."""
    from fljax import data

    found = data.load(name, folder=folder)
    shape = " x ".join(str(length) for length in found.x.shape[1:])
    classes = "" if found.classes is None else f", {found.classes} classes"
    tell(f"{name}: {len(found.y)} examples of {shape}{classes}")


def status(as_json: Json = False) -> None:
    """Say for each data set where it is, or how to get it."""
    from fljax import data

    found = data.status()
    if as_json:
        print_json(found)
        return
    width = max(len(name) for name in found)
    for name, where in found.items():
        tell(f"{name:<{width}}  {where}")


def show_data(
    config: ConfigFile,
    overrides: Overrides = None,
    out: Annotated[pathlib.Path | None, typer.Option(help="A file for a picture of it: .png, .pdf or .svg.")] = None,
    no_import: NoImport = False,
    as_json: Json = False,
) -> None:
    """Print what each client of CONFIG has: rows, and training rows of each label, with the first seed."""
    from fljax.config import load

    chosen = load(config, overrides or (), imports=not no_import)
    kinds = (".png", ".pdf", ".svg")
    if out is not None and out.suffix.lower() not in kinds:
        raise ValueError(f"expected --out to end in one of {', '.join(kinds)}, got {str(out)!r}")
    start_jax()
    import jax

    from fljax import data
    from fljax.experiments.inputs.setup import build_world

    stacked, dataset, _ = build_world(chosen.model_copy(update={"seeds": chosen.seeds[:1]}))
    held = {name: int(rows.size[0]) for name, rows in stacked.held.items()}
    clients, unseen = jax.tree.map(lambda leaf: leaf[0], (stacked.clients, stacked.unseen))
    counts = data.count_clients(stacked._replace(clients=clients, unseen=unseen), dataset.classes)
    heading = f"{pathlib.PurePath(chosen.data.dataset).name}, {chosen.data.partition}"
    said = None if out is None else _draw(out, counts, heading)
    if as_json:
        print_json(_plain(counts, held) | {"picture": None if out is None else str(out)})
        return
    many = len(counts.clients) > MOST_CLIENTS
    shared = chosen.data.test == "global"
    for table in _summary(counts, heading) if many else [_each_client(counts, heading, shared)]:
        console(200).print(table)
    for name, rows in held.items():
        whose = ", on which all clients are tested" if name == "test" and shared else ""
        tell(f"The server has {rows} rows called {name!r}{whose}.")
    if out is not None:
        tell(f"Picture: {out}", *filter(None, [said]), sep="\n")


def _draw(out: pathlib.Path, counts: ClientCounts, heading: str) -> str | None:
    """Writes the picture; a sentence if no font has some of its letters."""
    from fljax.core.files import write
    from fljax.report import data_picture, font_note, fonts_for

    content, texts = io.BytesIO(), [heading, *_texts(counts.clients), *_texts(counts.classes or ())]
    with fonts_for(texts):
        data_picture(counts, heading).savefig(content, format=out.suffix.lower()[1:], dpi=150)
    with writing_to("a place for the picture", out):
        write(out, content.getvalue())
    return font_note(texts)


def _texts(names: Sequence[Any]) -> list[str]:
    from fljax.data.clients import name_text

    return [name_text(name) for name in names]


def _each_client(counts: ClientCounts, heading: str, shared: bool) -> Table:
    """One line for each client, and one for all; ``shared`` is whether all have the same test rows."""
    import numpy as np

    unseen = bool(counts.unseen.any())
    sizes = {name: getattr(counts, name) for name in ("train", "valid", "test", "deployment", "later")}
    sizes = {name: size for name, size in sizes.items() if size.any() or name == "train"}
    lines = [["client", *sizes, *_label_columns(counts)]]
    for client, name in enumerate(_texts(counts.clients)):
        shown = f"{name} (unseen)" if unseen and counts.unseen[client] else name
        rows = [str(size[client]) for size in sizes.values()]
        lines.append([shown, *rows, *_label_cells(counts, np.array([client]))])
    totals = [str(size[0] if name == "test" and shared else size.sum()) for name, size in sizes.items()]
    lines.append(["all", *totals, *_label_cells(counts, np.arange(len(counts.clients)))])
    return as_table(lines, f"Clients of {heading}", _caption(counts), words=["most frequent labels"], sums=True)


def _label_columns(counts: ClientCounts) -> list[str]:
    if counts.labels is not None:
        few = counts.labels.shape[1] <= MOST_COLUMNS
        return _texts(counts.classes) if few else ["labels", "most frequent labels"]
    return ["mean", "std", "min", "median", "max"]


def _label_cells(counts: ClientCounts, clients: np.ndarray) -> list[str]:
    """The labels of these clients together."""
    import numpy as np

    if counts.labels is not None:
        rows = counts.labels[clients].sum(axis=0)
        if len(rows) <= MOST_COLUMNS:
            return [str(each) if each else "·" for each in rows.tolist()]
        order = [int(each) for each in np.argsort(-rows, kind="stable")[:MOST_FREQUENT] if rows[each]]
        names = _texts([counts.classes[each] for each in order])
        frequent = [f"{name} {rows[each] / rows.sum():.0%}" for name, each in zip(names, order, strict=True)]
        return [str(int((rows > 0).sum())), ", ".join(frequent)]
    assert counts.targets is not None
    values = np.concatenate([counts.targets[client] for client in clients.tolist()]).astype(float)
    if not values.size:
        return [""] * 5
    found = [values.mean(), values.std(), values.min(), np.median(values), values.max()]
    return [_number(each) for each in found]


def _number(value: float) -> str:
    """Four digits, but no powers of ten for numbers that people read as they are."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"


def _summary(counts: ClientCounts, heading: str) -> list[Table]:
    """The range over clients of what one client has; then the labels, with the number of clients that have each."""
    import numpy as np

    seen = int((~counts.unseen).sum())
    title = f"{seen} clients" + (f" and {len(counts.clients) - seen} unseen ones" if seen < len(counts.clients) else "")
    numbers: dict[str, np.ndarray] = {"training rows": counts.train}
    others = {"validation": counts.valid, "test": counts.test, "deployment": counts.deployment, "later": counts.later}
    numbers |= {f"{name} rows": rows for name, rows in others.items() if rows.any()}
    if counts.labels is not None:
        numbers["different labels"] = (counts.labels > 0).sum(axis=1)
        share = counts.labels.max(axis=1) / np.maximum(counts.labels.sum(axis=1), 1)
        numbers["share of its most frequent label"] = share
    elif counts.targets is not None:
        numbers["mean of its numbers"] = np.array([each.mean() for each in counts.targets if len(each)])
        numbers["std of its numbers"] = np.array([each.std() for each in counts.targets if len(each)])
    lines = [["of one client", "least", "median", "mean", "most"]]
    for name, values in ((name, each.astype(float)) for name, each in numbers.items()):
        found = [values.min(), np.median(values), values.mean(), values.max()]
        lines.append([name, *map(_number, found)])
    table = as_table(lines, f"{title} of {heading}", _caption(counts))
    if counts.labels is None:
        return [table]
    rows, holders = counts.labels.sum(axis=0), (counts.labels > 0).sum(axis=0)
    order = np.argsort(-rows, kind="stable")[:MOST_CLIENTS]
    left, names = len(rows) - len(order), _texts(counts.classes)
    lines = [["label", "training rows", "clients that have it"]]
    lines += [[names[each], str(rows[each]), str(holders[each])] for each in sorted(order.tolist())]
    return [table, as_table(lines, "Labels", f"and {left} less frequent labels" if left else "")]


def _caption(counts: ClientCounts) -> str:
    if counts.labels is not None:
        return "labels: of training rows"
    return "mean to max: of the numbers to predict in training rows" if len(counts.clients) <= MOST_CLIENTS else ""


def _plain(counts: ClientCounts, held: dict[str, int]) -> dict[str, Any]:
    """The counts for JSON."""

    def texts(names: Sequence[Any]) -> list[Any]:
        return [each if isinstance(each, int | float | bool | str) else str(each) for each in names]

    found: dict[str, Any] = {"clients": texts(counts.clients), "classes": texts(counts.classes)}
    found |= {name: getattr(counts, name).tolist() for name in ("unseen", "train", "valid", "test")}
    found |= {name: rows.tolist() for name in ("deployment", "later") if (rows := getattr(counts, name)).any()}
    if counts.labels is not None:
        found["labels"] = counts.labels.tolist()
    if counts.targets is not None:
        found["mean"] = [float(each.mean()) if len(each) else None for each in counts.targets]
        found["std"] = [float(each.std()) if len(each) else None for each in counts.targets]
    return found | {"server": held}


def doctor(
    config: Annotated[
        pathlib.Path | None, typer.Option(help="A TOML file: say what a run of it would hold in memory instead.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key of --config; may be repeated.")
    ] = None,
    imports: Annotated[
        bool, typer.Option("--import/--no-import", help="Follow import paths in --config, which runs their code.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show versions, devices, memory and data sets; or what a run would hold in memory."""
    from fljax import data
    from fljax.results.identity import environment

    if config is not None:
        _memory(config, overrides or [], imports, as_json)
        return
    if overrides:
        raise ValueError("expected --config with --set, got --set alone")
    found = {**environment(), "memory": memory(), "data": data.status()}
    if as_json:
        print_json(found)
        return
    for key, value in found.items():
        if isinstance(value, dict):
            tell(f"{key}:")
            for name, each in value.items():
                tell(f"  {name}: {each}")
        else:
            tell(f"{key}: {', '.join(value) if isinstance(value, list) else value}")


def _memory(config: pathlib.Path, overrides: Sequence[str], imports: bool, as_json: bool) -> None:
    """Prints the memory of every algorithm, as ``fljax run`` does, without running; its programs are compiled."""
    from fljax.config import load

    chosen = load(config, overrides, imports=imports)
    start_jax()
    from fljax import engine
    from fljax.experiments import run

    found = run.estimates(chosen)
    if as_json:
        missing = {label: engine.shortage(each) for label, each in found.items()}
        print_json({label: {**each._asdict(), "warning": missing[label]} for label, each in found.items()})
        return
    lines = [["algorithm", "at once", "server", "models", "of", "clients", "data"]]
    for label, each in found.items():
        models = each.server // max(each.model, 1)
        sizes = [engine.size(count) for count in (each.peak, each.server, each.model, each.clients, each.data)]
        lines.append([label, *sizes[:2], str(models), *sizes[2:]])
    caption = f"server, clients: of {'one seed' if len(chosen.seeds) == 1 else f'all {len(chosen.seeds)} seeds'}"
    console(110).print(as_table(lines, "Memory of a run", caption))
    for label, each in found.items():
        if each.devices > 1:
            tell(f"{label}: on each of {each.devices} devices")
        missing = engine.shortage(each)
        if missing is not None:
            tell(f"{label}: {missing}")
