"""The tiny federation of ``fljax.testing``, and what may be done to it."""

from fljax.testing.federation import (
    HELD,
    STORED,
    TEST,
    TRAIN,
    UNSEEN_TEST,
    UNSEEN_TRAIN,
    UNSEEN_VALID,
    VALID,
    client_rows,
    pad_with_nan,
    spoil_client,
    store_in_order,
    tiny_federation,
    twin_clients,
)

__all__ = [
    "HELD",
    "STORED",
    "TEST",
    "TRAIN",
    "UNSEEN_TEST",
    "UNSEEN_TRAIN",
    "UNSEEN_VALID",
    "VALID",
    "client_rows",
    "pad_with_nan",
    "spoil_client",
    "store_in_order",
    "tiny_federation",
    "twin_clients",
]
