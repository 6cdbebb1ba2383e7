"""What a cache has to know of a model of transformers, and learns by letting it read one token twice."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import weakref
from typing import Any, NamedTuple, Optional

import torch
import transformers

from kvmeld import _layers
from kvmeld.learned import PROBE, Learned, load, shipped

__all__ = ["Facts", "are_same", "facts_of", "fingerprint", "frequencies_of", "keys_of", "rotates_as", "shipped_weights",
           "turned"]

_NO_SINK = -1e30  # a logit of which nothing is left in a softmax


class Facts(NamedTuple):
    """What one token tells of a model.

    layers, kv_heads, query_heads, key_dim, value_dim: of the attention over all tokens; all its layers agree.
        query_heads is 0 where the model does not attend through the functions of kvmeld.hf.attach.
    full: the numbers of these layers in the model.
    token_bytes: what a token takes in them.
    beside: what is kept in the others, as _layers.beside tells it.
    rotation: how queries and keys are rotated: "none", or the pairing, and radians a position of each pair of the
        channels that rotate; or None.
    unknown: why the rotation is not known; empty if it is.
    softcap: of the logits, or None.
    sinks: logits of sinks, [query_heads] for each layer, where the model has them; or None. A view of its weights.
    """

    layers: int
    kv_heads: int
    query_heads: int
    key_dim: int
    value_dim: int
    full: tuple[int, ...]
    token_bytes: int
    beside: tuple[tuple[int, int], ...]
    rotation: Optional[tuple[str, list[float]]]
    unknown: str
    softcap: Optional[float]
    sinks: Optional[list[torch.Tensor]]

    @property
    def attention(self) -> dict[str, Any]:
        """What the model adds to plain attention, as kvmeld.Cache takes it."""
        sinks = None if self.sinks is None else torch.stack([x.float().cpu() for x in self.sinks])
        return {"softcap": self.softcap, "sinks": sinks}

    def share(self, tokens: int) -> float:
        """The share of a sequence's bytes that lies in the layers that keep all tokens."""
        full = self.token_bytes * tokens
        return full / (full + sum(size * min(most, tokens) for most, size in self.beside))


class _Told(Exception):
    """A refusal of what a model asks or shows; its arguments are those of a refusal."""


class _Listener(_layers.Growing):
    """Takes the keys of one pass over one token, and notes what attention is told beside them."""

    def __init__(self, layers: list[Any], full: tuple[int, ...]) -> None:
        super().__init__(layers, full)
        self.keys: list[torch.Tensor] = []  # [kv_heads, head_dim] of each layer that keeps all tokens
        self.values = 0  # channels of a value
        self.queries = 0  # query heads
        self.windows: list[int] = []
        self.caps: list[Optional[float]] = []  # of logits, in each layer that keeps all tokens
        self.sinks: list[Optional[torch.Tensor]] = []
        self.wanted: Optional[str] = None  # an attribute that caches of tokens do not have

    def __getattr__(self, name: str) -> Any:  # of names that are not there
        if not name.startswith("__"):
            self.__dict__["wanted"] = self.__dict__.get("wanted") or name
        raise AttributeError(name)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        if layer_idx < len(self.layers) and layer_idx not in self._full:
            return self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)
        expected = self._full[len(self.keys)] if len(self.keys) < len(self._full) else "none"
        if layer_idx != expected:
            raise _Told("the layer that caches keys and values", layer_idx, f"{expected}, by the model's configuration")
        self.keys.append(key_states[0, :, 0].detach())
        self.values = value_states.shape[-1]
        marked = key_states.view_as(key_states)
        marked.kvmeld_attend = functools.partial(self._attend, (key_states, value_states))  # for kvmeld.hf.attach
        return marked, value_states

    def _attend(self, rows: tuple, module: Any, query: torch.Tensor, mask: Any, inner: Any, causal: bool, **kwargs: Any
                ) -> Any:
        self.queries = query.shape[1]
        if kwargs.get("sliding_window") is not None:
            self.windows.append(kwargs["sliding_window"])
        if len(self.caps) < len(self.keys):  # else another layer reads these entries
            # transformers' "sdpa" is told of caps and sinks, and computes without them.
            self.caps.append(None if causal else kwargs.get("softcap"))
            self.sinks.append(None if causal else kwargs.get("s_aux"))
        return inner(module, query, *rows, mask, **kwargs)


