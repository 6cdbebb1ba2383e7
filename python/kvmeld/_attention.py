"""Attention functions of transformers that hand a layer over to the cache whose keys they are given."""

from __future__ import annotations

import sys
from typing import Any

from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

__all__ = ["INNER", "PREFIX"]

PREFIX = "kvmeld_"  # of the names of these functions
INNER = ("eager", "sdpa")  # the names of those that compute


def _register(name: str) -> None:
    """An attention function that reads KVMeldCaches, and is that of transformers for all others."""

    def attention(  # kvpress hands dropout on by its place
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, dropout: float = 0.0, **kwargs: Any
    ) -> Any:
        inner = (
            ALL_ATTENTION_FUNCTIONS["sdpa"] if name == "sdpa"
            else sys.modules[type(module).__module__].eager_attention_forward
        )
        kwargs["dropout"] = dropout
        attend = getattr(key, "kvmeld_attend", None)
        if attend is None:
            return inner(module, query, key, value, attention_mask, **kwargs)
        return attend(module, query, attention_mask, inner, name == "sdpa", **kwargs)

    if hasattr(ALL_ATTENTION_FUNCTIONS, "register"):
        ALL_ATTENTION_FUNCTIONS.register(PREFIX + name, attention)
    else:  # a plain dict before transformers 4.51
        ALL_ATTENTION_FUNCTIONS[PREFIX + name] = attention
    try:
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as masks
    except ImportError:  # before 4.53 models make the same mask for all attention functions but a few
        return
    masks.register(PREFIX + name, masks[name])


for _name in INNER:
    _register(_name)
