"""kvmeld.Cache and kvmeld.compact on tensors of PyTorch; expected values are computed by PyTorch alone."""

import pytest

torch = pytest.importorskip("torch")

import kvmeld  # noqa: E402

SHAPE = (2, 1, 3, 64, 8)  # layers, sequences, KV heads, capacity, head_dim
TYPES = [torch.float32, torch.float16, torch.bfloat16]


def tensors(dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    return torch.randn(SHAPE, generator=draw).to(dtype), torch.randn(SHAPE, generator=draw).to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_in_place_and_attention_of_merged_entries(dtype):
    keys, values = tensors(dtype)
    places = keys.data_ptr(), values.data_ptr()
    cache = kvmeld.Cache(keys, values, "chelsea", queries_per_kv_head=2)
    assert cache.element == str(dtype).split(".")[1]
    cache.open(0, 60)
    cache.compress(0, 24)
    assert places == (keys.data_ptr(), values.data_ptr())
    draw = torch.Generator().manual_seed(1)
    queries = torch.randn(6, 4, 8, generator=draw).to(dtype)
    out = torch.empty(6, 4, 8, dtype=dtype)
    assert cache.attend(1, 0, queries, out) is out
    for head in range(6):
        k, v = (x[1, 0, head // 2, :24].double() for x in (keys, values))
        degrees = torch.from_numpy(cache.degrees(1, 0, head // 2)).double()
        logits = queries[head].double() @ k.T / 8**0.5 + degrees.log()
        later = torch.arange(24) > (20 + torch.arange(4))[:, None]
        expected = torch.softmax(logits.masked_fill(later, -torch.inf), dim=-1) @ v
        assert torch.allclose(out[head].double(), expected, atol=5 * torch.finfo(dtype).eps)


def test_results_do_not_depend_on_strides():
    keys, values = tensors()
    turned = [x.permute(3, 1, 2, 0, 4).contiguous().permute(3, 1, 2, 0, 4) for x in (keys, values)]
    assert turned[0].stride() != keys.stride()
    for k, v in ((keys, values), turned):
        with kvmeld.Cache(list(k), list(v), "chelsea") as cache:
            cache.open(0, 60)
            cache.compress(0, 24)
    assert torch.equal(keys[:, 0, :, :24], turned[0][:, 0, :, :24])


def test_refusals():
    keys, values = tensors()
    with pytest.raises(ValueError, match="requires gradients"):
        kvmeld.Cache(keys.requires_grad_(), values, "snapkv")
    with pytest.raises(ValueError, match="on meta; it must be in host memory"):
        kvmeld.Cache(torch.empty(SHAPE, device="meta"), torch.empty(SHAPE, device="meta"), "snapkv")
    with pytest.raises(ValueError, match="float32, float16 or bfloat16"):
        kvmeld.Cache(torch.zeros(SHAPE, dtype=torch.int32), torch.zeros(SHAPE, dtype=torch.int32), "snapkv")
    with pytest.raises(ValueError, match="overlap|stride"):
        kvmeld.Cache(torch.zeros(2, 1, 3, 1, 8).expand(SHAPE), values, "snapkv")


@pytest.mark.parametrize("dtype", TYPES)
def test_compact(dtype):
    keys, values = (x[:, 0] for x in tensors(dtype))
    queries = torch.randn(2, 6, 8, 8).to(dtype).requires_grad_()
    k, v, positions, degrees = kvmeld.compact(queries, keys, values, 16, "leverage_dropkv")
    assert k.shape == v.shape == (2, 3, 16, 8) and k.dtype == dtype and k.is_contiguous()
    at = torch.from_numpy(positions).long()[..., None].expand(-1, -1, -1, 8)
    assert torch.equal(k, keys.gather(2, at)) and torch.equal(v, values.gather(2, at))
    assert (degrees == 1).all()
