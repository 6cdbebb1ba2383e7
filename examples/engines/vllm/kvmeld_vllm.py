"""A plug-in for vLLM: requests whose prompt was read keep `budget` entries, and shrink to it again at `trigger` entries.

vLLM is not changed. It is told four things in ways that it offers to others: a kind of KV cache whose manager gives
blocks back (register_kv_cache_spec), and an attention backend (register_backend) whose metadata builder compresses
between two steps and says where entries lie, and whose attention adds log degrees. docs/engines/vllm.md has the places.

vLLM starts processes of its own and calls register() in each, without arguments. So the settings are variables of the
environment:

    KVMELD_BUDGET   entries that a request keeps; without it the plug-in does nothing
    KVMELD_TRIGGER  entries at which a request shrinks again; twice the budget without it
    KVMELD_FROZEN   first tokens that are never merged, which prefix caching may share: a multiple of the block size; 0
    KVMELD_POLICY   of kvmeld.policies(), or parts; dropkv
    KVMELD_IGNORE_DEGREE  1: entries count as one token each, and vLLM's own kernel computes all of attention
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import OrderedDict
from typing import Any, NamedTuple, Optional

import torch
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import register_kv_cache_spec

import kvmeld


class Settings(NamedTuple):
    budget: int
    trigger: int
    frozen: int
    policy: str
    ignore_degree: bool


@functools.cache
def settings() -> Settings:
    budget = int(os.environ["KVMELD_BUDGET"])
    found = Settings(
        budget,
        int(os.environ.get("KVMELD_TRIGGER", 2 * budget)),
        int(os.environ.get("KVMELD_FROZEN", 0)),
        os.environ.get("KVMELD_POLICY", "dropkv"),
        os.environ.get("KVMELD_IGNORE_DEGREE") == "1",
    )
    if not found.frozen < found.budget < found.trigger:
        raise ValueError(f"KVMELD_FROZEN {found.frozen}, KVMELD_BUDGET {found.budget} and KVMELD_TRIGGER {found.trigger} "
                         "must be in ascending order")
    return found


class Held:
    """What one request holds. A column is a place in vLLM's block table, which goes on counting tokens: column c has the
    block of tokens c * block to (c + 1) * block - 1. After a compression, entries lie in some of the columns.

    Scheduler and worker are different processes. Each follows a request by these rules, which depend on numbers of tokens
    alone. So no length has to be sent.
    """

    def __init__(self, block: int) -> None:
        self.block = block
        self.tokens = self.entries = 0
        self.columns: list[int] = []  # that hold entries, in their order
        self.shrunk = False
        self.sequence: Optional[int] = None  # of kvmeld's cache, in the worker
        self.queries: dict[int, Any] = {}  # the last ones of each layer, in the worker

    def grow(self, tokens: int) -> None:
        """Rows of all tokens up to the number `tokens` have come."""
        blocks = [-(-n // self.block) for n in (self.tokens, tokens)]
        self.columns.extend(range(*blocks))
        self.entries += tokens - self.tokens
        self.tokens = tokens

    def shrink_if_due(self, prompt_read: bool) -> Optional[list[int]]:
        """The columns that a compression at this moment empties, and None if it is no moment for one."""
        budget, trigger = settings()[:2]
        if not prompt_read or self.entries < (trigger if self.shrunk else budget + 1):
            return None
        kept = self.columns[: -(-budget // self.block)]
        if self.tokens % self.block and self.columns[-1] not in kept:
            kept.append(self.columns[-1])  # vLLM takes no new block for the next token: it has room in this one
        emptied = [c for c in self.columns if c not in set(kept)]
        self.columns, self.entries, self.shrunk = kept, budget, True
        return emptied


class MeldedManager(FullAttentionManager):
    """In the scheduler: gives back the blocks that a compression empties, and shares only frozen tokens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if settings().frozen % self.block_size:
            raise ValueError(f"KVMELD_FROZEN {settings().frozen} must be a multiple of the block size {self.block_size}")
        self.held: dict[str, Held] = {}

    def remove_skipped_blocks(self, request_id: str, processed_computed_tokens: int,
                              num_prompt_tokens: Optional[int] = None) -> None:
        """Called before each step, ahead of the worker, which compresses at the beginning of the same step."""
        if num_prompt_tokens is None:
            return
        held = self.held.setdefault(request_id, Held(self.block_size))
        held.grow(processed_computed_tokens)
        for column in held.shrink_if_due(processed_computed_tokens >= num_prompt_tokens) or ():
            self._remove_blocks_in_range(request_id, column, column + 1)

    def cache_blocks(self, request: Any, num_tokens: int, *args: Any, **kwargs: Any) -> None:
        """Blocks behind the frozen beginning get no hash: their entries will not be the tokens of their place."""
        super().cache_blocks(request, min(num_tokens, settings().frozen), *args, **kwargs)

    def pop_blocks_for_free(self, request_id: str) -> list[Any]:
        self.held.pop(request_id, None)
        return super().pop_blocks_for_free(request_id)