#: Facts of models, with the dtype and the frequencies that they had.
_known: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def facts_of(model: Any, refusal: Any) -> Facts:
    """Lets a model read one token at two positions, once per model; what it shows then. refusal(argument, value,
    condition) makes the exception for a model that cannot be served. Costs two forward passes of one token."""
    layers, full = _layers.layers_of(model, refusal)
    state = (model.dtype, model.config._attn_implementation, frequencies_of(model))
    known = _known.get(model)
    if known is not None and known[0][:2] == state[:2] and are_same(known[0][2], state[2]):
        return known[1]
    first, second = _Listener(layers, full), _Listener(layers, full)
    position, unknown = 37, ""
    try:
        for listener, at in ((first, 0), (second, position)):
            _read_one(model, listener, at)
    except _Told as told:
        raise refusal(*told.args) from None
    except Exception as e:
        asked = first.wanted or second.wanted
        if asked is not None:
            raise refusal(f"the cache that {type(model).__name__} expects", f"one with {asked!r}",
                          f"one of layers that the installed transformers {transformers.__version__} knows") from e
        if not first.keys:
            raise refusal(f"a token that {type(model).__name__} reads", f"refused ({type(e).__name__}: {e})",
                          "read with a cache of keys and values") from e
        unknown = f"the model did not read one token at position {position}: {e}"
    if len(first.keys) != len(full):
        raise refusal("the layers that cache keys and values", f"{len(first.keys)} of {len(full)}", "all of them")
    shapes = {tuple(k.shape) for k in first.keys}
    if len(shapes) > 1:
        raise refusal("keys [kv_heads, head_dim] of a token", " and ".join(map(str, sorted(shapes))),
                      "of one shape in all layers that keep all tokens")
    window, tokens = min(first.windows, default=None), getattr(model.config.get_text_config(), "max_position_embeddings", 0) or 0
    if window is not None and window < tokens:
        raise refusal("sliding_window", window, f"at least {tokens}, the model's positions, in layers that keep all tokens")
    rotation = None
    if not unknown:
        rotation = _rotation(model, first.keys, second.keys, position)
        if rotation is None:
            unknown = "its layers rotate keys in different ways, or by none of its buffers of inverse frequencies"
    (kv_heads, key_dim), = shapes
    if len(set(first.caps)) > 1:
        raise refusal("softcap", " and ".join(map(str, first.caps)), "the same in all layers that keep all tokens")
    none = torch.full((first.queries,), _NO_SINK)
    sinks = [none if x is None else x.detach().flatten() for x in first.sinks] if any(
        x is not None for x in first.sinks) else None
    row = (key_dim + first.values) * first.keys[0].element_size()
    facts = Facts(len(full), kv_heads, first.queries, key_dim, first.values, full, len(full) * kv_heads * row,
                  _layers.beside(first.layers), rotation, unknown, first.caps[0] if first.caps else None, sinks)
    _known[model] = (state, facts)
    return facts


def _read_one(model: Any, listener: _Listener, position: int, token: Optional[int] = None) -> None:
    where = model.get_input_embeddings().weight.device
    if token is None:
        token = 1 if getattr(model.config.get_text_config(), "pad_token_id", None) != 1 else 2
    base = model.base_model
    takes = inspect.signature(base.forward).parameters
    name = "cache" if "cache" in takes and "past_key_values" not in takes else "past_key_values"
    training = model.training
    with torch.no_grad():
        if training:
            model.eval()
        try:
            base(input_ids=torch.full((1, 1), token, device=where), use_cache=True,
                 position_ids=torch.full((1, 1), position, device=where), **{name: listener})
        finally:
            if training:
                model.train()


def frequencies_of(model: Any) -> list[torch.Tensor]:
    """The buffers of a model with the radians that pairs of channels turn by a position, as they are now."""
    return [b.detach().float().cpu().clone() for name, b in model.named_buffers() if name.endswith("inv_freq")
            and "original" not in name and b.dim() == 1]


def are_same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(torch.equal(a, b) for a, b in zip(some, others))


