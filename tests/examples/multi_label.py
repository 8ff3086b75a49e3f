"""Several labels for each sample: generated data, in which each client knows some labels better than others."""

import flax.linen as nn
import numpy as np
import optax
from sklearn.datasets import make_multilabel_classification

from fljax import Local, data, models, simulate, standalone
from fljax.algorithms import fedavg, incfl

x, y = map(np.asarray, make_multilabel_classification(600, n_features=12, n_classes=5, random_state=0)[:2])
x, owners = (x - x.mean(axis=0)) / x.std(axis=0), np.argsort(y @ np.arange(5), kind="stable").argsort() // 60
federation = data.from_arrays(x, y, owners, unseen=2)
task = models.task_from_module(
    nn.Sequential([nn.Dense(16), nn.relu, nn.Dense(5)]), x[:1], example_y=y[:1],
    loss=lambda logits, y: optax.sigmoid_binary_cross_entropy(logits, y).mean(axis=1),
    score=lambda logits, y: ((logits > 0) == (y > 0)).mean(axis=1),
)  # fmt: skip
local = Local(learning_rate=0.5, batch_size=10, steps=5)
reference = standalone(task, federation, local._replace(steps=100))
print(f"standalone: share of labels that are right {np.nanmean(np.asarray(reference.test_accuracy)):.3f}")
for build, given in ((fedavg, {}), (incfl, {"threshold": reference.threshold[0]})):
    result = simulate(build(task, local, **given), federation, rounds=30, reference=reference)
    right, ipr = result.metrics.average_accuracy[0, -1], result.metrics.incentivised_participation_rate[0, -1]
    print(f"{build.__name__}: right {float(right):.3f}, IPR {float(ipr):.2f}")
