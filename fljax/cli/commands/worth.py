"""``fljax worth``: what each client of a config is worth, by retraining coalitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fljax.cli.printing import as_table, console, fail, print_json, print_places
from fljax.cli.running import (
    ConfigFile,
    Context,
    WholeRunOptions,
    WorthOptions,
    changes_of,
    computing,
    folder_of,
    start_jax,
)

if TYPE_CHECKING:
    import xarray as xr

    from fljax.experiments.worth import Answer, Question
    from fljax.games import CoalitionTable

_NOBODY = "none"


def worth(context: Context, config: ConfigFile, options: WorthOptions, runs: WholeRunOptions) -> int:
    """Say what each client of CONFIG is worth: retrain every coalition of clients, for each algorithm."""
    from fljax.config import load

    chosen = load(config, changes_of(runs), imports=not runs.no_import)
    question = _question(options, imports=not runs.no_import)
    start_jax(runs.cache)
    from fljax import games
    from fljax.experiments import worth as experiment

    with computing(context, runs, lambda: folder_of(chosen, runs)) as (folder, compute):
        answer: Answer = compute(experiment.run, chosen, question, resume=runs.resume)
        worths = {label: games.worth(table) for label, table in answer.tables.items()}
        notes = {label: _notes(table) for label, table in answer.tables.items()}
        from fljax.core.files import write
        from fljax.report import estimators
        from fljax.report.worth import TABLE, worth_rows, worth_sentences, worth_table, write_worth

        write(folder / TABLE, worth_table(worths))
        if answer.estimators:
            write(folder / estimators.TABLE, estimators.estimator_table(answer.estimators))
        tables = {label: games.to_dataset(table) for label, table in answer.tables.items()}
        written = () if runs.no_report else write_worth(folder, tables, worths, chosen.name, notes, answer.estimators)
    gone = {label: words for label, table in answer.tables.items() if (words := games.divergences(table)) is not None}
    if runs.as_json:
        algorithms = {label: _plain(answer.tables[label], dataset) for label, dataset in worths.items()}
        for label, compared in answer.estimators.items():
            algorithms[label]["estimators"] = _estimators_plain(compared)
            algorithms[label]["estimators_left_out"] = compared.attrs.get("left_out", "")
        print_json({"directory": str(folder), "algorithms": algorithms, "report": [str(path) for path in written]})
    elif not runs.quiet:
        for label, dataset in worths.items():
            shown = console(110)
            title = f"{label}: what clients are worth"
            shown.print(as_table(worth_rows(dataset), title, sums=True, whole=True))
            for sentence in (*worth_sentences(dataset), *notes[label]):
                shown.print(sentence, highlight=False)
            if label in answer.estimators:
                compared = answer.estimators[label]
                title = f"{label}: estimators beside retraining"
                console(145).print(as_table(estimators.estimator_rows(compared), title, whole=True))
                for sentence in estimators.estimator_sentences(compared):
                    shown.print(sentence, highlight=False)
            shown.print()
        print_places(folder, written)
    if gone:
        label, words = next(iter(gone.items()))
        others = f", and runs of {len(gone) - 1} more algorithms" if len(gone) > 1 else ""
        return fail(f"{label}: {words}{others}; all is saved in {folder}", 1)
    return 0


def _question(options: WorthOptions, *, imports: bool) -> Question:
    """What the options ask; names are checked when the data are there."""
    from fljax.core.names import resolve
    from fljax.experiments.worth import Question

    value: Any = options.value
    if ":" in options.value:
        value = resolve(options.value, {}, "value", imports=imports)
    if options.max_runs < 1:
        raise ValueError(f"expected --max-runs to be at least 1, got {options.max_runs}")
    return Question(
        value,
        _among(options.among),
        _baseline(options.baseline),
        max_runs=options.max_runs,
        estimators=_estimators(options.estimators),
    )


def _estimators(text: str | None) -> Any:
    """``all``, or names with commas between."""
    if text is None or text == "all":
        return text
    from fljax.contributions import ESTIMATORS
    from fljax.core.names import unknown

    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ESTIMATORS:
            raise ValueError(unknown("estimator", name, ["all", *ESTIMATORS]))
    return names


def _among(text: str | None) -> Any:
    """``leave_one_out``, or coalitions such as ``0+1,0+1+2,none``."""
    if text is None or text == "leave_one_out":
        return text
    coalitions: list[list[int]] = []
    for part in text.split(","):
        ids = [] if part.strip() == _NOBODY else part.split("+")
        if not all(client.strip().isdecimal() for client in ids):
            raise ValueError(
                f"expected --among to be leave_one_out, or coalitions of client numbers such as 0+1,0+1+2,{_NOBODY}, "
                f"got {text!r}"
            )
        coalitions.append([int(client) for client in ids])
    return coalitions


def _baseline(text: str) -> Any:
    if text in ("initial", "chance"):
        return text
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected --baseline to be initial, chance or a number, got {text!r}") from None


def _notes(table: CoalitionTable) -> list[str]:
    """What a table cost, what is special about runs of few members, and what diverged."""
    from fljax.games import divergences
    from fljax.games.values import in_words

    words = [table.notes, divergences(table)]
    return [f"Cost: {in_words(table.cost)}.", *(f"{sentence}." for sentence in words if sentence)]


def _estimators_plain(compared: xr.Dataset) -> dict[str, Any]:
    """By name: numbers by seed, and what the estimator cost."""
    from fljax.report.estimators import HEADINGS

    numbers = {name: compared[name].transpose("estimator", ...).values.tolist() for name in (*HEADINGS, "worth")}
    names = [str(name) for name in compared["estimator"].values]
    return {name: {key: rows[place] for key, rows in numbers.items()} for place, name in enumerate(names)}


def _plain(table: CoalitionTable, worth: xr.Dataset) -> dict[str, Any]:
    """One algorithm for JSON."""
    from fljax.games.tables import in_braces

    measures = [str(name) for name in worth["measure"].values]

    def numbers(name: str, client: int) -> dict[str, Any]:
        entry = worth.sel(measure=name).isel(client=client)
        ends = {key: float(entry[key]) for key in ("mean", "low", "high")}
        return {**ends, "by_seed": entry["worth"].values.tolist()}

    clients = [
        {"client": place, "name": name, **{measure: numbers(measure, place) for measure in measures}}
        for place, name in enumerate(table.names)
    ]
    laws = {
        str(law): {key: worth[key].sel(law=law).item() for key in ("violations", "share", "largest", "unknown")}
        for law in (worth["law"].values if "law" in worth.coords else ())
    }
    diverged = [
        {"seed": table.seeds[seed], "coalition": in_braces(table.members[place])}
        for seed, place in zip(*table.diverged.nonzero(), strict=True)
    ]
    single = {key: float(worth[key]) for key in ("everybody", "nobody", "excess", "stable")}
    about = {"metric": table.metric, "baseline": table.baseline, "seeds": list(table.seeds), "notes": table.notes}
    return {**about, **single, "clients": clients, "laws": laws, "cost": table.cost._asdict(), "diverged": diverged}
