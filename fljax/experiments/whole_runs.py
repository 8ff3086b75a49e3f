"""What commands share that compute thousands of whole runs of each algorithm: ``fljax worth`` and ``fljax certify``.

Their checkpoints are in a folder of their own, since a run in the same run folder removes its own when it is finished.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fljax.core import processes
from fljax.core.names import about_algorithm, duration
from fljax.core.sameness import Differences
from fljax.core.values import accepts
from fljax.engine import Plan, RunsDone, checksum_of
from fljax.engine.whole_runs.program import by_themselves
from fljax.experiments.conductor import Outputs, Saving, check_data, opened, trained_alone
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.setup import AlgorithmSetup, Setup
from fljax.experiments.programs import check_setup
from fljax.results import Reference
from fljax.results.events import EventLog
from fljax.results.folders import OpenFolder
from fljax.results.folders import check_own_files as check_folder
from fljax.results.identity import CHECKPOINTS, ORIGIN, Origin, check_checkpoints, check_same_run

QUESTION = "question.json"  # beside the blocks of runs, if a command writes it: what they are for


class Kept(NamedTuple):
    """What a command keeps in a run folder: ``what`` in the file ``name``, which ``load`` reads, and blocks of runs."""

    what: str
    name: str
    load: Callable[[pathlib.Path], Any]
    blocks: str

    def _earlier(self, directory: pathlib.Path | None, text: str, resume: bool, force: bool) -> tuple[Any, Differences]:
        """What a folder has, None if nothing, and what differs from its run, which is refused unless by force."""
        found, differ = None, Differences()
        if directory is None:
            return found, differ
        if not resume and (directory / self.name).exists():
            where = f"{str(directory)!r}, which holds {self.name}"
            raise ValueError(f"expected a folder without results, or --resume, got {where}")
        check_folder(directory)
        if (directory / self.name).is_file():
            found = self.load(directory / self.name)
            origin = Origin(found.config, found.fljax, None, found.record)
            differ = check_same_run(origin, text, None, self.what, directory, force=force)
        if resume and (directory / self.blocks / CHECKPOINTS / ORIGIN).is_file():
            differ |= check_checkpoints(directory / self.blocks, text, None, force)
        return found, differ

    @contextlib.contextmanager
    def opened(
        self, directory: pathlib.Path | None, text: str, *, resume: bool, saving: Saving | None, **how: Any
    ) -> Iterator[tuple[Any, Outputs, OpenFolder]]:
        """What a folder has, and as ``opened`` of a run."""
        # Another config is refused before the folder gets it. What differs from earlier processes is told. Checkpoints
        # are in a folder of their own, which goes at the end.
        found, differ = self._earlier(directory, text, resume, saving is not None and saving.force)
        with opened(directory, text, unit="runs", resume=resume, saving=saving, **how) as (outputs, folder):
            for words in differ.sentences:
                outputs.log.note(words)
            place = None if directory is None else directory / self.blocks
            outputs = outputs._replace(files=outputs.files._replace(directory=place))
            yield found, outputs, folder
            outputs.files.finished()
            if place is not None and processes.is_first():
                with contextlib.suppress(OSError):
                    (place / QUESTION).unlink(missing_ok=True)
                    place.rmdir()

    def data_of(self, setup: Setup, found: Any, outputs: Outputs, folder: OpenFolder) -> str:
        """A checksum of the data, "" if nothing is saved; others than those of what is there need ``force``."""
        if outputs.folder is None:
            return ""
        data = checksum_of(setup.federation)
        check_data(folder, data, outputs.files)
        if found is not None and found.data not in ("", str(data)):
            wanted = f"of the {self.what} in {str(outputs.folder)!r} to resume them"
            outputs.files.refuse_data(wanted, f"the data of the {self.what} were others")
        return str(data)


def of_runs(setup: Setup, outputs: Outputs, label: str) -> dict[str, Any]:
    """Arguments of functions that compute an algorithm's runs; the log gets each block, with the time that is left."""

    def tell(block: RunsDone) -> None:
        rest = (block.runs - block.done) * block.seconds / block.block  # by the speed of the last one
        outputs.log.train(label, block.done, block.runs, f"about {duration(rest)} left" if rest >= 1 else "")

    same = {"rounds": setup.rounds, "seeds": setup.seeds, "execution": setup.execution}
    return {**same, "checkpoint": outputs.files.checkpoint(label), "on_block": tell}


def standalone_of(setup: Setup, outputs: Outputs, folder: OpenFolder) -> Reference:
    """The standalone models of all clients, trained or of an earlier process."""
    alone = setup._replace(federation=by_themselves(setup.federation))
    return trained_alone([alone], (), outputs, folder)[0]


def begin(setup: Setup, log: EventLog, *, purpose: str, run: str, lost: str) -> dict[str, Plan]:
    """The plans of all algorithms by label, after what can be checked and told before anything is computed."""
    preparation.check_test_rows(setup.federation)
    for words in preparation.facts_to_tell(setup):
        log.note(words)
    left_out = [name for name, asked in (("callbacks", setup.callbacks), ("early stopping", setup.stop)) if asked]
    if left_out:
        log.note(f"without {' and '.join(left_out)} of the config: every {run} runs to its end")
    if setup.non_finite != "freeze":
        log.note(f'non_finite = "{setup.non_finite}" is not used: a {run} that diverges {lost}')
    for entry in setup.algorithms:
        with about_algorithm(entry.label):
            _check_start(entry, purpose)
    return check_setup(setup, rehearsed=False, swept=True)


def names_of(setup: Setup) -> tuple[str, ...]:
    """The names that clients have in the data, if they are those of all seeds; empty: they have none."""
    names = {labels.clients for labels in setup.world.names} if setup.world is not None else set()
    (shared,) = names if len(names) == 1 else (None,)
    return tuple(map(str, shared or ()))


def reads_standalone(entry: AlgorithmSetup) -> bool:
    """Whether the algorithm, or a scenario around it, reads standalone models."""
    builders = (entry.build, *(wrap for wrap, _ in entry.scenarios))
    return any(accepts(build, name) for build in builders for name in ("threshold", "reference", "contribution"))


def _check_start(entry: AlgorithmSetup, purpose: str) -> None:
    """Raises a ValueError for an algorithm without clients, or with models of all clients before it starts."""
    if entry.pooled:
        raise ValueError(
            f"expected algorithms whose clients train for {purpose}, got {entry.label} with pooled = true, which "
            "trains on the rows of all clients at once"
        )
    if entry.clustering is not None:
        raise ValueError(
            f'expected clusters that are drawn (clustering = "random") for {purpose}, got {entry.label}, whose '
            "clusters are found by training all clients"
        )
