"""A form of KVMeldCache whose tensors have constant shapes, for torch.compile."""

from __future__ import annotations

from typing import Any, NoReturn, Optional

import torch

from kvmeld import _layers

__all__ = ["FixedCache"]


def _refusal(argument: str, value: Any, condition: str, call: str = "FixedCache") -> ValueError:
    return ValueError(f"{call}: {argument} is {value}; it must be {condition}")


class _Entries:
    """What stands for the keys of a layer until its attention reads them. No tensor: a compiler follows it."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor) -> None:
        self.keys, self.values, self.bias = keys, values, bias

    def to(self, *args: Any, **kwargs: Any) -> _Entries:
        """Itself: models that let layers read each other's entries ask for them on a layer's device."""
        return self

    def kvmeld_attend(self, module: Any, query: torch.Tensor, mask: Any, inner: Any, causal: bool, **kwargs: Any) -> Any:
        return inner(module, query, self.keys, self.values, self.bias, **kwargs)


class FixedCache(_layers.Growing):
    """The entries of a KVMeldCache, and room for more tokens, in tensors whose shapes never change. So a compiled model
    decodes with it, and is compiled once:

        fixed = cache.fixed(256)
        step = torch.compile(model.forward, fullgraph=True)
        step(token, past_key_values=fixed)                    # one token of each sequence, up to 256 times
        fixed.renew()                                         # the tokens go to `cache`, which is compressed to its budget

    All heads have as many slots as the longest has entries, and `tokens` more; what a head does not hold is hidden by a bias
    that also has the log degrees. New tokens lie in the same slot of all heads. A layer with a window is a ring of as
    many slots as the window has.

    A pass reads one token of each sequence, none of them padding; the mask that it is given is not read. A pass for which there is
    no room raises IndexError or RuntimeError, which a compiled model does, too. The KVMeldCache stays as it is until renew().
    """

    def __init__(self, cache: Any, tokens: int) -> None:
        super().__init__((), cache.full_layers)
        if cache.cache is None:
            raise _refusal("the cache", "empty", "one that has read a prompt", "fixed")
        kinds = {type(layer).__name__ for layer in cache.layers
                 if _layers.beside([layer]) and not getattr(layer, "is_sliding", False)}
        model = cache._model()
        if getattr(getattr(model, "config", None), "attention_chunk_size", None) is not None:
            kinds.add("chunks")
        if model is None or kinds:
            raise _refusal("what the model keeps beside attention over all tokens", " and ".join(sorted(kinds)) or "unknown",
                           "windows at most, because others change their shapes", "fixed")
        self._cache, self._sliding = cache, cache.is_sliding
        self._room = cache._longest() + tokens
        self._last = max(i for i, slides in enumerate(self._sliding) if slides or i in self._full)
        first = cache.keys
        batch, heads, where = cache.batch_size, cache._query_heads, first.device
        with torch.inference_mode(False):  # tensors that any later pass may write
            #: Of each layer of the model, [batch, kv_heads, slots, head_dim].
            self.keys: list[torch.Tensor] = []
            self.values: list[torch.Tensor] = []
            #: What is added to logits, [batch, query_heads or 1, 1, slots].
            self.biases: list[torch.Tensor] = []
            for number, layer in enumerate(cache.layers):
                is_full, is_ring = number in self._full, self._sliding[number]
                of = (layer.keys, layer.values) if is_ring else (cache.keys[0], cache.values[0])
                slots = layer.sliding_window if is_ring else self._room if is_full else 0  # 0: reads another layer's entries
                for rows, like in zip((self.keys, self.values), of):
                    rows.append(torch.zeros(batch, like.shape[1], slots, like.shape[3], dtype=like.dtype, device=where))
                self.biases.append(torch.zeros(batch, heads if is_full else 1, 1, slots, dtype=first.dtype, device=where))
            #: The slot of the last token in layers that keep all tokens.
            self._at = torch.zeros(1, dtype=torch.long, device=where)
            #: Tokens read.
            self._count = torch.zeros((), dtype=torch.long, device=where)
        for tensor in (*self.keys, *self.values, *self.biases, self._at, self._count):
            torch._dynamo.mark_static_address(tensor)
        self._take()

    def _take(self) -> None:
        """Copies the entries of the cache here."""
        cache, lowest = self._cache, torch.finfo(self.biases[0].dtype).min
        held, seen = cache._longest(), cache.get_seq_length()
        if held >= self._room:
            raise _refusal("the cache", f"of {held} entries", f"of fewer than {self._room}, the slots of a head", "renew")
        group = cache._query_heads // cache.cache.kv_heads
        for number, layer in enumerate(cache.layers):
            keys, values, bias = self.keys[number], self.values[number], self.biases[number]
            bias.zero_()
            if number in self._full:
                of = self._full.index(number)
                keys[:, :, :held], values[:, :, :held] = cache.keys[of, :, :, :held], cache.values[of, :, :, :held]
                lengths = torch.tensor([cache.cache.lengths(s)[of].tolist() for s in range(cache.batch_size)])
                own = torch.empty(cache.batch_size, cache._query_heads, cache.cache.capacity, device=bias.device)
                for sequence in range(cache.batch_size):
                    cache.cache.log_degrees(of, sequence, out=own[sequence])
                ends = lengths.repeat_interleave(group, dim=1)[..., None].to(bias.device)
                own = own[..., :held].masked_fill(torch.arange(held, device=bias.device) >= ends, lowest)
                bias[:, :, 0, :held] = own.clamp(min=lowest)
            elif self._sliding[number]:
                self._take_window(layer, seen, keys, values, bias)
        self._held, self._from = held, seen
        self._at.fill_(held - 1)
        self._count.fill_(seen)

    def _take_window(self, layer: Any, seen: int, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor) -> None:
        """Copies what a window's own cache keeps, the last of `seen` tokens: token t comes to lie in slot t modulo the window."""
        n, lowest, real = layer.keys.shape[2], torch.finfo(bias.dtype).min, self._cache._real
        slots = torch.arange(seen - n, seen, device=keys.device) % layer.sliding_window
        keys[:, :, slots], values[:, :, slots] = layer.keys, layer.values
        bias.fill_(lowest)
        bias[:, :, :, slots] = 0
        if real is not None:
            bias[:, 0, 0, slots] = bias[:, 0, 0, slots].masked_fill(~real[:, seen - n :].to(bias.device), lowest)

    # --- what transformers calls

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, torch.Tensor]:
        """Takes the keys and values [batch, kv_heads, 1, head_dim] of a token."""
        if key_states.shape[2] != 1:
            raise _refusal("tokens of a pass", key_states.shape[2], "1: longer texts go to the KVMeldCache", "update")
        keys, values, bias = self.keys[layer_idx], self.values[layer_idx], self.biases[layer_idx]
        if layer_idx in self._full:
            at = self._at + 1
            hidden = torch.arange(self._room, device=keys.device) > at
            bias = bias.masked_fill(hidden, torch.finfo(bias.dtype).min)
        else:
            at = self._count.remainder(keys.shape[2]).view(1)
            bias.index_fill_(3, at, 0)
        keys.index_copy_(2, at, key_states)
        values.index_copy_(2, at, value_states)
        if layer_idx == self._last:
            self._at.add_(1)
            self._count.add_(1)
        return _Entries(keys, values, bias), values

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Tokens read so far, padding included, as a tensor."""
        return self._count

    def get_mask_sizes(self, query: Any, layer_idx: int = 0) -> tuple[int, int]:
        """A mask of all slots is made, and not read."""
        return self.keys[layer_idx].shape[2] or self._room, 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """Slots of a head."""
        return self._room

    def get_max_length(self, layer_idx: Optional[int] = None) -> int:
        """Slots of a head."""
        return self._room

    is_initialized = True
    is_compileable = True
    is_croppable = False

    @property
    def is_sliding(self) -> list[bool]:
        """Whether the layers read a window."""
        return self._sliding

    @property
    def is_linear(self) -> list[bool]:
        """Whether the layers keep states."""
        return [False] * len(self.keys)

    is_dummy = is_linear

    @property
    def batch_size(self) -> int:
        """Sequences held."""
        return self.keys[0].shape[0]

    max_batch_size = batch_size

    def __len__(self) -> int:
        return len(self.keys)

    def _refused(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _refusal("the cache", "of constant shapes", "the KVMeldCache, after renew()", "crop, reset, beams and copies")

    crop = reset = reorder_cache = batch_repeat_interleave = batch_select_indices = _refused

    # --- back

    def tokens_left(self) -> int:
        """How many tokens there is room for. Waits, on a device."""
        return self._room - 1 - int(self._at)

    def renew(self) -> None:
        """Gives the tokens since the last renew() to the KVMeldCache, lets it compress to its budget, if it has one, and takes its
        entries again, in the same tensors: what was compiled still holds. Waits. Refused if the cache has read anything else
        since, if it then holds more than there are slots, and with a budget for policies that would have to see the queries of
        these tokens."""
        cache = self._cache
        if cache.get_seq_length() != self._from:
            raise _refusal("the cache", f"at {cache.get_seq_length()} tokens", f"at {self._from}, as it was given", "renew")
        n = int(self._count) - self._from
        if n and cache.budget is not None and cache._needs.when in ("last_queries", "every_step"):
            raise _refusal("policy", repr(cache._options["policy"]), "one that ranks without queries of the answer, unless there"
                           " is no budget", "renew")
        if n:
            cache._append_read(n, self._rows(n))
        if n and cache.budget is not None and cache._needs.when == "nothing":
            cache.compress()
        self._take()

    def _rows(self, n: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of each layer: the rows of the last n tokens; where it reads a window, of what is to be kept."""
        seen, found = int(self._count), []
        for number, (keys, values) in enumerate(zip(self.keys, self.values)):
            if number in self._full:
                at: Any = slice(self._held, self._held + n)
            else:  # a window's cache keeps one token less than the window has
                at = torch.arange(max(0, seen - keys.shape[2] + 1), seen, device=keys.device) % max(1, keys.shape[2])
            found.append((keys[:, :, at], values[:, :, at]))
        return found
