"""Caches on a CUDA device. Skipped where kvmeld was built without CUDA, or there is no device for PyTorch."""

import numpy as np
import pytest

import kvmeld

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not (kvmeld.cuda and torch.cuda.is_available()), reason="kvmeld without CUDA, or no device for PyTorch"
)

SHAPE = (2, 2, 2, 64, 16)


def twins(policy, dtype=torch.float32, **options):
    rows = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(SHAPE, generator=rows).to(dtype) for _ in range(2))
    here = kvmeld.Cache(keys, values, policy, queries_per_kv_head=2, **options)
    far = keys.cuda(), values.cuda()
    return here, kvmeld.Cache(*far, policy, queries_per_kv_head=2, **options), (keys, values), far


@pytest.mark.parametrize("policy", ["leverage_dropkv", "h2o", "streaming_llm", "chelsea"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_device_does_what_the_host_does(policy, dtype):
    here, there, near, far = twins(policy, dtype)
    assert there.device == 0 and here.device == -1 and "on CUDA device 0" in repr(there)
    queries = torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(2)).to(dtype)
    for cache, q in ((here, queries), (there, queries.cuda())):
        cache.open(0, 50)
        for layer in range(cache.layers):
            if cache.needs().when != "nothing":
                cache.observe(layer, 0, q)
        cache.compress(0, 20)
        cache.append(0, 3)
        cache.commit(0, 3)
    assert (here.lengths(0) == there.lengths(0)).all()
    for layer in range(2):
        for head in range(2):
            assert (here.positions(layer, 0, head) == there.positions(layer, 0, head)).all()
            assert (here.degrees(layer, 0, head) == there.degrees(layer, 0, head)).all()
        np.testing.assert_allclose(there.log_degrees(layer, 0).cpu(), here.log_degrees(layer, 0), rtol=1e-6)
        wanted = here.attend(layer, 0, queries[:, :3])
        np.testing.assert_allclose(there.attend(layer, 0, queries[:, :3].cuda()).cpu(), wanted, atol=5e-3)
    for a, b in zip(near, far):
        torch.testing.assert_close(b.cpu(), a, rtol=0, atol=1e-5 if dtype == torch.float32 else 2e-2)


def test_arguments_lie_on_the_device():
    _, there, (keys, values), far = twins("h2o")
    there.open(0, 20)
    with pytest.raises(ValueError, match="queries is in host memory; it must be on CUDA device 0, as the keys"):
        there.observe(0, 0, torch.zeros(4, 2, 16))
    with pytest.raises(ValueError, match=r"values\[0\] is in host memory; it must be on CUDA device 0"):
        kvmeld.Cache(far[0], values)


def test_generate_on_a_device_as_on_the_host():
    transformers = pytest.importorskip("transformers")
    from kvmeld.hf import KVMeldCache

    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    prompt = torch.randint(0, 97, (2, 90))
    mask = torch.ones_like(prompt)
    mask[1, :30] = 0
    answers = []
    for device in ("cpu", "cuda"):
        model.to(device)
        cache = KVMeldCache(model, "keydiff_merging", budget=40, interval=16)
        answers.append(model.generate(
            prompt.to(device), attention_mask=mask.to(device), past_key_values=cache, max_new_tokens=60,
            do_sample=False, pad_token_id=0,
        ).cpu())
        assert cache.compressions > 1 and cache.keys.device.type == device
    assert (answers[0] == answers[1]).float().mean() > 0.9  # sums differ in their last bits
