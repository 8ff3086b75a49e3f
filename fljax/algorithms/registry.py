"""The one list of algorithms: a new one is a line here."""

from __future__ import annotations

from fljax.algorithms.common import Entry
from fljax.algorithms.fedavg import ENTRY as fedavg
from fljax.algorithms.incfl import ENTRY as incfl
from fljax.algorithms.standalone import ENTRY as standalone

REGISTRY: dict[str, Entry] = {
    "fedavg": fedavg,
    "incfl": incfl,
    "standalone": standalone,
}
