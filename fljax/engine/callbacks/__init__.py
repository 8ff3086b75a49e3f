"""Metrics of a run, evaluation by evaluation, for trackers of experiments and files of lines.

``track(run)`` logs to anything that takes a dictionary and a step; ``write_events(folder)`` writes TensorBoard's files.
Both make callbacks for ``simulate``.
"""

from fljax.engine.callbacks.registry import CALLBACKS
from fljax.engine.callbacks.scalars import Scalars, scalars_of
from fljax.engine.callbacks.tensorboard import write_events
from fljax.engine.callbacks.trackers import track

__all__ = ["CALLBACKS", "Scalars", "scalars_of", "track", "write_events"]
