"""The layers of a model: which of them keep all tokens, and the caches that transformers makes for the others."""

from __future__ import annotations

import copy
import functools
from typing import Any, Optional, Sequence

import torch
import transformers
from transformers import cache_utils

__all__ = ["Growing", "beside", "crop", "layers_of", "packed", "unpack", "zero_drops_all"]

#: Kinds of layers, as configurations name them, that keep keys and values of tokens and nothing else.
_ATTENTION = {"attention", "full_attention", "sliding_attention", "chunked_attention"}
_SLIDES = hasattr(cache_utils, "DynamicSlidingWindowLayer")  # from transformers 4.56 on
_RECURS = hasattr(cache_utils, "LinearAttentionLayer")


class Growing(transformers.Cache):
    """What transformers asks of a cache some of whose layers keep all tokens by themselves, whatever its version.

    layers: a cache for each layer, as layers_of returns them; those of the layers in `full` stay empty.
    full: the layers that subclasses hold themselves. They count the tokens read in `_seen`.
    """

    def __init__(self, layers: Sequence[Any], full: Sequence[int]) -> None:
        # What Cache of some versions of transformers expects. Its own __init__ differs from version to version.
        self.layers = copy.deepcopy(list(layers))
        self.layer_class_to_replicate = None
        self.offloading = False
        self._full = tuple(full)
        self._layers = len(self._full)
        self._seen = 0

    def _is_own(self, layer: int) -> bool:
        """Whether a layer counts tokens as the ones in `full` do, and not by a cache of transformers."""
        return layer in self._full or layer >= len(self.layers) or not hasattr(self.layers[layer], "get_mask_sizes")

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens read so far, padding included."""
        return self._seen

    def get_mask_sizes(self, query: Any, layer_idx: int = 0) -> tuple[int, int]:
        """The length and the offset of the mask that a model makes: where all tokens are kept, of all of them."""
        if not self._is_own(layer_idx):
            return self.layers[layer_idx].get_mask_sizes(query)
        return self._seen + (query if isinstance(query, int) else query.shape[0]), 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """-1: any number of tokens."""
        return -1

    def get_max_length(self, layer_idx: Optional[int] = None) -> int:
        """-1: any number of tokens."""
        return -1

    @property
    def is_initialized(self) -> bool:
        """Whether tensors are there."""
        return self._seen > 0

    @property
    def is_compileable(self) -> bool:
        """False: lengths change."""
        return False

    @property
    def is_croppable(self) -> bool:
        """Whether the layers that crop() cannot answer for can take back tokens."""
        return all(getattr(layer, "is_croppable", True) for layer in self.layers)

    @property
    def is_sliding(self) -> list[bool]:
        """Whether the layers read a window."""
        return [getattr(layer, "is_sliding", False) for layer in self.layers]

    def __len__(self) -> int:
        return len(self.layers) if self._seen else 0


class _Row:
    """The cache of a layer where the installed transformers has no such class. Nothing is kept in it."""

    is_sliding = False

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        pass


def layers_of(model: Any, refusal: Any) -> tuple[list[Any], tuple[int, ...]]:
    """An empty cache for each layer of a model, as DynamicCache makes them, and the layers that keep all tokens. There are
    fewer than the model has layers where the last ones share their caches. refusal(argument, value, condition) makes
    the exception for a model that cannot be served."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise refusal("the model", "an encoder and a decoder", "a decoder alone")
    config = model.config.get_text_config()
    name, installed = type(config).__name__, f"the installed transformers {transformers.__version__}"
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or []
    for layer, kind in enumerate(kinds):
        if kind not in _ATTENTION and not _RECURS:
            raise refusal(f"layer {layer} of {name}", repr(kind),
                          f"attention, because {installed} keeps other states in no layer of its caches")
    tokens = getattr(config, "max_position_embeddings", None) or 1 << 17
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    if not _SLIDES:
        if min(window or tokens, chunk or tokens) < tokens:
            raise refusal("a window", f"of {window or chunk} tokens",
                          f"none, because {installed} has no caches of windows (4.56 has them)")
        return [_Row() for _ in range(config.num_hidden_layers)], tuple(range(config.num_hidden_layers))
    config = copy.copy(config)
    if not getattr(config, "num_kv_shared_layers", None):  # 0, which some versions read as all layers
        config.__dict__.pop("num_kv_shared_layers", None)
    layers = transformers.DynamicCache(config=config).layers
    for i, layer in enumerate(layers):
        if getattr(layer, "is_sliding", False) and chunk is None and layer.sliding_window >= tokens:
            layers[i] = cache_utils.DynamicLayer()  # a window that hides nothing
    full = tuple(i for i, layer in enumerate(layers) if _keeps_all(layer))
    if not full:
        kinds = sorted({"a window" if getattr(layer, "is_sliding", False) else type(layer).__name__ for layer in layers})
        raise refusal(f"what the layers of {name} keep", " and ".join(kinds) or "nothing",
                      "all tokens in one layer at least: all others are bounded already")
    return layers, full


