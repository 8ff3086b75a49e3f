"""A Result with a task of a flax module or a built-in model: another process predicts with it."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from tests.processes import environment

pytest.importorskip("cloudpickle")

# Not in this process, where tests wrap every function of fljax with checks that cannot be pickled.
NETS = """
import flax.linen as nn
import numpy as np
from flax import nnx

import fljax
from fljax import data, models


class WithStatistics(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        return nn.Dense(2)(nn.BatchNorm(use_running_average=not train)(x))


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.RNN(nn.GRUCell(4))(x[..., None])[:, -1])


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.out = nnx.Linear(4, 2, rngs=rngs)
        self.norm = nnx.BatchNorm(2, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.out(x))


x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
federation = data.from_arrays(x, (x[:, 0] > 0).astype("int32"), np.repeat([0, 1], 12))
tasks = {
    "statistics": lambda: models.task_from_module(WithStatistics(), x[:1]),
    "recurrent": lambda: models.task_from_module(Recurrent(), x[:1]),
    "nnx": lambda: models.task_from_module(Nnx, x[:1]),
    "mlp": lambda: models.mlp((4,), 2, hidden=[3]),
}
"""
SAVE = """
import pickle

from nets import *

local = fljax.Local(learning_rate=0.1, batch_size=4, steps=1)
found = {}
for name, task in tasks.items():
    plan = fljax.Plan(fljax.algorithms.ditto, {"task": task(), "local": local})
    result = fljax.simulate(plan, federation, rounds=1)
    found[name] = pickle.dumps(result), np.asarray(result.predict(1, x))
pickle.dump(found, open("found.pkl", "wb"))
"""
LOAD = """
import pickle

import numpy as np

import nets

for name, (result, expected) in pickle.load(open("found.pkl", "rb")).items():
    predicted = pickle.loads(result).predict(1, nets.x)
    np.testing.assert_allclose(predicted, expected, rtol=1e-6, atol=1e-6)
    print(name)
"""


@pytest.mark.thorough
def test_another_process_predicts_with_a_pickled_result(tmp_path: pathlib.Path) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    for name, code in (("save", SAVE), ("load", LOAD)):
        (tmp_path / f"{name}.py").write_text(code)
        command = [sys.executable, f"{name}.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["statistics", "recurrent", "nnx", "mlp"]
