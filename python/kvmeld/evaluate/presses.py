"""The presses of NVIDIA's kvpress before the same questions."""

from __future__ import annotations

import functools
import logging
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
import transformers

import kvpress
from kvmeld.evaluate.judge import Judge
from kvmeld.evaluate.report import Key
from kvmeld.evaluate.tasks import Context

__all__ = ["Press", "presses_of"]

#: Those that run on any model without a download, and leave a share of entries that is asked for.
MAKERS: dict[str, tuple[str, Callable[[float], Any]]] = {
    "KVzip": ("all_layers", lambda r: kvpress.KVzipPress(r)),
    "Compactor": ("head", lambda r: kvpress.CompactorPress(r)),
    # kvpress' own benchmark has this epsilon where heads compete.
    "AdaKV ExpectedAttention": ("layer", lambda r: kvpress.AdaKVPress(kvpress.ExpectedAttentionPress(r, epsilon=1e-2))),
    "CriticalKV ExpectedAttention": ("head", lambda r: kvpress.CriticalKVPress(kvpress.ExpectedAttentionPress(r))),
    "ExpectedAttention": ("head", lambda r: kvpress.ExpectedAttentionPress(r)),
    "AdaKV SnapKV": ("layer", lambda r: kvpress.AdaKVPress(kvpress.SnapKVPress(r))),
    "SnapKV": ("head", lambda r: kvpress.SnapKVPress(r)),
    "PyramidKV": ("head", lambda r: kvpress.PyramidKVPress(r)),
    "ChunkKV SnapKV": ("head", lambda r: kvpress.ChunkKVPress(kvpress.SnapKVPress(r))),
    "TOVA": ("head", lambda r: kvpress.TOVAPress(r)),
    "KeyDiff": ("head", lambda r: kvpress.KeyDiffPress(r)),
    "Leverage": ("head", lambda r: kvpress.LeverageScorePress(r)),
    "NonCausalAttention": ("head", lambda r: kvpress.NonCausalAttnPress(r)),
    "CUR": ("head", lambda r: kvpress.CURPress(r)),
    "LagKV": ("head", lambda r: kvpress.LagKVPress(r)),
    "Knorm": ("head", lambda r: kvpress.KnormPress(r)),
    "StreamingLLM": ("head", lambda r: kvpress.StreamingLLMPress(r)),
}


@dataclass(frozen=True)
class Press:
    """A press, at a budget; `over` says which tracks share it."""

    name: str
    over: str
    budget: float
    make: Callable[[float], Any]

    @property
    def key(self) -> Key:
        return self.name, self.over, self.budget


def presses_of(budgets: Sequence[float], names: str = "all") -> list[Press]:
    """Presses by their names, separated by commas, each at each budget. Raises ValueError for a name that is none."""
    logging.getLogger("kvpress").setLevel(logging.ERROR)
    chosen = list(MAKERS) if names == "all" else names.split(",")
    for name in chosen:
        if name not in MAKERS:
            raise ValueError(f"it has '{name}'; it must have names of {', '.join(MAKERS)}")
    return [Press(f"kvpress {name}", MAKERS[name][0], budget, MAKERS[name][1]) for name in chosen for budget in budgets]


class _Pressed(transformers.DynamicCache):
    """What a press has left, read by attention that hides what the press hides. (kvpress itself puts keys there that no query
    likes. It looks for such keys, and finds none where many tokens are read at once.)"""

    tokens: Optional[int] = None  # of the text, once it was compressed
    left = 0  # entries of the first layer then
    hidden: list[Optional[torch.Tensor]]  # of each layer: [kv_heads, entries], which are hidden

    def pressed(self, tokens: int, layers: Sequence[Any]) -> None:
        self.hidden = []
        for layer, module in zip(self.layers, layers):
            masked = getattr(module.self_attn, "masked_key_indices", None)
            module.self_attn.masked_key_indices = None
            self.hidden.append(None)
            if masked is not None:
                self.hidden[-1] = torch.zeros(layer.keys.shape[1:3], dtype=torch.bool, device=layer.keys.device)
                self.hidden[-1][masked[1], masked[2]] = True
        self.tokens, self.left = tokens, self.get_seq_length()

    def next_position(self) -> int:
        now = self.get_seq_length()
        return now if self.tokens is None else self.tokens + now - self.left

    def crop(self, count: int) -> None:
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[:, :, :count], layer.values[:, :, :count]

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *more: Any, **named: Any) -> Any:
        keys, values = super().update(key_states, value_states, layer_idx, *more, **named)
        if self.tokens is None:
            return keys, values
        marked = key_states.view_as(key_states)
        marked.kvmeld_attend = functools.partial(self._attend, layer_idx)  # for the attention function of kvmeld.hf.attach
        return marked, values

    def _attend(self, layer: int, module: Any, query: torch.Tensor, mask: Any, inner: Any, causal: bool, **kwargs: Any
                ) -> Any:
        keys, values, hidden = self.layers[layer].keys, self.layers[layer].values, self.hidden[layer]
        n, held, lowest = query.shape[2], keys.shape[2], torch.finfo(query.dtype).min
        later = torch.ones(n, held, dtype=torch.bool, device=query.device).triu(held - n + 1)
        bias = torch.zeros(1, query.shape[1], n, held, dtype=query.dtype, device=query.device).masked_fill_(later, lowest)
        if hidden is not None:
            each = hidden.repeat_interleave(query.shape[1] // hidden.shape[0], dim=0)[None, :, None]
            bias[..., : hidden.shape[1]].masked_fill_(each, lowest)
        return inner(module, query, keys, values, bias, **kwargs)


def rows(judge: Judge, context: Context, presses: Sequence[Press], full: torch.Tensor) -> Iterator[tuple[Press, dict[str, Any]]]:
    """Measures presses in a context. Each reads the prompt itself, as kvpress wants it."""
    n, ids = len(context.tokens), torch.tensor([context.tokens], device=judge.device)
    for press in presses:
        cache = _Pressed()
        start = time.perf_counter()
        with torch.inference_mode(), press.make(1 - press.budget)(judge.model):
            judge.model.base_model(input_ids=ids, past_key_values=cache)
        spent = 1e3 * (time.perf_counter() - start)
        cache.pressed(n, judge.model.base_model.layers)
        heads = cache.layers[0].keys.shape[1]
        entries = heads * sum(layer.keys.shape[2] for layer in cache.layers)
        held = entries - sum(int(h.sum()) for h in cache.hidden if h is not None)
        row = (cache.layers[0].keys.shape[-1] + cache.layers[0].values.shape[-1]) * judge.bits / 8
        found, _ = judge.measure(cache, context, full)
        every = heads * len(cache.layers) * n
        yield press, {**found, "entries": held / every, "kv_bytes": held * row, "ledger_bytes": 0, "full_bytes": every * row,
                      "tensor_bytes": entries * row, "compress_ms": spent, "observe_ms": 0.0}
