"""Metrics of a run, evaluation by evaluation, for trackers of experiments and files of lines.

``track(run)`` logs to anything that takes a dictionary and a step; ``write_events(folder)`` writes TensorBoard's files.
Both make callbacks for ``simulate``.
"""

from fljax.engine.callbacks.trackers import CALLBACKS, Scalars, scalars_of, track, write_events

__all__ = ["CALLBACKS", "Scalars", "scalars_of", "track", "write_events"]
