"""A typed, validated description of an experiment, read from TOML.

``load`` turns a file and overrides into a Config. Each error is one sentence with the key, the expected value, the
value found and, for names, the nearest valid name; all of them are told at once. This package does not list
hyper-parameters: the options of an algorithm, scenario, model, data set or partitioner are read from the signature of
its builder.
"""

from fljax.config.keys import (
    AlgorithmEntry,
    Clustering,
    Config,
    ConfigError,
    Data,
    Execution,
    Local,
    Model,
    Participation,
    Requirement,
    Scenario,
    Standalone,
    Sweep,
)
from fljax.config.name_resolution import algorithm_arguments, builder_arguments, requirement_arguments
from fljax.config.reading import Grid, dumps, load, load_grid, parse, parse_grid

__all__ = [
    "AlgorithmEntry",
    "Clustering",
    "Config",
    "ConfigError",
    "Data",
    "Execution",
    "Grid",
    "Local",
    "Model",
    "Participation",
    "Requirement",
    "Scenario",
    "Standalone",
    "Sweep",
    "algorithm_arguments",
    "builder_arguments",
    "dumps",
    "load",
    "load_grid",
    "parse",
    "parse_grid",
    "requirement_arguments",
]
