"""Several plans that differ only in numbers, as runs of one compiled program."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from fljax.engine.callbacks.contract import Callback
from fljax.engine.checkpoints import Checkpoint
from fljax.engine.loop.blocks import OnMemory
from fljax.engine.loop.kept import Kept
from fljax.engine.loop.simulation import run_plans
from fljax.engine.programs.execution import Execution
from fljax.engine.programs.program import Plan
from fljax.engine.rounds.keys import Seeds
from fljax.protocol import Algorithm, Federation
from fljax.results import Reference, Result
from fljax.results.non_finite import NonFinite


def sweep(
    plans: Sequence[Algorithm | Plan],
    federation: Federation,
    *,
    rounds: int,
    seeds: Seeds = (0,),
    references: Sequence[Reference | None] | Reference | None = None,
    evaluate_every: int | None = None,
    callbacks: Sequence[Callback] = (),
    execution: Execution | None = None,
    on_memory: OnMemory | None = None,
    checkpoint: str | pathlib.Path | Checkpoint | None = None,
    keep_best: bool = False,
    non_finite: NonFinite = "freeze",
) -> list[Result]:
    """Runs every plan with every seed in one compiled program; the plans differ only in floats and arrays.

    Numbers in which plans differ get an axis of runs, mapped like seeds (``Execution.seeds``: how many runs are side by
    side). Equal numbers are shared.

    Args:
      plans: at least one; all with the same builder and the same ints, strings, bools and functions.
      federation: shared by all plans and seeds, or one per seed (``fljax.data.stack``).
      rounds: as for ``simulate``.
      seeds: as for ``simulate``, for every plan.
      references: standalone models, one for each plan or one for all of them (``fljax.engine.standalone_sweep``).
      evaluate_every: as for ``simulate``.
      callbacks: as for ``simulate``; one ``Block`` has all runs.
      execution: as for ``simulate``; "trial" times the whole sweep.
      on_memory: as for ``simulate``, for all runs together.
      checkpoint: as for ``simulate``, for all runs together.
      keep_best: as for ``simulate``, for every run.
      non_finite: as for ``simulate``; "stop" stops all runs.

    Returns:
      One ``Result`` per plan, equal to that of ``simulate`` up to rounding. Seconds in ``metrics`` are the sweep's
      seconds divided by the number of plans. If a NaN or infinity appears in a run, only this run is frozen.

    Raises:
      ValueError: if there is no plan, if plans differ in more than the values of floats and arrays, if there is
        another number of references, or as for ``simulate``.
      fljax.results.non_finite.NotFinite: as for ``simulate``.
    """
    plans = list(plans)
    if not plans:
        raise ValueError("expected at least one plan to sweep over, got none")
    if references is None or isinstance(references, Reference):
        references = [references] * len(plans)
    if len(references) != len(plans):
        raise ValueError(f"expected one reference for each of {len(plans)} plans, got {len(references)}")
    return run_plans(
        plans,
        federation,
        rounds=rounds,
        seeds=seeds,
        references=references,
        evaluate_every=evaluate_every,
        callbacks=callbacks,
        execution=execution,
        on_memory=on_memory,
        checkpoint=checkpoint,
        kept=Kept(keep_best),
        non_finite=non_finite,
    )
