"""Nothing in a picture is clipped: titles and legends with ten long labels stay inside, and beside each other."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from fljax.report import drawing, sweeps

LABELS = (
    "incfl with the softplus surrogate and eps = 1e-8",
    "fedavg weighted by the number of samples of a client",
    "fedprox with a proximal term of 0.01 and momentum",
    "my_algorithms:moon",
    "costs $5 or $10 per round",
    "_personalised model after five tuning steps",
    "a-name-without-any-space-in-it-that-is-longer-than-a-line-of-a-legend-in-a-picture",
    "WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW",
    "ipfl with 40 clusters, 1000 tokens at a price of 20, and exploration from 0.9 to 0.1",
    ":smile: [red]scaffold[/red], option II, with all clients in every round",
)
HEADING = "a-very-long-name-that-somebody-chose-for-a-run-of-ten-algorithms-on-two-data-sets-with-three-seeds-each"
SEEDS, ROUNDS, CLIENTS, CLUSTERS = 2, 8, 6, 12


def results(labels: tuple[str, ...]) -> tuple[xr.Dataset, xr.Dataset]:
    """Made-up results with a number for every panel."""
    random = np.random.default_rng(0)
    evaluated = np.array([0, 4, ROUNDS])
    shape = (len(labels), SEEDS, len(evaluated))
    three = ("algorithm", "seed", "evaluated_round")
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for prefix, dimension in (("", "client"), ("unseen_", "unseen")):
        for name in drawing.MAIN:
            variables[f"{prefix}{name}"] = (three, random.random(shape))
        for name in ("test_accuracy", "personalised_model_accuracy_gain"):
            variables[f"{prefix}{name}"] = ((*three, dimension), random.random((*shape, CLIENTS)))
    variables["cluster_accuracy"] = ((*three, "cluster", "distribution"), random.random((*shape, CLUSTERS, CLUSTERS)))
    for part in ("compile", "train", "evaluate"):
        variables[f"seconds_{part}"] = (("algorithm",), random.random(len(labels)))
    coordinates = {"algorithm": list(labels), "seed": np.arange(SEEDS), "evaluated_round": evaluated}
    whole = (len(labels), SEEDS, ROUNDS)
    records = xr.Dataset(
        {
            "gap": (("algorithm", "seed", "round", "row"), random.normal(size=(*whole, 4))),
            "weight": (("algorithm", "seed", "round", "row"), random.random((*whole, 4))),
            "pool_size": (("algorithm", "seed", "round"), random.random(whole)),
            "tokens": (("algorithm", "seed", "round", "client"), random.random((*whole, CLIENTS))),
            "pool": (("algorithm", "seed", "round", "cluster"), random.random((*whole, CLUSTERS))),
            "membership": (
                ("algorithm", "seed", "round", "client", "cluster"),
                (random.random((*whole, CLIENTS, CLUSTERS)) < 0.5).astype(float),
            ),
        },
        {"algorithm": list(labels), "seed": np.arange(SEEDS), "round": np.arange(ROUNDS)},
    )
    return xr.Dataset(variables, coordinates, {"baseline": labels[0]}), records


def boxes(figure: Figure) -> dict[str, Bbox]:
    """The places of all words and legends, in pixels; numbers beside axes are left out."""
    figure.draw_without_rendering()
    found = {}
    for place, each in enumerate(figure.findobj(lambda part: isinstance(part, Text | Legend))):
        words = each.get_text() if isinstance(each, Text) else "legend"
        if each.get_visible() and re.search("[A-Za-z]", words):
            found[f"{place} {words}"] = each.get_window_extent()
    return found


def clipped(figure: Figure) -> list[str]:
    """Words and legends that reach out of the picture."""
    whole = figure.bbox.padded(1)
    corners = lambda box: ((box.x0, box.y0), (box.x1, box.y1))  # noqa: E731
    return [name for name, box in boxes(figure).items() if not all(whole.contains(*each) for each in corners(box))]


def collisions(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of titles, and of legends with panels other than their own, that lie over each other."""
    figure.draw_without_rendering()
    titles = [axes.title for axes in figure.axes if axes.title.get_text()]
    pairs = [
        (a.get_text(), b.get_text())
        for a, b in itertools.combinations(titles, 2)
        if a.get_window_extent().overlaps(b.get_window_extent())
    ]
    for axes in figure.axes:
        ticks = [each for each in axes.get_yticklabels() if re.search("[a-z]", each.get_text())]
        overlaps = [
            (a.get_text(), b.get_text())
            for a, b in itertools.pairwise(ticks)
            if a.get_window_extent().overlaps(b.get_window_extent())
        ]
        pairs += overlaps
    for place, axes in enumerate(figure.axes):
        for other, legend in enumerate([*(each.get_legend() for each in figure.axes), *figure.legends]):
            if legend is not None and other != place and legend.get_window_extent().overlaps(axes.bbox):
                pairs.append((axes.title.get_text(), f"legend {other}"))
    return pairs


@pytest.mark.thorough
def test_ten_long_labels_fit_into_every_panel() -> None:
    metrics, records = results(LABELS)
    drawn = drawing.figures(metrics, records)
    assert {"membership_my_algorithms:moon", "tokens", "ledger_my_algorithms:moon", "seconds", "gap"} <= set(drawn)
    for name, figure in drawn.items():
        assert clipped(figure) == [], name
        assert collisions(figure) == [], name


