"""A typed, validated description of an experiment, read from TOML.

``load`` turns a file and overrides into a Config. Each error is one sentence with the key, the expected value, the
value found and, for names, the nearest valid name; all of them are told at once. This package does not list
hyper-parameters: the options of an algorithm, scenario, model, data set or partitioner are read from the signature of
its builder.
"""

from fljax.config.keys import AlgorithmEntry as AlgorithmEntry
from fljax.config.keys import Clustering as Clustering
from fljax.config.keys import Config as Config
from fljax.config.keys import ConfigError as ConfigError
from fljax.config.keys import Data as Data
from fljax.config.keys import Execution as Execution
from fljax.config.keys import Local as Local
from fljax.config.keys import Model as Model
from fljax.config.keys import Participation as Participation
from fljax.config.keys import Requirement as Requirement
from fljax.config.keys import Scenario as Scenario
from fljax.config.keys import Standalone as Standalone
from fljax.config.keys import Sweep as Sweep
from fljax.config.name_resolution import algorithm_arguments as algorithm_arguments
from fljax.config.name_resolution import builder_arguments as builder_arguments
from fljax.config.name_resolution import requirement_arguments as requirement_arguments
from fljax.config.reading import Grid as Grid
from fljax.config.reading import dumps as dumps
from fljax.config.reading import load as load
from fljax.config.reading import load_grid as load_grid
from fljax.config.reading import parse as parse
from fljax.config.reading import parse_grid as parse_grid
from fljax.core.lazy import exported as _exported

__all__ = _exported(globals())  # pyright: ignore[reportUnsupportedDunderAll]
