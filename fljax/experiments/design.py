"""The best numbers of an algorithm of a config under which lying does not pay (``fljax design``).

The config's other algorithms are baselines, and so is the algorithm itself with the numbers of the config.
``design.nc`` has the design, ``certificates.nc`` the certificates, and ``design/checkpoints`` what was played.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr

from fljax.config import Config, dumps
from fljax.core import processes
from fljax.core.files import write
from fljax.core.names import about_algorithm, name_of
from fljax.core.sameness import FORCED, code_of
from fljax.core.values import argument_of
from fljax.data import choose
from fljax.engine import Plan, RunsDone
from fljax.experiments.conductor import Outputs, Saving
from fljax.experiments.inputs.entrants import Deviations, recorded_deviations, strategies_of
from fljax.experiments.inputs.preparation import build_plan
from fljax.experiments.inputs.setup import AlgorithmSetup, Setup, resolve_setup
from fljax.experiments.whole_runs import QUESTION, Kept, begin, of_runs, reads_standalone, standalone_of
from fljax.games import Around, Baseline, Design, Interval, design, design_dataset, save_certificates
from fljax.protocol import Algorithm
from fljax.results import stores
from fljax.results.events import OnEvent
from fljax.results.folders import CERTIFICATES, DESIGN, OF_DESIGN, OpenFolder
from fljax.results.identity import CHECKPOINTS


class Question(NamedTuple):
    """What is asked.

    Attributes:
      label: of the algorithm.
      over: by label and name of an option: an ``Interval``, or the scale of an ``Around`` its numbers in the config.
      deviations: as for ``certify.Question``.
      settings: further arguments of ``fljax.games.design``; ``outside`` is "standalone" or None.
      budget_of_baselines: runs of the search for each baseline that is tuned.
    """

    label: str
    over: Mapping[str, Mapping[str, Interval | float]]
    deviations: Deviations = None
    settings: Mapping[str, Any] = {}
    budget_of_baselines: int = 2_000


class SavedDesign(NamedTuple):
    """The content of a file of ``fljax design``: a ``design_dataset``, and what it is of."""

    design: xr.Dataset
    config: str
    fljax: str
    question: str
    data: str
    record: str


class Searched(NamedTuple):
    """The builder of a config's plan whose options ``names`` are arguments of its own."""

    build: Any  # a Callable, which a NamedTuple would show as a method
    names: tuple[str, ...]

    def __call__(self, arguments: Mapping[str, Any], options: Any, **more: Any) -> Algorithm:
        own = {name: more.pop(name) for name in self.names}
        return self.build({**arguments, **own}, options, **more)


def load_design(path: pathlib.Path) -> SavedDesign:
    """Reads a file of ``fljax design``; raises a ValueError if it is damaged or something else."""
    root, found = stores.read_by_label(path, "a design", listed="designs", group="design")
    texts = {name: str(root[name].values) for name in SavedDesign._fields[1:]}
    return SavedDesign(found[OF_DESIGN], **texts)


_KEPT = Kept("design", DESIGN, load_design, OF_DESIGN)


def run(
    config: Config,
    question: Question,
    *,
    directory: pathlib.Path | None = None,
    resume: bool = False,
    on_event: OnEvent | None = None,
    saving: Saving | None = None,
) -> xr.Dataset:
    """Searches numbers of an algorithm of a config, and saves after each generation; the ``design_dataset``."""
    text, asked = "" if directory is None else dumps(config), in_json(question)
    with _KEPT.opened(directory, text, resume=resume, on_event=on_event, saving=saving) as (saved, outputs, folder):
        if saved is not None:
            _check_question(saved.question, asked, directory)
            outputs.log.done(question.label)
            return saved.design
        if directory is not None:
            _keep_question(directory / OF_DESIGN, asked, resume)
        setup = resolve_setup(config, outputs.log)
        data = _KEPT.data_of(setup, None, outputs, folder)
        found = _design(setup, question, outputs, folder)
        dataset = design_dataset(found).assign_attrs({FORCED: outputs.log.forced} if outputs.log.forced else {})
        if directory is not None and processes.is_first():
            root = stores.origin(text).assign(question=((), asked), data=((), data))
            write(
                directory / DESIGN,
                stores.encoded_by_label(root, {OF_DESIGN: dataset}, listed="designs", group="design"),
            )
            save_certificates(directory / CERTIFICATES, certificates_of(found), text)
            outputs.log.tell("saved", question.label, found.runs, found.runs, "")
        outputs.files.finished(question.label)
        return dataset


def _keep_question(blocks: pathlib.Path, asked: str, resume: bool) -> None:
    """Keeps the question beside what is played: what was played for another one would mislead the search."""
    kept = blocks / QUESTION
    if resume and kept.is_file() and any(blocks.glob(f"{CHECKPOINTS}/*/*")):
        _check_question(kept.read_text(), asked, blocks.parent)
    if processes.is_first():
        blocks.mkdir(exist_ok=True)
        write(kept, asked.encode())


