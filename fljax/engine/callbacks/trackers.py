"""One callback for every tracker of experiments that takes a dictionary of numbers and a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fljax.engine.callbacks.contract import Block, Callback
from fljax.engine.callbacks.scalars import scalars_of

# The methods of trackers that take (dictionary, step=): W&B's runs; MLflow, Comet and Lightning; Aim.
METHODS = ("log", "log_metrics", "track")


def track(
    run: Any, *, label: str = "", cells: Sequence[int] = (), by_seed: bool = True, with_step: bool = True
) -> Callback:
    """A callback that logs every metric of each evaluation, the one before the first round included.

    ``simulate(..., callbacks=[track(wandb.init())])``. The names are ``LABEL/mean/METRIC`` for the mean over seeds with
    a finite value, and ``LABEL/seed_0/METRIC`` for single seeds, for example
    ``incfl/mean/incentivised_participation_rate``; in a sweep ``LABEL/cell_3/mean/METRIC``. Without a label they begin
    with ``mean`` and ``seed_0``. Values that are NaN or infinite are left out. ``LABEL/round`` is the number of rounds
    done, and ``LABEL/seconds`` the seconds of the block.

    Args:
      run: has ``log(values, step=)`` (a run of W&B), ``log_metrics(values, step=)`` (the module ``mlflow``) or
        ``track(values, step=)`` (a run of Aim); fljax imports none of them.
      label: of the algorithm, the beginning of all names.
      cells: in a sweep, the numbers of the cells in a block; an experiment gives them.
      by_seed: whether to log single seeds too.
      with_step: whether to give the round as ``step``. W&B ignores steps that do not grow, so for several algorithms in
        one of its runs set False, and let ``LABEL/round`` be the axis: ``run.define_metric("incfl/*", "incfl/round")``.

    Raises:
      ValueError: if ``run`` has no such method.
    """
    log = _method(run)
    start = f"{label}/" if label else ""

    def callback(block: Block) -> None:
        named = scalars_of(block).named(label, cells, by_seed)
        values: dict[str, float] = {f"{whose}/{name}": value for whose, name, value in named}
        values |= {f"{start}round": block.round, f"{start}seconds": block.seconds}
        if with_step:
            log(values, step=block.round)
        else:
            log(values)

    marked: Any = callback
    marked.at_start = True
    return callback


def _method(run: Any) -> Callable[..., Any]:
    for name in METHODS:
        found = getattr(run, name, None)
        if callable(found):
            return found
    valid = " or ".join(f"{name}(values, step=)" for name in METHODS)
    raise ValueError(f"expected a run of a tracker, with {valid}, got {type(run).__name__}")
