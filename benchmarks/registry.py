"""The measurements that ``run.py`` knows: what each one says, its options, and its smallest sizes.

A measurement is a function of a module, ``measure(options) -> rows``. The rest of the module's docstring says how its
table is made and read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Measurement(NamedTuple):
    """What is measured.

    Attributes:
      name: on the command line, and of its files.
      sentence: what it says.
      where: module of this folder, and after a colon the function if that is not ``measure``.
      table: its columns.
      options: their defaults; lists have commas between. With "against" rows of another checkout stand beside.
      small: options of the smallest size.
    """

    name: str
    sentence: str
    where: str
    table: str
    options: Mapping[str, Any]
    small: Mapping[str, Any]

    @property
    def columns(self) -> list[str]:
        """The columns of the table."""
        return self.table.split(" | ")

    @property
    def module(self) -> str:
        """The module that measures."""
        return self.where.partition(":")[0]

    @property
    def function(self) -> str:
        """Its function."""
        return self.where.partition(":")[2] or "measure"


# fmt: off
_ALL = (
    Measurement(
        "throughput", "fljax beside its peers, in interleaved passes", "peers.throughput",
        "workload | contestant | client-steps/s | min to max | fljax is | ms per round | GFLOP/s | of the product | "
        "first round | peak MiB | error",
        {"workloads": "W1b,W1a,W2,W3,W3r,W4,W5,W6,W7,BL,PF", "contestants": "", "strategies": "",
         "make_environments": False, "environments": "", "passes": 5, "seconds": 1.0},
        {"workloads": "W3", "contestants": "fljax,bare", "strategies": "auto,scan", "passes": 1, "seconds": 0.05},
    ),
    Measurement(
        "pairs", "two forms or checkouts of fljax in alternating pairs", "engine.pairs",
        "name | workload | time of the first | time of the second | ratio of the clock | ratio of CPU-seconds | "
        "first round of the first, s | of the second, s | growth of the first, MiB | of the second, MiB",
        {"against": "", "host": False, "devices": "all", "pairs": 40, "seconds": 1.5, "rounds": 0,
         "workloads": "W1a,W1b,W2,W3,coalitions,certify,first_round,quick_start"},
        {"workloads": "W3,first_round", "against": "HEAD", "pairs": 2, "seconds": 0.05},
    ),
    Measurement(
        "first_round",
        "seconds to the first round and of the quick start, with and without compiled programs on disk",
        "engine.first_round",
        "workload | form | cold, s | warm, s",
        {"against": "", "workloads": "W1a,W1b,W2,W3,quick_start", "repetitions": 5},
        {"workloads": "W3", "repetitions": 1},
    ),
    Measurement(
        "memory",
        "the estimate of memory beside what a process held, where a server keeps 51 models",
        "engine.memory:estimates",
        "model | seeds | server | data | estimate | floor | peak | peak - floor | estimate / that | compiler | second"
        " run | (estimate - data) / that",
        {"models": "cnn_a,resnet18"}, {"models": "small"},
    ),
    Measurement(
        "populations",
        "time and memory of a round with 10^2 to 10^6 clients, data on the device or on the host",
        "engine.memory:populations",
        "checkout | algorithm | clients | form | data and states | ms per round | tables | data | peak",
        {"against": "", "clients": "100,1000,10000,100000,1000000", "algorithms": "fedavg,incfl,scaffold",
         "forms": "even,ragged", "places": "device,host", "rounds": 100},
        {"clients": "100", "algorithms": "fedavg", "rounds": 2},
    ),
    Measurement(
        "long_runs", "memory of runs with many records, with and without checkpoints", "engine.memory:long_runs",
        "checkout | rounds | checkpoints | peak, MiB | records, MiB | folder, MiB | run, s | read, s",
        {"against": "", "clients": 1_000, "rounds": "1000,10000,100000", "without": 10_000},
        {"clients": 10, "rounds": "200"},
    ),
    Measurement(
        "cohorts", "temporary memory of a round by the size of its cohort", "engine.compiled_memory:cohorts",
        "checkout | algorithm | cohort | devices | temporary MB | clients side by side",
        {"against": "", "algorithms": "fedavg,incfl,scaffold,ifca", "cohorts": "100,1000,10000", "devices": 1},
        {"algorithms": "fedavg", "cohorts": "10"},
    ),
    Measurement(
        "devices",
        "memory of a round on each of several devices, where every client has a model",
        "engine.compiled_memory:devices",
        "checkout | algorithm | devices | state between rounds | start | a round | an evaluation",
        {"against": "", "algorithms": "iafl,cgsv,rank,fedfomo,ditto", "model": "resnet18", "devices": "1,2,4,8"},
        {"algorithms": "ditto", "model": "mlp", "devices": "1,2"},
    ),
    Measurement(
        "gradients",
        "memory of a gradient through rounds, with and without recomputation",
        "engine.compiled_memory:gradients",
        "checkout | clients are mapped | clients | temporary MB | seconds",
        {"against": "", "clients": "10,100,1000", "rounds": 1, "run": False}, {"clients": "4"},
    ),
    Measurement(
        "methods", "a round of every method beside one of FedAvg", "engine.methods",
        "method | a round, ms | by FedAvg's | least to most",
        {"methods": "", "passes": 5, "rounds": 20}, {"methods": "incfl", "passes": 1, "rounds": 2},
    ),
    Measurement(
        "rules", "robust rules beside NumPy and byzfl, and rounds with one of them", "engine.rules",
        "rule | fljax, ms | NumPy or FedAvg, ms | fljax is | byzfl, ms | fljax is, beside it",
        {"byzfl": "", "numbers": 52_500, "turns": 20}, {"numbers": 100, "turns": 1},
    ),
    Measurement(
        "design", "a search of games.design beside fljax.runs on the same plans", "engine.design",
        "rule | runs | the search, runs by CPU-second | fljax.runs | ratio | host share of the search | of fljax.runs",
        {"rules": "weighted,learnt", "budget": 12_000, "clients": 8, "rounds": 8, "pairs": 12},
        {"rules": "weighted", "budget": 1_500, "clients": 2, "rounds": 1, "pairs": 1},
    ),
    Measurement(
        "sweep",
        "a sweep of learning rates beside separate runs, with and without a cache of compiled programs",
        "engine.sweep",
        "checkout | cache | cells | the sweep, s | runs that were timed, s | all runs, reckoned, s | ratio",
        {"against": "", "cells": 24, "runs": 3, "rounds": 0}, {"cells": 2, "runs": 2, "rounds": 2},
    ),
    Measurement(
        "traces", "how often functions are traced, and equations and kernels of the programs", "engine.traces",
        "checkout | workload | program | equations | kernels | loops | local steps | inference passes | traces | "
        "seconds of tracing",
        {"against": "", "workloads": "W1a,W1b,W3,quickstart", "no_kernels": False}, {"workloads": "W3"},
    ),
    Measurement(
        "hosts", "every algorithm in two processes beside one", "accelerators.hosts",
        "algorithm | 2 processes x 1 device differ | 2 processes x 2 devices differ | same bits",
        {}, {},
    ),
    Measurement(
        "precision", "INCFL with factors of products rounded as on a TPU or an H100", "accelerators.precision",
        "factors of products | weights differ, mean | largest | FedAvg accuracy | FedAvg IPR | INCFL accuracy | INCFL"
        " IPR",
        {"seeds": 10, "rounds": 0}, {"seeds": 1, "rounds": 1},
    ),
    Measurement(
        "float32_gradients",
        "how exact gradients through two rounds are in float32: every method, every float",
        "accelerators.float32_gradients",
        "method | float | forward mode | finite differences | double precision | small objective",
        {"methods": "", "settings": "steps,epochs,16"}, {"methods": "fedavg", "settings": "steps"},
    ),
    Measurement(
        "substitutes", "cells of runs on another data set than a paper's, for the claims", "papers.substitutes",
        "paper | table | data set | partition | split | algorithm | metric | mean | std",
        {"run": "", "table": "", "partition": "", "named": "", "dataset": "FMNIST", "save": "", "note": ""}, {},
    ),
    Measurement(
        "last_values", "the numbers of runs after their last round, as a CSV file", "papers.last_values",
        "run | algorithm | metric | mean | std | seeds",
        {"runs": "", "save": ""}, {},
    ),
    Measurement(
        "trials",
        "settings tried to find where printed numbers come from: each is a shipped config with changes",
        "papers.trials",
        "trial | table | metric | algorithm | printed | ours | verdict",
        {"names": "", "runs": "runs/trials", "no_run": False}, {"no_run": True},
    ),
    Measurement(
        "certificates",
        "certificates of eleven mechanisms on two partitions of Fashion-MNIST: costs, runs, committed files",
        "papers.certificates",
        "config | mechanism | runs | client-steps | found",
        {"part": "estimate", "names": "fmnist_dirichlet,fmnist_groups", "runs": "runs/certificates", "tolerance": 0.01,
         "set": "", "devices": 2, "rate": 23_000.0},
        {"names": "fmnist_dirichlet"},
    ),
    Measurement(
        "mechanisms",
        "mechanisms found by search beside tuned baselines, certified on federations that no search had",
        "papers.mechanisms",
        "setting | mechanism | accuracy | designed less it | by seed | regret | certified interval | verdict | above "
        "outside | optimism | runs | CPU-seconds",
        {"settings": "roles,alike", "seeds": 3, "budget": 15_000, "tuning": 4_000, "pool": 40, "fresh": 100,
         "baselines": "", "runs": "runs/mechanisms", "save": ""},
        {"settings": "roles", "seeds": 1, "budget": 1_000, "tuning": 1_000, "pool": 4, "fresh": 5,
         "baselines": "uniform"},
    ),
    Measurement(
        "estimators",
        "every estimator of contributions beside all coalitions of 8 clients retrained",
        "papers.estimators",
        "federation | estimator | tau-b | Spearman | share error | RMSE | best | worst | stability | clients | "
        "trainings | evaluations | gradients",
        {"rounds": 10, "seeds": 5, "clients": 8, "rows": 1_600, "data": "fashion_mnist",
         "federations": "even,groups,broken", "devices": 2, "folder": "", "work": "estimators"},
        {"rounds": 1, "seeds": 2, "clients": 3, "rows": 120, "data": "digits", "federations": "broken"},
    ),
    Measurement(
        "coalitions",
        "every coalition of clients retrained beside simulate on all and a loop: speed and checks",
        "papers.coalitions",
        "form | client-steps by CPU-second | min to max | by simulate",
        {"clients": 10, "rounds": 20, "passes": 2, "loop": 32, "devices": 2, "data": "fashion_mnist", "folder": ""},
        {"clients": 3, "rounds": 1, "passes": 1, "loop": 2, "data": "digits"},
    ),
    Measurement(
        "coalition_law",
        "whether a run on some members is that of a federation of these alone: every method, two forms",
        "papers.coalition_law",
        "case | first clients, drawn batches and cohorts | other clients, full batches | options of the latter",
        {"only": ""}, {"only": "fedavg"},
    ),
)
# fmt: on
MEASUREMENTS = {each.name: each for each in _ALL}


def lines() -> list[str]:
    """A line for each measurement."""
    return [f"  {name:<18} {each.sentence}" for name, each in MEASUREMENTS.items()]
