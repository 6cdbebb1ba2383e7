"""A cache for Hugging Face transformers that kvmeld shrinks in place, prompts and answers alike.

    cache = kvmeld.hf.KVMeldCache(model, "snapkv", budget=1024)
    model.generate(**inputs, past_key_values=cache, max_new_tokens=2000)
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
import warnings
import weakref
import zlib
from typing import Any, Optional, Sequence

import torch

import kvmeld
from kvmeld import _attention, _core, _layers, _masks, _model
from kvmeld._program import write_file
from kvmeld.fixed import FixedCache
from kvmeld.learned import Learned, read as read_learned
from kvmeld.cache import (
    _ELEMENTS, _PLACES, _PLACES_TEXT, _SCOPES, _index, _is_share, _number_of, _real, _rotation, _text,
)

__all__ = ["FixedCache", "KVMeldCache", "attach", "detach"]

_READ_TWICE, _READ_ONCE = "kvzip_centroids", "dropkv"  # where no policy is named
_LEARNED = "learned_centroids"  # the same, for models of which scores were learned
# A few tracks of a model copy its text, and need all entries: 2 of 90 in SmolLM2, which get them from a budget that all share, and 2 of
# 3 in Gemma 3 270M, where no share is enough. There all tracks keep the same tokens, by leverage, which finds those that differ from
# all others (docs/real_models.md). Between 3 and 90 tracks nothing was measured.
_FEW = 4
_SAME, _SAME_LEARNED = "leverage", "learned_leverage"
_FILE = "1"  # the format of the files of KVMeldCache.save


def _refusal(argument: str, value: Any, condition: str, call: str = "KVMeldCache") -> ValueError:
    return ValueError(f"{call}: {argument} is {value}; it must be {condition}")


def _no_model() -> None:
    """In place of a reference to a model."""


def _whole(value: Any, name: str, least: int) -> int:
    number = _index(value, name, 2**32 - 1, -(2**63))
    if number < least:
        raise _refusal(name, value, f"a whole number of at least {least}")
    return number


def _parts_of(budget: kvmeld.cache.Budget) -> tuple[int, float]:
    """A budget as a number of entries, or a share of the tokens; the other one is 0."""
    if not _is_share(budget):
        try:
            return _whole(budget, "budget", 1), 0.0
        except TypeError:
            raise TypeError(f"budget is {budget!r}; it must be a whole number of entries, or a share of the tokens, a float above 0 to"
                            " 1") from None
    if not 0 < budget <= 1:
        raise _refusal("budget", budget, "at least one entry, or a share of the tokens above 0 to 1")
    return 0, float(budget)


def _checksum(tensors: dict[str, torch.Tensor], texts: dict[str, str]) -> str:
    """Of all that a file holds, in a fixed order."""
    sum_ = zlib.crc32(repr([texts.get(name) for name in ("kvmeld.hf", "model", "state")]).encode())
    for name in sorted(tensors):
        tensor = tensors[name].cpu().contiguous()
        sum_ = zlib.crc32(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode(), sum_)
        sum_ = zlib.crc32(tensor.flatten().view(torch.uint8).numpy(), sum_)
    return f"{sum_:08x}"


def _learned_in(texts: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Optional[Learned]:
    """What was learned of the model, as _state describes it."""
    return Learned(tensors["learned"].numpy(), *texts["learned"]) if "learned" in texts else None


def attach(model: Any) -> None:
    """Makes a model's attention read KVMeldCaches. With any other cache, or none, the model computes as before.

    Raises ValueError where the model's attention is neither "eager" nor "sdpa".
    """
    name = model.config._attn_implementation
    if name.startswith(_attention.PREFIX):
        return
    if name not in _attention.INNER:
        raise _refusal("the model's attention implementation", repr(name), "'eager' or 'sdpa'", "attach")
    for config in _configs(model):
        if config._attn_implementation in _attention.INNER:
            config._attn_implementation = _attention.PREFIX + config._attn_implementation


def detach(model: Any) -> None:
    """Gives a model the attention back that it had before attach."""
    for config in _configs(model):
        name = config._attn_implementation
        if name is not None and name.startswith(_attention.PREFIX):
            config._attn_implementation = name[len(_attention.PREFIX) :]


def _configs(model: Any) -> list[Any]:
    """The configurations of a model and of its parts, which may compute attention in different ways."""
    return list({id(module.config): module.config for module in model.modules() if hasattr(module, "config")}.values())


class KVMeldCache(_layers.Growing):
    """A cache for `past_key_values`, in whose tensors kvmeld merges and evicts entries.

    model: whose cache it is. A decoder of transformers with "eager" or "sdpa" attention in host memory, or on one CUDA
        device if kvmeld was built with CUDA; float32, float16 or bfloat16. attach(model) is called. The first cache of a
        model lets it read one token, twice: that tells what its layers cache, and how those that keep all tokens rotate
        keys, which some policies have to know.
    policy: a name of kvmeld.policies(), or parts (kvmeld.Cache). Policies that need a second reading of the prompt
        (KVzip, Attention Matching) compress it once, after read(). None: the policy that keeps most of a prompt
        (docs/real_models.md): "kvzip_centroids" if read() reads the prompt, "learned_centroids" if it is read once,
        both with one budget over all layers (over "all_layers", floor 0). Heads then have unlike lengths, and the
        tensors are as long as the longest. Where nothing was learned of the model, a prompt that is read once is
        compressed by "dropkv", with a warning: this policy keeps what the end of the prompt asks for, and far less of
        the rest. In models in which at most four KV heads, of all layers together, keep all tokens, None is "leverage",
        or "learned_leverage" where scores were learned, and all these heads keep the same tokens (scope "all_layers").
    budget: what a compression leaves. An int: entries of each track (one KV head of one layer of one sequence); a
        float: a share of the tokens seen, above 0 to 1. None: only compress() compresses.
    interval: a compression comes before a forward pass that would leave a track with more than budget + interval
        entries (with `over`, the tracks of a sequence on average). So a prompt's logits come from the full cache, and
        the tokens of an answer come from a cache of bounded length. Each sequence of a batch is compressed when its own
        length asks for it, as if it were alone. A share that leaves less than the policy pins waits for more tokens.
    over, floor, scope, threads: see kvmeld.Cache and its compress(). over and scope are "head", and floor 0.2, where a policy
        is named.
    learned: what python -m kvmeld.learn has learned of this model, as a file or as kvmeld.learned.load returns it, or the
        name of a model whose weights come with kvmeld (kvmeld.learned.shipped()). For policies with the score "learned".
        None: the weights that come with kvmeld, if they are of this model. The model is recognised by the keys that it makes
        of one token. If weights are given and no policy is named, read() reads a prompt only once.

    Only layers that keep all tokens are compressed (full_layers; full_share() tells what share of the bytes they are), and
    only they count for budgets, `keys`, `values` and `cache`. Layers that read a window or a chunk, or keep a state
    (recurrent, convolutional), keep the caches that transformers makes for them, in `layers`: these are bounded already.
    Layers that read another layer's entries do so; policies see the queries of the layer that holds them.

    Attention adds the logarithm of each entry's degree to its logit. Padding, left or right, is told by the 2-D
    `attention_mask`, and never enters the cache; other masks than causal ones with padding are refused.
    get_seq_length() counts tokens seen, padding included, so generate() numbers positions as ever. Prompts may come in
    any parts: a part longer than the budget is held in full until the next pass. Beam search and batch_* calls copy
    sequences with all that kvmeld knows about them. crop() takes back tokens that came after the last compression, if the
    other layers can, too: states, and windows that were full, cannot.
    copy.deepcopy and pickle copy everything; save() and load() keep a cache in a file.

    On a CUDA device the cache enqueues its work to the stream that was current at the first pass.

    Scores of policies are of the attention that the model computes: with its sinks and its caps of logits, where it is
    "eager". With "sdpa" transformers computes without them, and policies do so, too. Policies that keep queries
    (kvmeld.Cache.needs().queries: DropKV, R-KV, Attention Matching, Expected Attention) always rank without them.

    All that can be known is checked when the cache is made. Refused with ValueError: numbers that the library refuses;
    models in which no layer keeps all tokens, and those with kinds of layers for which the installed transformers has no
    caches. Refused in a pass: tensors that require gradients; memory of other devices; rotations that change while a
    policy counts on them. A pass that ends in an exception leaves the cache unusable until reset(). One cache is used by
    one thread at a time.
    """

    def __init__(
        self,
        model: Any,
        policy: Optional[str] = None,
        budget: Optional[kvmeld.cache.Budget] = None,
        *,
        interval: int = 64,
        over: Optional[str] = None,
        floor: Optional[float] = None,
        scope: Optional[str] = None,
        threads: int = 0,
        learned: Any = None,
    ) -> None:
        if not hasattr(model, "config") or not hasattr(model, "modules"):
            raise TypeError(f"model is of type {type(model).__name__}; it must be a model of transformers, as from_pretrained returns it")
        self._learned = None if learned is None else read_learned(learned)
        self.budget, self.interval = budget, _whole(interval, "interval", 1)
        self._options: dict[str, Any] = {"threads": _whole(threads, "threads", 0)}
        #: What a caller says beside no policy: over, floor, scope, whether what was learned.
        self._by_default: Optional[tuple[Optional[str], Optional[float], Optional[str], bool]] = None
        if policy is None:
            self._by_default = over, floor, scope, learned is not None
        else:
            self._take_policy(_text(policy, "policy"), over, floor, scope)
        self._empty, full = _layers.layers_of(model, _refusal)
        super().__init__(self._empty, full)
        #: The kvmeld.Cache over `keys` and `values`, with lengths, degrees and positions; None before the first pass.
        self.cache: Optional[kvmeld.Cache] = None
        #: [layers, batch, kv_heads, capacity, head_dim]; entries behind a track's length have no meaning.
        self.keys: Optional[torch.Tensor] = None
        self.values: Optional[torch.Tensor] = None
        #: Compressions so far.
        self.compressions = 0
        self._forget()
        attach(model)
        self._learn(model, getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 17)

    def _learn(self, model: Any, tokens: int) -> None:
        """Checks what is known before the first pass: the model, the policy, the budget. tokens: the most that the model
        is made for."""
        self._facts = facts = _model.facts_of(model, _refusal)
        if not facts.query_heads:
            raise _refusal("the model's attention", "one of its own", "one that looks up attention functions by name, as"
                           " transformers' newer models do, and reads the very rows that are cached, not rows made of them")
        self._query_heads = facts.query_heads
        self._model = weakref.ref(model)
        self._digest: Optional[str] = None  # of the model, where a copy has no other way to know it
        if self._learned is None and (self._by_default is not None or _core.asks(self._options["policy"])[1]):
            self._learned = _model.shipped_weights(model, facts)
        if self._by_default is not None:
            self._take_policy(self._default_of(True), *self._by_default[:3])
        self._tell_rotation()
        self._element, self._longest_text = str(model.dtype).removeprefix("torch."), tokens
        if self._element not in _ELEMENTS:
            raise _refusal("the model's dtype", self._element, "one of " + ", ".join(_ELEMENTS))
        self._least = self._check()

    def _tell_rotation(self) -> None:
        """Tells the policy how the model rotates keys, if it has to know. The library refuses weights of other sizes."""
        self._turning: Optional[list[torch.Tensor]] = None  # the frequencies that the policy counts on
        policy, facts, model = self._options["policy"], self._facts, self._model()
        if not _core.asks(policy)[0]:
            return
        by_itself = self._by_default is not None and self._learned is None  # centroids, which do without it, less well
        if facts.rotation is None and not by_itself:
            raise _refusal("the rotation of keys", "unknown",
                           f"known, because {policy!r} turns keys back ({facts.unknown}); the policy's text can say"
                           " it: rope=half_split rope_base=500000")
        self._turning = None if model is None or by_itself else _model.frequencies_of(model)
        pairing, frequencies = facts.rotation or ("none", None)
        if self._learned is None:
            self._options["rope"] = pairing
            if pairing != "none":
                self._options["frequencies"] = frequencies
        elif not _model.rotates_as(self._learned, facts.rotation):
            raise _refusal("learned", "of a model that rotates keys in another way", f"learned of this one, {pairing}")

    def _default_of(self, is_read: bool) -> str:
        """The policy where none was named, for a prompt that read() reads, or one that a plain pass reads."""
        if self._facts.layers * self._facts.kv_heads <= _FEW:
            return _SAME if self._learned is None else _SAME_LEARNED
        if is_read and not self._by_default[3]:
            return _READ_TWICE
        return _READ_ONCE if self._learned is None else _LEARNED

    def _take_policy(self, policy: str, over: Optional[str], floor: Optional[float], scope: Optional[str]) -> None:
        """Sets the policy, which tracks share a plan or a budget, and what each of them keeps, unless the caller says so."""
        shares = self._by_default is not None and policy in (_READ_TWICE, _LEARNED)
        is_same = self._by_default is not None and policy in (_SAME, _SAME_LEARNED) and over in (None, "head")
        self.over = ("all_layers" if shares else "head") if over is None else over
        self.floor = (0.0 if shares else 0.2) if floor is None else _real(floor, "floor")
        self._options.update(policy=policy, over=self.over, scope=("all_layers" if is_same else "head") if scope is None else scope)

    def _suit(self) -> None:
        """Takes the policy for a prompt that is read once or twice, where none was named."""
        policy = self._options["policy"] if self._by_default is None else self._default_of(self._reading)
        if policy == self._options["policy"]:
            return
        self._take_policy(policy, *self._by_default[:3])
        self.cache = self.keys = self.values = None
        self._tell_rotation()
        self._least = self._check()

    def _check(self) -> int:
        """Refuses what the library will refuse of the options and of the budget; returns the fewest entries that a track
        of many tokens can be left."""
        entries, ratio = (0, 0.0) if self.budget is None else _parts_of(self.budget)
        over = _number_of(self.over, _SCOPES, "over")
        sizes = [self._layers, self._facts.kv_heads, self._query_heads // self._facts.kv_heads, self._facts.key_dim,
                 self._facts.value_dim]
        turned = weights = None
        if self._learned is not None:
            turned = _rotation(self._learned.pairing, 1.0, self._learned.frequencies or None)
            weights = self._learned.weights
        elif "rope" in self._options:
            turned = _rotation(self._options["rope"], 1.0, self._options.get("frequencies"))
        longest = min(max(self._longest_text, entries + self.interval), 2**31 - 1)
        return _core.check(self._options["policy"], sizes, _ELEMENTS.index(self._element),
                           _number_of(self._options["scope"], _SCOPES, "scope"), over, turned, weights, entries, ratio, over,
                           self.floor if over else 0.0, longest)

    def _forget(self) -> None:
        self._seen = 0  # tokens of each row of the batch, padding included
        self._real: Optional[torch.Tensor] = None  # [batch, _seen]: which of them are no padding; None: all of them
        self.layers = copy.deepcopy(self._empty)
        self._order = [i for i in range(len(self.layers)) if i in self._full or not self._is_own(i)]  # of a pass
        self._next = 0  # the place in it that the pass comes to next
        self._given: Optional[tuple[int, torch.Tensor, torch.Tensor]] = None  # between update and attention; its place in _full
        self._merged = False  # whether an entry stands for several tokens
        self._biases: dict[int, torch.Tensor] = {}  # of layers, since the last compression
        self._in_pass = False  # between the beginning of a pass and its end, and after one that failed
        self._reading = False  # in read()
        self._again = False  # in the second reading

    # --- what transformers calls

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes the new keys and values [batch, kv_heads, n, head_dim] of a layer. If it keeps all tokens, the attention
        function that attach has set up, which gets what this returns, appends them and reads the cache."""
        if self._given is not None:
            raise _refusal("the model's attention implementation", "not kvmeld's",
                           "that of kvmeld.hf.attach(model), for models that look up attention functions by name")
        if layer_idx != self._order[self._next] or (self._next == 0 and self._in_pass):
            raise _refusal("layer_idx", layer_idx, f"{self._order[self._next]}, the layer that the pass comes to next"
                           " (reset() begins anew after a pass that did not end)")
        if layer_idx not in self._full:
            self._in_pass = True
            rows = self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)
            self._step()
            return rows
        if key_states.requires_grad or value_states.requires_grad:
            raise _refusal("key_states", "a tensor that requires gradients",
                           "without: run the model under torch.inference_mode() or no_grad()")
        if key_states.device.type not in _PLACES:
            raise _refusal("key_states", f"on {key_states.device}", _PLACES_TEXT)
        layer = self._full.index(layer_idx)
        self._given = layer, key_states, value_states
        marked = key_states.view_as(key_states)
        marked.kvmeld_attend = functools.partial(self._attend, layer)  # for the attention function
        return marked, value_states

    def _step(self) -> None:
        self._next = (self._next + 1) % len(self._order)
        self._in_pass = self._next != 0

    @property
    def full_layers(self) -> tuple[int, ...]:
        """The layers of the model that keep all tokens, which are those that a compression shrinks."""
        return self._full

    def full_share(self, tokens: Optional[int] = None) -> float:
        """The share of the bytes of a sequence of so many tokens that full_layers hold before any compression. Without an
        argument: of the longest text that the model is made for."""
        return self._facts.share(self._longest_text if tokens is None else _whole(tokens, "tokens", 1))

    @property
    def batch_size(self) -> int:
        """Sequences held; -1 before the first pass."""
        return -1 if self.cache is None else self.cache.sequences

    max_batch_size = batch_size

    @property
    def is_initialized(self) -> bool:
        """Whether tensors are there."""
        return self.cache is not None

    def __repr__(self) -> str:
        listed = ", ".join(map(str, self._full))
        which = "all layers" if len(self._full) == len(self.layers) else (
            f"layers {listed} of {len(self.layers)}, {self.full_share():.0%} of the bytes of {self._longest_text} tokens")
        what, options = self._said(), self._options
        if self.budget is not None and self.cache is not None:
            what += f", budget {self.budget}" + (f" over {self.over}" if self.over != "head" else "")
        if options["scope"] != "head":
            what += f", the same tokens in all heads of {'a layer' if options['scope'] == 'layer' else 'all layers'}"
        return f"KVMeldCache({what}, {which}, {self._seen} tokens seen)"

    def _said(self) -> str:
        """What the cache is, or before the first pass which policy it will take."""
        if self.cache is not None:
            return repr(self.cache)
        if self._by_default is None:
            return repr(self._options["policy"])
        twice, once = (self._default_of(is_read) for is_read in (True, False))
        return repr(once) if twice == once else f"{twice!r} if read() reads the prompt, else {once!r}"

    def reset(self) -> None:
        """Forgets all sequences. The tensors stay. The next batch must have the same number of sequences."""
        for sequence in range(max(self.batch_size, 0)):
            self.cache.close(sequence)
            self.cache.open(sequence)
        self._forget()

    def crop(self, max_length: int) -> None:
        """Keeps the first max_length tokens, or drops the last -max_length, padding included. 0 does what crop(0) of
        the installed transformers' DynamicCache does: it drops all tokens, or in newer versions none. Refuses to
        drop a token that came before the last compression; then nothing changes."""
        counts_kept = max_length > 0 or (max_length == 0 and _layers.zero_drops_all())
        kept = max_length if counts_kept else max(0, self._seen + max_length)
        if kept >= self._seen or self.cache is None:
            if max_length == 0 and not _layers.zero_drops_all():  # where layers were told to keep what they read, enough of it
                for layer in self.layers:
                    if getattr(layer, "record_past", False):
                        layer.crop(0)
            return
        self._between_passes()
        before = copy.deepcopy(self.layers)
        _layers.crop(self.layers, self._seen - kept)
        try:
            self._crop(kept)
        except ValueError:
            self.layers = before
            raise

    def _crop(self, kept: int) -> None:
        """The same of the layers that keep all tokens."""
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
        """Sequence i becomes a copy of sequence beam_idx[i]. beam_idx: [sequences], whole numbers."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each sequence becomes `repeats` sequences that lie side by side."""
        if self.cache is not None:
            self._between_passes()
            self._select([s for s in range(self.batch_size) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Sequence i becomes a copy of sequence indices[i], and there are as many sequences as indices. indices: [n], whole
        numbers, or n booleans that mark what stays."""
        if self.cache is not None:
            self._between_passes()
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
        """Reads a prompt into the empty cache, once more if the policy needs a second reading, and compresses it to the
        budget, if there is one. Afterwards generate() goes on behind the prompt. Its input_ids begin with the
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
                self._again = self.cache is not None and self._needs.when == "replay"
                read = self.layers  # windows and states cannot take back the second reading
                for at in parts if self._again else ():
                    self.layers = copy.deepcopy(read)
                    run(torch.cat([before, input_ids[:, at]], dim=1), mask,
                        torch.cat([torch.ones_like(before), mask[:, at]], dim=1))
                    self._crop(n)
                self.layers = read
        except BaseException:
            self.reset()
            raise
        finally:
            self._reading = self._again = False
        read = () if self.cache is None else [self.cache.tokens(s) for s in range(self.batch_size) if self.cache.tokens(s)]
        too_short = _is_share(self.budget) and any(int(self.budget * tokens) < self._least for tokens in read)
        if read and self.budget is not None and not too_short:  # a share that leaves less than the policy pins waits, as ever
            self.compress()

    # --- compression

    def compress(self, budget: Optional[kvmeld.cache.Budget] = None) -> None:
        """Compresses every sequence between two passes, to the cache's own budget without an argument, and gives memory
        back. Sequences without tokens stay as they are."""
        self._between_passes()
        if budget is None:
            budget = self.budget
        if budget is None or self.cache is None:
            raise _refusal("budget", f"{budget} after {self._seen} tokens", "a number, after a first pass", "compress")
        self._compress([s for s in range(self.batch_size) if self.cache.tokens(s)], budget)
        self._resize(self._longest() + self.interval, shrink=True)

    def _compress(self, sequences: Sequence[int], budget: kvmeld.cache.Budget) -> None:
        if self.compressions == 0 and self._by_default is not None and self._options["policy"] == _READ_ONCE:
            warnings.warn("KVMeldCache: no policy was named, nothing was learned of this model, and the prompt was read once, so"
                          " 'dropkv' keeps what its end asks for. Far more of what a prompt says is kept by weights that python -m"
                          " kvmeld.learn learns once (learned=), or if read() reads the prompt twice", stacklevel=3)
        self.cache.compress(sequences, budget, over=self.over, floor=self.floor)
        self.compressions += 1
        self._biases = {}
        self._merged = self._merged or not self.cache.policy.endswith("drop") and any(
            self.cache.degrees(layer, sequence, head).max(initial=1) > 1
            for layer in range(self._layers)
            for sequence in sequences
            for head in range(self.cache.kv_heads)
        )

    def _between_passes(self) -> None:
        if self._in_pass or self._given is not None:
            raise _refusal("the pass", f"at layer {self._next}",
                           "at its end: reset() begins anew after one that failed")

    def _held(self, sequence: int) -> int:
        """Entries of a track of a sequence, to be compared with the budget: of the longest one, or where tracks share
        their budgets the mean."""
        if self.over == "head":
            return self.cache.longest(sequence)
        return math.ceil(self.cache.lengths(sequence).mean())

    def _longest(self) -> int:
        return max((self.cache.longest(sequence) for sequence in range(self.batch_size)), default=0)

    def _bound(self, tokens: int) -> Optional[int]:
        """The most entries that a track of a sequence of so many tokens is to have."""
        if self.budget is None or (self.cache is not None and self._needs.when == "replay"):
            return None
        left = max(1, int(self.budget * tokens + 1e-9)) if _is_share(self.budget) else self.budget
        return left + self.interval

    def _is_due(self, sequence: int, new: int) -> bool:
        """Whether a sequence is to be compressed before it gets new tokens: whatever the rest of the batch is."""
        tokens = self.cache.tokens(sequence)
        bound, held = self._bound(tokens + new), self._held(sequence)
        if bound is None or held + new <= bound or held <= bound - self.interval:
            return False
        return not _is_share(self.budget) or int(self.budget * tokens) >= self._least

    def _make_room(self, counts: Sequence[int], n: int) -> None:
        """Compresses the sequences that are due before they get counts[i] tokens of a pass of n, then lets the tensors
        hold them."""
        due = [sequence for sequence, new in enumerate(counts) if new and self._is_due(sequence, new)]
        if due:
            self._compress(due, self.budget)
        rows = list(enumerate(counts))
        needed = max(self.cache.longest(sequence) + new for sequence, new in rows)
        bounds = [self._bound(self.cache.tokens(sequence) + new) for sequence, new in rows]
        bound, capacity = None if None in bounds else max(bounds), self.cache.capacity
        fixed = bound is not None and not _is_share(self.budget)
        if needed > capacity:
            self._resize(max(needed, min(2 * capacity, bound) if fixed else 2 * capacity))
        elif bound is not None and n <= self.interval and needed <= bound:  # after a long prompt
            if capacity > (bound if fixed else 4 * bound):
                self._resize(bound)

    def _resize(self, capacity: int, shrink: bool = False) -> None:
        if not shrink or capacity < self.cache.capacity:
            self._select(range(self.batch_size), capacity)

    # --- constant shapes

    def fixed(self, tokens: int) -> FixedCache:
        """The entries of this cache, with room for so many tokens more, in tensors of constant shapes: for torch.compile. It
        holds copies: this cache stays as it is until FixedCache.renew(). Refused before a first pass, and
        for models that keep other things than attention over all tokens, or over a window."""
        self._between_passes()
        return FixedCache(self, _whole(tokens, "tokens", 1))

    # --- copies

    def save(self, path: Any) -> None:
        """Writes the cache to one file, in the format of safetensors: rows, ledgers, options, and a digest of the model.
        An existing file is replaced once the new one is whole. Refused in a pass. Raises OSError where no file can be
        written."""
        from safetensors.torch import save

        state = self._state()
        texts = {"kvmeld.hf": _FILE, "model": self._fingerprint(), "state": json.dumps(state["texts"])}
        texts["checksum"] = _checksum(state["tensors"], texts)
        write_file(path, save(state["tensors"], texts))

    @classmethod
    def load(cls, model: Any, path: Any, *, threads: int = 0) -> KVMeldCache:
        """The cache that save() wrote, in this process or another one; generate() goes on with it. Refused with
        ValueError: a file that is no such cache or is damaged, and another model than the one that it was saved with
        (its weights, sizes, types and rotation count). model.device says where its tensors come to lie."""
        import safetensors

        try:
            with safetensors.safe_open(path, framework="pt") as file:
                texts = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}
        except safetensors.SafetensorError as e:
            raise _refusal(str(path), f"damaged ({e})", "a file that save() wrote", "load") from None
        if texts.get("kvmeld.hf") != _FILE:
            raise _refusal(str(path), f"of format {texts.get('kvmeld.hf')!r}", f"of format {_FILE!r}: what save() wrote",
                           "load")
        if texts.get("checksum") != _checksum(tensors, texts):
            raise _refusal(str(path), "damaged (its checksum is another one)", "a file that save() wrote", "load")
        if texts["model"] != _model.fingerprint(model):
            raise _refusal("model", "another one", "the one that the cache was saved with", "load")
        state = json.loads(texts["state"])
        options = state["options"]
        cache = cls(model, options["policy"], state["budget"], interval=state["interval"], over=options["over"],
                    floor=state["floor"], scope=options["scope"], threads=threads, learned=_learned_in(state, tensors))
        where = model.get_input_embeddings().weight.device
        for name in ("keys", "values"):
            if name in tensors:
                tensors[name] = tensors[name].to(where)
        tensors.update({name: tensor.to(where) for name, tensor in tensors.items() if name.startswith("layers.")})
        cache._restore(state, tensors)
        return cache

    def _fingerprint(self) -> str:
        model = self._model()
        if model is not None:
            self._digest = _model.fingerprint(model)
        if self._digest is None:
            raise _refusal("the model", "gone", "alive when its cache is saved or copied", "save")
        return self._digest

    def _state(self) -> dict[str, Any]:
        """What a copy is made of: tensors, which are copies, and values of JSON."""
        self._between_passes()
        texts = {
            "options": self._options, "budget": self.budget, "interval": self.interval, "floor": self.floor,
            "seen": self._seen, "merged": self._merged, "compressions": self.compressions,
        }
        tensors: dict[str, torch.Tensor] = {}
        if self._learned is not None:
            tensors["learned"] = torch.from_numpy(self._learned.weights.copy())
            texts["learned"] = [self._learned.pairing, self._learned.frequencies, self._learned.about]
        if self.cache is not None:
            if self._facts.beside:
                texts["layers"] = _layers.packed(self.layers, tensors)
            held = self._longest()
            for name, rows in (("keys", self.keys), ("values", self.values)):
                tensors[name] = rows[:, :, :, :held].clone()
                for layer, sequence, head in itertools.product(range(self._layers), range(self.batch_size),
                                                               range(self.cache.kv_heads)):
                    tensors[name][layer, sequence, head, self.cache.lengths(sequence)[layer, head] :] = 0  # nobody's
            for sequence in range(self.batch_size):
                ledger = bytearray(self.cache.save(sequence))
                tensors[f"ledger.{sequence}"] = torch.frombuffer(ledger, dtype=torch.uint8)
        if self._real is not None:
            tensors["real"] = self._real.to(torch.uint8)
        return {"texts": texts, "tensors": tensors}

    def _restore(self, texts: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Becomes what _state has described; this cache is empty."""
        self._seen, self._merged, self.compressions = texts["seen"], texts["merged"], texts["compressions"]
        if "real" in tensors:
            self._real = tensors["real"].bool()
        if "keys" not in tensors:
            return
        _layers.unpack(self.layers, texts.get("layers", ()), tensors)
        keys, values = tensors["keys"], tensors["values"]
        _, batch, kv_heads, held, _ = keys.shape
        self._create(batch, kv_heads, max(1, held), values.shape[-1], keys)
        self.keys[:, :, :, :held], self.values[:, :, :, :held] = keys, values
        for sequence in range(batch):
            self.cache.resume(sequence, tensors[f"ledger.{sequence}"].numpy().tobytes())

    def _whole_state(self, digest: Optional[str]) -> dict[str, Any]:
        return {**self._state(), "facts": self._facts, "least": self._least, "empty": self._empty,
                "turning": self._turning, "digest": digest,
                "default": (self._by_default, self._element, self._longest_text)}

    def __getstate__(self) -> dict[str, Any]:
        """For pickle. In the process that reads it, attach(model) makes the model read the copy."""
        return self._whole_state(self._fingerprint())

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._facts, self._least = state["facts"], state["least"]
        self._empty, self._turning = state["empty"], state["turning"]
        super().__init__(self._empty, self._facts.full)
        texts = state["texts"]
        self._options = dict(texts["options"])
        self._learned = _learned_in(texts, state["tensors"])
        self.budget, self.interval, self.floor = texts["budget"], texts["interval"], texts["floor"]
        self.over = self._options["over"]
        self._query_heads = self._facts.query_heads
        self._model, self._digest = _no_model, state["digest"]  # the model is not copied
        self._by_default, self._element, self._longest_text = state["default"]
        self.cache = self.keys = self.values = None
        self._forget()
        self._restore(texts, state["tensors"])

    def __deepcopy__(self, memo: dict) -> KVMeldCache:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(self._whole_state(self._digest))
        copied._model = self._model  # which tells the digest when it is asked for
        return copied

    __copy__ = functools.partialmethod(__deepcopy__, {})  # two caches never share their tensors

    # --- tensors

    def _create(self, sequences: int, kv_heads: int, capacity: int, value_dim: int, like: torch.Tensor) -> None:
        """New tensors, of the type and on the device of `like`, whose rows are keys."""
        sizes = self._layers, sequences, kv_heads, capacity
        with torch.inference_mode(False):  # tensors that any later pass may write
            keys = torch.zeros(*sizes, like.shape[-1], dtype=like.dtype, device=like.device)
            values = torch.zeros(*sizes, value_dim, dtype=like.dtype, device=like.device)
        group = self._query_heads // kv_heads
        cache = kvmeld.Cache(keys, values, queries_per_kv_head=group, learned=self._learned, **self._facts.attention,
                             **self._options)
        self.keys, self.values, self.cache, self._needs = keys, values, cache, cache.needs()

    def _select(self, chosen: Sequence[int], capacity: Optional[int] = None) -> None:
        """Sequence i becomes a copy of sequence chosen[i], in new tensors where the sizes change."""
        old, keys, values, held = self.cache, self.keys, self.values, self._longest()
        capacity = capacity or old.capacity
        new = len(chosen) != old.sequences or capacity != old.capacity
        moved = [i for i, source in enumerate(chosen) if new or i != source]
        if not moved:
            return
        if list(chosen) != list(range(old.sequences)):
            for layer in self.layers:
                layer.reorder_cache(torch.tensor(list(chosen)))
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
        if not self._seen:
            self._suit()
        if self.cache is None:
            self._create(batch, kv_heads, max(n, min(64, self._bound(n) or 64)), value.shape[-1], key)
            for sequence in range(batch):
                self.cache.open(sequence)
        if self._needs.when == "replay" and not (self._reading or self._seen):
            raise _refusal("policy", repr(self._options["policy"]),
                           "one that reads a prompt once, unless the prompt is read by read(model, input_ids)")
        if self.cache.device >= 0 and torch.cuda.current_stream(key.device).cuda_stream != self.cache.stream:
            raise _refusal("the current stream", "another one", "that of the first pass, in which the cache works")
        if batch != self.batch_size:
            raise _refusal("the batch", batch, f"{self.batch_size}, the sequences that the cache holds")
        valid = _masks.tokens_shown(mask, self._real, batch, self._seen, n, _refusal)
        if self._turning is not None and not self._is_turning_as_before():
            raise _refusal("the model's rotation", "another one than before", "the same for all tokens, because"
                           f" {self._options['policy']!r} turns keys back")
        counts = valid.sum(dim=1)
        self._make_room(counts.tolist(), n)
        self._in_pass = True
        self._append(counts, valid)

    def _append(self, counts: torch.Tensor, valid: torch.Tensor) -> None:
        """Appends tokens whose rows are to come. valid: [batch, n], which of them are no padding, and counts, how many."""
        batch, n = valid.shape
        first = torch.tensor([self.cache.lengths(sequence).tolist() for sequence in range(batch)])
        read = [sequence for sequence in range(batch) if counts[sequence]]
        appended = [int(counts[sequence]) for sequence in read]
        self.cache.append(read, appended)
        self.cache.commit(read, appended)
        self._valid = None if bool(valid.all()) else valid
        if self._valid is not None or self._real is not None:
            self._real = torch.cat([_masks.real_tokens(self._real, batch, self._seen), valid], dim=1)
        self._seen += n
        self._counts = counts
        self._first = first.transpose(0, 1)  # [layers, batch, kv_heads]: where the new rows lie
        self._even = self._valid is None and bool((first == first.flatten()[0]).all())

    def _append_read(self, n: int, rows: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Appends n tokens of each sequence that a FixedCache has read. rows: keys and values of each layer of the model; of one
        with a window all that it is to keep."""
        self._between_passes()
        self._resize(max(self.cache.capacity, self._longest() + n))
        valid = torch.ones(self.batch_size, n, dtype=torch.bool)
        self._append(valid.sum(dim=1), valid)
        for number, (layer, (keys, values)) in enumerate(zip(self.layers, rows)):
            if number in self._full:
                self._append_rows(self._full.index(number), keys, values)
            elif self.is_sliding[number]:
                layer.keys, layer.values, layer.cumulative_length = keys, values, layer.cumulative_length + n

    def _is_turning_as_before(self) -> bool:
        model = self._model()
        return model is None or _model.are_same(self._turning, _model.frequencies_of(model))

    def _append_rows(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
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
            of = query[sequence]
            rows = (of if self._valid is None else of[:, self._valid[sequence]])[:, -last:]
            if rows.shape[1]:
                self.cache.observe(layer, sequence, rows if rows.stride(-1) == 1 else rows.contiguous(), scale=scale)

    def _attend(
        self, layer: int, module: Any, query: torch.Tensor, mask: Optional[torch.Tensor], inner: Any, causal: bool,
        **kwargs: Any,
    ) -> Any:
        """A layer's part of a pass: appends its rows, lets `inner` attend, and shows the policy the queries. layer: its
        place in _full; another layer may read its entries again."""
        if self._given is None:
            return self._read_entries(layer, module, query, inner, causal, **kwargs)
        _, key, value = self._given
        window, n = kwargs.get("sliding_window"), query.shape[2]
        tokens = self._seen + (n if layer == 0 else 0)
        if window is not None and tokens > window:
            raise _refusal("sliding_window", window, f"at least {tokens}, the tokens read")
        if mask is None and n > 1 and False in (kwargs.get("is_causal"), getattr(module, "is_causal", True)):
            raise _refusal("is_causal", False, "True: tokens see those before them")
        if layer == 0:
            self._given = None  # _begin may compress
            self._begin(key, value, mask)
            self._checked = mask
        elif mask is not None and mask is not self._checked and mask.dim() == 4:  # of another kind of layers
            valid = torch.ones(query.shape[0], n, dtype=torch.bool) if self._valid is None else self._valid
            _masks.check(mask[..., :tokens], valid, self._real, self._seen - n, _refusal)
            self._checked = mask
        self._append_rows(layer, key, value)
        out = self._read_entries(layer, module, query, inner, causal, **kwargs)
        self._observe(layer, query, kwargs.get("scaling"))
        self._given = None
        self._step()
        return out

    def _read_entries(self, layer: int, module: Any, query: torch.Tensor, inner: Any, causal: bool, **kwargs: Any) -> Any:
        held = int((self._first[layer] + self._counts[:, None]).max())
        keys, values = self.keys[layer][:, :, :held], self.values[layer][:, :, :held]
        return inner(module, query, keys, values, self._mask(layer, query.shape[2], held, query.dtype, causal), **kwargs)
