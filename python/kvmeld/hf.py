"""A cache for Hugging Face transformers that kvmeld shrinks in place, prompts and answers alike.

    cache = kvmeld.hf.KVMeldCache(model, budget=1024)
    model.generate(**inputs, past_key_values=cache, max_new_tokens=2000)
"""

from __future__ import annotations

import math
import sys
from typing import Any, Optional, Sequence

import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import kvmeld
from kvmeld.cache import _PLACES, _PLACES_TEXT, _is_share

__all__ = ["KVMeldCache", "attach", "detach"]

_PREFIX = "kvmeld_"
_INNER = ("eager", "sdpa")


def _refusal(argument: str, value: Any, condition: str, call: str = "KVMeldCache") -> ValueError:
    return ValueError(f"{call}: {argument} is {value}; it must be {condition}")


def attach(model: Any) -> None:
    """Makes a model's attention read KVMeldCaches. With any other cache, or none, the model computes as before.

    Raises ValueError where the model's attention is neither "eager" nor "sdpa".
    """
    name = model.config._attn_implementation
    if name.startswith(_PREFIX):
        return
    if name not in _INNER:
        raise _refusal("the model's attention implementation", repr(name), "'eager' or 'sdpa'", "attach")
    for config in _configs(model):
        if config._attn_implementation in _INNER:
            config._attn_implementation = _PREFIX + config._attn_implementation


def detach(model: Any) -> None:
    """Gives a model the attention back that it had before attach."""
    for config in _configs(model):
        name = config._attn_implementation
        if name is not None and name.startswith(_PREFIX):
            config._attn_implementation = name[len(_PREFIX) :]


def _configs(model: Any) -> list[Any]:
    """The configurations of a model and of its parts, which may compute attention in different ways."""
    return list({id(module.config): module.config for module in model.modules() if hasattr(module, "config")}.values())


