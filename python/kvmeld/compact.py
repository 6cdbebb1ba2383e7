"""kvmeld.compact: one call that shrinks the KV cache of one sequence into new, shorter tensors."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from kvmeld.cache import Cache, _index, _ndim, _refusal, _rotation, _scale, _type_refusal


def compact(
    queries: Any,
    keys: Any,
    values: Any,
    n: int,
    policy: str,
    *,
    scale: Optional[float] = None,
    rope: str = "none",
    rope_base: float = 10000.0,
    frequencies: Any = None,
) -> tuple[Any, Any, np.ndarray, np.ndarray]:
    """Shrinks one sequence to n entries per layer and head; returns keys, values, positions and degrees.

    queries: [layers, query_heads, rows, head_dim], the last queries of the sequence, rotated as for attention; None for
        policies that need none. Only read.
    keys, values: [layers, kv_heads, tokens, head_dim], NumPy arrays or tensors of PyTorch in host memory or (if
        kvmeld was built with CUDA) on a CUDA device, float32, float16 or bfloat16. Only read.
    n: entries to keep in each head, 1 to the number of tokens.
    scale: of the logits; 1 / sqrt(head_dim) without it.
    rope, rope_base, frequencies: how keys lie rotated, as in Cache.renumber. Policies that turn keys back are told it,
        and the returned keys are turned from the positions of their tokens to 0 to n - 1, which changes logits. If
        all degrees are 1 (policies that only evict), the result is an ordinary cache of n tokens. With "none" keys
        stay as they lie, and a policy that turns keys back needs the words rope= and rope_base= in its text.

    The returned keys and values have the library and element type of the arguments, and the shape [layers, kv_heads, n,
    head_dim]. positions are those of the tokens in the arguments, int32; degrees are float32. Both are NumPy [layers,
    kv_heads, n]. Attention has to add the natural logarithm of an entry's degree to its logits. Needs memory for a copy
    of keys and values while it runs, and uses as many threads as this process may use. Different threads may call it at
    the same time.
    Raises ValueError if the policy does not leave n entries of every head.
    """
    for name, x in (("keys", keys), ("values", values), ("queries", queries)):
        if _ndim(x) != 4 and (x is not None or name != "queries"):
            raise _type_refusal(name, x, "a tensor of four dimensions" + (", or None" if name == "queries" else ""))
    if not 0 < _index(n, "n") <= keys.shape[2]:
        raise _refusal("n", n, f"1 to {keys.shape[2]}, the tokens in keys")

    _rotation(rope, rope_base, frequencies)
    _scale(scale)

    layers, heads = keys.shape[:2]
    if queries is not None and (queries.shape[0] != layers or queries.shape[1] % heads or not queries.shape[1]):
        raise _refusal("queries", f"of shape {tuple(queries.shape)}",
                       f"of shape [{layers}, query_heads, rows, head_dim], with a multiple of {heads} query heads")

    def copied(x: Any) -> Any:
        return x.detach().clone() if hasattr(x, "detach") else np.array(x)

    keys, values = copied(keys)[:, None], copied(values)[:, None]  # [layers, 1, kv_heads, tokens, head_dim]
    group = 1 if queries is None else queries.shape[1] // heads
    told = {}
    if rope != "none":
        told = {"rope": rope, "rope_base": rope_base if frequencies is None else None, "frequencies": frequencies}
    with Cache(keys, values, policy, queries_per_kv_head=group, **told) as cache:
        cache.open(0, keys.shape[3])
        if queries is not None:
            for layer in range(cache.layers):
                cache.observe(layer, 0, queries[layer], scale=scale)
        cache.compress(0, n)
        lengths = cache.lengths(0)
        if (lengths != n).any():
            raise _refusal("policy", f"{policy!r}, which left {lengths.min()} to {lengths.max()} entries of a head",
                           f"one that leaves {n}")
        tracks = [[(layer, 0, head) for head in range(cache.kv_heads)] for layer in range(cache.layers)]
        positions, degrees = (
            np.array([[read(*track) for track in layer] for layer in tracks])
            for read in (cache.positions, cache.degrees)
        )
        if rope != "none":
            cache.renumber(0, rope, rope_base, frequencies)
    return copied(keys[:, 0, :, :n]), copied(values[:, 0, :, :n]), positions, degrees
