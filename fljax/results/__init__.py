"""Labelled results: in memory, in a run folder, and while a run goes on.

Names are imported at first use: who asks for the environment of a run does not wait for xarray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fljax.core.lazy import at_first_use

if TYPE_CHECKING:
    from fljax.results.events import Line as Line
    from fljax.results.events import Results as Results
    from fljax.results.events import append as append
    from fljax.results.events import read_lines as read_lines
    from fljax.results.progress import Progress as Progress
    from fljax.results.progress import RunState as RunState
    from fljax.results.progress import best_cell as best_cell
    from fljax.results.progress import is_running as is_running
    from fljax.results.progress import read_state as read_state
    from fljax.results.values import OF_STANDALONE as OF_STANDALONE
    from fljax.results.values import BestModels as BestModels
    from fljax.results.values import Reference as Reference
    from fljax.results.values import Result as Result
    from fljax.results.values import join as join
    from fljax.results.values import judged_by as judged_by
    from fljax.results.values import metrics_dataset as metrics_dataset
    from fljax.results.values import metrics_of_runs as metrics_of_runs
    from fljax.results.values import with_contribution_correlation as with_contribution_correlation
    from fljax.results.values import with_decisions as with_decisions
    from fljax.results.values import with_gains as with_gains
    from fljax.results.values import with_threshold as with_threshold

__getattr__, __dir__ = at_first_use(__spec__)
