"""Next token: each client reads a passage of its own and learns which letter follows."""

import flax.linen as nn
import numpy as np

from fljax import Local, data, models, simulate, standalone
from fljax.algorithms import fedavg, incfl

passages = ("the cat sat on the mat and ", "a dog ran in the park all ", "she sells sea shells at sea ")
letters = sorted(set("".join(passages)))
tokens = [np.array([letters.index(letter) for letter in passage * 12]) for passage in passages]
windows = [np.lib.stride_tricks.sliding_window_view(each, 9)[::5] for each in tokens]
text, owners = np.concatenate(windows), np.repeat(list(passages), list(map(len, windows)))
federation = data.from_arrays(text[:, :-1], text[:, 1:], owners, vocabulary=len(letters))
module = nn.Sequential([nn.Embed(len(letters), 16), nn.relu, nn.Dense(len(letters))])
task = models.task_from_module(module, text[:1, :-1], loss=models.cross_entropy, score=models.correct)
local = Local(learning_rate=0.02, batch_size=10, steps=5, optimizer="adam")
reference = standalone(task, federation, local._replace(steps=50))
print(f"standalone: share of letters that are right {np.nanmean(np.asarray(reference.test_accuracy)):.3f}")
algorithms = {"fedavg": fedavg(task, local), "incfl": incfl(task, local, threshold=reference.threshold[0])}
for name, algorithm in algorithms.items():
    result = simulate(algorithm, federation, rounds=15, reference=reference)
    last = result.metrics.isel(seed=0, evaluated_round=-1)
    print(f"{name}: right {float(last.average_accuracy):.3f}, IPR {float(last.incentivised_participation_rate):.2f}")
