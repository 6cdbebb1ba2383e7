"""Pictures of what a cache holds, by matplotlib: which heads got how much of a budget, and where merged entries lie.

    ax = kvmeld.plots.lengths(cache)
    ax.figure.savefig("lengths.png")
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

import kvmeld

try:
    import matplotlib
    from matplotlib.collections import LineCollection
    from matplotlib.colors import ListedColormap, LogNorm
    from matplotlib.ticker import MaxNLocator
except ImportError as e:
    raise ImportError("kvmeld.plots needs matplotlib: pip install matplotlib") from e

__all__ = ["degrees", "lengths"]

_NUMBERED = 150  # cells of a heat map that have room for a number each


def _held(cache: Any) -> kvmeld.Cache:
    found = getattr(cache, "cache", cache)  # of kvmeld.hf.KVMeldCache
    if not isinstance(found, kvmeld.Cache):
        raise ValueError(f"plots: cache is {cache!r}; it must be a kvmeld.Cache, or a KVMeldCache after a first pass")
    return found


def _axes(ax: Optional[Any], width: float, height: float) -> Any:
    if ax is not None:
        return ax
    from matplotlib import pyplot  # only here: it chooses a backend

    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def lengths(cache: Any, sequence: int = 0, *, ax: Optional[Any] = None) -> Any:
    """Draws the lengths of a sequence's tracks as a heat map, layers by KV heads, with a colour bar; returns the axes.

    cache: a kvmeld.Cache or a kvmeld.hf.KVMeldCache. Only read.
    ax: matplotlib axes to draw on; those of a new figure of pyplot without it.

    Colours begin at 0, so that equal budgets look equal. Maps of up to 150 tracks have their numbers in them. Raises
    ValueError if there is no such sequence.
    """
    cache = _held(cache)
    found, tokens = cache.lengths(sequence), cache.tokens(sequence)
    ax = _axes(ax, 1.8 + max(2.6, 0.45 * cache.kv_heads), 1.2 + max(1.8, 0.17 * cache.layers))
    image = ax.imshow(found, cmap="viridis", aspect="auto", vmin=0, vmax=max(1, found.max(initial=1)))
    if found.size <= _NUMBERED:
        for (layer, head), n in np.ndenumerate(found):
            ax.text(head, layer, n, ha="center", va="center", fontsize=7,
                    color="black" if n > 0.6 * found.max() else "white")
    ax.figure.colorbar(image, ax=ax, label="entries")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set(xlabel="KV head", ylabel="layer")
    share = found.sum() / max(1, tokens * found.size)
    ax.set_title(f"entries of sequence {sequence}: {share:.1%} of {tokens:,} tokens", fontsize="medium")
    return ax


def degrees(cache: Any, layer: int = 0, sequence: int = 0, *, ax: Optional[Any] = None) -> Any:
    """Draws the entries of one layer of a sequence: a line at each entry's token position, a row for each KV head,
    colours for degrees, with a colour bar; returns the axes.

    cache: a kvmeld.Cache or a kvmeld.hf.KVMeldCache. Only read.
    ax: matplotlib axes to draw on; those of a new figure of pyplot without it.

    White gaps are tokens that were evicted or merged into another entry. Where lines overlap, the highest degree is on
    top. Empty slots (degree 0) are not drawn. Raises ValueError if there is no such sequence or layer.
    """
    cache = _held(cache)
    rows = [(cache.positions(layer, sequence, head), cache.degrees(layer, sequence, head))
            for head in range(cache.kv_heads)]
    at, degree = (np.concatenate(parts) for parts in zip(*rows))
    head = np.repeat(np.arange(cache.kv_heads), [len(positions) for positions, _ in rows])
    order = np.argsort(degree, kind="stable")
    order = order[degree[order] > 0]
    at, degree, head = at[order], degree[order], head[order]
    ax = _axes(ax, 8, 1.4 + 0.3 * cache.kv_heads)
    most = max(2, degree.max(initial=1))
    colours = ListedColormap(matplotlib.colormaps["YlGnBu"](np.linspace(0.35, 1, 256)))  # without what is nearly white
    ends = np.stack([np.stack([at, head - 0.4], 1), np.stack([at, head + 0.4], 1)], 1)  # [entries, 2, (x, y)]
    lines = LineCollection(ends, cmap=colours, norm=LogNorm(1, most), linewidths=1)
    lines.set_array(degree)
    ax.add_collection(lines)
    ticks = 2.0 ** np.arange(np.log2(most) // 1 + 1)
    bar = ax.figure.colorbar(lines, ax=ax, label="degree (tokens per entry)", ticks=ticks, format="{x:g}")
    bar.ax.minorticks_off()
    ax.set(xlim=(-0.5, max(1, cache.tokens(sequence)) - 0.5), ylim=(cache.kv_heads - 0.5, -0.5),
           xlabel="token position", ylabel="KV head")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_title(f"layer {layer} of sequence {sequence}: {len(degree):,} entries stand for {degree.sum():,.0f} of "
                 f"{cache.tokens(sequence) * cache.kv_heads:,} tokens", fontsize="medium")
    return ax
