"""Local training of one client: batching, the step, and the loop that joins them.

Batching (``draw``) is separate from the step (``descend``), so that algorithms with steps of their own (three batches,
an inner problem) reuse the batches. All of it is written for ONE client with a padded index list; the result equals the
unpadded computation, because batch positions are drawn in ``[0, size)`` and masked rows carry no weight.
"""

from fljax.local.batches import SHORTEST as SHORTEST
from fljax.local.batches import Batches as Batches
from fljax.local.batches import draw as draw
from fljax.local.batches import draw_distinct as draw_distinct
from fljax.local.batches import fetch as fetch
from fljax.local.batches import shuffled as shuffled
from fljax.local.evaluation import AT_ONCE as AT_ONCE
from fljax.local.evaluation import check_classes as check_classes
from fljax.local.evaluation import check_score as check_score
from fljax.local.evaluation import evaluate as evaluate
from fljax.local.evaluation import evaluate_each as evaluate_each
from fljax.local.evaluation import judged as judged
from fljax.local.evaluation import per_sample as per_sample
from fljax.local.settings import Local as Local
from fljax.local.settings import Optimizer as Optimizer
from fljax.local.settings import named_optimizer as named_optimizer
from fljax.local.settings import optimizer as optimizer
from fljax.local.settings import rate as rate
from fljax.local.training import Trained as Trained
from fljax.local.training import corrected as corrected
from fljax.local.training import descend as descend
from fljax.local.training import full_gradient as full_gradient
from fljax.local.training import gradient as gradient
from fljax.local.training import masked_mean as masked_mean
from fljax.local.training import proximal as proximal
from fljax.local.training import task_loss as task_loss
from fljax.local.training import train as train
from fljax.local.training import value_and_gradient as value_and_gradient
