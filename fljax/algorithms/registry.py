"""The one list of algorithms: a new one is a line here."""

from __future__ import annotations

from fljax.algorithms.afl import ENTRY as afl
from fljax.algorithms.common import Entry
from fljax.algorithms.fedavg import ENTRY as fedavg
from fljax.algorithms.fedprox import ENTRY as fedprox
from fljax.algorithms.incfl import ENTRY as incfl
from fljax.algorithms.mwfed import ENTRY as mwfed
from fljax.algorithms.perfedavg import ENTRY as perfedavg
from fljax.algorithms.pfedme import ENTRY as pfedme
from fljax.algorithms.qffl import ENTRY as qffl
from fljax.algorithms.scaffold import ENTRY as scaffold
from fljax.algorithms.standalone import ENTRY as standalone

REGISTRY: dict[str, Entry] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "perfedavg": perfedavg,
    "pfedme": pfedme,
    "qffl": qffl,
    "afl": afl,
    "mwfed": mwfed,
    "incfl": incfl,
    "standalone": standalone,
}
