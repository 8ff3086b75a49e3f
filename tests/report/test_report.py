from __future__ import annotations

import base64
import math
import re

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.text import Text

from fljax import report
from fljax.report import drawing
from fljax.report.style import percent, printable, styles
from fljax.report.tables import COUNTS, TITLES, best_cell_rows, cell
from fljax.results import Results
from tests.report.test_fit import results as made_up


def results(algorithms=("fedavg", "incfl"), seeds=3, clients=30, unseen=20, evaluations=6, rounds=50):
    """Made-up results in the layout of a run."""
    random = np.random.default_rng(0)
    evaluated = np.linspace(0, rounds, evaluations).astype(int)
    coordinates = {
        "algorithm": list(algorithms),
        "seed": np.arange(seeds),
        "evaluated_round": evaluated,
        "client": np.arange(clients),
        "unseen": np.arange(unseen),
    }
    scalar = ("algorithm", "seed", "evaluated_round")
    variables = {}
    progress = 1 - np.exp(-evaluated / rounds * 4)
    for prefix, dimension, count in (("", "client", clients), ("unseen_", "unseen", unseen)):
        for place, name in enumerate(TITLES):
            ceiling = 0.4 + 0.1 * np.arange(len(algorithms))[:, None, None] + 0.03 * place
            noise = random.normal(0, 0.02, (len(algorithms), seeds, evaluations))
            variables[prefix + name] = (scalar, ceiling * progress + noise)
        accuracy = random.beta(6, 3, (len(algorithms), seeds, evaluations, count))
        variables[f"{prefix}test_accuracy"] = ((*scalar, dimension), accuracy)
        variables[f"{prefix}standalone_test_accuracy"] = (
            ("seed", dimension),
            random.beta(5, 4, (seeds, count)),
        )
    for part in ("compile", "train", "evaluate"):
        variables[f"seconds_{part}"] = (("algorithm",), random.uniform(1, 9, len(algorithms)))
    variables["diverged"] = (("algorithm", "seed"), np.full((len(algorithms), seeds), -1))
    metrics = xr.Dataset(variables, coordinates)
    shape = (len(algorithms), seeds, rounds, 10)
    row = ("algorithm", "seed", "round", "row")
    gap = random.normal(0.3, 0.8, shape) - 0.01 * np.arange(rounds)[:, None]
    records = xr.Dataset(
        {
            "gap": (row, gap),
            "weight": (row, 1 / (4 * np.cosh(gap / 2) ** 2)),
            "cohort_present": (row, random.random(shape) < 0.9),
        },
        {"algorithm": list(algorithms), "seed": np.arange(seeds), "round": np.arange(rounds)},
    )
    records["gap"][0] = np.nan
    records["weight"][0] = 0.1
    return metrics, records


def save(folder, metrics, records):
    metrics.to_netcdf(folder / "results.nc", engine="h5netcdf")
    records.to_netcdf(folder / "results.nc", engine="h5netcdf", group="records", mode="a")


def test_summary_by_hand():
    values = np.array([[[0.0, 1.0], [0.0, 3.0], [0.0, np.nan]]])
    coordinates = {"algorithm": ["a"], "seed": [0, 1, 2], "evaluated_round": [5, 9]}
    metrics = xr.Dataset({"average_accuracy": (("algorithm", "seed", "evaluated_round"), values)}, coordinates)
    (row,) = report.summary(metrics)
    assert row == report.Row("a", "average_accuracy", 2.0, math.sqrt(2), 2, 3, 9)
    assert cell(row) == "2.000 ± 1.414 (2 of 3)"
    assert report.pivot([row], ["average_accuracy", "other"]) == {"a": [row, None]}


