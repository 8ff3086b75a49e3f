"""Checks a federation's labels against the classes of a task, before anything is computed."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fljax.engine.devices import eager
from fljax.engine.programs.program import Inputs, Spec
from fljax.engine.programs.shapes import first_algorithm, first_run
from fljax.protocol import Federation, Task
from fljax.protocol.lists import RowLists


def check_labels(task: Task, federation: Federation) -> None:
    """Raises a ValueError unless the task has a class for every label of a client or of the server.

    Labels of rows without an owner are not checked. A task without ``classes`` is not checked.

    Args:
      task: gives ``classes``.
      federation: one, or several stacked.
    """
    y = federation.examples.y
    _check_width(y)
    if task.classes is None:
        return
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(
            f"expected whole-number labels [n] for a task of {task.classes} classes, got {y.dtype} of shape "
            f"{list(y.shape)}; other labels need a task with a loss of its own and classes = None"
        )
    labels = np.asarray(y)
    wrong = (labels < 0) | (labels >= task.classes)
    if not wrong.any():
        return
    found = [
        (f"{kind}client {_ids(clients)[place]}", labels[row])
        for kind, clients in (("", federation.clients), ("unseen ", federation.unseen))
        if clients is not None
        for rows in clients.parts.values()
        for place, row in _owned(rows, federation.lists, wrong)
    ]
    found += [
        (f"the server's rows {name!r}", labels[row])
        for name, rows in federation.held.items()
        for _, row in _owned(rows, None, wrong)
    ]
    if found:
        whose, label = found[0]
        raise ValueError(
            f"expected labels in 0..{task.classes - 1}, since the model has {task.classes} classes, got label {label} "
            f"of {whose}"
        )


def task_of(spec: Spec, inputs: Inputs) -> Task:
    """The task of a plan's algorithm. Its functions may hold tracers; read only static fields such as ``classes``."""
    found: list[Task] = []

    def build(traced: list[Any], by_seed: Any) -> None:
        found.append(spec.algorithm(traced, by_seed).task)

    if eager.is_on():
        return first_algorithm(spec, inputs).task
    jax.eval_shape(build, *first_run(spec, inputs)[:2])
    return found[0]


def _ids(clients: Any) -> np.ndarray:
    return np.asarray(clients.id).reshape(-1)


def _owned(rows: Any, lists: Any, wrong: np.ndarray) -> list[tuple[int, int]]:
    """(Position of the owner, row) of the first wrong row of some clients; empty if there is none."""
    for place, own in enumerate(RowLists.of(rows, lists).by_client()):
        if wrong[own].any():
            return [(place, int(own[wrong[own]][0]))]
    return []


def _check_width(y: Any) -> None:
    """Raises a ValueError if 64-bit labels on the host would lose bits on the device."""
    narrow = jax.dtypes.canonicalize_dtype(y.dtype)
    if not np.issubdtype(y.dtype, np.integer) or narrow == y.dtype:
        return
    limits = np.iinfo(narrow)
    low, high = int(y.min()), int(y.max())
    if low < limits.min or high > limits.max:
        raise ValueError(f"expected labels that fit 32 bits, got labels in {low}..{high}")
