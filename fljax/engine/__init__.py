"""One round, loops of rounds, evaluation, and the mapping of clients to devices; for any algorithm of the protocol."""

from fljax.engine.blocks import Block
from fljax.engine.callbacks import log_to, print_progress, progress_of, replay, stop_when
from fljax.engine.checkpointing import checksum_of, plan_identity
from fljax.engine.cores import use_cores
from fljax.engine.declared import as_declared
from fljax.engine.early_stopping import StopEarly, stop_early
from fljax.engine.elapsed import print_elapsed
from fljax.engine.estimation import Memory, compile_ahead, estimate, in_words, rehearse, sentences, shortage, size
from fljax.engine.execution import Execution
from fljax.engine.program import Plan, groups, is_stacked, plan_of
from fljax.engine.round import one_round
from fljax.engine.rounds import evaluate_clients, rollout
from fljax.engine.simulation import simulate
from fljax.engine.standalone_models import estimate_standalone, standalone, standalone_sweep
from fljax.engine.starting import common_models
from fljax.engine.states import State
from fljax.engine.sweeping import sweep
from fljax.engine.trained import Models, arrays_of, restore

__all__ = [
    "Block",
    "Execution",
    "Memory",
    "Models",
    "Plan",
    "State",
    "StopEarly",
    "arrays_of",
    "as_declared",
    "checksum_of",
    "common_models",
    "compile_ahead",
    "estimate",
    "estimate_standalone",
    "evaluate_clients",
    "groups",
    "in_words",
    "is_stacked",
    "log_to",
    "one_round",
    "plan_identity",
    "plan_of",
    "print_elapsed",
    "print_progress",
    "progress_of",
    "rehearse",
    "replay",
    "restore",
    "rollout",
    "sentences",
    "shortage",
    "simulate",
    "size",
    "standalone",
    "standalone_sweep",
    "stop_early",
    "stop_when",
    "sweep",
    "use_cores",
]
