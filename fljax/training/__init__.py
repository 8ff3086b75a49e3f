"""Local training of one client: batches, the step, and the loop over batches.

Batching (``draw``) is separate from the loop (``descend``), so that algorithms with other steps (three batches, an
inner problem) reuse the batches. The functions are written for ONE client with a padded index list. Results equal the
unpadded computation, because batch positions are drawn in ``[0, size)`` and masked rows have weight zero.
"""

from fljax.protocol.roles import per_sample
from fljax.training.batches import (
    SHORTEST,
    Batches,
    Stream,
    draw,
    draw_distinct,
    fetch,
    pick_distinct,
    prepare,
    shuffle,
    shuffles,
    stream,
)
from fljax.training.evaluation import (
    AT_ONCE,
    check_classes,
    check_score,
    counted_scores,
    evaluate,
    evaluate_each,
    map_models,
)
from fljax.training.settings import (
    Local,
    Optimizer,
    OptimizerSettings,
    bypass_statistics,
    named_optimizer,
    optimizer,
    rate,
)
from fljax.training.steps import (
    StopAlone,
    Trained,
    check_stop,
    descend,
    full_gradient,
    gradient,
    masked_mean,
    one_step,
    proximal,
    task_loss,
    train,
    train_until,
    value_and_gradient,
    with_correction,
)
from fljax.training.tallies import KINDS, counting

__all__ = [
    "AT_ONCE",
    "KINDS",
    "SHORTEST",
    "Batches",
    "Local",
    "Optimizer",
    "OptimizerSettings",
    "StopAlone",
    "Stream",
    "Trained",
    "bypass_statistics",
    "check_classes",
    "check_score",
    "check_stop",
    "counted_scores",
    "counting",
    "descend",
    "draw",
    "draw_distinct",
    "evaluate",
    "evaluate_each",
    "fetch",
    "full_gradient",
    "gradient",
    "map_models",
    "masked_mean",
    "named_optimizer",
    "one_step",
    "optimizer",
    "per_sample",
    "pick_distinct",
    "prepare",
    "proximal",
    "rate",
    "shuffle",
    "shuffles",
    "stream",
    "task_loss",
    "train",
    "train_until",
    "value_and_gradient",
    "with_correction",
]
