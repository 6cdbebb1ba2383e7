"""kvmeld over the pools of SGLang, with its allocator, its radix tree and its attention on the CPU. No request is scheduled: the
engine itself needs kernels that no package has for the CPU."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang.srt.mem_cache.memory_pool", reason="no sglang: its pools were not tried")

from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend  # noqa: E402
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey  # noqa: E402

import kvmeld  # noqa: E402

LAYERS, HEADS, GROUP, DIM, SLOTS, SYSTEM, TOKENS, BUDGET = 2, 2, 2, 16, 512, 24, 120, 48


class Pools:
    def __init__(self):
        self.rows = ReqToTokenPool(4, 256, "cpu", False)
        self.kv = MHATokenToKVPool(SLOTS, 1, torch.float32, HEADS, DIM, LAYERS, "cpu", False)
        self.allocator = TokenToKVPoolAllocator(SLOTS, torch.float32, "cpu", self.kv, False)
        self.tree = RadixCache(CacheInitParams(False, self.rows, self.allocator, 1))
        draw = torch.Generator().manual_seed(0)
        for buffer in (*self.kv.k_buffer, *self.kv.v_buffer):
            buffer.copy_(torch.randn(buffer.shape, generator=draw))

    def cache(self, **options):
        """A slot per token: pages of one token, found by SGLang's own table."""
        views = [[buffer.unsqueeze(2) for buffer in part] for part in (self.kv.k_buffer, self.kv.v_buffer)]
        return kvmeld.Cache(*views, "chelsea", queries_per_kv_head=GROUP, page_table=self.rows.req_to_token, **options)


def test_a_request_shrinks_beside_another_that_shares_its_beginning():
    pools = Pools()
    row_a, row_b = pools.rows.alloc_rows(2)
    prompts = [list(range(SYSTEM)) + [1000 * r + i for i in range(TOKENS - SYSTEM)] for r in (1, 2)]
    # a system prompt in the tree, which both requests lock
    system = pools.allocator.alloc(SYSTEM)
    pools.tree.insert(InsertParams(key=RadixKey(prompts[0][:SYSTEM]), value=system.clone()))
    found = [pools.tree.match_prefix(MatchPrefixParams(key=RadixKey(prompt))) for prompt in prompts]
    for row, match in zip((row_a, row_b), found):
        lent = pools.tree.path_device_indices(match.last_device_node)
        assert torch.equal(lent, system)
        pools.tree.lock(match.last_device_node)
        own = pools.allocator.alloc(TOKENS - SYSTEM)
        pools.rows.write((row, slice(0, TOKENS)), torch.cat((lent, own)).to(torch.int32))
    free = pools.allocator.available_size()
    assert free == SLOTS - SYSTEM - 2 * (TOKENS - SYSTEM)
    of_b = pools.rows.req_to_token[row_b, :TOKENS].long()
    before = [buffer[of_b].clone() for buffer in (*pools.kv.k_buffer, *pools.kv.v_buffer)]

    cache = pools.cache()
    cache.open(row_a, TOKENS, SYSTEM)  # as cache_protected_len says
    cache.compress([row_a], BUDGET)
    assert (cache.lengths(row_a) == BUDGET).all()
    emptied = pools.rows.req_to_token[row_a, BUDGET:TOKENS]
    pools.allocator.free(emptied.long())
    assert pools.allocator.available_size() == free + TOKENS - BUDGET
    # nothing of the other request changed, nor of the tree
    for buffer, was in zip((*pools.kv.k_buffer, *pools.kv.v_buffer), before):
        assert torch.equal(buffer[of_b], was)
    again = pools.tree.match_prefix(MatchPrefixParams(key=RadixKey(prompts[1])))
    assert torch.equal(pools.tree.path_device_indices(again.last_device_node), system)

    # the next token: a slot behind the entries, at the position behind the tokens
    (slot,) = pools.allocator.alloc(1)
    pools.rows.write((row_a, BUDGET), slot.to(torch.int32))
    cache.append([row_a], [1])
    assert cache.tokens(row_a) == TOKENS + 1 and cache.longest(row_a) == BUDGET + 1
    queries = torch.randn(1, HEADS * GROUP, DIM, generator=torch.Generator().manual_seed(1))
    scale = DIM**-0.5
    for layer in range(LAYERS):
        ours = torch.empty(HEADS * GROUP, 1, DIM)
        cache.attend(layer, row_a, queries.transpose(0, 1).contiguous(), ours, scale=scale)
        slots = pools.rows.req_to_token[row_a, : BUDGET + 1].long()
        k, v = (b[slots].repeat_interleave(GROUP, 1) for b in (pools.kv.k_buffer[layer], pools.kv.v_buffer[layer]))
        logits = torch.einsum("hd,nhd->hn", queries[0], k) * scale + torch.from_numpy(cache.log_degrees(layer, row_a))
        near = torch.einsum("hn,nhd->hd", logits.softmax(-1), v)
        assert torch.allclose(ours[:, 0], near, atol=1e-5)
    cache.commit([row_a], [1])

    # the end of both: what is no longer the tree's goes back, and the tree's only when it is evicted
    pools.allocator.free(pools.rows.req_to_token[row_a, SYSTEM : BUDGET + 1].long())
    pools.allocator.free(of_b[SYSTEM:])
    assert pools.allocator.available_size() == SLOTS - SYSTEM
    assert len(set(pools.allocator.free_pages.tolist())) == SLOTS - SYSTEM  # no slot twice


def test_sglangs_own_attention_reads_what_is_left_without_degrees():
    """Its kernel on the CPU takes no bias: ignore_degree. Lengths count entries."""
    pools = Pools()
    (row,) = pools.rows.alloc_rows(1)
    pools.rows.write((row, slice(0, TOKENS)), pools.allocator.alloc(TOKENS).to(torch.int32))
    cache = pools.cache(ignore_degree=True)
    cache.open(row, TOKENS)
    cache.compress([row], BUDGET)
    queries = torch.randn(1, HEADS * GROUP, DIM, generator=torch.Generator().manual_seed(2))
    backend, theirs = object.__new__(TorchNativeAttnBackend), torch.empty(1, HEADS * GROUP, DIM)
    for layer in range(LAYERS):
        backend._run_sdpa_forward_decode(
            queries, theirs, pools.kv.get_key_buffer(layer), pools.kv.get_value_buffer(layer), pools.rows.req_to_token,
            torch.tensor([row]), torch.tensor([BUDGET]), scaling=DIM**-0.5, enable_gqa=True,
        )
        ours = cache.attend(layer, row, queries.transpose(0, 1).contiguous(), scale=DIM**-0.5)
        assert abs(ours[:, 0] - theirs[0].numpy()).max() < 1e-5
