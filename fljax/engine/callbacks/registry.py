"""The callbacks that a config may name.

They are builders, called once for each algorithm with its label, so that a history belongs to one run.
``--tensorboard`` is no part of a config: a resumed run may do without it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fljax.engine.callbacks.contract import Callback
from fljax.engine.callbacks.tensorboard import formats, write_events

TENSORBOARD = "tensorboard"  # the folder of event files in a run folder


def tensorboard(
    *, folder: pathlib.Path | None, label: str, cells: Sequence[int] = (), by_seed: bool = True
) -> Callback:
    """Event files for TensorBoard in the run folder (``fljax.engine.callbacks.write_events``).

    Args:
      folder: the run folder; its subfolder ``tensorboard`` has the files.
      label: of the algorithm.
      cells: in a sweep, the numbers of the cells in a block.
      by_seed: whether to write single seeds too.

    Raises:
      ValueError: if there is no run folder, or tensorboardX is not installed.
    """
    if folder is None:
        raise ValueError("expected a run folder for the event files of TensorBoard, got none")
    return write_events(folder / TENSORBOARD, label=label, cells=cells, by_seed=by_seed)


# Asked before anything is computed: whether the builder can do its work.
_builder: Any = tensorboard
_builder.ready = formats

# Builders of callbacks. An experiment calls them once for each algorithm (in a sweep, for each group of cells), with
# those of folder, label, cells, seeds and rounds that they have parameters for.
CALLBACKS: Mapping[str, Callable[..., Callback]] = {"tensorboard": tensorboard}
