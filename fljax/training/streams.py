"""Named random streams of one client in one round."""

from __future__ import annotations

import enum

import jax
from jaxtyping import Array, Key


class Stream(enum.IntEnum):
    """The use of a random stream. Values are part of every run's identity: never renumber.

    ``train`` draws from BATCHES and STEPS. Streams with equal values belong to different algorithms.
    """

    BATCHES = 0  # which rows each batch has
    STEPS = 1  # augmentation, noise and dropout in each step
    LOSS = 2  # noise of the features while a loss on training rows is measured
    CONTROL_VARIATE = 2
    PERSONAL_MODEL = 2
    PROTOTYPES = 2
    MIXING_WEIGHTS = 2
    WORK = 2  # how much a straggler trains
    TUNING = 3  # steps before the loss is measured


def stream(key: Key[Array, ""], use: Stream) -> Key[Array, ""]:
    """The key of a named stream: ``fold_in(key, use)``."""
    return jax.random.fold_in(key, int(use))
