"""kvmeld.plots: what is drawn is what the cache holds."""

import importlib
import sys

import numpy as np
import pytest

import kvmeld

LAYERS, HEADS, TOKENS = 3, 2, 60


def made(policy, tokens=TOKENS, layers=LAYERS, **options):
    rng = np.random.default_rng(0)
    keys, values = (rng.standard_normal((layers, 2, HEADS, 64, 8)).astype(np.float32) for _ in range(2))
    cache = kvmeld.Cache(keys, values, policy, **options)
    cache.open(1, tokens)
    return cache


@pytest.fixture
def plots():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    yield importlib.import_module("kvmeld.plots")
    from matplotlib import pyplot

    pyplot.close("all")


def test_lengths_are_a_heat_map_with_numbers(plots):
    cache = made("knorm", over="all_layers")
    cache.compress(1, 20, over="all_layers")
    lengths = cache.lengths(1)
    assert len(set(lengths.flatten().tolist())) > 1
    ax = plots.lengths(cache, 1)
    assert np.array_equal(ax.images[0].get_array(), lengths)
    assert ax.images[0].get_clim() == (0, lengths.max())
    assert {t.get_position(): int(t.get_text()) for t in ax.texts} == {
        (head, layer): n for (layer, head), n in np.ndenumerate(lengths)
    }
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("KV head", "layer")
    assert ax.get_title() == "entries of sequence 1: 33.3% of 60 tokens"
    ax.figure.canvas.draw()


def test_a_large_map_has_no_numbers(plots):
    assert not plots.lengths(made("knorm", layers=80), 1).texts


def test_degrees_are_lines_at_positions(plots):
    cache = made("chelsea")
    cache.compress(1, 20)
    ax = plots.degrees(cache, 2, 1)
    (lines,) = ax.collections
    drawn = sorted(
        (round(float(ends[:, 1].mean())), int(ends[0, 0]), float(degree))
        for ends, degree in zip(lines.get_segments(), lines.get_array())
    )
    expected = [
        (head, int(at), float(degree))
        for head in range(HEADS)
        for at, degree in zip(cache.positions(2, 1, head), cache.degrees(2, 1, head))
    ]
    assert drawn == sorted(expected) and max(degree for *_, degree in drawn) > 1
    assert (np.diff(lines.get_array()) >= 0).all()  # the highest on top
    assert lines.norm.vmin == 1 and lines.norm.vmax == max(degree for *_, degree in drawn)
    assert ax.get_xlim() == (-0.5, 59.5)
    assert ax.get_title() == "layer 2 of sequence 1: 40 entries stand for 120 of 120 tokens"
    ax.figure.canvas.draw()


def test_empty_slots_are_not_drawn(plots):
    cache = made("knorm", over="layer", padded=True)
    cache.compress(1, 20, over="layer")
    held = [cache.degrees(0, 1, head) for head in range(HEADS)]
    assert any((degrees == 0).any() for degrees in held)
    lines = plots.degrees(cache, 0, 1).collections[0]
    assert len(lines.get_segments()) == sum((degrees > 0).sum() for degrees in held)


def test_axes_of_the_caller_are_drawn_on_and_returned(plots):
    from matplotlib.figure import Figure

    mine = Figure().subplots(1, 2)
    assert plots.lengths(made("knorm"), 1, ax=mine[0]) is mine[0] and mine[0].images
    assert plots.degrees(made("knorm"), 0, 1, ax=mine[1]) is mine[1] and mine[1].collections
    mine[0].figure.canvas.draw()


def test_a_sequence_without_tokens(plots):
    for ax in (plots.lengths(made("knorm", tokens=0), 1), plots.degrees(made("knorm", tokens=0), 0, 1)):
        ax.figure.canvas.draw()


def test_a_cache_of_transformers(plots):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    hf = importlib.import_module("kvmeld.hf")
    config = transformers.LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
                                      num_attention_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    cache = hf.KVMeldCache(model, "chelsea")
    with pytest.raises(ValueError, match="^plots: cache is .*; it must be a kvmeld.Cache, or a KVMeldCache after"):
        plots.lengths(cache)
    with torch.inference_mode():
        model(torch.arange(40)[None], past_key_values=cache)
    cache.compress(20)
    assert np.array_equal(plots.lengths(cache).images[0].get_array(), np.full((2, 2), 20))
    assert len(plots.degrees(cache, 1).collections[0].get_segments()) == 40


def test_what_is_refused(plots):
    with pytest.raises(ValueError, match="^plots: cache is None"):
        plots.lengths(None)
    with pytest.raises(ValueError, match="sequence"):
        plots.lengths(made("knorm"), 2)
    with pytest.raises(ValueError, match="layer"):
        plots.degrees(made("knorm"), LAYERS, 1)


def test_without_matplotlib_the_import_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "kvmeld.plots", raising=False)
    with pytest.raises(ImportError, match="kvmeld.plots needs matplotlib: pip install matplotlib"):
        importlib.import_module("kvmeld.plots")
