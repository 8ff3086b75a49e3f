"""Local training of one client: batches, the step, and the loop over batches.

Batching (``draw``) is separate from the loop (``descend``), so that algorithms with other steps (three batches, an
inner problem) reuse the batches. The functions are written for ONE client with a padded index list. Results equal the
unpadded computation, because batch positions are drawn in ``[0, size)`` and masked rows have weight zero.
"""

from fljax.core.lazy import exported as _exported
from fljax.protocol.roles import per_sample as per_sample
from fljax.training.batches import SHORTEST as SHORTEST
from fljax.training.batches import Batches as Batches
from fljax.training.batches import Stream as Stream
from fljax.training.batches import draw as draw
from fljax.training.batches import draw_distinct as draw_distinct
from fljax.training.batches import fetch as fetch
from fljax.training.batches import most_steps as most_steps
from fljax.training.batches import pick_distinct as pick_distinct
from fljax.training.batches import prepare as prepare
from fljax.training.batches import shuffle as shuffle
from fljax.training.batches import shuffles as shuffles
from fljax.training.batches import stream as stream
from fljax.training.evaluation import AT_ONCE as AT_ONCE
from fljax.training.evaluation import KINDS as KINDS
from fljax.training.evaluation import check_classes as check_classes
from fljax.training.evaluation import check_score as check_score
from fljax.training.evaluation import counted_scores as counted_scores
from fljax.training.evaluation import counting as counting
from fljax.training.evaluation import evaluate as evaluate
from fljax.training.evaluation import evaluate_each as evaluate_each
from fljax.training.evaluation import map_models as map_models
from fljax.training.settings import Local as Local
from fljax.training.settings import Optimizer as Optimizer
from fljax.training.settings import OptimizerSettings as OptimizerSettings
from fljax.training.settings import RateSchedule as RateSchedule
from fljax.training.settings import bypass_statistics as bypass_statistics
from fljax.training.settings import named_optimizer as named_optimizer
from fljax.training.settings import named_schedule as named_schedule
from fljax.training.settings import of_client as of_client
from fljax.training.settings import optimizer as optimizer
from fljax.training.settings import rate as rate
from fljax.training.settings import schedules as schedules
from fljax.training.steps import StopAlone as StopAlone
from fljax.training.steps import Trained as Trained
from fljax.training.steps import check_stop as check_stop
from fljax.training.steps import descend as descend
from fljax.training.steps import first_state as first_state
from fljax.training.steps import full_gradient as full_gradient
from fljax.training.steps import gradient as gradient
from fljax.training.steps import masked_mean as masked_mean
from fljax.training.steps import one_step as one_step
from fljax.training.steps import proximal as proximal
from fljax.training.steps import stepping as stepping
from fljax.training.steps import task_loss as task_loss
from fljax.training.steps import train as train
from fljax.training.steps import train_until as train_until
from fljax.training.steps import value_and_gradient as value_and_gradient
from fljax.training.steps import with_correction as with_correction

__all__ = _exported(globals())  # pyright: ignore[reportUnsupportedDunderAll]
