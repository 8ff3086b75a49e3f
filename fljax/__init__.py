"""fljax: a JAX-vectorised simulator of federated learning in which clients decide whether to take part.

Functions: ``compare`` runs several algorithms on the same data, and ``run_config`` those of a config; ``simulate`` runs
one algorithm; ``rollout`` and ``evaluate_clients`` do so inside other JAX code; ``standalone`` trains every client
alone; ``load`` opens a run folder; ``use_cores`` makes the cores of a CPU devices; ``distributed`` joins processes.
Callbacks: ``print_progress``, ``log_to``, ``stop_early``, ``stop_when``; any function of a ``Block`` is a callback.
Values: ``Algorithm``, ``Task``, ``Federation``, ``Local``, ``Plan``, ``Execution``, ``Checkpoint``, ``Result``,
``Reference``, ``Requirement``, ``Comparison``. ``AlgorithmError`` says where an algorithm failed. Packages:
``algorithms``, ``scenarios``, ``aggregators``, ``contributions``, ``data``, ``models``, ``training``, ``metrics``,
``theory``, ``checkpoints``, ``tracking``, ``report``, ``config``; ``testing`` checks algorithms of one's own.

Names are imported at first use: ``import fljax`` costs nothing, and ``fljax.aggregators`` needs only JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from fljax import aggregators as aggregators
    from fljax import algorithms as algorithms
    from fljax import checkpoints as checkpoints
    from fljax import clustering as clustering
    from fljax import config as config
    from fljax import contributions as contributions
    from fljax import data as data
    from fljax import experiment as experiment
    from fljax import metrics as metrics
    from fljax import models as models
    from fljax import report as report
    from fljax import saved_models as saved_models
    from fljax import scenarios as scenarios
    from fljax import testing as testing
    from fljax import theory as theory
    from fljax import tracking as tracking
    from fljax import training as training
    from fljax.checkpoints import Checkpoint as Checkpoint
    from fljax.checkpoints import Stopped as Stopped
    from fljax.checkpoints import StopRequest as StopRequest
    from fljax.comparison import Comparison as Comparison
    from fljax.comparison import compare as compare
    from fljax.comparison import run_config as run_config
    from fljax.engine import Block as Block
    from fljax.engine import Execution as Execution
    from fljax.engine import Plan as Plan
    from fljax.engine import evaluate_clients as evaluate_clients
    from fljax.engine import log_to as log_to
    from fljax.engine import print_progress as print_progress
    from fljax.engine import rollout as rollout
    from fljax.engine import simulate as simulate
    from fljax.engine import standalone as standalone
    from fljax.engine import stop_early as stop_early
    from fljax.engine import stop_when as stop_when
    from fljax.engine import use_cores as use_cores
    from fljax.failures import AlgorithmError as AlgorithmError
    from fljax.hosts import distributed as distributed
    from fljax.requirements import Requirement as Requirement
    from fljax.results import Reference as Reference
    from fljax.results import Result as Result
    from fljax.run_folders import load as load
    from fljax.training import Local as Local
    from fljax.types import Algorithm as Algorithm
    from fljax.types import Federation as Federation
    from fljax.types import Task as Task

_HOME = {
    "compare": "comparison",
    "run_config": "comparison",
    "Comparison": "comparison",
    "simulate": "engine",
    "evaluate_clients": "engine",
    "rollout": "engine",
    "standalone": "engine",
    "use_cores": "engine",
    "print_progress": "engine",
    "log_to": "engine",
    "stop_early": "engine",
    "stop_when": "engine",
    "Plan": "engine",
    "Execution": "engine",
    "Block": "engine",
    "Checkpoint": "checkpoints",
    "Stopped": "checkpoints",
    "StopRequest": "checkpoints",
    "load": "run_folders",
    "distributed": "hosts",
    "Local": "training",
    "Requirement": "requirements",
    "Result": "results",
    "Reference": "results",
    "Algorithm": "types",
    "AlgorithmError": "failures",
    "Federation": "types",
    "Task": "types",
}
_MODULES = (
    "aggregators",
    "algorithms",
    "checkpoints",
    "clustering",
    "config",
    "contributions",
    "data",
    "engine",
    "experiment",
    "metrics",
    "models",
    "report",
    "saved_models",
    "scenarios",
    "testing",
    "theory",
    "tracking",
    "training",
    "trees",
    "types",
)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"fljax.{_HOME[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"fljax.{name}")
    raise AttributeError(f"module 'fljax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(["__version__", *_HOME, *_MODULES])
