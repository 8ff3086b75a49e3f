"""Figures and an HTML page from the results of a run.

Names are imported at first use: who asks for a table alone does not wait for matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fljax.core.lazy import at_first_use

if TYPE_CHECKING:
    from fljax.report.certificates import best_response_picture as best_response_picture
    from fljax.report.certificates import certificate_picture as certificate_picture
    from fljax.report.certificates import certificate_rows as certificate_rows
    from fljax.report.certificates import certificate_sentences as certificate_sentences
    from fljax.report.clients import data_picture as data_picture
    from fljax.report.clients import leaving as leaving
    from fljax.report.clusters import client_clusters as client_clusters
    from fljax.report.designs import design_rows as design_rows
    from fljax.report.designs import design_sentences as design_sentences
    from fljax.report.designs import front_picture as front_picture
    from fljax.report.drawing import figures as figures
    from fljax.report.drawing import picture as picture
    from fljax.report.kinds.by_client import client_curves as client_curves
    from fljax.report.kinds.by_client import client_spread as client_spread
    from fljax.report.kinds.by_client import confusion_matrices as confusion_matrices
    from fljax.report.kinds.by_client import contribution_accuracy as contribution_accuracy
    from fljax.report.kinds.by_method import metric_pairs as metric_pairs
    from fljax.report.kinds.by_method import polled_loss as polled_loss
    from fljax.report.kinds.by_method import surrogate_weights as surrogate_weights
    from fljax.report.kinds.registry import draw_kinds as draw_kinds
    from fljax.report.methods import method_table as method_table
    from fljax.report.page import follow as follow
    from fljax.report.page import write as write
    from fljax.report.page import write_page as write_page
    from fljax.report.style import font_note as font_note
    from fljax.report.style import fonts_for as fonts_for
    from fljax.report.style import texts_of as texts_of
    from fljax.report.sweeps import sweep_picture as sweep_picture
    from fljax.report.tables import Overview as Overview
    from fljax.report.tables import Row as Row
    from fljax.report.tables import best_rows as best_rows
    from fljax.report.tables import cost_to_target as cost_to_target
    from fljax.report.tables import overview as overview
    from fljax.report.tables import pivot as pivot
    from fljax.report.tables import summary as summary
    from fljax.report.tables import target_lines as target_lines
    from fljax.report.tables import to_target as to_target

__getattr__, __dir__ = at_first_use(__spec__)
