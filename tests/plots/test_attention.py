import types

import numpy as np
import pytest
from PIL import Image

from gtrxl_jax.plots import attention
from gtrxl_jax.plots.attention import plot_attention_map, plot_attention_over_episode
from gtrxl_jax.plots.report import _draw_attention
from gtrxl_jax.plots.style import COLORS

STRONGEST = (253, 231, 36)  # the end of viridis
CUE = tuple(bytes.fromhex(COLORS[1][1:]))
UNSEEN = (221, 221, 221)


@pytest.fixture
def see(tmp_path, monkeypatch):
    """Draw a figure, and locate a color in its PNG, in coordinates of the first panel.

    Pixels up to `beyond` above or below the panel are included.
    """
    figures = []
    original = attention.save_figure
    monkeypatch.setattr(
        attention, "save_figure", lambda *args: figures.append(args[0]) or original(*args)
    )

    def draw(function, weights, **options):
        function(weights, tmp_path / "a.png", **options)
        with Image.open(tmp_path / "a.png") as image:
            assert image.format == "PNG"
            pixels = np.asarray(image.convert("RGB")).astype(int)[::-1]  # from the bottom, as axes
        axes = figures[-1].axes[0]

        def find(color, beyond=0):
            box = axes.get_window_extent()
            rows, columns = (np.abs(pixels - color) <= 2).all(axis=-1).nonzero()
            points = np.stack([columns, rows], axis=1) + 0.5
            inside = (points[:, 0] > box.x0 - 8) & (points[:, 0] < box.x1 + 8)
            inside &= (points[:, 1] > box.y0 - beyond) & (points[:, 1] < box.y1 + beyond)
            return axes.transData.inverted().transform(points[inside]).T

        return find

    return draw


def middle(values):
    return (values.min() + values.max()) / 2


@pytest.mark.parametrize("ago", [0, 3, 8])
def test_map_marks_attended_step(see, ago):
    weights_LHW = np.zeros((3, 2, 9))
    weights_LHW[:, :, 8 - ago] = 1  # the last entry of the window is the step itself
    find = see(plot_attention_map, weights_LHW, cue=ago)
    attended_x, attended_y = find(STRONGEST)
    pointer_x, pointer_y = find(CUE, beyond=12)  # the triangles without the label
    assert middle(attended_x) == pytest.approx(ago, abs=0.02)
    assert middle(pointer_x) == pytest.approx(ago, abs=0.02)
    assert pointer_y.min() < attended_y.min() == pytest.approx(-0.5, abs=0.1)
    assert pointer_y.max() > attended_y.max() == pytest.approx(5.5, abs=0.1)


def test_layers_and_heads_are_ordered_rows(see):
    for layer, head in np.ndindex(2, 3):
        weights_LHW = np.full((2, 3, 5), 0.01)
        weights_LHW[layer, head, 2] = 0.9
        x, y = see(plot_attention_map, weights_LHW)(STRONGEST)
        assert middle(x) == pytest.approx(2, abs=0.02)
        assert middle(y) == pytest.approx(3 * layer + head, abs=0.05)


@pytest.mark.parametrize("place", [0, 1, 700, 1498, 1499])
def test_every_column_of_long_memory_is_visible(see, place):
    weights_LHW = np.zeros((1, 1, 1500))
    weights_LHW[0, 0, place] = 1
    x, _ = see(plot_attention_map, weights_LHW)(STRONGEST)
    assert middle(x) == pytest.approx(1499 - place, abs=1)


@pytest.mark.parametrize("cue", [0, 5, 12])
def test_episode_plot_has_absolute_times(see, cue):
    steps, memory = 16, 6
    last = min(cue + memory, steps - 1)
    weights_LHTW = np.zeros((1, 1, steps, memory + 1))
    for query in range(cue, last + 1):
        weights_LHTW[0, 0, query, memory - (query - cue)] = 1
    find = see(plot_attention_over_episode, weights_LHTW, cue=cue)
    x, y = find(STRONGEST)
    assert (x.min(), x.max()) == pytest.approx((cue - 0.5, cue + 0.5), abs=0.05)
    assert (y.min(), y.max()) == pytest.approx((cue - 0.5, last + 0.5), abs=0.05)
    assert middle(find(CUE, beyond=12)[0]) == pytest.approx(cue, abs=0.05)
    x, y = find(UNSEEN).round()
    assert (x > y).any()
    assert (x < y - memory).any()
    assert not ((y - memory <= x) & (x <= y)).any()


def test_short_episode_hides_only_future(see):
    x, y = see(plot_attention_over_episode, np.full((1, 1, 8, 33), 0.01))(UNSEEN).round()
    assert (x > y).all()
    assert set(zip(x, y, strict=True)) == {(x, y) for x in range(8) for y in range(x)}


def test_figure_grows_with_layers_and_heads(tmp_path):
    weights_LHTW = np.random.default_rng(0).dirichlet(np.ones(5), (3, 4, 6))
    sizes = {}
    for name, weights in {"all": weights_LHTW, "some": weights_LHTW[[2, 0]][:, [3]]}.items():
        plot_attention_over_episode(weights, tmp_path / f"{name}.png")
        with Image.open(tmp_path / f"{name}.png") as image:
            sizes[name] = image.size
            assert (np.asarray(image.convert("RGB")).std(axis=(0, 1)) > 10).all()
    assert sizes["some"][0] < sizes["all"][0]


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((2, 5), {}, r"weights must be \[layers, heads, window\]; got shape \[2, 5\]"),
        ((2, 0, 5), {}, r"must be \[layers, heads, window\]"),
        ((2, 2, 5), {"cue": 5}, "cue must be in 0 to 4, the range of the weights; got 5"),
        ((2, 2, 5), {"cue": -1}, "cue must be in 0 to 4"),
    ],
)
def test_invalid_map_arguments_raise(tmp_path, shape, options, message):
    with pytest.raises(ValueError, match=message):
        plot_attention_map(np.zeros(shape), tmp_path / "a.png", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [-0.1, 1.5, np.nan])
def test_weights_outside_unit_interval_raise(tmp_path, value):
    weights = np.full((1, 1, 2, 3), 0.5)
    weights[0, 0, 1, 1] = value
    with pytest.raises(ValueError, match="weights must be softmax outputs"):
        plot_attention_over_episode(weights, tmp_path / "a.png")


def test_cue_outside_episode_raises(tmp_path):
    with pytest.raises(ValueError, match="cue must be in 0 to 3"):
        plot_attention_over_episode(np.zeros((2, 3, 4, 3)), tmp_path / "a.png", cue=4)


@pytest.mark.usefixtures("unchecked")
def test_cue_in_the_last_observation_is_not_marked(tmp_path):
    """There it comes after the decision."""
    episode = types.SimpleNamespace(decision=2, cue=3)
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    assert _draw_attention(*paths, episode, np.full((1, 1, 4, 3), 1 / 3)) == paths
    assert all(path.exists() for path in paths)
