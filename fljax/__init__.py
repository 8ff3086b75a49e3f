"""fljax: a JAX-vectorised simulator of federated learning in which clients decide whether to take part.

Functions: ``compare`` runs several algorithms on the same data, and ``run_config`` those of a config; ``simulate`` runs
one algorithm; ``runs`` computes thousands of whole runs in one program, over arguments and members; ``rollout`` and
``evaluate_clients`` do so inside other JAX code; ``standalone`` trains every client alone; ``load`` opens a run folder;
``use_cores`` makes the cores of a CPU devices, and ``use_cache`` keeps compiled programs; ``distributed`` joins
processes.
Callbacks: ``print_progress``, ``log_to``, ``stop_early``, ``stop_when``; any function of a ``Block`` is a callback.
Values: ``Algorithm``, ``Task``, ``Federation``, ``Local``, ``Plan``, ``Over``, ``Execution``, ``Checkpoint``,
``Result``, ``Reference``, ``Requirement``, ``Comparison``. ``AlgorithmError`` says where an algorithm failed. Packages:
``algorithms``, ``scenarios``, ``aggregators``, ``contributions``, ``games``, ``data``, ``models``, ``training``,
``metrics``, ``theory``, ``report``, ``config``; ``testing`` checks algorithms of one's own.

Names are imported at first use: ``import fljax`` costs nothing, and ``fljax.aggregators`` needs only JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fljax.core.lazy import at_first_use

if TYPE_CHECKING:
    from fljax import aggregators as aggregators
    from fljax import algorithms as algorithms
    from fljax import config as config
    from fljax import contributions as contributions
    from fljax import data as data
    from fljax import engine as engine
    from fljax import games as games
    from fljax import metrics as metrics
    from fljax import models as models
    from fljax import protocol as protocol
    from fljax import report as report
    from fljax import results as results
    from fljax import scenarios as scenarios
    from fljax import testing as testing
    from fljax import theory as theory
    from fljax import training as training
    from fljax.core import trees as trees
    from fljax.core.errors import AlgorithmError as AlgorithmError
    from fljax.core.processes import distributed as distributed
    from fljax.core.version import __version__ as __version__
    from fljax.engine import Block as Block
    from fljax.engine import Execution as Execution
    from fljax.engine import Over as Over
    from fljax.engine import Plan as Plan
    from fljax.engine import evaluate_clients as evaluate_clients
    from fljax.engine import log_to as log_to
    from fljax.engine import print_progress as print_progress
    from fljax.engine import rollout as rollout
    from fljax.engine import runs as runs
    from fljax.engine import simulate as simulate
    from fljax.engine import standalone as standalone
    from fljax.engine import stop_early as stop_early
    from fljax.engine import stop_when as stop_when
    from fljax.engine import use_cache as use_cache
    from fljax.engine import use_cores as use_cores
    from fljax.engine.checkpoints import Checkpoint as Checkpoint
    from fljax.engine.checkpoints import Stopped as Stopped
    from fljax.engine.checkpoints import StopRequest as StopRequest
    from fljax.experiments import run as experiment  # noqa: F401
    from fljax.experiments import saved_models as saved_models
    from fljax.experiments.compare import compare as compare
    from fljax.experiments.compare import run_config as run_config
    from fljax.experiments.comparison import Comparison as Comparison
    from fljax.experiments.inputs import clustering as clustering
    from fljax.experiments.inputs.setup import Requirement as Requirement
    from fljax.experiments.load import load as load
    from fljax.protocol import Algorithm as Algorithm
    from fljax.protocol import Federation as Federation
    from fljax.protocol import Task as Task
    from fljax.results import Reference as Reference
    from fljax.results import Result as Result
    from fljax.training import Local as Local

__getattr__, __dir__ = at_first_use(__spec__)
