import types

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from gtrxl_jax.plots import curves, report
from gtrxl_jax.plots.curves import (
    plot_learning_curves,
    plot_success_against_horizon,
    plot_success_panels,
)
from gtrxl_jax.plots.style import COLORS, assign_styles

HORIZONS = [8, 16, 32, 64]
STEPS = np.linspace(0, 1e6, 20)


def make_curves(seeds=4, points=20):
    return np.random.default_rng(seeds).uniform(size=(seeds, points))


@pytest.fixture
def drawn(monkeypatch):
    """Return a function that returns the first axes of the last saved figure."""
    figures = []
    original = curves.save_figure
    monkeypatch.setattr(
        curves, "save_figure", lambda *args: figures.append(args[0]) or original(*args)
    )
    return lambda: figures[-1].axes[0]


def lines(axes):
    """Return the lines in the legend, by label."""
    return {
        line.get_label(): line for line in axes.get_lines() if line.get_label()[:1] not in ("", "_")
    }


@pytest.mark.parametrize("middle", ["median", "IQM"])
def test_learning_curves_of_seeds_and_middle(tmp_path, drawn, middle):
    y_SN = make_curves(5)
    plot_learning_curves({"GTrXL": y_SN}, STEPS, tmp_path / "a.png", middle=middle)
    *seeds, line = drawn().get_lines()
    for seed, y_N in zip(seeds, y_SN, strict=True):
        np.testing.assert_array_equal(seed.get_xydata(), np.stack([STEPS, y_N], axis=1))
        assert seed.get_linewidth() < line.get_linewidth()
    assert line.get_label() == "GTrXL (5 seeds)"
    expected = np.median(y_SN, 0) if middle == "median" else stats.trim_mean(y_SN, 0.25)
    np.testing.assert_allclose(line.get_xydata(), np.stack([STEPS, expected], axis=1))
    assert not drawn().collections  # no band, which could exceed [0, 1]
    (legend,) = drawn().figure.legends
    assert legend.get_title().get_text() == f"{middle}; thin: each seed"


def test_single_point_is_visible(tmp_path, drawn):
    once = np.where(np.arange(20) == 19, 0.5, np.nan)
    plot_learning_curves({"a": make_curves(1), "b": once[None]}, STEPS, tmp_path / "a.png")
    assert [line.get_marker() for line in drawn().get_lines()] == ["", "o"]


def test_empty_middle_draws_only_seeds(tmp_path, drawn):
    plot_learning_curves({"GTrXL": make_curves(3)}, STEPS, tmp_path / "a.png", middle="")
    assert len(drawn().get_lines()) == 3
    (legend,) = drawn().figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["GTrXL (3 seeds)"]
    assert legend.get_title().get_text() == "each seed"
    with pytest.raises(ValueError, match="unknown middle 'mean': did you mean 'median'"):
        plot_learning_curves({"GTrXL": make_curves(3)}, STEPS, tmp_path / "b.png", middle="mean")


def test_one_seed_is_one_line(tmp_path, drawn):
    plot_learning_curves(
        {"LSTM": make_curves(1)}, STEPS, tmp_path / "a.png", y_limits=(0, 1), chance=0.5
    )
    assert [line.get_label() for line in drawn().get_lines()] == ["LSTM (1 seed)", "chance"]
    assert drawn().get_ylim() == (0, 1)


def test_nan_points_and_separate_x(tmp_path, drawn):
    a_SN, b_SN = make_curves(2, 5), make_curves(3, 4)
    a_SN[1, 2] = np.nan
    plot_learning_curves(
        {"a": a_SN, "b": b_SN}, {"a": np.arange(5), "b": [0, 10, 20, 30]}, tmp_path / "a.png"
    )
    np.testing.assert_array_equal(lines(drawn())["a (2 seeds)"].get_xdata(), [0, 1, 3, 4])
    np.testing.assert_array_equal(drawn().get_lines()[0].get_xdata(), np.arange(5))
    np.testing.assert_array_equal(lines(drawn())["b (3 seeds)"].get_xdata(), [0, 10, 20, 30])


def test_horizon_ticks_and_shaded_span(tmp_path, drawn):
    results = {"GTrXL": make_curves(3, 4), "LSTM": make_curves(5, 4)}
    plot_success_against_horizon(results, HORIZONS, tmp_path / "a.png", span=24, chance=0.5)
    axes = drawn()
    assert set(lines(axes)) == {"GTrXL (3 seeds)", "LSTM (5 seeds)", "chance"}
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "16", "32", "64"]
    shade = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert shade.x0 == pytest.approx(axes.get_xlim()[0])
    assert shade.x1 == pytest.approx(24)
    assert [text.get_text() for text in axes.texts] == ["within one layer's memory (24 steps)"]


def test_seed_markers_are_offset_by_label(tmp_path, drawn):
    results = {"GTrXL": make_curves(3, 4), "LSTM": make_curves(5, 4)}
    plot_success_against_horizon(results, HORIZONS, tmp_path / "a.png")
    seeds_a, a, seeds_b, b = drawn().get_lines()
    for values, seeds, line in ((results["GTrXL"], seeds_a, a), (results["LSTM"], seeds_b, b)):
        np.testing.assert_array_equal(seeds.get_ydata(), values.ravel())
        np.testing.assert_array_equal(seeds.get_xdata(), np.tile(line.get_xdata(), len(values)))
        np.testing.assert_allclose(line.get_ydata(), np.median(values, axis=0))
    assert np.all(a.get_xdata() < HORIZONS)
    assert np.all(b.get_xdata() > HORIZONS)
    np.testing.assert_allclose(a.get_xdata() * b.get_xdata(), np.square(HORIZONS))


