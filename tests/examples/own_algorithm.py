"""An algorithm of one's own, checked and compared: FedNova, in which clients take different numbers of steps."""

import fljax
from fljax import data, models, testing, training
from fljax.algorithms.single_model import single_model, with_server_optimizer
from fljax.core import trees
from fljax.protocol.sums import Part, divided, mean


def fednova(task, local, *, clients_per_round=None, server_lr=1.0):
    def train(key, seat, down, client, data):  # one client: what it sends, and what it keeps
        trained = training.train(key, down, data.train, task=task, local=local, round=seat.round)
        steps = trees.floating(trained.steps)
        return (divided(trees.subtract(trained.params, down), steps), steps, data.train.rows.size), client

    def contribute(server, seat, up):  # what one client adds to the weighted sums of the round
        update, steps, size = up
        return Part((update, steps), weight=size), steps

    def direction(total, rows, cohort):  # the server's step, and what is recorded
        update, steps = mean(total)
        return trees.scale(update, steps), {"mean_steps": steps}

    server = with_server_optimizer(task, contribute, direction, server_lr, "sgd")
    return single_model(task, clients_per_round=clients_per_round, train=train, **server)


if __name__ == "__main__":
    print(testing.check_algorithm(fednova))
    digits = data.load("digits")
    federation = data.federate(digits, "dirichlet", beta=0.3, clients=20, seed=0)
    task = models.mlp(digits.x.shape[1:], 10, prepare=models.standardise(digits.mean, digits.std))
    print(fljax.compare(["fedavg", fednova], federation, task, fljax.Local(0.1, 8, epochs=1), rounds=10))