def _rotation(
    model: Any, before: list[torch.Tensor], after: list[torch.Tensor], position: int
) -> Optional[tuple[str, list[float]]]:
    """The one rotation that takes the keys of every layer from position 0 to another one; None if there is none. With a
    single token, attention does not mix: keys of all layers depend on the position by their rotation alone."""
    tolerance = 1e-3 if before[0].dtype == torch.float32 else 0.05
    rows = [(a.float().cpu(), b.float().cpu()) for a, b in zip(before, after)]
    candidates = [("none", torch.zeros(0))]
    for frequencies in frequencies_of(model):
        candidates += [("half_split", frequencies), ("interleaved", frequencies)]
    for pairing, frequencies in candidates:
        channels = 2 * len(frequencies)
        if channels > rows[0][0].shape[1]:
            continue
        if all(
            float((turned(a, pairing, frequencies, position) - b).norm()) <= tolerance * float(a.norm())
            for a, b in rows
        ):
            return pairing, frequencies.tolist()
    return None


def turned(rows: torch.Tensor, pairing: str, frequencies: torch.Tensor, positions: Any) -> torch.Tensor:
    """Rows [..., head_dim] that are not rotated, turned for positions: a number, or a tensor [rows, 1]."""
    pairs, out = len(frequencies), rows.clone()
    first = slice(0, pairs) if pairing == "half_split" else slice(0, 2 * pairs, 2)
    second = slice(pairs, 2 * pairs) if pairing == "half_split" else slice(1, 2 * pairs, 2)
    cos, sin = (positions * frequencies).cos(), (positions * frequencies).sin()
    out[..., first] = rows[..., first] * cos - rows[..., second] * sin
    out[..., second] = rows[..., second] * cos + rows[..., first] * sin
    return out


def keys_of(model: Any) -> torch.Tensor:
    """float32 [layers, kv_heads, head_dim] in host memory: what the model makes of the token PROBE, alone, at position 0."""
    listener = _Listener(*_layers.layers_of(model, _Told))
    _read_one(model, listener, 0, min(PROBE, model.get_input_embeddings().num_embeddings - 1))
    return torch.stack(listener.keys).float().cpu()


def rotates_as(learned: Learned, rotation: tuple[str, list[float]]) -> bool:
    """Whether scores were learned of keys that rotate as those of a model do."""
    pairing, frequencies = rotation
    return pairing == learned.pairing and len(frequencies) == len(learned.frequencies) and all(
        math.isclose(a, b, rel_tol=1e-4) for a, b in zip(frequencies, learned.frequencies))


#: Keys that differ by less, as a share of their length, are those of one model: rounding weights to 4 bits makes 0.2, a model
#: of other weights more than 1.
_SAME_MODEL = 0.35
_weights: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def shipped_weights(model: Any, facts: Facts) -> Optional[Learned]:
    """What comes with kvmeld for the score "learned" of this model, in whatever precision its weights are; or None. Costs a
    forward pass of one token, once per model that has the sizes and the rotation of one that is known."""
    if model not in _weights:
        found, keys = None, None
        for name in shipped() if facts.rotation is not None else ():
            learned = load(name)
            sizes = facts.layers, facts.kv_heads, facts.key_dim
            if learned.keys is None or learned.keys.shape != sizes or not rotates_as(learned, facts.rotation):
                continue
            keys = keys_of(model) if keys is None else keys
            own = torch.from_numpy(learned.keys)
            if float((keys - own).norm()) < _SAME_MODEL * float(own.norm()):
                found = learned
                break
        _weights[model] = found
    return _weights[model]


def fingerprint(model: Any) -> str:
    """A digest that models with other weights, sizes or rotations do not share: of the names, shapes and types of all
    parameters, and of some of their numbers."""
    digest = hashlib.sha256()
    parts = list(model.named_parameters())
    parts += [(name, b) for name, b in model.named_buffers() if name.endswith("inv_freq")]
    for name, tensor in parts:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if tensor.device.type == "meta" or not tensor.numel():
            continue
        flat = tensor.detach().reshape(-1)
        count = min(32, flat.numel())
        places = [i * (flat.numel() - 1) // max(1, count - 1) for i in range(count)]
        some = flat[torch.tensor(places, device=flat.device)]
        digest.update(some.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