class KVMeldCache(transformers.Cache):
    """A cache for `past_key_values`, in whose tensors kvmeld merges and evicts entries.

    model: whose cache it is. Llama, Qwen, Mistral and models built like them, with "eager" or "sdpa" attention in host
        memory, or on one CUDA device if kvmeld was built with CUDA; float32, float16 or bfloat16. attach(model) is
        called.
    policy: a name of kvmeld.policies(), or parts (kvmeld.Cache). Policies that need a second reading of the prompt
        (KVzip, Attention Matching) compress it once, after read().
    budget: what a compression leaves. An int: entries of each track (one KV head of one layer of one sequence); a
        float: a share of the tokens seen, above 0 to 1. None: only compress() compresses.
    interval: a compression comes before a forward pass that would leave a track with more than budget + interval
        entries (with `over`, the tracks of a sequence on average). So a prompt's logits come from the full cache, and the tokens of an answer come from a cache
        of bounded length.
    over, floor, scope, threads: see kvmeld.Cache and its compress().

    Attention adds the logarithm of each entry's degree to its logit. Padding, left or right, is told by the 2-D
    `attention_mask`, and never enters the cache. get_seq_length() counts tokens seen, padding included, so generate()
    numbers positions as ever. Prompts may come in any parts: a part longer than the budget is held in full until the
    next pass. Beam search and batch_* calls copy sequences with all that kvmeld knows about them. crop() takes back
    tokens that no compression has met.

    On a CUDA device the cache enqueues its work to the stream that was current at the first pass.

    Refused with ValueError: tensors that require gradients; memory of other devices; logit softcapping and attention sinks;
    sliding windows and chunked attention, once more tokens were read than a window or a chunk has. A pass that ends in
    an exception leaves the cache unusable until reset(). One cache is used by one thread at a time.
    """

    def __init__(
        self,
        model: Any,
        policy: str = "recommended",
        budget: Optional[kvmeld.cache.Budget] = None,
        *,
        interval: int = 64,
        over: str = "head",
        floor: float = 0.2,
        scope: str = "head",
        threads: int = 0,
    ) -> None:
        config = model.config.get_text_config()
        # What Cache of some versions of transformers expects. Its own __init__ differs from version to version.
        self.layers: list[Any] = []
        self.layer_class_to_replicate = None
        self.offloading = False
        self.budget, self.interval, self.over, self.floor = budget, interval, over, floor
        self._options = {"policy": policy, "scope": scope, "over": over, "threads": threads}
        self._layers = config.num_hidden_layers
        self._query_heads = config.num_attention_heads
        self._chunk = getattr(config, "attention_chunk_size", None)  # of Llama 4, whose attention is not told it
        #: The kvmeld.Cache over `keys` and `values`, with lengths, degrees and positions; None before the first pass.
        self.cache: Optional[kvmeld.Cache] = None
        #: [layers, batch, kv_heads, capacity, head_dim]; entries behind a track's length have no meaning.
        self.keys: Optional[torch.Tensor] = None
        self.values: Optional[torch.Tensor] = None
        #: Compressions so far.
        self.compressions = 0
        self._forget()
        attach(model)

    def _forget(self) -> None:
        self._seen = 0  # tokens of each row of the batch, padding included
        self._real: Optional[torch.Tensor] = None  # [batch, _seen]: which of them are no padding; None: all of them
        self._next = 0  # the layer that the pass comes to next
        self._given: Optional[tuple[int, torch.Tensor, torch.Tensor]] = None  # between update and attention
        self._merged = False  # whether an entry stands for several tokens
        self._biases: dict[int, torch.Tensor] = {}  # of layers, since the last compression
        self._in_pass = False  # between the beginning of a pass and its end, and after one that failed
        self._reading = False  # in read()
        self._again = False  # in the second reading

    # --- what transformers calls

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes the new keys and values [batch, kv_heads, n, head_dim] of a layer. The attention function that attach
        has set up, which gets what this returns, appends them and reads the cache."""
        if self._given is not None:
            raise _refusal("the model's attention implementation", "not kvmeld's",
                           "that of kvmeld.hf.attach(model), for models that look up attention functions by name")
        if layer_idx != self._next or (layer_idx == 0 and self._in_pass):
            raise _refusal("layer_idx", layer_idx, f"{self._next}, the layer that the pass comes to next (reset()"
                           " begins anew after a pass that did not end)")
        if key_states.requires_grad or value_states.requires_grad:
            raise _refusal("key_states", "a tensor that requires gradients",
                           "without: run the model under torch.inference_mode() or no_grad()")
        if key_states.device.type not in _PLACES:
            raise _refusal("key_states", f"on {key_states.device}", _PLACES_TEXT)
        tokens = self._seen + key_states.shape[2]
        if layer_idx == 0 and self._chunk is not None and tokens > self._chunk:
            raise _refusal("attention_chunk_size", self._chunk, f"at least {tokens}, the tokens read")
        self._given = layer_idx, key_states, value_states
        marked = key_states.view_as(key_states)
        marked.kvmeld_cache = self  # for the attention function
        return marked, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens read so far, padding included."""
        return self._seen

    def get_mask_sizes(self, query: Any, layer_idx: int = 0) -> tuple[int, int]:
        """The length and the offset of the mask that a model makes: as of a cache that holds all tokens."""
        return self._seen + (query if isinstance(query, int) else query.shape[0]), 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """-1: any number of tokens."""
        return -1

    def get_max_length(self, layer_idx: Optional[int] = None) -> int:
        """-1: any number of tokens."""
        return -1

    @property
    def batch_size(self) -> int:
        """Sequences held; -1 before the first pass."""
        return -1 if self.cache is None else self.cache.sequences

    max_batch_size = batch_size

    @property
    def is_initialized(self) -> bool:
        """Whether tensors are there."""
        return self.cache is not None

    @property
    def is_compileable(self) -> bool:
        """False: lengths change."""
        return False

    @property
    def is_sliding(self) -> list[bool]:
        """False for each layer."""
        return [False] * self._layers

    is_linear = is_dummy = is_sliding  # what kinds of layers transformers knows beside attention over all tokens

    @property
    def is_croppable(self) -> bool:
        """True: see crop."""
        return True

    def __len__(self) -> int:
        return self._layers if self._seen else 0

    def __repr__(self) -> str:
        return f"KVMeldCache({self.cache!r}, {self._seen} tokens seen)"

    def reset(self) -> None:
        """Forgets all sequences. The tensors stay. The next batch must have the same number of sequences."""
        for sequence in range(max(self.batch_size, 0)):
            self.cache.close(sequence)
            self.cache.open(sequence)
        self._forget()

    def crop(self, max_length: int) -> None:
        """Keeps the first max_length tokens, or drops the last -max_length, padding included; 0 keeps all. Refused if a
        compression has met one of those that go: then nothing changes."""
        kept = max_length if max_length > 0 else max(0, self._seen + max_length)
        if kept >= self._seen or self.cache is None:
            return
        self._between_passes()
        held = range(self.batch_size)
        dropped = [self._seen - kept] * len(held) if self._real is None else self._real[:, kept:].sum(dim=1).tolist()
        saved = [self.cache.save(sequence) for sequence in held[:-1]]  # a refusal changes nothing of its own sequence
        try:
            for sequence in held:
                self.cache.truncate(sequence, self.cache.tokens(sequence) - dropped[sequence])
        except ValueError:
            for sequence, before in enumerate(saved):
                self.cache.close(sequence)
                self.cache.resume(sequence, before)
            raise
        self._seen = kept
        if self._real is not None:
            self._real = self._real[:, :kept]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Sequence i becomes a copy of sequence beam_idx[i]."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each sequence becomes `repeats` sequences that lie side by side."""
        if self.cache is not None:
            self._select([s for s in range(self.batch_size) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Sequence i becomes a copy of sequence indices[i], and there are as many sequences as indices."""
        if self.cache is not None:
            self._select([int(i) for i in torch.arange(self.batch_size)[indices.cpu()]])

    # --- reading twice

    def read(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        *,
        prefix: Optional[torch.Tensor] = None,
        part: int = 2048,
    ) -> None:
        """Reads a prompt into the empty cache. If the policy needs a second reading, reads the prompt once more, and
        compresses it to the budget. Afterwards generate() goes on behind the prompt. Its input_ids begin with the
        prompt, and have at least one token more.

        In the second reading the tokens lie behind the prompt, part by part, and leave the cache again. The second
        reading takes two to three times as long as the first. After an exception the cache is empty.

        model: the one that the cache was made for.
        input_ids, attention_mask: [batch, tokens], as of a forward pass; without a mask there is no padding.
        prefix: [tokens], what a part of the second reading begins with, such as the words "Repeat the previous
            context:".
        part: tokens of a forward pass.
        """
        self._between_passes()
        if self._seen:
            raise _refusal("the cache", f"of {self._seen} tokens", "empty: call reset() first", "read")
        if part < 1:
            raise _refusal("part", part, "at least 1", "read")
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.to(input_ids.dtype)
        if mask.shape != input_ids.shape:
            raise _refusal("attention_mask", f"of shape {list(mask.shape)}", f"of shape {list(input_ids.shape)}", "read")
        batch, n = input_ids.shape
        nothing = input_ids[:, :0]
        before = nothing if prefix is None else prefix.to(input_ids).expand(batch, -1)

        def run(ids: torch.Tensor, seen: torch.Tensor, own: torch.Tensor) -> None:
            positions = (seen.sum(dim=1, keepdim=True) + own.cumsum(dim=1) - 1).clamp(min=0)
            model.base_model(
                input_ids=ids, attention_mask=torch.cat([seen, own], dim=1), position_ids=positions,
                past_key_values=self, use_cache=True,
            )

        parts = [slice(first, min(first + part, n)) for first in range(0, n, part)]
        self._reading = True
        try:
            with torch.inference_mode():
                for at in parts:
                    run(input_ids[:, at], mask[:, : at.start], mask[:, at])
                if self.cache is None or self._needs.when != "replay":
                    return
                self._again = True
                for at in parts:
                    run(torch.cat([before, input_ids[:, at]], dim=1), mask,
                        torch.cat([torch.ones_like(before), mask[:, at]], dim=1))
                    self.crop(n)
        except BaseException:
            self.reset()
            raise
        finally:
            self._reading = self._again = False
        if self.budget is not None:
            self.compress()
            self._resize(self._longest() + self.interval)  # the prompt took more

    # --- compression

    def compress(self, budget: Optional[kvmeld.cache.Budget] = None) -> None:
        """Shrinks all sequences to `budget`, or to the cache's own, in place. Call it between two forward passes."""
        self._between_passes()
        budget = self.budget if budget is None else budget
        if budget is None or self.cache is None:
            raise _refusal("budget", f"{budget} after {self._seen} tokens", "a number, after a first pass", "compress")
        held = range(self.batch_size)
        self.cache.compress(held, budget, over=self.over, floor=self.floor)
        self.compressions += 1
        self._biases = {}
        self._merged = self._merged or not self.cache.policy.endswith("drop") and any(
            self.cache.degrees(layer, sequence, head).max(initial=1) > 1
            for layer in range(self._layers)
            for sequence in held
            for head in range(self.cache.kv_heads)
        )

    def _between_passes(self) -> None:
        if self._in_pass or self._given is not None:
            raise _refusal("the pass", f"at layer {self._next}",
                           "at its end: reset() begins anew after one that failed")

    def _held(self) -> int:
        """Entries of a track, to be compared with the budget: of the longest one, or where tracks share their budgets
        the mean of a sequence."""
        if self.over == "head":
            return self._longest()
        return max((math.ceil(self.cache.lengths(s).mean()) for s in range(self.batch_size)), default=0)

    def _longest(self) -> int:
        return max((self.cache.longest(sequence) for sequence in range(self.batch_size)), default=0)

    def _bound(self, tokens: int) -> Optional[int]:
        """The most entries that a track is to have."""
        if self.budget is None or (self.cache is not None and self._needs.when == "replay"):
            return None
        left = max(1, int(self.budget * tokens + 1e-9)) if _is_share(self.budget) else self.budget
        return left + self.interval

    def _make_room(self, n: int) -> None:
        """Compresses if it is time to, then lets the tensors hold n more entries."""
        bound, held = self._bound(self._seen + n), self._held()
        if bound is not None and held + n > bound and held > bound - self.interval:
            self.compress()
        needed, capacity = self._longest() + n, self.cache.capacity
        fixed = bound is not None and not _is_share(self.budget)
        if needed > capacity:
            self._resize(max(needed, min(2 * capacity, bound) if fixed else 2 * capacity))
        elif bound is not None and n <= self.interval and needed <= bound:  # after a long prompt
            if capacity > (bound if fixed else 4 * bound):
                self._resize(bound)

    def _resize(self, capacity: int) -> None:
        self._select(range(self.batch_size), capacity)

    # --- tensors

    def _create(self, sequences: int, kv_heads: int, capacity: int, value_dim: int, like: torch.Tensor) -> None:
        """New tensors, of the type and on the device of `like`, whose rows are keys."""
        sizes = self._layers, sequences, kv_heads, capacity
        with torch.inference_mode(False):  # tensors that any later pass may write
            keys = torch.zeros(*sizes, like.shape[-1], dtype=like.dtype, device=like.device)
            values = torch.zeros(*sizes, value_dim, dtype=like.dtype, device=like.device)
        group = self._query_heads // kv_heads
        cache = kvmeld.Cache(keys, values, queries_per_kv_head=group, **self._options)
        self.keys, self.values, self.cache, self._needs = keys, values, cache, cache.needs()

    def _select(self, chosen: Sequence[int], capacity: Optional[int] = None) -> None:
        """Sequence i becomes a copy of sequence chosen[i], in new tensors where the sizes change."""
        self._between_passes()
        old, keys, values, held = self.cache, self.keys, self.values, self._longest()
        capacity = capacity or old.capacity
        new = len(chosen) != old.sequences or capacity != old.capacity
        moved = [i for i, source in enumerate(chosen) if new or i != source]
        if not moved:
            return
        self._biases = {}
        saved = {source: old.save(source) for source in {chosen[i] for i in moved}}
        sources = torch.tensor([chosen[i] for i in moved])
        rows = [tensor[:, sources, :, :held] for tensor in (keys, values)]
        if new:
            self._create(len(chosen), old.kv_heads, capacity, old.value_dim, keys)
            old.close_all()
        for tensor, copied in zip((self.keys, self.values), rows):
            tensor[:, torch.tensor(moved), :, :held] = copied
        for i in moved:
            if not new:
                self.cache.close(i)
            self.cache.resume(i, saved[chosen[i]])
        if self._real is not None:
            self._real = self._real[torch.tensor(list(chosen))]

    # --- a forward pass

    def _begin(self, key: torch.Tensor, value: torch.Tensor, mask: Optional[torch.Tensor]) -> None:
        """Appends the n tokens of a pass to each sequence, but for padding. Their rows come layer by layer."""
        batch, kv_heads, n, _ = key.shape
        if self.cache is None:
            self._create(batch, kv_heads, max(n, min(64, self._bound(n) or 64)), value.shape[-1], key)
            for sequence in range(batch):
                self.cache.open(sequence)
        if self._needs.when == "replay" and not (self._reading or self._seen):
            raise _refusal("policy", repr(self._options["policy"]),
                           "one that does not read the prompt a second time, unless read() reads the prompt")
        if self.cache.device >= 0 and torch.cuda.current_stream(key.device).cuda_stream != self.cache.stream:
            raise _refusal("the current stream", "another one", "that of the first pass, in which the cache works")
        if batch != self.batch_size:
            raise _refusal("the batch", batch, f"{self.batch_size}, the sequences that the cache holds")
        valid = torch.ones(batch, n, dtype=torch.bool)
        if mask is not None:
            # 4-D: a row of the last query, which sees all new tokens but padding; 2-D: the tokens themselves.
            row = mask[:, 0, -1, self._seen : self._seen + n] if mask.dim() == 4 else mask[:, -n:]
            if row.shape[1] != n:
                raise _refusal("attention_mask", f"of {mask.shape[-1]} tokens", f"of {self._seen + n}, the tokens read")
            seen = row if row.dtype == torch.bool else row != 0 if mask.dim() == 2 else row == 0
            valid = seen.expand(batch, n).cpu()
            if mask.dim() == 4 and mask.shape[2] == n and not bool(valid.all()):
                self._check_mask(mask[:, 0, :, self._seen : self._seen + n], valid)
        self._make_room(n)
        self._in_pass = True
        counts = valid.sum(dim=1)
        first = torch.tensor([self.cache.lengths(sequence).tolist() for sequence in range(batch)])
        read = [sequence for sequence in range(batch) if counts[sequence]]
        appended = [int(counts[sequence]) for sequence in read]
        self.cache.append(read, appended)
        self.cache.commit(read, appended)
        self._valid = None if bool(valid.all()) else valid
        if self._valid is not None or self._real is not None:
            real = torch.ones(batch, self._seen, dtype=torch.bool) if self._real is None else self._real
            self._real = torch.cat([real, valid], dim=1)
        self._seen += n
        self._counts = counts
        self._first = first.transpose(0, 1)  # [layers, batch, kv_heads]: where the new rows lie
        self._even = self._valid is None and bool((first == first.flatten()[0]).all())

    @staticmethod
    def _check_mask(mask: torch.Tensor, valid: torch.Tensor) -> None:
        """Refuses masks [batch, n, n] in which a token that the last one does not see is no padding. Padding does not
        see itself, or (in some versions of transformers) sees all tokens."""
        open_ = (mask if mask.dtype == torch.bool else mask == 0).expand(valid.shape[0], -1, -1).cpu()
        itself = open_.diagonal(dim1=1, dim2=2)
        if bool((~valid & itself & ~open_.all(dim=2)).any()):
            raise _refusal("attention_mask", "one that hides tokens from later ones", "causal, apart from padding")

    def _append_rows(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> int:
        """Writes the rows of a layer; returns the entries of its longest track."""
        first, n = self._first[layer], key.shape[2]
        for tensor, new in ((self.keys[layer], key), (self.values[layer], value)):
            if self._even:
                at = int(first[0, 0])
                tensor[:, :, at : at + n] = new
                continue
            heads = torch.arange(new.shape[1])[:, None]
            for sequence in range(new.shape[0]):
                rows = new[sequence] if self._valid is None else new[sequence][:, self._valid[sequence]]
                tensor[sequence, heads, first[sequence][:, None] + torch.arange(rows.shape[1])] = rows
        return int((first + self._counts[:, None]).max())

    def _mask(self, layer: int, n: int, held: int, dtype: torch.dtype, causal: bool) -> Optional[torch.Tensor]:
        """What is added to logits: [batch or 1, query_heads or 1, n, held]; None if nothing is. causal: whether the
        inner attention hides later tokens by itself, if there is no mask and no earlier entry."""
        if self._even and not self._merged and (n == 1 or (causal and held == n)):
            return None
        lowest, group = torch.finfo(dtype).min, self._query_heads // self.cache.kv_heads
        first, where = self._first[layer], self.keys.device
        if self._even and not self._merged:
            bias, first = torch.zeros(1, 1, held, dtype=dtype, device=where), first[:1, :1]
        else:
            if self.compressions == 0:  # the heads of a sequence are equally long
                first = first[:, :1]
                bias = torch.zeros(self.batch_size, 1, held, dtype=dtype, device=where)
            else:
                first = first.repeat_interleave(group, dim=1)
                bias = self._log_degrees(layer, dtype)[:, :, :held]
            if not self._even:
                ends = (first + self._counts[:, None])[..., None].to(where)
                bias = bias.masked_fill(torch.arange(held, device=where) >= ends, lowest)
        bias = bias[:, :, None]
        if n == 1 and self._valid is None:
            return bias
        if self._valid is None:
            last = first[..., None] + torch.arange(n)
        else:
            last = first[..., None] + self._valid.cumsum(dim=1)[:, None] - 1
        mask = bias.masked_fill(torch.arange(held, device=where) > last[..., None].to(where), lowest)
        if self._valid is not None:  # nobody reads the outputs of padding; no NaN shall be among them
            mask = mask.masked_fill(~self._valid[:, None, :, None].to(where), 0)
        return mask

    def _log_degrees(self, layer: int, dtype: torch.dtype) -> torch.Tensor:
        """[batch, query_heads, capacity]: log degrees, and 0 behind the entries, where tokens are appended that stand for
        themselves. So they hold until the next compression."""
        if layer not in self._biases:
            where, group = self.keys.device, self._query_heads // self.cache.kv_heads
            rows = torch.empty(self.batch_size, self._query_heads, self.cache.capacity, device=where)
            for sequence in range(self.batch_size):
                self.cache.log_degrees(layer, sequence, out=rows[sequence])
            ends = (self._first[layer] + self._counts[:, None]).repeat_interleave(group, dim=1)[..., None].to(where)
            rows = rows.masked_fill_(torch.arange(self.cache.capacity, device=where) >= ends, 0)
            self._biases[layer] = rows.clamp_(min=torch.finfo(dtype).min).to(dtype)
        return self._biases[layer]

    def _observe(self, layer: int, query: torch.Tensor, scale: Optional[float]) -> None:
        if self._needs.when == "nothing" or (self._needs.when == "replay" and not self._again):
            return
        last = self._needs.rows if self._needs.when == "last_queries" and self._needs.rows else query.shape[2]
        for sequence in range(query.shape[0]):
            rows = query[sequence] if self._valid is None else query[sequence][:, self._valid[sequence]]
            rows = rows[:, -last:]
            if rows.shape[1]:
                self.cache.observe(layer, sequence, rows if rows.stride(-1) == 1 else rows.contiguous(), scale=scale)

    def _attend(
        self, module: Any, query: torch.Tensor, mask: Optional[torch.Tensor], inner: Any, causal: bool, **kwargs: Any
    ) -> Any:
        """A layer's part of a pass: appends its rows, lets `inner` attend, and shows the policy the queries."""
        layer, key, value = self._given
        if kwargs.get("softcap") is not None:
            raise _refusal("softcap", kwargs["softcap"], "None: kvmeld caps no logits")
        if kwargs.get("s_aux") is not None:
            raise _refusal("s_aux", "given", "None: kvmeld has no attention sinks beside the entries")
        window, n = kwargs.get("sliding_window"), query.shape[2]
        tokens = self._seen + (n if layer == 0 else 0)
        if window is not None and tokens > window:
            raise _refusal("sliding_window", window, f"at least {tokens}, the tokens read")
        if layer == 0:
            self._given = None  # _begin may compress
            self._begin(key, value, mask)
        held = self._append_rows(layer, key, value)
        keys, values = self.keys[layer][:, :, :held], self.values[layer][:, :, :held]
        out = inner(module, query, keys, values, self._mask(layer, n, held, query.dtype, causal), **kwargs)
        self._observe(layer, query, kwargs.get("scaling"))
        self._given = None
        self._next = (layer + 1) % self._layers
        self._in_pass = self._next != 0
        return out


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
        cache = getattr(key, "kvmeld_cache", None)
        if cache is None:
            return inner(module, query, key, value, attention_mask, **kwargs)
        return cache._attend(module, query, attention_mask, inner, name == "sdpa", **kwargs)

    if hasattr(ALL_ATTENTION_FUNCTIONS, "register"):
        ALL_ATTENTION_FUNCTIONS.register(_PREFIX + name, attention)
    else:  # a plain dict before transformers 4.51
        ALL_ATTENTION_FUNCTIONS[_PREFIX + name] = attention
    try:
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as masks
    except ImportError:  # before 4.53 models make the same mask for all attention functions but a few
        return
    masks.register(_PREFIX + name, masks[name])


for _name in _INNER:
    _register(_name)
