"""The plot of an algorithm's updates."""

import numpy as np
import pytest
from PIL import Image

from gtrxl_jax.plots import updates as module
from gtrxl_jax.plots.updates import plot_updates


def metrics_of_a_run(*seeds):
    rng = np.random.default_rng(0)
    names = ("psi/kl", "kl/mean", "kl/covariance", "entropy", "share/policy", "share/value")
    bounds = {"bound/psi": 0.1, "bound/mean": 0.05, "bound/covariance": 1e-3}
    return (
        {"step": np.arange(20) * 1000}
        | {name: rng.random((20, *seeds)) for name in names}
        | {name: np.full((20, *seeds), bound) for name, bound in bounds.items()}
    )


@pytest.mark.parametrize("seeds", [(), (3,)])
def test_panels_show_ratios_to_bounds(tmp_path, monkeypatch, seeds):
    figures = []
    monkeypatch.setattr(module, "save_figure", lambda figure, path: figures.append(figure))
    metrics = metrics_of_a_run(*seeds)
    plot_updates(metrics, tmp_path / "updates.png")
    kls, shares, entropy = figures[0].axes
    lines = {line.get_label(): line.get_ydata() for line in kls.lines}
    mean = metrics["kl/mean"].reshape(20, -1).mean(axis=1)
    np.testing.assert_allclose(lines["mean"], mean / 0.05)
    assert {"psi", "mean", "covariance"} <= lines.keys()
    assert [line.get_label() for line in shares.lines] == ["policy", "value"]
    expected = metrics["entropy"].reshape(20, -1).mean(axis=1)
    np.testing.assert_allclose(entropy.lines[0].get_ydata(), expected)


def test_seeds_have_their_own_bounds_and_may_diverge(tmp_path, monkeypatch):
    """As of `paper`, which draws the bounds; the mean is over the seeds that have not diverged."""
    figures = []
    monkeypatch.setattr(module, "save_figure", lambda figure, path: figures.append(figure))
    metrics = metrics_of_a_run(2)
    metrics["kl/mean"][:] = 0.02, 0.05
    metrics["bound/mean"][:] = 0.001, 0.1
    for values in metrics.values():
        if values.ndim == 2:
            values[10:, 1] = np.nan
    plot_updates(metrics, tmp_path / "updates.png")
    lines = {line.get_label(): line.get_ydata() for line in figures[0].axes[0].lines}
    np.testing.assert_allclose(lines["mean"], [(20 + 0.5) / 2] * 10 + [20] * 10)


def test_panels_of_ppo_show_its_kl_and_clipping(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(module, "save_figure", lambda figure, path: figures.append(figure))
    metrics = {
        name: values
        for name, values in metrics_of_a_run().items()
        if not name.startswith(("psi/", "bound/"))
    } | {"clip_fraction": np.linspace(0.1, 0.2, 20)}
    plot_updates(metrics, tmp_path / "updates.png")
    lines = {line.get_label(): line.get_ydata() for line in figures[0].axes[0].lines}
    assert list(lines) == ["KL, mean", "KL, covariance", "clipped"]
    np.testing.assert_allclose(lines["KL, mean"], metrics["kl/mean"])
    np.testing.assert_allclose(lines["clipped"], metrics["clip_fraction"])


def test_png_is_written(tmp_path):
    plot_updates(metrics_of_a_run(), tmp_path / "updates.png")
    with Image.open(tmp_path / "updates.png") as image:
        assert min(image.size) > 500


def test_missing_metrics_raise(tmp_path):
    metrics = metrics_of_a_run()
    del metrics["bound/psi"]
    with pytest.raises(ValueError, match=r"no \['bound/psi'\].*V-MPO"):
        plot_updates(metrics, tmp_path / "updates.png")
    assert not list(tmp_path.iterdir())