@register_kv_cache_spec(manager_class=MeldedManager, uniform_type_base_spec=FullAttentionSpec)
@dataclasses.dataclass(frozen=True, kw_only=True)
class MeldedSpec(FullAttentionSpec):
    """Tells the scheduler that MeldedManager manages the blocks of a layer."""


def rows_of(kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [block][head][token][channel] of a layer, in vLLM's own memory. In each block and head, keys lie
    first, with the tokens of a channel side by side, and values behind them."""
    blocks, heads, block, both = kv.shape
    d, strides = both // 2, kv.stride()[:2]
    keys = kv.as_strided((blocks, heads, block, d), (*strides, 1, block), kv.storage_offset())
    return keys, kv.as_strided((blocks, heads, block, d), (*strides, d, 1), kv.storage_offset() + block * d)


class MeldedBuilder(CPUAttentionMetadataBuilder):
    """In the worker: its build() is called once between two steps, for all layers."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        for wrong, what in (
            (vllm_config.speculative_config is not None, "speculative decoding: lengths would depend on what is accepted"),
            (vllm_config.scheduler_config.async_scheduling, "async_scheduling: the scheduler would be a step ahead"),
            (vllm_config.parallel_config.pipeline_parallel_size > 1, "pipeline parallelism, for the same reason"),
            (vllm_config.kv_transfer_config is not None, "a KV connector: it sends blocks by numbers of tokens"),
            (self.window_size != -1, "a sliding window: it counts slots"),
        ):
            if wrong:
                raise ValueError(f"kvmeld has no answer to {what}")
        self.isa = "vec"  # AMX keeps pairs of channels of 16 keys side by side: no strides describe that
        self._set_isa_to_layers(layer_names)
        self.held: OrderedDict[int, Held] = OrderedDict()  # by a block that is a request's own, see _held_by
        self.cache: Optional[kvmeld.Cache] = None

    def _make_cache(self, columns: int) -> None:
        layers = [self.vllm_config.compilation_config.static_forward_context[name] for name in self.layer_names]
        keys, values = zip(*(rows_of(layer.kv_cache) for layer in layers))
        most = 2 * self.vllm_config.scheduler_config.max_num_seqs
        self.free = list(range(most))
        self.pages = torch.zeros((most, columns), dtype=torch.int32)
        self.cache = kvmeld.Cache(
            list(keys), list(values), settings().policy, queries_per_kv_head=self.num_heads // self.num_kv_heads,
            page_table=self.pages, ignore_degree=settings().ignore_degree,
        )
        when, self.observed = self.cache.needs().when, 0
        if when == "last_queries":
            self.observed = self.cache.needs().rows
        elif when != "nothing":
            raise ValueError(f"KVMELD_POLICY {settings().policy} must be a policy that is shown nothing or the last queries")

    def _held_by(self, row: torch.Tensor, tokens: int, new: int) -> Optional[Held]:
        """The request of a row of the batch. Backends are told no names of requests. The first block behind the frozen
        beginning is a request's own, and it keeps it to its end; a request that began with it anew has few tokens."""
        first = settings().frozen // self.block_size
        if tokens + new <= settings().frozen:
            return None
        key = int(row[first])
        if tokens <= settings().frozen:
            self._forget(self.held.pop(key, None))
            self.held[key] = Held(self.block_size)
            self.held[key].grow(tokens)
        held = self.held[key]
        self.held.move_to_end(key)
        if held.tokens != tokens:
            raise RuntimeError(f"a request has computed {tokens} tokens, but {held.tokens} have been seen")
        return held

    def _forget(self, held: Optional[Held]) -> None:
        if held is not None and held.sequence is not None:
            self.cache.close(held.sequence)
            self.free.append(held.sequence)

    def _compress(self, held: Held, pages: torch.Tensor) -> None:
        if held.sequence is None:
            if not self.free:  # the one that was longest in no step has ended: running requests are in nearly every one
                key = next(k for k, h in self.held.items() if h.sequence is not None)
                self._forget(self.held.pop(key))
            held.sequence = self.free.pop()
            self.pages[held.sequence, : len(pages)] = pages
            self.cache.open(held.sequence, held.tokens, settings().frozen)
        for layer, queries in held.queries.items():
            self.cache.observe(layer, held.sequence, queries, scale=self.scale)
        self.cache.compress([held.sequence], held.entries)
        held.queries = {}
        assert (self.cache.lengths(held.sequence) == held.entries).all()

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        common = common_attn_metadata
        table, lengths = common.block_table_tensor.clone(), common.seq_lens.clone()
        starts, seen, rows = common.query_start_loc_cpu.tolist(), common.seq_lens.tolist(), []
        for r in range(common.num_reqs):
            first, last = starts[r], starts[r + 1]
            new, row = last - first, common.block_table_tensor[r]
            held = self._held_by(row, seen[r] - new, new) if new else None
            if held is None:
                continue
            if self.cache is None:
                self._make_cache(table.shape[1])
            rows.append((first, last, held))
            before = list(held.columns)
            if held.shrink_if_due(not bool(common.is_prefilling[r])) is not None:
                self._compress(held, row[before])
            held.grow(seen[r])
            if not held.shrunk:
                continue
            # Two numbers where vLLM has one: positions count tokens as before, lengths and slots count entries.
            pages, slots = row[held.columns], torch.arange(held.entries - new, held.entries)
            table[r, : len(pages)] = self.pages[held.sequence, : len(pages)] = pages
            lengths[r] = held.entries
            # In place: these numbers are the ones by which vLLM writes the new rows.
            common.slot_mapping[first:last] = pages[slots // self.block_size] * self.block_size + slots % self.block_size
            self.cache.append([held.sequence], [new])
            self.cache.commit([held.sequence], [new])
        found = super().build(
            common_prefix_len, common.replace(block_table_tensor=table, seq_lens=lengths), fast_build
        )
        found.builder, found.rows = self, rows
        return found


class MeldedImpl(CPUAttentionBackendImpl):
    def forward(self, layer: Any, query: torch.Tensor, key: Any, value: Any, kv_cache: Any, attn_metadata: Any,
                output: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
        if attn_metadata is None:
            return output
        builder = attn_metadata.builder
        builder.scale = self.scale
        number = builder.layer_names.index(layer.layer_name)
        for first, last, held in attn_metadata.rows:
            queries = query[first:last].transpose(0, 1)
            if held.shrunk and not settings().ignore_degree:  # the kernel of vLLM has no room for a bias
                builder.cache.attend(number, held.sequence, queries, output[first:last].transpose(0, 1), scale=self.scale)
            if builder.observed:
                known = held.queries.get(number, queries[:, :0])
                held.queries[number] = torch.cat((known, queries), 1)[:, -builder.observed :].contiguous()
        return output


class MeldedBackend(CPUAttentionBackend):
    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        if type(spec) is not FullAttentionSpec:
            return spec
        return MeldedSpec(**{f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)})

    @staticmethod
    def get_impl_cls() -> type:
        return MeldedImpl

    @staticmethod
    def get_builder_cls() -> type:
        return MeldedBuilder


def register() -> None:
    """The entry point of the group vllm.general_plugins."""
    if "KVMELD_BUDGET" in os.environ:
        settings()
        register_backend(AttentionBackendEnum.CPU_ATTN, f"{__name__}.{MeldedBackend.__name__}")