def test_nan_results_are_omitted(tmp_path, drawn):
    values = make_curves(3, 4)
    values[1:, 2], values[:, 3] = np.nan, np.nan
    plot_success_against_horizon({"GTrXL": values}, HORIZONS, tmp_path / "a.png")
    line = lines(drawn())["GTrXL (3 seeds)"]
    np.testing.assert_allclose(line.get_xdata(), HORIZONS[:3])
    np.testing.assert_allclose(line.get_ydata(), [*np.median(values[:, :2], 0), values[0, 2]])


def test_panels_share_axes_and_legend(tmp_path, drawn):
    results = {
        title: {"a": make_curves(3, 4), "b": make_curves(2, 4)} for title in ("x", "y", "z", "u")
    }
    published = {"y": {"a": (HORIZONS[:2], [0.5, 0.7])}}
    plot_success_panels(results, HORIZONS, tmp_path / "a.png", published=published, chance=0.5)
    figure = drawn().figure
    shown = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title() for axes in shown] == list(results)
    assert len({axes.get_ylim() for axes in shown}) == 1
    assert [line.get_color() for line in lines(shown[3]).values()][:2] == list(COLORS[:2])
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["a (3 seeds)", "b (2 seeds)", "chance", "a (published)"]
    with pytest.raises(ValueError, match="no runs to draw"):
        plot_success_panels({}, HORIZONS, tmp_path / "b.png")


@pytest.mark.parametrize("draw", ["learning", "horizon"])
def test_png_has_colors_and_outside_legend(tmp_path, drawn, draw):
    path = tmp_path / "new" / "folder" / "a.png"
    runs = {name: make_curves(3, 4) for name in "abcdefg"}
    if draw == "learning":
        plot_learning_curves(runs, HORIZONS, path)
    else:
        plot_success_against_horizon(runs, HORIZONS, path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.size == (1300, 640)
        pixels = {color for _, color in image.convert("RGB").getcolors(1 << 24)}
    assert {tuple(bytes.fromhex(color[1:])) for color in COLORS} <= pixels
    (legend,) = drawn().figure.legends
    assert legend.get_window_extent().x0 >= drawn().get_window_extent().x1
    assert list(path.parent.iterdir()) == [path]


def test_figure_grows_with_its_legend(tmp_path, drawn):
    """Otherwise matplotlib warns that nothing remains of the axes."""
    labels = [f"agent {n}, " + ", ".join(["learning_rate 0.001"] * 8) for n in range(12)]
    plot_learning_curves(dict.fromkeys(labels, make_curves()), STEPS, tmp_path / "a.png")
    figure = drawn().get_figure()
    (legend,) = figure.legends
    canvas, axes, box = figure.bbox, drawn().get_window_extent(), legend.get_window_extent()
    assert axes.width > canvas.width / 3
    assert axes.x1 < box.x0
    assert canvas.y0 <= box.y0 < box.y1 <= canvas.y1


def test_equal_data_give_identical_files(tmp_path):
    for name in "ab":
        plot_learning_curves({"GTrXL": make_curves()}, STEPS, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_looks_are_distinct_for_many_labels():
    given = [tuple(look.items()) for _, look in assign_styles(map(str, range(4 * len(COLORS))))]
    assert len(set(given)) == len(given)


@pytest.mark.parametrize(
    "y", [np.zeros(4), np.zeros((2, 3)), np.zeros((0, 4)), np.zeros((1, 2, 4))]
)
@pytest.mark.parametrize("draw", [plot_learning_curves, plot_success_against_horizon])
def test_curves_of_wrong_shape_raise(tmp_path, draw, y):
    with pytest.raises(
        ValueError, match=r"curves of 'LSTM' must be \[seeds, points\].*and x \[4\]"
    ):
        draw({"LSTM": y}, HORIZONS, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("draw", [plot_learning_curves, plot_success_against_horizon])
def test_empty_runs_raise(tmp_path, draw):
    with pytest.raises(ValueError, match="no runs to draw"):
        draw({}, HORIZONS, tmp_path / "a.png")


@pytest.mark.parametrize(
    "horizons", [[0, 1, 2, 3], [1, 2, np.nan, 4], [8, 16, 16, 32], [64, 32, 16, 8], [[1, 2, 3, 4]]]
)
def test_invalid_horizons_raise(tmp_path, horizons):
    with pytest.raises(ValueError, match="horizons must be positive and increasing"):
        plot_success_against_horizon({"LSTM": make_curves(2, 4)}, horizons, tmp_path / "a.png")


@pytest.mark.parametrize(("last", "label"), [(0.1, "log10 of the loss"), (-1.0, "loss")])
def test_losses_that_are_not_positive_have_a_linear_axis(drawn, tmp_path, monkeypatch, last, label):
    metrics = {"step": np.arange(3), "loss": np.array([100.0, np.nan, last])}
    monkeypatch.setattr(report, "read_metrics", lambda _: metrics)
    result = types.SimpleNamespace(per_seed={})
    monkeypatch.setattr(report, "status_of", lambda _: types.SimpleNamespace(result=result))
    assert report.draw_offline(tmp_path, [tmp_path / "cql"]) == [tmp_path / "loss.png"]
    assert drawn().get_ylabel() == label
    first, *_, end = drawn().get_lines()[0].get_ydata()
    assert (first, end) == ((2.0, -1.0) if last > 0 else (100.0, -1.0))


def test_custom_algorithm_without_a_loss_has_no_figure_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "read_metrics", lambda _: {"step": np.arange(3)})
    result = types.SimpleNamespace(per_seed={})
    monkeypatch.setattr(report, "status_of", lambda _: types.SimpleNamespace(result=result))
    assert report.draw_offline(tmp_path, [tmp_path / "custom"]) == []