def _keeps_all(layer: Any) -> bool:
    """Whether a cache of a layer grows by each token, and holds nothing else of it than keys and values."""
    return getattr(type(layer), "update", None) is cache_utils.DynamicLayer.update and not hasattr(layer, "update_indexer")


def beside(layers: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """What caches that have read one token take: (the most tokens that are kept, bytes of each). States count as one
    token."""
    found = []
    for layer in layers:
        for name, value in vars(layer).items():
            if name in ("keys", "values") and value is not None:
                found.append((max(1, getattr(layer, "sliding_window", 1) - 1), value.nbytes))
            elif isinstance(value, dict):
                found += [(1, state.nbytes) for state in value.values() if isinstance(state, torch.Tensor)]
    return tuple(found)


@functools.lru_cache(maxsize=None)
def zero_drops_all() -> bool:
    """Whether crop(0) empties a cache of the installed transformers; from 5.2x on the argument counts what goes."""
    like = transformers.DynamicCache()
    like.update(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), 0)
    like.crop(0)
    return like.get_seq_length() == 0


def crop(layers: Sequence[Any], removed: int) -> None:
    """Takes back the last tokens of all caches, or raises ValueError and changes nothing."""
    used = []
    for i, layer in enumerate(layers):
        has_state = any(isinstance(value, dict) and any(isinstance(v, torch.Tensor) for v in value.values())
                        for value in vars(layer).values())
        if not has_state and getattr(layer, "keys", None) is None:
            continue
        used.append(layer)
        recorded, window = getattr(layer, "record_past", False), getattr(layer, "sliding_window", None)
        is_lost = has_state and not (recorded and layer.is_croppable)
        if window is not None and layer.keys is not None:
            seen = layer.get_seq_length()
            is_lost |= (seen >= window and not recorded) or layer.keys.shape[2] - removed < min(window - 1, seen - removed)
        if is_lost:
            raise ValueError(f"crop: layer {i} is a {type(layer).__name__} that has read {removed} tokens too many; it must be"
                             " one that can take them back: windows that were full, and states, cannot")
    for layer in used:
        layer.crop(-removed)


def packed(layers: Sequence[Any], tensors: dict[str, torch.Tensor]) -> list[Any]:
    """Caches of layers as values of JSON; their tensors come to lie in `tensors`."""

    def text(value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            tensors[name] = value.detach().clone().contiguous()
            return {"tensor": name}
        if isinstance(value, dict):
            return {"dict": [[key, text(one, f"{name}.{key}")] for key, one in value.items()]}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        return {"device": ""} if isinstance(value, torch.device) else {"value": value}

    return [{name: text(value, f"layers.{i}.{name}") for name, value in vars(layer).items()}
            for i, layer in enumerate(layers)]


def unpack(layers: Sequence[Any], texts: Sequence[Any], tensors: dict[str, torch.Tensor]) -> None:
    """Makes empty caches what `packed` has described."""

    def value(text: Any) -> Any:
        (kind, said), = text.items()
        if kind == "dict":
            return {key: value(one) for key, one in said}
        if kind == "device":
            return where
        return tensors[said].clone() if kind == "tensor" else getattr(torch, said) if kind == "dtype" else said

    for i, (layer, described) in enumerate(zip(layers, texts)):
        own = [t for name, t in tensors.items() if name.startswith(f"layers.{i}.")]
        where = own[0].device if own else None
        vars(layer).update({name: value(text) for name, text in described.items()})
