"""``fljax.load``: a run folder as a value with metrics, records and trained models.

    run = fljax.load("runs/my-run")
    run.metrics.average_accuracy.sel(algorithm="incfl")
    run.predict("incfl", client=3, x=x, which="best")

Files are read at first use. Metrics and records need no engine. Models need no data, unless they are trained on their
client's rows before they are used.
"""

from __future__ import annotations

import functools
import pathlib
import tomllib
from typing import TYPE_CHECKING, Any

import xarray as xr

from fljax.core.names import unknown
from fljax.core.plain import plain
from fljax.results import folders, stores
from fljax.results.events import at_end
from fljax.results.identity import labels_in

if TYPE_CHECKING:
    import pandas as pd
    from jaxtyping import Array

    from fljax.config import Config
    from fljax.engine import Models
    from fljax.experiments.comparison import Arguments, Comparison
    from fljax.experiments.inputs.entrants import Algorithms
    from fljax.experiments.inputs.setup import Setup
    from fljax.experiments.outlines import Outline
    from fljax.protocol import Federation, Names, Task
    from fljax.training import Local


def load(
    folder: str | pathlib.Path,
    *,
    algorithms: Algorithms | None = None,
    task: Task | None = None,
    local: Local | None = None,
    federation: Federation | list[Federation] | None = None,
    imports: bool = True,
) -> Run:
    """A run folder as a value.

    ``algorithms``, ``task``, ``local`` and ``federation`` are for the models of ``fljax.compare``, which
    ``Comparison.save(folder, models="last")`` writes: a folder has no code, so give the arguments of ``compare`` again.
    Metrics and records do not need them.

    Args:
      folder: of ``fljax run``, ``Comparison.save`` or, without models, ``fljax sweep``.
      algorithms: all algorithms of the comparison, as for ``compare``.
      task: model and loss.
      local: how clients train.
      federation: only for models that depend on their client's rows when they are used.
      imports: False for a folder that you do not trust: ``config`` and models refuse a config that names code
        (``"module:name"``) and import none. Metrics and records never do.

    Raises:
      ValueError: if it is no run folder, if a file in it is a link, if some of algorithms, task and local are
        missing beside others or are of another kind, or if they are given for a run, whose config has them.
    """
    if algorithms is None and task is None and local is None and federation is None:
        return Run(folder, imports=imports)
    from fljax.experiments import comparison

    return Run(folder, comparison.arguments_of(algorithms, task, local, federation), imports)


