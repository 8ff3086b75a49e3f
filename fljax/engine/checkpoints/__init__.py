"""Checkpoints: arrays and a description through orbax, arrays that grow through zarr."""

from fljax.engine.checkpoints.series import Series
from fljax.engine.checkpoints.store import Checkpoint, Saved, Stopped, StopRequest, Store, checksum

__all__ = ["Checkpoint", "Saved", "Series", "StopRequest", "Stopped", "Store", "checksum"]
