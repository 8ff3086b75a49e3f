"""Programs of an experiment are compiled while something else is computed.

The first algorithm's programs are compiled during the standalone models, each next one's during the run before it; not
on a GPU, where XLA times kernels while it compiles. Plans with stand-ins for values that are not known yet have the
same ``Spec``, so JAX gives the run the programs that are ready, and lets it wait for those that are not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Mapping
from concurrent.futures import ThreadPoolExecutor

from fljax.core.names import about_algorithm
from fljax.engine import Plan, compile_ahead, rehearse
from fljax.engine.devices.layout import default_platform
from fljax.experiments.inputs.setup import Setup


class Ahead:
    """Compiles the programs of the first algorithm during the standalone models, and each next one's during a run.

    One round of every algorithm that is still to run is traced when this is made, so that its errors appear before
    anything is computed. An error of a later algorithm's programs does not stop the run before it: ``simulate`` raises
    it again. Programs that are being compiled are waited for when the process ends.

    Args:
      setup: the experiment.
      plans: by label.
      finished: labels of the algorithms that do not run.
      begun: the rounds that an algorithm has already, by label of each that goes on.
    """

    def __init__(
        self, setup: Setup, plans: Mapping[str, Plan], finished: Container[str], begun: Mapping[str, int]
    ) -> None:
        self._setup, self._plans, self._begun = setup, plans, begun
        self._labels = [label for label in setup.labels if label not in finished]
        self._pool = ThreadPoolExecutor(3)  # a run's programs
        for label in self._labels[1:]:
            with about_algorithm(label):
                rehearse(plans[label], setup.federation)
        if self._labels:
            self._begin(self._labels[0])

    def after(self, label: str) -> None:
        """Begins with the programs of the algorithm after this one.

        Not on a GPU, where XLA chooses between kernels by timing them, and a run beside it would disturb that.
        """
        place = self._labels.index(label) + 1
        if place < len(self._labels) and default_platform() != "gpu":
            with contextlib.suppress(Exception):
                self._begin(self._labels[place])

    def _begin(self, label: str) -> None:
        setup = self._setup
        with about_algorithm(label):
            schedule = setup.schedule._replace(rounds=setup.rounds - self._begun.get(label, 0))
            compile_ahead(self._pool, self._plans[label], setup.federation, schedule)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
