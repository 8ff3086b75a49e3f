"""Regression: clients of different age predict the progression of diabetes."""

import flax.linen as nn
import numpy as np
from sklearn.datasets import load_diabetes

from fljax import Local, data, models, simulate, standalone
from fljax.algorithms import fedavg, incfl

x, y = map(np.asarray, load_diabetes(return_X_y=True))
x, y = x / x.std(axis=0), (y - y.mean()) / y.std()
owners = np.argsort(np.argsort(x[:, 0], kind="stable")) // 50  # nine clients by age
federation = data.from_arrays(x, y, owners, unseen=1)
task = models.task_from_module(nn.Dense(1), x[:1], loss=models.squared_error, example_y=y[:1])
local = Local(learning_rate=0.02, batch_size=10, steps=5)
reference = standalone(task, federation, local._replace(steps=100))
print(f"standalone: mean squared error {reference.test_loss.mean():.3f}")
algorithms = {"fedavg": fedavg(task, local), "incfl": incfl(task, local, threshold=reference.threshold[0])}
for name, algorithm in algorithms.items():
    result = simulate(algorithm, federation, rounds=30, reference=reference)
    last = result.metrics.isel(seed=0, evaluated_round=-1)
    error, ipr = float(last["average_loss"]), float(last["incentivised_participation_rate"])
    print(f"{name}: mean squared error {error:.3f}, IPR {ipr:.2f}, accuracy {'test_accuracy' in last}")
print("predictions of client 0:", np.round(result.predict(0, x[:3])[:, 0], 2))
