"""What commands share that compute thousands of whole runs of each algorithm: ``fljax worth`` and ``fljax certify``.

Their checkpoints are in a folder of their own, since a run in the same run folder removes its own when it is finished.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from fljax.core.names import about_algorithm, duration
from fljax.core.sameness.record import WENT_ON, Differences
from fljax.core.signatures import accepts
from fljax.engine import Plan, RunsDone
from fljax.experiments.conductor import Outputs
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.setup import AlgorithmSetup, Setup
from fljax.experiments.programs import check
from fljax.results.events import EventLog
from fljax.results.identity import CHECKPOINTS, ORIGIN, check_checkpoints


def apart(outputs: Outputs, folder: str) -> Outputs:
    """With checkpoints in a folder of this name in the run folder."""
    files = outputs.files
    if files.directory is None:
        return outputs
    return outputs._replace(files=files._replace(directory=files.directory / folder))


def check_blocks(directory: pathlib.Path | None, folder: str, text: str, resume: bool, force: bool) -> Differences:
    """Raises a ValueError if blocks that would go on are of another config or version, or not by force."""
    if directory is not None and resume and (directory / folder / CHECKPOINTS / ORIGIN).is_file():
        return check_checkpoints(directory / folder, text, None, force)
    return Differences()


def check_same_data(earlier: str, data: str, what: str, directory: pathlib.Path | None, outputs: Outputs) -> None:
    """Raises a ValueError if ``what`` in a folder is of other data, unless it goes on by force; "" is not known."""
    if earlier in ("", data):
        return
    if not outputs.files.saving.force:
        raise ValueError(
            f"expected the data of the {what} in {str(directory)!r} to resume them, got other data (with another "
            "folder the command begins anew; --force or force=True goes on, and the results say so)"
        )
    outputs.log.note(f"{WENT_ON}the data of the {what} were others")


def tell(differ: Differences, log: EventLog) -> None:
    """Notes what differs, and what is not compared."""
    for words in (differ.sentence, *differ.noted):
        if words:
            log.note(words)


def on_block(log: EventLog, label: str) -> Callable[[RunsDone], None]:
    """Tells the log of each block of runs, with the time that is left by the speed of the last one."""

    def tell(block: RunsDone) -> None:
        rest = (block.runs - block.done) * block.seconds / block.block
        log.train(label, block.done, block.runs, f"about {duration(rest)} left" if rest >= 1 else "")

    return tell


def begin(setup: Setup, log: EventLog, *, purpose: str, run: str, lost: str) -> dict[str, Plan]:
    """The plans of all algorithms by label, after what can be checked and told before anything is computed.

    Args:
      setup: the experiment.
      log: gets the notes.
      purpose: what the runs are for, in the plural.
      run: what a run is called.
      lost: what becomes of one that diverges.

    Raises:
      ValueError: if the clients have no test rows, or an algorithm cannot be built or be run on some clients alone.
    """
    preparation.check_test_rows(setup.federation)
    for words in preparation.facts_to_tell(setup):
        log.note(words)
    _tell_what_is_left_out(setup, log, run, lost)
    for entry in setup.algorithms:
        with about_algorithm(entry.label):
            _check_start(entry, purpose)
    return check(setup, rehearsed=False, swept=True)


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
    """Raises a ValueError for an algorithm without clients, or with models of all clients before it starts.

    Args:
      entry: the algorithm.
      purpose: what the runs are for, in the plural.
    """
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


def _tell_what_is_left_out(setup: Setup, log: EventLog, run: str, lost: str) -> None:
    """Notes what whole runs do not use of a config.

    Args:
      setup: the experiment.
      log: gets the notes.
      run: what a run is called.
      lost: what becomes of one that diverges.
    """
    left_out = [name for name, asked in (("callbacks", setup.callbacks), ("early stopping", setup.stop)) if asked]
    if left_out:
        log.note(f"without {' and '.join(left_out)} of the config: every {run} runs to its end")
    if setup.non_finite != "freeze":
        log.note(f'non_finite = "{setup.non_finite}" is not used: a {run} that diverges {lost}')
