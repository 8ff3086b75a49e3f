"""Metrics of a run, evaluation by evaluation, for trackers of experiments and files of lines."""

from fljax.tracking.scalars import Scalars, scalars_of

__all__ = ["Scalars", "scalars_of"]
