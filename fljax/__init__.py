"""fljax: a JAX-vectorised simulator of federated learning in which clients decide whether to take part.

Functions: ``simulate`` runs an algorithm; ``rollout`` and ``evaluate_clients`` do so inside other JAX code;
``standalone`` trains every client alone; ``load`` opens a run folder; ``use_cores`` makes the cores of a CPU devices.
Values: ``Algorithm``, ``Task``, ``Federation``, ``Local``, ``Plan``, ``Execution``, ``Checkpoint``, ``Result``,
``Reference``. ``AlgorithmError`` says where an algorithm failed. Packages: ``algorithms``, ``scenarios``,
``aggregators``, ``contributions``, ``data``, ``models``, ``training``, ``metrics``, ``theory``, ``checkpoints``,
``tracking``.

Names are imported at first use: ``import fljax`` costs nothing, and ``fljax.aggregators`` needs only JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fljax import aggregators as aggregators
    from fljax import algorithms as algorithms
    from fljax import checkpoints as checkpoints
    from fljax import clustering as clustering
    from fljax import contributions as contributions
    from fljax import data as data
    from fljax import metrics as metrics
    from fljax import models as models
    from fljax import saved_models as saved_models
    from fljax import scenarios as scenarios
    from fljax import theory as theory
    from fljax import tracking as tracking
    from fljax import training as training
    from fljax.checkpoints import Checkpoint as Checkpoint
    from fljax.checkpoints import Stopped as Stopped
    from fljax.checkpoints import StopRequest as StopRequest
    from fljax.engine import Block as Block
    from fljax.engine import Execution as Execution
    from fljax.engine import Plan as Plan
    from fljax.engine import evaluate_clients as evaluate_clients
    from fljax.engine import rollout as rollout
    from fljax.engine import simulate as simulate
    from fljax.engine import standalone as standalone
    from fljax.engine import use_cores as use_cores
    from fljax.failures import AlgorithmError as AlgorithmError
    from fljax.results import Reference as Reference
    from fljax.results import Result as Result
    from fljax.run_folders import load as load
    from fljax.training import Local as Local
    from fljax.types import Algorithm as Algorithm
    from fljax.types import Federation as Federation
    from fljax.types import Task as Task

_HOME = {
    "simulate": "engine",
    "evaluate_clients": "engine",
    "rollout": "engine",
    "standalone": "engine",
    "use_cores": "engine",
    "Plan": "engine",
    "Execution": "engine",
    "Block": "engine",
    "Checkpoint": "checkpoints",
    "Stopped": "checkpoints",
    "StopRequest": "checkpoints",
    "load": "run_folders",
    "Local": "training",
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
    "contributions",
    "data",
    "engine",
    "metrics",
    "models",
    "saved_models",
    "scenarios",
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
