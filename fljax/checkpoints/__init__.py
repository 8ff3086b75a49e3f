"""Checkpoints: arrays and a description through orbax, arrays that grow through zarr."""

from fljax.checkpoints.series import Series
from fljax.checkpoints.settings import Checkpoint, Stopped, StopRequest
from fljax.checkpoints.store import Saved, Store, checksum

__all__ = ["Checkpoint", "Saved", "Series", "StopRequest", "Stopped", "Store", "checksum"]