def _check_question(earlier: str, asked: str, directory: pathlib.Path | None) -> None:
    """Raises a ValueError for another question, also if the user forces the rest."""
    before, now = json.loads(earlier), json.loads(asked)
    changed = [name for name in now if before.get(name) != now[name]]
    if changed:
        words = ", ".join(f"{name} {before.get(name)!s:.80} and not {now[name]!s:.80}" for name in changed)
        raise ValueError(f"expected the question of the design in {str(directory)!r}: {words}")


def certificates_of(found: Design) -> dict[str, Any]:
    """The certificates of a design by mechanism and tolerance."""
    each = {f"{label} at {one.tolerance:g}": one.certificate for label, row in found.chosen.items() for one in row}
    return {label: certificate for label, certificate in each.items() if certificate is not None}


def _design(setup: Setup, asked: Question, outputs: Outputs, folder: OpenFolder) -> Design:
    plans = begin(setup, outputs.log, purpose="designs", run="run", lost="counts as the worst utility")
    settings, entries = dict(asked.settings), {entry.label: entry for entry in setup.algorithms}
    _check_federations(setup, settings, outputs)
    if any(map(reads_standalone, setup.algorithms)):
        reference = standalone_of(setup, outputs, folder)
        settings["outside"] = reference if settings.get("outside") == "standalone" else settings.get("outside")
        plans = {label: build_plan(setup, entry, reference) for label, entry in entries.items()}
    baselines = dict[str, Baseline]()
    for label, entry in entries.items():
        with about_algorithm(label):
            own = _searched(plans[label], entry, asked.over.get(label, {}))
        baselines[label] = Baseline(*own, budget=asked.budget_of_baselines)
    designed = baselines[asked.label]
    baselines[asked.label] = Baseline(plans[asked.label])
    total = settings.get("budget", 0) + sum(each.budget or 0 for each in baselines.values() if each.over)
    same = of_runs(setup, outputs, asked.label)
    same |= {"on_block": _counted(same["on_block"], total)}
    return design(
        designed.plan,
        setup.federation,
        over=designed.over,
        deviations=None if asked.deviations is None else strategies_of(asked.deviations),
        standalone=setup.standalone,
        baselines=baselines,
        **settings,
        **{name: value for name, value in same.items() if name != "seeds"},
    )


def _searched(plan: Plan, entry: AlgorithmSetup, over: Mapping[str, Interval | float]) -> tuple[Plan, dict[str, Any]]:
    """The plan in which options are arguments, and where each is searched."""
    given = {name: argument_of(entry.build, plan.arguments["arguments"], name, None) for name in over}
    numbers = {name: np.asarray(value) for name, value in given.items()}
    numbers = {name: value for name, value in numbers.items() if value.dtype.kind in "iuf"}
    spaces = dict[str, Any]()
    for name, part in over.items():
        if not isinstance(part, Interval) and not (name in numbers and numbers[name].ndim):
            raise ValueError(f"expected numbers of {name} in the config to search around them, got {given[name]!r}")
        spaces[name] = part if isinstance(part, Interval) else Around(numbers[name], part)
    if not over:
        return plan, spaces
    own = {name: value if value.ndim else float(value) for name, value in numbers.items()}
    return Plan(Searched(plan.build, tuple(over)), {**plan.arguments, **own}, plan.by_seed), spaces


def _check_federations(setup: Setup, settings: Mapping[str, Any], outputs: Outputs) -> None:
    """Raises a ValueError for clients that are others in some federations; tells if all federations are the same."""
    names = (
        [] if setup.world is None else list(dict.fromkeys(str(list(each.clients or ())) for each in setup.world.names))
    )
    if settings.get("roles", True) and len(names) > 1:
        raise ValueError(
            f"expected the same clients with all seeds, got {names[0]:.60} and {names[1]:.60}; roles=False "
            "(--exchangeable) pools them"
        )
    first, last = (jax.tree.leaves(choose(setup.federation, place).clients) for place in (0, len(setup.seeds) - 1))
    if all(np.array_equal(one, other) for one, other in zip(first, last, strict=True)):
        outputs.log.note("the federations of all seeds are the same: fresh ones differ by the seed of the run alone")


def _counted(tell: Callable[[RunsDone], Any], total: int) -> Callable[[RunsDone], Any]:
    """Tells blocks of all calls as those of one, of ``total`` runs and what judges them."""
    before = list[int]()

    def of_all(block: RunsDone) -> None:
        before.append(block.block)
        tell(block._replace(done=sum(before), runs=max(total, sum(before))))

    return of_all


def in_json(asked: Question) -> str:
    """The question as text."""
    deviations = recorded_deviations(asked.deviations)
    flat = {**asked._asdict(), **asked.settings, "deviations": deviations}
    del flat["settings"]
    return json.dumps(
        flat, default=lambda value: f"{name_of(value)} {code_of(value)}" if callable(value) else str(value)
    )