class Run:
    """A run folder: ``metrics``, ``last``, ``records``, ``records_of(label)``, ``labels``, ``config`` and models.

    Args:
      folder: the run folder.
      arguments: for models of ``fljax.compare``.
      imports: as for ``load``.

    Raises:
      ValueError: if the folder does not exist, or has no config that a run wrote.
    """

    def __init__(self, folder: str | pathlib.Path, arguments: Arguments | None = None, imports: bool = True) -> None:
        self._arguments, self._imports = arguments, imports
        self._loaded: dict[tuple[str, str, int | None], Models] = {}
        self.folder = pathlib.Path(folder)
        if not self.folder.is_dir():
            raise ValueError(f"expected a run folder, got {str(folder)!r}, which is no folder")
        folders.check_own_files(self.folder)
        names = (folders.CONFIG, folders.COMPARISON)
        self._file = next((name for name in names if (self.folder / name).is_file()), folders.CONFIG)
        try:
            self._raw: dict[str, Any] = tomllib.loads((self.folder / self._file).read_text(encoding="utf-8"))
        except OSError:
            raise ValueError(f"expected a run folder with {folders.CONFIG}, got {str(folder)!r}") from None
        except ValueError as error:
            raise ValueError(f"expected valid TOML in {self._file} of {str(folder)!r}, got: {error}") from None
        if arguments is not None and not self._is_compared:
            raise ValueError(
                "expected no algorithms, task or local training for a folder with a config, which has them, got some "
                f"for {str(folder)!r}"
            )

    @property
    def _is_compared(self) -> bool:
        """Whether the results are of ``fljax.compare``."""
        return self._file == folders.COMPARISON

    def __repr__(self) -> str:
        seeds = self._raw.get("seeds", [0])
        count = len(seeds) if isinstance(seeds, list) else seeds
        labels = ", ".join(self.labels)
        several = "" if count == 1 else "s"
        saved = self._raw.get("save_models", "none")
        return plain(
            f"<run {str(self.folder)!r}: {labels}; {count} seed{several}, {self._raw.get('rounds')} rounds, "
            f"models: {saved}>"
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the algorithms in the config."""
        return tuple(labels_in(self._raw))

    @property
    def metrics(self) -> xr.Dataset:
        """As ``Result.metrics``, over ``algorithm`` too.

        Raises:
          ValueError: if no algorithm is finished, or the results are damaged.
        """
        return self._results[0]

    @property
    def last(self) -> xr.Dataset:
        """The metrics at each algorithm's last evaluation, which may be an earlier one if it stopped early."""
        return at_end(self.metrics)

    def comparison(self) -> Comparison:
        """The results as ``fljax.compare`` returns them, without trained models; raises as ``metrics``.

        ``table``, ``summary``, ``clients`` and ``report`` of a run call its comparison.
        """
        from fljax.experiments.comparison import Comparison

        origin = {self._file: (self.folder / self._file).read_text(encoding="utf-8")}
        return Comparison(str(self._raw.get("name", self.folder.name)), *self._results, {}, origin=origin)

    def table(self) -> pd.DataFrame:
        """As ``Comparison.table``."""
        return self.comparison().table()

    def summary(self) -> pd.DataFrame:
        """As ``Comparison.summary``."""
        return self.comparison().summary()

    def clients(self) -> pd.DataFrame:
        """As ``Comparison.clients``."""
        return self.comparison().clients()

    def report(self, path: str | pathlib.Path = "report.html") -> pathlib.Path:
        """As ``Comparison.report``."""
        return self.comparison().report(path)

    @property
    def records(self) -> xr.Dataset:
        """As ``Result.records``, over ``algorithm`` too; raises as ``metrics``.

        Algorithms with long records have only records of one value for each seed and round.
        """
        return self._results[1]

    def records_of(self, label: str) -> xr.Dataset:
        """All records of an algorithm: from ``records``, or long ones, which are read at first use."""
        finished = tuple(map(str, self.metrics["algorithm"].values))
        if label not in finished:
            raise ValueError(unknown("label", label, finished))
        records = self.records.sel(algorithm=label, drop=True)
        if "stored_apart" in records and records["stored_apart"] == 1:
            return stores.load_records(folders.records_of(self.folder, label))
        return records

    @functools.cached_property
    def _results(self) -> tuple[xr.Dataset, xr.Dataset]:
        return folders.load_results(self.folder)

    @functools.cached_property
    def config(self) -> Config:
        """The config with every default; names that it imports must be importable.

        Raises:
          ValueError: if the results are of ``fljax.compare``, whose data and model are values of Python.
        """
        from fljax import config

        if self._is_compared:
            raise ValueError(
                f"expected a folder of fljax run for a config, got {str(self.folder)!r}, which has results of "
                "fljax.compare, whose data and model are values of Python"
            )
        return config.load(self.folder / folders.CONFIG, imports=self._imports, needs_data=self._outline is None)

    @functools.cached_property
    def _outline(self) -> Outline | None:
        from fljax.experiments import outlines

        return outlines.load_outline(self.folder)

    @functools.cached_property
    def _setup(self) -> Setup:
        from fljax.experiments.inputs.setup import resolve_setup

        folders.check_origin(self.folder)
        return resolve_setup(self.config.model_copy(update={"requirement": None}))  # a file of losses may be gone

    @property
    def names(self) -> Names:
        """Names of classes and clients in the data, e.g. ``names.classes[2]``.

        They belong to the data that the models were trained on; a run without models reads the data set for them.

        Names of clients are None if they differ between seeds, as with unseen clients that each seed draws: see
        ``names_of``.
        """
        outline = self._outline
        if outline is None:
            self._check_names()
        return self._setup.federation.names if outline is None else outline.federation.names

    def _check_names(self) -> None:
        if self._is_compared:
            raise ValueError(
                f"expected names in {str(self.folder)!r}, which Comparison.save(folder, models='last') writes, got none"
            )

    def names_of(self, seed: int = 0) -> Names:
        """Names of classes and clients in the data of one seed, as ``names``.

        ::

            client = run.names_of(seed=1).clients.index("St Gera")
            run.predict("incfl", client, x, seed=1)

        Args:
          seed: the position in the list of seeds.
        """
        seeds = self._raw["seeds"] if self._is_compared else self.config.seeds
        if not 0 <= seed < len(seeds):
            raise ValueError(f"expected a position of a seed below {len(seeds)}, got {seed}")
        if self._outline is not None:
            return self._outline.names[seed]
        self._check_names()
        from fljax.experiments.inputs.setup import build_world

        return build_world(self.config.model_copy(update={"seeds": (seeds[seed],)})).names[0]

    def models(self, label: str, which: str = "last", round: int | None = None) -> Models:
        """The trained models of an algorithm: ``state``, ``deployed(client)`` and ``predict(client, x)``.

        Args:
          label: one of ``labels``.
          which: "last": after the last round. "best": of each seed's best evaluation by validation rows.
          round: the number of rounds done at an evaluation, in place of ``which``; for runs with ``--save-models all``.

        Raises:
          ValueError: if the label is unknown, or such models were not saved; the sentence says which option saves them.
            For models of ``fljax.compare``, if ``load`` did not get the arguments that made them.
        """
        if label not in self.labels:
            raise ValueError(unknown("label", label, self.labels))
        key = label, which, round
        if key not in self._loaded:
            self._loaded[key] = self._load(*key)
        return self._loaded[key]

    def _load(self, label: str, which: str, round: int | None) -> Models:
        from fljax.experiments import comparison, saved_models

        if self._is_compared:
            return comparison.load_models(self.folder, label, which, round, self._arguments)
        saved_models.find(self.folder, label, which, round)  # before the data are read
        setup = self._setup if self._outline is None else None
        return saved_models.load(self.folder, label, which, round, setup=setup, imports=self._imports)

    def predict(
        self,
        label: str,
        client: int,
        x: Any,
        *,
        seed: int = 0,
        unseen: bool = False,
        which: str = "last",
        round: int | None = None,
    ) -> Array:
        """Logits ``[b, ...]`` of the model that a client would use, on raw examples ``x [b, ...]``.

        Args:
          label: one of ``labels``.
          client: the id of a seen client, or the number of an unseen one.
          x: raw examples, or a table with the model's columns by name.
          seed: the position in the list of seeds.
          unseen: whether the client is unseen.
          which: as for ``models``.
          round: as for ``models``.
        """
        return self.models(label, which, round).predict(client, x, seed=seed, unseen=unseen)
