"""Algorithms in the protocol of ``fljax.protocol``, one file each with its variants, and their REGISTRY by name."""

from fljax.algorithms.afl import afl as afl
from fljax.algorithms.cgsv import cgsv as cgsv
from fljax.algorithms.cgsv import cgsv_iafl as cgsv_iafl
from fljax.algorithms.ditto import ditto as ditto
from fljax.algorithms.entries import Entry as Entry
from fljax.algorithms.fedala import fedala as fedala
from fljax.algorithms.fedavg import fedavg as fedavg
from fljax.algorithms.fedavg_finetune import fedavg_finetune as fedavg_finetune
from fljax.algorithms.fedbn import fedbn as fedbn
from fljax.algorithms.fedem import fedem as fedem
from fljax.algorithms.fedfomo import fedfomo as fedfomo
from fljax.algorithms.fedproto import fedproto as fedproto
from fljax.algorithms.fedprox import fedprox as fedprox
from fljax.algorithms.fedsoft import fedsoft as fedsoft
from fljax.algorithms.iafl import iafl as iafl
from fljax.algorithms.ifca import ifca as ifca
from fljax.algorithms.incfl import incfl as incfl
from fljax.algorithms.ipfl import ipfl as ipfl
from fljax.algorithms.lg_fedavg import lg_fedavg as lg_fedavg
from fljax.algorithms.market import Bidding as Bidding
from fljax.algorithms.market import Exploration as Exploration
from fljax.algorithms.market import Tokens as Tokens
from fljax.algorithms.measuring import with_contributions as with_contributions
from fljax.algorithms.mwfed import mwfed as mwfed
from fljax.algorithms.perfedavg import perfedavg as perfedavg
from fljax.algorithms.pfedme import pfedme as pfedme
from fljax.algorithms.qffl import qffl as qffl
from fljax.algorithms.rank import rank as rank
from fljax.algorithms.registry import REGISTRY as REGISTRY
from fljax.algorithms.scaffold import scaffold as scaffold
from fljax.algorithms.standalone import standalone as standalone
from fljax.core.lazy import exported as _exported

__all__ = _exported(globals())  # pyright: ignore[reportUnsupportedDunderAll]