def test_the_best_cell_names_an_axis_that_only_other_metrics_depend_on() -> None:
    """As of FedAvg in a sweep over what clients require."""
    dims = ("algorithm", "level", "seed", "evaluated_round")
    rate = np.array([0.9, 0.2]).reshape(1, 2, 1, 1)
    metrics = xr.Dataset(
        {
            "average_accuracy": (dims, np.full((1, 2, 1, 1), 0.5)),
            "incentivised_participation_rate": (dims, rate),
            "diverged": (dims[:3], np.full((1, 2, 1), -1)),
        },
        {"algorithm": ["fedavg"], "level": [0.3, 0.6], "seed": [0], "evaluated_round": [2]},
        {"grid": '{"level": "requirement.level"}', "metric": "average_accuracy"},
    )
    assert [row.algorithm for row in best_cell_rows(metrics, ["average_accuracy"])[0]] == ["fedavg"] * 2
    rows, _ = best_cell_rows(metrics, ["incentivised_participation_rate"])
    assert [(row.algorithm, row.mean) for row in rows] == [("fedavg (level = 0.3)", 0.9), ("fedavg (level = 0.3)", 0.5)]
    assert {row.algorithm for row in best_cell_rows(metrics)[0]} == {"fedavg (level = 0.3)"}


def test_numbers_of_clients_are_counts():
    assert cell(report.Row("a", "opt_outs", 23.25, 1.26, 3, 3, 9)) == "23.2 ± 1.3"
    assert cell(report.Row("a", "unseen_opt_outs", 0.0, math.nan, 1, 1, 9)) == "0.0"
    assert TITLES.keys() >= COUNTS


def test_summary_of_nothing():
    assert report.summary(xr.Dataset()) == []


def test_summary_without_finite_values():
    coordinates = {"algorithm": ["a"], "seed": [0], "evaluated_round": [5]}
    dimensions = ("algorithm", "seed", "evaluated_round")
    (row,) = report.summary(xr.Dataset({"m": (dimensions, np.full((1, 1, 1), np.nan))}, coordinates))
    assert (row.seeds, math.isnan(row.mean), cell(row)) == (0, True, "–")


def test_legends_say_what_diverged():
    metrics, records = results()
    metrics["diverged"][1, 0] = 3
    label = str(metrics["algorithm"].values[1])
    for figure in (report.picture(metrics, records), *report.figures(metrics, records).values()):
        texts = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        assert all((text == f"{label} (diverged)") == text.startswith(label) for text in texts)
        assert not any(text.endswith("(diverged)") for text in texts if not text.startswith(label))


def test_figures_draw_what_is_there():
    metrics, records = results()
    drawn = report.figures(metrics, records)
    assert {
        "incentivised_participation_rate",
        "test_accuracy",
        "unseen_test_accuracy",
        "gap",
        "weight",
    } < set(drawn)
    assert "gap" not in report.figures(metrics, xr.Dataset())
    few = report.figures(metrics[["average_accuracy"]], records[["weight"]])
    assert set(few) == {"average_accuracy", "weight"}


def test_scores_that_were_asked_for_are_drawn():
    metrics, records = results(seeds=2, clients=4)[0][["diverged"]], xr.Dataset()
    metrics = metrics.assign_coords(evaluated_round=np.arange(6))
    by_client = np.full((2, 2, 6, 4), np.nan)
    by_client[:, :, -1] = np.linspace(0.5, 0.9, 16).reshape(2, 2, 4)
    by_client[0, 0, -1, 0] = np.nan  # its rows have one class only
    scalar = ("algorithm", "seed", "evaluated_round")
    metrics["score_mae"] = ((*scalar, "client"), by_client)
    metrics["pooled_score_mae"] = (scalar, by_client[..., 1] + 5, {"lower": 1})
    drawn = report.figures(metrics, records)
    assert "pooled_score_mae" not in drawn  # a curve needs two evaluations
    (axes,) = drawn["score_mae"].axes
    curves = [line for line in axes.lines if line.get_label() in ("fedavg", "incfl")]
    assert [len(np.asarray(line.get_xdata())) - 1 for line in curves] == [7, 8]
    lines = [float(np.asarray(line.get_xdata())[0]) for line in axes.lines if line not in curves]
    np.testing.assert_allclose(lines, by_client[:, :, -1, 1].mean(axis=1) + 5)
    assert axes.get_xlabel().startswith("lower is better")
    metrics["pooled_score_mae"][:, :, 0] = 6.0
    (axes,) = report.figures(metrics, records)["pooled_score_mae"].axes
    assert not axes.yaxis.get_major_formatter()(5.5).endswith("%")  # type: ignore[operator]


