"""Checks before anything is computed: labels fit the classes of the task, and processes run the same programs."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from fljax.core import processes, users
from fljax.core.trees import numbers_of
from fljax.data.arrays import check_wide
from fljax.engine.checkpoints import checksum
from fljax.engine.devices import eager
from fljax.engine.programs.program import Inputs, Spec
from fljax.engine.programs.shapes import first_algorithm, first_run
from fljax.protocol import Federation, Task
from fljax.protocol.lists import RowLists


def check_labels(task: Task, federation: Federation) -> None:
    """Raises a ValueError unless the task has a class for every label of a client or of the server."""
    y = federation.examples.y
    check_wide("labels", y)
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
    offenders = [
        (f"{kind}client {_ids(clients)[place]}", labels[row])
        for kind, clients in (("", federation.clients), ("unseen ", federation.unseen))
        if clients is not None
        for rows in clients.parts.values()
        for place, row in _owned(rows, federation.lists, wrong)
    ]
    offenders += [
        (f"the server's rows {name!r}", labels[row])
        for name, rows in federation.held.items()
        for _, row in _owned(rows, None, wrong)
    ]
    if offenders:
        whose, label = offenders[0]
        raise ValueError(
            f"expected labels in 0..{task.classes - 1}, since the model has {task.classes} classes, got label {label} "
            f"of {whose}"
        )


def task_of(spec: Spec, inputs: Inputs) -> Task:
    """The task of a plan's algorithm. Its functions may hold tracers; read only static fields such as ``classes``."""
    tasks: list[Task] = []

    def build(traced: list[Any], by_seed: Any) -> None:
        tasks.append(built("the builder", spec.build, spec.algorithm(traced, by_seed)).task)

    if eager.is_on():
        return built("the builder", spec.build, first_algorithm(spec, inputs)).task
    jax.eval_shape(build, *first_run(spec, inputs)[:2])
    return tasks[0]


def built(kind: str, build: Any, found: Any) -> Any:
    """What a user's builder or scenario returned; a ValueError that names it if this is no algorithm."""
    if not hasattr(found, "task"):
        raise users.refused(kind, build, "an Algorithm", found)
    return found


def _ids(clients: Any) -> np.ndarray:
    return np.asarray(clients.id).reshape(-1)


def _owned(rows: Any, lists: Any, wrong: np.ndarray) -> list[tuple[int, int]]:
    """(Position of the owner, row) of the first wrong row of some clients; empty if there is none."""
    for place, numbers in enumerate(RowLists.of(rows, lists).by_client()):
        if wrong[numbers].any():
            return [(place, int(numbers[wrong[numbers]][0]))]
    return []


# Addresses of functions, and numbers of devices.
_OF_PROCESS = re.compile(r"0x[0-9a-f]+|\bid=\d+")


def check_programs(trace: Callable[[], Iterable[Any]]) -> None:
    """Raises a ValueError in every process unless ``trace`` gives the same traced programs in all."""
    # So a model with another dropout, initialisation or dtype is noticed, and a function of the user's that differs.
    if processes.are_several() and not eager.is_on():
        processes.check_same(lambda: {"model or algorithm": checksum_of_programs(trace())})


def checksum_of_programs(traced: Iterable[Any]) -> int:
    """A checksum of the texts of traced programs and of the arrays in them, without addresses of functions."""
    total = 0
    for program in traced:
        arrays = [numbers_of(value) for value in program.jaxpr.consts if isinstance(value, np.ndarray | Array)]
        text = f"{_OF_PROCESS.sub('', str(program.jaxpr))} {checksum(arrays)}"
        total = zlib.crc32(text.encode(), total)
    return total