@pytest.mark.thorough
def test_ten_long_labels_fit_into_the_whole_picture() -> None:
    metrics, records = results(LABELS)
    few = records[["gap", "weight", "pool_size"]]
    for own in (few, records.sel(algorithm=list(LABELS[:2]))):
        figure = drawing.picture(metrics, own, HEADING)
        assert clipped(figure) == []
        assert collisions(figure) == []


@pytest.mark.thorough
def test_ten_long_labels_fit_into_the_live_page() -> None:
    for name, figure in drawing.curves(results(LABELS)[0]).items():
        assert clipped(figure) == [], name


def grid(labels: tuple[str, ...], **axes: list[Any]) -> xr.Dataset:
    random = np.random.default_rng(0)
    sizes = [len(values) for values in axes.values()]
    shape = (len(labels), *sizes, SEEDS)
    return xr.Dataset(
        {
            "average_accuracy": (("algorithm", *axes, "seed", "evaluated_round"), random.random((*shape, 1))),
            "diverged": (("algorithm", *axes, "seed"), np.full(shape, -1)),
        },
        {"algorithm": list(labels), **axes, "seed": np.arange(SEEDS), "evaluated_round": [3]},
        {"grid": json.dumps({name: f"table.{name}" for name in axes}), "metric": "average_accuracy"},
    )


ATTACKS = ["[]", '[{"name": "colluding", "attack": "sign_flip", "scale": 4.0}]', "size"]
AXES = [{"rate": [0.1, 0.2, 0.5]}, {"rate": [0.1, 0.2, 0.5], "eps": [0.0, 1.0]}, {"scenarios": ATTACKS}]


@pytest.mark.parametrize("axes", AXES, ids=list)
def test_cells_of_a_sweep_that_diverged_are_marked(axes: dict[str, list[Any]]) -> None:
    metrics = grid(("fedavg", "incfl"), **axes)
    words = ("a seed diverged", "x" if list(axes) == ["rate"] else "†")
    found = []
    for _ in range(2):
        figure = sweeps.sweep_picture(metrics)
        assert clipped(figure) == []
        texts = [text.get_text() for text in figure.findobj(Text)]
        crosses = [line for each in figure.axes for line in each.lines if line.get_marker() == "x"]
        daggers = [text for text in texts if text.endswith("†") and "diverged" not in text]
        found.append((any(words[0] in text for text in texts), len(crosses) + len(daggers)))
        metrics["diverged"].loc[{"algorithm": "incfl", **{name: values[0] for name, values in axes.items()}}] = 4
    assert found == [(False, 0), (True, 1)]


def framed(axes: Any) -> set[tuple[int, int]]:
    """Columns and rows of the cells with a frame."""
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return {(round(box.get_x() + 0.47), round(box.get_y() + 0.47)) for box in boxes}


def test_a_sweep_over_texts_is_one_map_of_algorithms_by_texts() -> None:
    metrics = grid(("fedavg", "incfl", "afl", "rank"), scenarios=ATTACKS)
    metrics["average_accuracy"].loc[{"algorithm": "rank"}] = np.nan
    metrics["average_accuracy"].loc[{"algorithm": "afl", "scenarios": "size"}] = 2.0
    metrics["average_accuracy"].loc[{"algorithm": "fedavg", "scenarios": "[]"}] = np.nan
    axes = sweeps.sweep_picture(metrics).axes[0]
    assert [label.get_text().replace("\n", " ") for label in axes.get_xticklabels()] == [
        "none",
        "colluding sign flip, scale 4",
        "size",
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fedavg", "incfl", "afl", "rank"]
    shown = {text.get_position(): text.get_text() for text in axes.texts}
    assert len(shown) == 8
    assert shown[2, 2] == "200.0"
    frames = framed(axes)
    mean = metrics["average_accuracy"].isel(evaluated_round=0).mean("seed")
    assert frames == {(place, int(np.nanargmax(mean.values[:, place]))) for place in range(3)}


def test_the_frame_of_a_map_of_texts_is_at_the_least_loss_without_a_diverged_seed() -> None:
    metrics = grid(("fedavg", "incfl", "afl"), scenarios=["[not json", "size"]).rename(average_accuracy="average_loss")
    metrics.attrs["metric"] = "average_loss"
    metrics["average_loss"][:] = np.array([0.2, 0.3, 0.1]).reshape(3, 1, 1, 1)
    metrics["diverged"].loc[{"algorithm": "afl", "scenarios": "size"}] = 1
    axes = sweeps.sweep_picture(metrics).axes[0]
    frames = framed(axes)
    assert frames == {(0, 2), (1, 0)}
    assert axes.get_xticklabels()[0].get_text() == "[not json"
    metrics["average_loss"][:] = np.nan
    assert clipped(sweeps.sweep_picture(metrics)) == []


@pytest.mark.thorough
@pytest.mark.parametrize("axes", AXES, ids=list)
def test_ten_long_labels_fit_into_sweeps(axes: dict[str, list[Any]]) -> None:
    figure = sweeps.sweep_picture(grid(LABELS, **axes), HEADING)
    assert clipped(figure) == []
    assert collisions(figure) == []


def test_the_checks_see_what_is_wrong() -> None:
    figure = Figure(figsize=(2, 2))
    for place in (1, 2):
        axes = figure.add_subplot(1, 2, place)
        axes.plot([0, 1], label="wide")
        axes.set_title("wider than its panel")
    assert len(clipped(figure)) == 2
    assert len(collisions(figure)) == 1
    axes.legend(loc="center", bbox_to_anchor=(-0.5, 0.5))
    assert len(collisions(figure)) == 2
