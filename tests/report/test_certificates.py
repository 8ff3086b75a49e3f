"""The heatmap of deviations and the graph of best responses."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from fljax import games
from fljax.games.strategic.certificates import judged
from fljax.report.certificates import (
    best_response_picture,
    certificate_picture,
    certificate_rows,
    certificate_sentences,
    deviation_rows,
)
from tests.games.played import GAINS, effort, full, two_clients, unilateral


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def graph_of(table: games.PayoffTable) -> xr.Dataset:
    return games.response_dataset(games.best_response_graph(table))


def test_a_heatmap_of_gains_with_verdicts() -> None:
    shifted = GAINS + np.array([0.05, 0.0, 0.0])
    dataset = games.certificate_dataset(games.certificate(unilateral(shifted), tolerance=0.004))
    figure = certificate_picture(dataset, "a $heading")
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["+0.0650", "-0.0200", "+0.0010?"]
    frames = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert [frame.get_x() + 0.47 for frame in frames] == [0]
    words = (
        "VIOLATED at 0.004: the largest gain is from 0.04907 to 0.08093 (95 % for each side, 3 cells at once, 5 seeds)"
    )
    assert " ".join(axes.get_title().split()) == words
    assert legend_of(figure) == ["framed: violated", "?: inconclusive", "plain: certified"]
    figure.draw_without_rendering()


def test_deviations_that_were_not_tried_and_many_clients() -> None:
    clients = 30
    gains = np.random.default_rng(0).normal(0.1, 0.01, size=(5, clients))
    table = unilateral(gains)
    some = table._replace(payoffs=table.payoffs[:, :20], choices=table.choices[:20])
    figure = certificate_picture(games.certificate_dataset(games.certificate(some, tolerance=0.0)))
    assert legend_of(figure)[-1] == "not tried"
    assert {text.get_text() for text in figure.axes[0].texts} <= {"", "?"}
    figure.draw_without_rendering()


def test_gains_of_nothing() -> None:
    dataset = games.certificate_dataset(games.certificate(unilateral(np.zeros((5, 2))), tolerance=0.0))
    figure = certificate_picture(dataset)
    assert [text.get_text() for text in figure.axes[0].texts] == ["+0.00=", "+0.00="]
    figure.draw_without_rendering()


def test_the_table_of_cells_and_its_sentences() -> None:
    table = unilateral(GAINS, outside=0.545)
    payoffs = table.payoffs.copy()
    payoffs[1, 2] = np.nan
    table = table._replace(payoffs=payoffs)
    dataset = games.certificate_dataset(games.certificate(table, tolerance=0.01))
    rows = certificate_rows(dataset)
    assert rows[0][:3] == ["client", "deviation", "gain"]
    assert rows[1] == ["0", "lie", "+0.0150", "-0.0009", "+0.0309", "+0.0015", "+0.0120", "INCONCLUSIVE"]
    assert [row[0] for row in rows[1:]] == ["0", "2", "1"]
    said = certificate_sentences(dataset)
    assert said[0].startswith("33.3 % of the clients have less than without joining (from 0.0 to ")
    assert said[1] == (
        "INCONCLUSIVE at 0.01: the largest gain is from -0.0009316 to 0.03093 (95 % for each side, 3 cells at once, 5 "
        "seeds)."
    )
    assert said[2] == "About 51 seeds would decide."
    assert said[3] == (
        "The others lose in 3 of 3 cells, in which the largest gain is from -0.0009316 to 0.03093 (client 0, lie)."
    )
    assert said[4].startswith(
        "Largest mean gain: client 0, lie, +0.0150. Chosen with 2 seeds and reported with the others:"
    )
    assert said[5].startswith(
        "With single seeds: in 60.0 % of them somebody gains more than the tolerance (at most 92.4 %"
    )
    assert said[5].endswith("(quantile 0.5), +0.0300 (quantile 0.9), +0.0300 (quantile 1).")
    assert said[6].startswith("A mean gain above 0.02858 is flagged in every cell.")  # 3.186316 x .005831 of client 1
    assert said[7] == "1 run diverged and counts as the worst utility."
    assert said[8].startswith("Tried: 1 deviation of 3 clients, each one alone")
    alone = games.certificate_dataset(games.certificate(unilateral(np.full((5, 2), 0.1), outside=None), tolerance=1.0))
    said = certificate_sentences(alone)
    assert said[1] == (
        "No effect seen in 2 of 2 cells, whose gain is the same with all seeds. This bounds no gain: in up to 45 % of "
        "all draws a cell may gain something else (95 %)."
    )
    assert certificate_rows(alone)[1][-1] == deviation_rows(alone)[1][-1] == "NO EFFECT SEEN"


def test_a_row_for_each_deviation() -> None:
    """The client that gains most by it, and the verdict on all clients."""
    gains = np.hstack([GAINS + np.array([0.05, 0.0, 0.0]), GAINS])
    table = unilateral(gains)
    names = ("honest", "lie", "rest")
    choices = table.choices.copy()
    choices[4:] *= 2  # clients 3 to 5 play the second one
    dataset = games.certificate_dataset(
        games.certificate(table._replace(choices=choices, strategies=names), tolerance=0.02)
    )
    rows = deviation_rows(dataset)
    assert rows[0] == [
        "deviation",
        "client",
        "gain",
        "from",
        "to",
        "others lose",
        "participation",
        "welfare",
        "verdict",
    ]
    assert [row[:3] for row in rows[1:]] == [["lie", "0", "+0.0650"], ["rest", "3", "+0.0150"]]
    assert [row[-1] for row in rows[1:]] == ["VIOLATED (1 of 3)", "INCONCLUSIVE"]
    assert rows[1][5] == "+0.0065"
    assert deviation_rows(dataset, bounds=True)[1][5].startswith("+0.0065 (+0.00")
    alone = games.certificate_dataset(games.certificate(unilateral(GAINS, outside=None), tolerance=0.1))
    assert deviation_rows(alone)[1][6:] == ["-", "+0.0120", "CERTIFIED"]


def test_attack_and_controls_in_words() -> None:
    attack = games.Attack(1, (("own", 2.5), ("factor.size", 12.345)), 50, 0.4, 0.3, 0.2, 0.4)
    control = games.Control("a fee", "VIOLATED", "VIOLATED", 1.0, 0.9, 1.1)
    result = games.certificate(unilateral(GAINS), tolerance=0.05)._replace(attack=attack, controls=(control,))
    said = certificate_sentences(games.certificate_dataset(result))
    assert said[4] == (
        "Attack: the best of 50 strategies of client 1, chosen with 2 seeds (own 2.5, factor.size 12.3), gains +0.3000 "
        "with the others (from +0.2000 to +0.4000, 95 %). It violates the tolerance."
    )
    assert said[5] == "Controls, all as they should be: a fee: VIOLATED."
    failed = result._replace(controls=(control._replace(verdict="INCONCLUSIVE"),), attack=attack._replace(low=0.0))
    said = certificate_sentences(games.certificate_dataset(failed))
    assert said[4].endswith("(from +0.0000 to +0.4000, 95 %).")
    assert said[5] == "Control failed: a fee should be VIOLATED and is INCONCLUSIVE, so the verdict says little."


def test_a_graph_of_best_responses() -> None:
    graph = graph_of(full(effort, (1, 0), 3))
    figure = best_response_picture(graph)
    axes = figure.axes[0]
    assert {text.get_text() for text in axes.texts} == {
        *("{0, 1, 2}", "{0, 1}", "{0, 2}", "{1, 2}", "{0}", "{1}", "{2}", "{}")
    }
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == graph.sizes["edge"] == 3 + 6 + 3
    assert legend_of(figure) == ["equilibrium", "client 0", "client 1", "client 2"]
    assert axes.get_title() == "in braces: clients that play '1', not '0'; arrows: best responses"
    figure.draw_without_rendering()


def test_a_graph_with_a_cycle_and_other_names() -> None:
    pennies = two_clients([[1, -1], [-1, 1]], [[-1, 1], [1, -1]])
    assert legend_of(best_response_picture(graph_of(pennies))) == ["in a cycle", "client 0", "client 1"]
    three = two_clients([[0, 0, 0], [1, 0, 0], [1, 0, 0]], np.zeros((3, 3)))
    figure = best_response_picture(graph_of(three))
    assert figure.axes[0].texts[0].get_text() == "a | a"
    figure.draw_without_rendering()
    long = three._replace(strategies=("honest", "an update x 10", "no update"))
    assert best_response_picture(graph_of(long)).axes[0].texts[1].get_text() == "honest\nan update x 10"


def test_a_large_graph_shows_where_play_leads() -> None:
    """With eight clients whose efforts are too dear, all give up one after another."""
    table = full(lambda amount: -amount, (1, 0), 8)
    with pytest.raises(ValueError, match="expected at most 64 profiles in a picture of best responses, got 256"):
        best_response_picture(graph_of(table))
    # Only client 0 gains by giving up.
    table = full(lambda amount: np.where(np.arange(8) == 0, -amount, amount), (1, 0), 8)
    figure = best_response_picture(graph_of(table))
    assert len(figure.axes[0].texts) == 2
    assert "2 of 256 profiles" in " ".join(figure.axes[0].get_title().split())
    figure.draw_without_rendering()
    nothing = best_response_picture(graph_of(full(lambda amount: amount, (1, 0), 2)))
    assert legend_of(nothing)[0] == "equilibrium"


def test_a_verdict_by_the_attack_alone_says_so() -> None:
    """All cells are certified."""
    cells = games.certificate(unilateral(GAINS), tolerance=0.05)
    attack = games.Attack(0, (("own", 2.0),), 10, 0.3, 0.2, 0.1, 0.3)
    by_attack = judged(cells, 0.05, attack=attack)
    words = "VIOLATED at 0.05 by the attack: the largest gain of the cells is from -0.0009316 to 0.03093"
    assert any(each.startswith(words) for each in certificate_sentences(games.certificate_dataset(by_attack)))
    assert "VIOLATED at 0.05 by the attack, largest gain in" in repr(by_attack)
