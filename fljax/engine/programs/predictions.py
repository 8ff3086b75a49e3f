"""The compiled program of all clients' predictions on their test rows, of which the host computes scores."""

from __future__ import annotations

from jaxtyping import Array

from fljax.engine.devices.layout import Layout, keep_everywhere
from fljax.engine.programs import jit
from fljax.engine.programs.program import Inputs, Spec, map_runs
from fljax.engine.rounds.predictions import Predictions, predict_tests
from fljax.engine.rounds.states import State
from fljax.protocol import Algorithm, Federation


@jit.program(static_argnames=("spec", "layout"))
def predictions(spec: Spec, layout: Layout, inputs: Inputs, state: State, round: Array) -> dict[str, Predictions]:
    """Predictions of all clients of all runs, ``[runs, N, n, ...]``, under "client" and "unseen"."""

    def one_run(algorithm: Algorithm, data: Federation, layout: Layout, state: State) -> dict[str, Predictions]:
        return predict_tests(algorithm, data, layout, state, round)

    return keep_everywhere(map_runs(spec, layout, inputs, state, one_run), layout)
