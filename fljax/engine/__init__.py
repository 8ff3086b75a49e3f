"""One round, loops of rounds, evaluation, and how clients map to the device. Knows the protocol, no algorithm."""

from fljax.engine.callbacks import log_to as log_to
from fljax.engine.callbacks import print_progress as print_progress
from fljax.engine.callbacks import stop_when as stop_when
from fljax.engine.cores import use_cores as use_cores
from fljax.engine.declared import as_declared as as_declared
from fljax.engine.estimate import Memory as Memory
from fljax.engine.estimate import estimate as estimate
from fljax.engine.estimate import in_words as in_words
from fljax.engine.estimate import rehearse as rehearse
from fljax.engine.estimate import sentences as sentences
from fljax.engine.estimate import shortage as shortage
from fljax.engine.estimate import size as size
from fljax.engine.execution import Execution as Execution
from fljax.engine.program import Plan as Plan
from fljax.engine.program import groups as groups
from fljax.engine.program import is_stacked as is_stacked
from fljax.engine.round import State as State
from fljax.engine.round import one_round as one_round
from fljax.engine.simulate import Block as Block
from fljax.engine.simulate import simulate as simulate
from fljax.engine.standalone import standalone as standalone
from fljax.engine.standalone import standalone_sweep as standalone_sweep
from fljax.engine.sweep import sweep as sweep
