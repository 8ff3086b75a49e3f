"""Algorithms in the protocol of ``fljax.protocol``, one file each with its variants, and their REGISTRY by name."""

from fljax.algorithms.afl import afl
from fljax.algorithms.cgsv import cgsv, cgsv_iafl
from fljax.algorithms.ditto import ditto
from fljax.algorithms.entries import Entry
from fljax.algorithms.fedala import fedala
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedavg_finetune import fedavg_finetune
from fljax.algorithms.fedbn import fedbn
from fljax.algorithms.fedem import fedem
from fljax.algorithms.fedfomo import fedfomo
from fljax.algorithms.fedproto import fedproto
from fljax.algorithms.fedprox import fedprox
from fljax.algorithms.fedsoft import fedsoft
from fljax.algorithms.iafl import iafl
from fljax.algorithms.ifca import ifca
from fljax.algorithms.incfl import incfl
from fljax.algorithms.ipfl import ipfl
from fljax.algorithms.lg_fedavg import lg_fedavg
from fljax.algorithms.market import Bidding, Exploration, Tokens
from fljax.algorithms.measuring import with_contributions
from fljax.algorithms.mwfed import mwfed
from fljax.algorithms.perfedavg import perfedavg
from fljax.algorithms.pfedme import pfedme
from fljax.algorithms.qffl import qffl
from fljax.algorithms.rank import rank
from fljax.algorithms.registry import REGISTRY
from fljax.algorithms.scaffold import scaffold
from fljax.algorithms.standalone import standalone

__all__ = [
    "REGISTRY",
    "Bidding",
    "Entry",
    "Exploration",
    "Tokens",
    "afl",
    "cgsv",
    "cgsv_iafl",
    "ditto",
    "fedala",
    "fedavg",
    "fedavg_finetune",
    "fedbn",
    "fedem",
    "fedfomo",
    "fedproto",
    "fedprox",
    "fedsoft",
    "iafl",
    "ifca",
    "incfl",
    "ipfl",
    "lg_fedavg",
    "mwfed",
    "perfedavg",
    "pfedme",
    "qffl",
    "rank",
    "scaffold",
    "standalone",
    "with_contributions",
]
