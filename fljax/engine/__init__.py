"""One round, loops of rounds, evaluation, and the mapping of clients to devices; for any algorithm of the protocol."""

from fljax.engine.callbacks import (
    Block,
    StopEarly,
    log_to,
    print_elapsed,
    print_progress,
    progress_of,
    replay,
    stop_early,
    stop_when,
)
from fljax.engine.devices.layout import use_cache, use_cores
from fljax.engine.loop.checkpointing import checksum_of, plan_identity
from fljax.engine.loop.compilation import Memory, compile_ahead, estimate, in_words, rehearse, sentences, shortage, size
from fljax.engine.loop.history import Schedule
from fljax.engine.loop.simulation import simulate, sweep
from fljax.engine.loop.standalone_models import estimate_standalone, standalone, standalone_sweep
from fljax.engine.loop.trained import Models, common_models, restore
from fljax.engine.programs.program import Plan, as_declared, groups, is_stacked, plan_of
from fljax.engine.programs.shapes import Execution
from fljax.engine.rounds.round import RoundOptions, evaluate_clients, one_round, rollout
from fljax.engine.rounds.states import State, arrays_of
from fljax.engine.whole_runs.program import Measure, all_scores
from fljax.engine.whole_runs.running import Over, RunsDone, runs

__all__ = [
    "Block",
    "Execution",
    "Measure",
    "Memory",
    "Models",
    "Over",
    "Plan",
    "RoundOptions",
    "RunsDone",
    "Schedule",
    "State",
    "StopEarly",
    "all_scores",
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
    "runs",
    "sentences",
    "shortage",
    "simulate",
    "size",
    "standalone",
    "standalone_sweep",
    "stop_early",
    "stop_when",
    "sweep",
    "use_cache",
    "use_cores",
]
