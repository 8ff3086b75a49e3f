"""``fljax design``: the numbers of an algorithm with the best objective under which lying does not pay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fljax.cli.printing import as_table, console, print_json, print_places
from fljax.cli.running import (
    ConfigFile,
    Context,
    DesignOptions,
    PlayOptions,
    WholeRunOptions,
    changes_of,
    check_play,
    computing,
    folder_of,
    played,
    start_jax,
)
from fljax.core.names import resolve, unknown

if TYPE_CHECKING:
    from fljax.config import Config
    from fljax.experiments.design import Question

_AROUND = "around"


def design(
    context: Context, config: ConfigFile, play: PlayOptions, options: DesignOptions, runs: WholeRunOptions
) -> int:
    """Search numbers of an algorithm of CONFIG under which lying does not pay, beside its other algorithms."""
    from fljax.config import load

    if runs.seeds is not None or any(change.partition("=")[0].strip() == "seeds" for change in changes_of(runs)):
        raise ValueError("expected --pool, --validation and --fresh, which are the seeds, got seeds")
    places = options.pool + options.validation + options.fresh
    changes, imports = [*changes_of(runs), f"seeds={max(places, 1)}"], not runs.no_import
    chosen = load(config, changes, imports=imports)
    label, over = _searched(options, chosen)
    check_play(play)
    for path, value in _ends(over):  # options out of their range are refused as those of the config are
        load(config, [*changes, f"algorithms.{path}={value!r}"], imports=imports)
    start_jax(runs.cache)
    from fljax.experiments import design as experiment

    question = _question(options, play, label, over, imports=imports)
    with computing(context, runs, lambda: folder_of(chosen, runs)) as (folder, compute):
        dataset = compute(experiment.run, chosen, question, resume=runs.resume)
        from fljax.report.designs import design_rows, design_sentences, number_rows, write_design

        written = () if runs.no_report else write_design(folder, dataset, chosen.name)
    sentences = design_sentences(dataset)
    if runs.as_json:
        found = dataset.to_dict(encoding=False)
        parts = {name: value["data"] for name, value in {**found["coords"], **found["data_vars"]}.items()}
        report = [str(path) for path in written]
        print_json({"directory": str(folder), "design": parts, "said": sentences, "report": report})
    elif not runs.quiet:
        shown, title = console(155), "On fresh federations, with 95 % intervals"
        shown.print(as_table(design_rows(dataset), title, words=["by", "certified from"], whole=True))
        shown.print(as_table(number_rows(dataset), "What was found", words=["option"], whole=True))
        for sentence in sentences:
            shown.print(sentence, highlight=False)
        print_places(folder, written)
    return 0


def _searched(options: DesignOptions, config: Config) -> tuple[str, dict[str, dict[str, Any]]]:
    """The label of the algorithm, and what is searched by label and option."""
    labels = [entry.label for entry in config.algorithms]
    label = labels[0] if options.algorithm is None else options.algorithm
    if label not in labels:
        raise ValueError(unknown("algorithm", label, labels))
    over: dict[str, dict[str, Any]] = {}
    for text in options.over or ():
        path, equals, words = text.partition("=")
        start, dot, name = path.rpartition(".")
        whose = start if dot else label
        if not equals or not name or whose not in labels:
            raise ValueError(f"expected --over [LABEL.]OPTION=RANGE, got {text!r}; labels are {', '.join(labels)}")
        if name in over.setdefault(whose, {}):
            raise ValueError(f"expected one --over for each option, got two of {name} of {whose}")
        over[whose][name] = _part(text, words)
    if label not in over:
        raise ValueError(f"expected --over OPTION=RANGE with an option of {label}, got none")
    return label, over


def _part(text: str, words: str) -> Any:
    """Where one option is searched."""
    first, *rest = words.split(":")
    try:
        if first == _AROUND and len(rest) <= 1:
            return float(rest[0]) if rest else 1.0
        low, high = float(first), float(rest[0])
        if rest[1:] not in ([], ["log"]):
            raise ValueError
    except (ValueError, IndexError):
        raise ValueError(f"expected LOW:HIGH, LOW:HIGH:log or {_AROUND}:SCALE for --over, got {text!r}") from None
    from fljax.games import Interval

    return Interval(low, high, log=bool(rest[1:]))


def _ends(over: dict[str, dict[str, Any]]) -> list[tuple[str, float]]:
    """Both ends of each interval, by the path of the option."""
    intervals = [(f"{label}.{name}", part) for label, own in over.items() for name, part in own.items()]
    return [(path, end) for path, part in intervals if isinstance(part, tuple) for end in part[:2]]


def _question(
    options: DesignOptions, play: PlayOptions, label: str, over: dict[str, dict[str, Any]], *, imports: bool
) -> Question:
    """What the options ask."""
    from fljax.experiments.design import Question
    from fljax.games.mechanisms.judging import OBJECTIVES

    named = {name: name for name in OBJECTIVES}
    settings = {**options._asdict(), **played(play, imports=imports), "roles": not options.exchangeable}
    settings["objective"] = resolve(options.objective, named, "objective", imports=imports)
    settings["tolerance"] = _numbers(options.tolerance)
    for name in ("over", "algorithm", "exchangeable"):
        del settings[name]
    deviations, budget = settings.pop("deviations"), settings.pop("budget_of_baselines")
    return Question(label, over, deviations, settings, budget)


def _numbers(text: str) -> Sequence[float]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"expected --tolerance to be numbers with commas, got {text!r}") from None