def test_the_pool_is_drawn_where_clients_may_leave():
    metrics, records = results(rounds=8)
    pool = np.arange(2 * 3 * 8.0).reshape(2, 3, 8)
    records["pool_size"] = (("algorithm", "seed", "round"), pool)
    axes = report.figures(metrics, records)["pool_size"].axes[0]
    means = [line for line in axes.lines if line.get_label() in ("fedavg", "incfl")]
    np.testing.assert_allclose(np.array([line.get_ydata() for line in means], float), pool.mean(axis=1))


@pytest.mark.in_turn
@pytest.mark.parametrize("missing", ["fedavg", "incfl"])
def test_figures_with_nan_and_absent_algorithms(missing):
    metrics, records = results(evaluations=1, seeds=1)
    metrics["test_accuracy"].loc[{"algorithm": missing}] = np.nan
    metrics["average_accuracy"].loc[{"algorithm": missing}] = np.nan
    for figure in report.figures(metrics, records.drop_sel(algorithm=missing)).values():
        figure.canvas.draw()


def test_drawing_leaves_pyplot_alone():
    import matplotlib
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    before = matplotlib.rcParams.copy()
    report.picture(*results())
    assert pyplot.get_fignums() == []
    assert matplotlib.rcParams == before


def test_write(tmp_path):
    metrics, records = results(seeds=2, rounds=10)
    metrics["diverged"][1, 1] = 7
    metrics["diverged_by"] = (("algorithm", "seed", "client"), np.zeros((2, 2, metrics.sizes["client"]), np.int8))
    metrics["diverged_by"][1, 1, 0] = 1
    metrics, records = (
        metrics[["average_accuracy", "diverged", "diverged_by"]],
        records[["weight"]],
    )  # few pictures: it is quicker
    save(tmp_path, metrics, records)
    (tmp_path / "config.toml").write_text('name = "<b>"\n')
    image, page = report.write(tmp_path)
    assert image.read_bytes().startswith(b"\x89PNG")
    text = page.read_text(encoding="utf-8")
    assert "incfl, seed 1: diverged in round 7, in which client 0 sent values that are not finite." in text
    assert "<th>Diverged</th>" in text
    assert "<td>1 of 2 seeds, round 7</td>" in text
    assert "&lt;b&gt;" in text
    assert not re.search(r'(src|href)="(?!data:)', text)


@pytest.mark.in_turn
def test_the_picture_is_drawn_once_for_file_and_page(tmp_path, monkeypatch):
    metrics, records = results(seeds=2, clients=5, unseen=4, rounds=10)
    metrics, records = metrics[["average_accuracy", "seconds_train", "diverged"]], records[["weight"]]
    drawings, draw = [], Figure.draw

    def counted(figure, renderer):
        drawings.append(figure)
        return draw(figure, renderer)

    monkeypatch.setattr(Figure, "draw", counted)
    path, page = report.write(tmp_path, Results(metrics, records))
    assert len(drawings) == 1
    (shown,) = re.findall(r'<img alt="([^"]*)" src="data:image/png;base64,([^"]*)">', page.read_text(encoding="utf-8"))
    assert base64.b64decode(shown[1]) == path.read_bytes()
    assert shown[0] == "Average accuracy, seen clients; Weight of the clients that train; Time for all seeds"
    written = page.read_bytes(), path.read_bytes()
    save(tmp_path, metrics, records)
    path, page = report.write(tmp_path)  # reads the results
    assert (page.read_bytes(), path.read_bytes()) == written


def test_a_page_without_numbers_has_no_picture(tmp_path):
    metrics, records = results(seeds=2, clients=5, unseen=4, rounds=10)
    report.write_page(tmp_path / "x.html", metrics[["diverged"]], records[[]], "none", {})
    assert "<img" not in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_write_where_there_is_no_run(tmp_path):
    with pytest.raises(ValueError, match="expected a run folder"):
        report.write(tmp_path)


