"""The workloads: numbers only, so that the driver needs neither JAX nor torch. ``export.py`` turns them into files."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Workload(NamedTuple):
    """One thing to train.

    Attributes:
      name: as in the tables.
      title: one line.
      model: a name in ``fljax.models.MODELS``.
      options: its hyper-parameters.
      shape: of one example.
      pixels: whether examples are stored as uint8 images.
      clients: N.
      cohort: clients that train in a round.
      samples: training rows of each client.
      distinct: rows in the data set; fewer than clients x samples where clients share rows.
      batch: rows of a batch.
      steps: None: epochs over fresh permutations; otherwise so many batches, each drawn afresh.
      multiplications: of one example's forward pass, layer by layer, the first layer first.
      tolerance: of the relative error of the update after one round, against float64.
      evaluated: rows of the common test set if all models are evaluated in every round.
      passes: at most, where a round is long.
      spread: parameter of the Dirichlet distribution by which clients share the rows; 0: each has ``samples``.
      epochs: passes over a client's rows in a round, if ``steps`` is None.
      game: "coalitions" or "certify": what a call computes in place of a round (``contestants/games.py``).
      trainings: of the whole cohort in one call.
    """

    name: str
    title: str
    model: str
    options: dict[str, Any]
    shape: tuple[int, ...]
    pixels: bool
    clients: int
    cohort: int
    samples: int
    distinct: int
    batch: int
    steps: int | None
    multiplications: tuple[int, ...]
    tolerance: float = 1e-4
    evaluated: int = 0
    passes: int = 100
    spread: float = 0.0
    epochs: int = 1
    game: str = ""
    trainings: int = 1

    @property
    def steps_per_client(self) -> int:
        """Local steps of one client in one round."""
        return self.epochs * (self.samples // self.batch) if self.steps is None else self.steps

    @property
    def client_steps(self) -> int:
        """Local steps of the whole cohort in one round, or in one call of a game."""
        return self.trainings * self.cohort * self.steps_per_client

    @property
    def flops_per_client_step(self) -> float:
        """``2 b (3 M - M_1)``: a forward pass of M multiply-adds per example, and a backward pass of twice as many,
        less the input gradient of the first layer (M_1), which nobody needs. Activations, pooling, normalisation and
        the update are not counted."""
        return 2.0 * self.batch * (3 * sum(self.multiplications) - self.multiplications[0])

    def floor(self, parameters: int, flops: float, bandwidth: float) -> tuple[float, float]:
        """The least seconds of a client's step by its arithmetic, and by its traffic.

        Weights are read twice, gradients written and read, weights written; examples are read once.
        """
        size = (1 if self.pixels else 4) * math.prod(self.shape)
        traffic = 5 * 4 * parameters + self.batch * size
        return self.flops_per_client_step / flops, traffic / bandwidth

    @property
    def flops_per_round(self) -> float:
        """Training, and where all models are evaluated, the forward passes of that."""
        tested = (self.clients + 1) * self.evaluated * 2.0 * sum(self.multiplications) if self.evaluated else 0.0
        return self.client_steps * self.flops_per_client_step + tested


CLASSES = 10
LEARNING_RATE = 0.05
SEED = 0


def meta_of(workload: Workload) -> dict[str, Any]:
    """The numbers of a workload as contestants read them."""
    return workload._asdict() | {"classes": CLASSES, "learning_rate": LEARNING_RATE, "seed": SEED}


def _resnet18() -> tuple[int, ...]:
    """A 3x3 stem, four stages of two blocks (64 to 512 channels, 32x32 to 4x4), a dense head."""
    layers = [32 * 32 * 9 * 3 * 64]
    size, channels = 32, 64
    for stage, width in enumerate((64, 128, 256, 512)):
        size = size if stage == 0 else size // 2
        for block in range(2):
            layers += [size * size * 9 * channels * width, size * size * 9 * width * width]
            if block == 0 and stage > 0:
                layers.append(size * size * channels * width)
            channels = width
    return (*layers, 512 * CLASSES)


_LENET_28 = (24 * 24 * 25 * 6, 8 * 8 * 150 * 16, 256 * 120, 120 * 84, 84 * CLASSES)
_LENET_32 = (28 * 28 * 75 * 6, 10 * 10 * 150 * 16, 400 * 120, 120 * 84, 84 * CLASSES)

_W1A = Workload(
    "W1a",
    "MLP 784-64-30-10, 100 of 100 clients, 20 steps of 30",
    model="mlp",
    options={"hidden": [64, 30], "dropout": 0.0},
    shape=(28, 28),
    pixels=True,
    clients=100,
    cohort=100,
    samples=600,
    distinct=60_000,
    batch=30,
    steps=None,
    multiplications=(784 * 64, 64 * 30, 30 * CLASSES),
    tolerance=5e-3,  # among 56 million pre-activations one is near enough to zero for float32 to change its sign
)
_W1B = _W1A._replace(name="W1b", title="MLP 784-64-30-10, 10 of 100 clients, 20 steps of 30", cohort=10, tolerance=1e-4)
_W2 = Workload(
    "W2",
    "CNN (LeNet) on 32x32x3, 10 of 100 clients, 10 steps of 50",
    model="cnn_b",
    options={},
    shape=(32, 32, 3),
    pixels=True,
    clients=100,
    cohort=10,
    samples=500,
    distinct=50_000,
    batch=50,
    steps=None,
    multiplications=_LENET_32,
    tolerance=1e-2,  # ReLU and max-pool have kinks: a tie that float32 breaks the other way changes the gradient
)
_W3 = Workload(
    "W3",
    "logistic regression 60-10, 100 of 100 clients, 5 steps of 20",
    model="logistic_regression",
    options={},
    shape=(60,),
    pixels=False,
    clients=100,
    cohort=100,
    samples=100,
    distinct=10_000,
    batch=20,
    steps=None,
    multiplications=(60 * CLASSES,),
)
_ALL = (
    _W1A,
    _W1B,
    _W2,
    _W3,
    _W2._replace(
        name="W4",
        title="ResNet18 with GroupNorm on 32x32x3, 10 of 10 clients, 2 steps of 32",
        model="resnet18",
        clients=10,
        samples=64,
        distinct=640,
        batch=32,
        multiplications=_resnet18(),
        tolerance=5e-3,
        passes=2,
    ),
    _W1A._replace(
        name="W5", title="MLP 784-64-30-10, 1,000 of 1,000 clients, 20 steps of 30", clients=1000, cohort=1000
    ),
    _W2._replace(
        name="W6",
        title="IAFL, a model per client: 50 of 50 clients, LeNet on 28x28, all 51 models tested on 2,000 rows",
        model="cnn_a",
        shape=(28, 28, 1),
        clients=50,
        cohort=50,
        samples=600,
        distinct=32_000,
        multiplications=_LENET_28,
        tolerance=5e-3,
        evaluated=2_000,
        passes=3,
    ),
    _W2._replace(
        name="BL",
        title="BlazeFL's example: LeNet on 32x32x3, 100 of 100 clients, 5 epochs of 8 steps of 50",
        cohort=100,
        samples=400,
        distinct=40_000,
        tolerance=2e-2,  # with four times as many steps
        passes=2,
        epochs=5,
    ),
    _W2._replace(
        name="PF",
        title="pfl's CIFAR-10 setting: CNN of two convolutions on 32x32x3, 50 of 1,000 clients, 5 steps of 10",
        model="cnn",
        options={"blocks": [[32, 64]], "dense": [128], "padding": "VALID"},
        clients=1000,
        cohort=50,
        samples=50,
        batch=10,
        multiplications=(30 * 30 * 27 * 32, 28 * 28 * 288 * 64, 14 * 14 * 64 * 128, 128 * CLASSES),
        passes=3,
    ),
    _W1B._replace(name="W7", title="W1b in steps mode: 30 steps of 32 drawn at random", batch=32, steps=30),
    _W3._replace(
        name="W3r",
        title="as W3, but clients' shares of the rows are drawn from Dirichlet(0.5): 5 steps on average",
        spread=0.5,
    ),
)
WORKLOADS = {workload.name: workload for workload in _ALL}
# Of 6 clients in 5 rounds: 64 coalitions, in each of which a client is half of the times; and for each of 5 seeds, the
# honest profile, two deviations of each client, and each client alone.
_GAME: dict[str, Any] = {"clients": 6, "cohort": 6, "trainings": 5 * 2**5}
WORKLOADS["coalitions"] = WORKLOADS["W1a"]._replace(
    name="coalitions", title="64 coalitions of 6 clients, MLP 784-64-30-10, 5 rounds", game="coalitions", **_GAME
)
WORKLOADS["table"] = WORKLOADS["W3"]._replace(
    name="table",
    title="64 coalitions of 6 clients, logistic regression on a standardised table, 5 rounds of 50 steps",
    game="coalitions",
    **_GAME,
    epochs=10,
)
WORKLOADS["certify"] = WORKLOADS["table"]._replace(
    name="certify",
    title="a certificate of 6 clients with 2 deviations, as table, 5 seeds",
    game="certify",
    trainings=5 * 5 * (1 + 2 * 6 + 1),
)
