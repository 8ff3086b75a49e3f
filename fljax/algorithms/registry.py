"""The one list of algorithms; a new algorithm needs a line here."""

from __future__ import annotations

from fljax.algorithms.afl import ENTRY as afl
from fljax.algorithms.apfl import ENTRY as apfl
from fljax.algorithms.cgsv import ENTRY as cgsv
from fljax.algorithms.cgsv import IAFL_ENTRY as cgsv_iafl
from fljax.algorithms.ditto import ENTRY as ditto
from fljax.algorithms.entries import Entry
from fljax.algorithms.fedala import ENTRY as fedala
from fljax.algorithms.fedavg import ENTRY as fedavg
from fljax.algorithms.fedavg_finetune import ENTRY as fedavg_finetune
from fljax.algorithms.fedbabu import ENTRY as fedbabu
from fljax.algorithms.fedbn import ENTRY as fedbn
from fljax.algorithms.feddyn import ENTRY as feddyn
from fljax.algorithms.fedem import ENTRY as fedem
from fljax.algorithms.fedfomo import ENTRY as fedfomo
from fljax.algorithms.fednova import ENTRY as fednova
from fljax.algorithms.fedper import ENTRY as fedper
from fljax.algorithms.fedproto import ENTRY as fedproto
from fljax.algorithms.fedprox import ENTRY as fedprox
from fljax.algorithms.fedrep import ENTRY as fedrep
from fljax.algorithms.fedsoft import ENTRY as fedsoft
from fljax.algorithms.iafl import ENTRY as iafl
from fljax.algorithms.ifca import ENTRY as ifca
from fljax.algorithms.incfl import ENTRY as incfl
from fljax.algorithms.ipfl import ENTRY as ipfl
from fljax.algorithms.lg_fedavg import ENTRY as lg_fedavg
from fljax.algorithms.moon import ENTRY as moon
from fljax.algorithms.mwfed import ENTRY as mwfed
from fljax.algorithms.perfedavg import ENTRY as perfedavg
from fljax.algorithms.pfedme import ENTRY as pfedme
from fljax.algorithms.qffl import ENTRY as qffl
from fljax.algorithms.rank import ENTRY as rank
from fljax.algorithms.scaffold import ENTRY as scaffold
from fljax.algorithms.standalone import ENTRY as standalone
from fljax.algorithms.weighted import ENTRY as weighted
from fljax.algorithms.weighted import LEARNT_ENTRY as learnt

REGISTRY: dict[str, Entry] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "fednova": fednova,
    "feddyn": feddyn,
    "moon": moon,
    "perfedavg": perfedavg,
    "pfedme": pfedme,
    "qffl": qffl,
    "afl": afl,
    "mwfed": mwfed,
    "incfl": incfl,
    "iafl": iafl,
    "cgsv": cgsv,
    "cgsv_iafl": cgsv_iafl,
    "rank": rank,
    "lg_fedavg": lg_fedavg,
    "fedbn": fedbn,
    "fedper": fedper,
    "fedrep": fedrep,
    "fedbabu": fedbabu,
    "ipfl": ipfl,
    "ifca": ifca,
    "fedsoft": fedsoft,
    "fedem": fedem,
    "fedavg_finetune": fedavg_finetune,
    "ditto": ditto,
    "apfl": apfl,
    "fedala": fedala,
    "fedfomo": fedfomo,
    "fedproto": fedproto,
    "standalone": standalone,
    "weighted": weighted,
    "learnt": learnt,
}