LONG = (
    "incfl with the softplus surrogate and eps = 1e-8",
    "fedavg weighted by the number of samples of a client",
    "fedprox with a proximal term of 0.01 and momentum",
    "my_algorithms:moon",
    "costs $5 or $10 per round",
    "_personalised model after five tuning steps",
)
HEADING = "a-very-long-name-that-somebody-chose-for-a-run-of-six-algorithms-on-two-data-sets-with-three-seeds-each"


def drawn_outside(figure: Figure) -> list[str]:
    """Texts that stick out of the picture, as it is saved; numbers of ticks beyond an axis are there but not drawn."""
    figure.draw_without_rendering()
    whole = figure.bbox
    found = []
    for text in figure.findobj(Text):
        if text.get_visible() and re.search("[a-z]", text.get_text()):
            box = text.get_window_extent()
            if box.x0 < whole.x0 - 1 or box.x1 > whole.x1 + 1 or box.y0 < whole.y0 - 1 or box.y1 > whole.y1 + 1:
                found.append(text.get_text())
    return found


def legend_of(figure: Figure) -> list[str]:
    return [" ".join(text.get_text().replace(r"\$", "$").split()) for text in figure.legends[0].get_texts()]


@pytest.mark.thorough
def test_six_long_labels_fit_into_every_picture():
    metrics, records = results(LONG, seeds=2, clients=5, unseen=4, rounds=10)
    for name, figure in drawing.figures(metrics, records).items():
        assert drawn_outside(figure) == [], name
    whole = drawing.picture(metrics, records, HEADING)
    assert drawn_outside(whole) == []
    assert [label for label in legend_of(whole) if label != "standalone model"] == list(LONG)


@pytest.mark.thorough
def test_short_labels_stand_side_by_side():
    metrics, records = results(("a", "b", "c"), seeds=2, clients=5, unseen=4, rounds=10)
    figure = drawing.picture(metrics, records)
    figure.draw_without_rendering()
    heights = {round(text.get_window_extent().y0) for text in figure.legends[0].get_texts()}
    assert len(heights) == 1


def test_the_check_of_pictures_sees_what_is_clipped():
    figure = Figure(figsize=(2, 2))
    figure.text(0.9, 0.5, "far too long for this picture")
    assert drawn_outside(figure) == ["far too long for this picture"]


def test_labels_are_drawn_letter_by_letter():
    """A picture with dollar signs is as wide as one with other letters of their width, and none is left out."""
    figure = Figure()
    for label in ("$5_6$", "$a^b$", "a_b^c", "_hidden"):
        shown = figure.text(0.5, 0.5, printable(label)).get_window_extent().height
        words = figure.text(0.5, 0.5, label.replace("$", "S").replace("^", "l"))
        assert shown <= words.get_window_extent().height + 3, label  # an exponent would stand above
    assert not printable("_hidden").startswith("_")
    assert printable("a b c", 3) == "a b\nc"


def test_many_methods_have_different_styles() -> None:
    looks = styles([f"method {place}" for place in range(36)])
    assert len(set(looks.values())) == 36


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "50%"), (0.7756, "77.56%"), (0.77565, "77.565%"), (-1e-12, "0%"), (1, "100%"), (-0.2, "-20%")],
)
def test_ticks_of_shares_have_the_digits_that_they_need(value: float, text: str) -> None:
    assert percent(value) == text


def test_weights_are_drawn_as_shares_of_their_round() -> None:
    """INCFL's weights do not sum to 1; FedAvg's do."""
    metrics, records = made_up(("fedavg", "incfl"))
    for scale in (1.0, 50.0):
        panel = drawing.panels(metrics, records.assign(weight=records["weight"] * scale))["weight"]
        axes = Figure().add_subplot()
        panel(axes)
        drawn = np.concatenate([np.asarray(line.get_ydata()) for line in axes.lines])
        if scale == 1:
            expected = drawn
        np.testing.assert_allclose(drawn, expected)
    assert 0 < expected.min() < expected.max() < 1
