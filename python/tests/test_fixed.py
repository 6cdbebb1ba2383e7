"""FixedCache: it reads what KVMeldCache reads, in tensors whose shapes stay, and compiles once."""

import copy
import inspect

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from kvmeld import hf  # noqa: E402
from models import model_of, near, padded, read, tokens_of  # noqa: E402
from test_hf_layers import KEEPS_STATES, OF_WINDOWS, PROMPT, WINDOW, attending, made  # noqa: E402

CUT = "streaming_llm sinks=4 recents=10"
WINDOWED = [family for family in OF_WINDOWS if family != "Llama4Text"]


def some_model(family, attention="sdpa"):
    return model_of(family, attention) if family.islower() else attending(family, attention)


def compressed(model, ids, policy="chelsea", budget=20, **options):
    """A cache of a prompt, once compressed."""
    cache = hf.KVMeldCache(model, policy, budget=budget, **options)
    if "kvzip" in policy:
        cache.read(model, ids)
    else:
        read(model, ids, cache)
        cache.compress()
    cache.budget = None
    return cache


def singly(model, ids, cache):
    return torch.cat([read(model, ids[:, i : i + 1], cache) for i in range(ids.shape[1])], dim=1)


# --- as KVMeldCache reads


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["llama", "qwen3", *WINDOWED])
def test_tokens_are_read_as_by_the_cache_itself(family, attention):
    model, ids = some_model(family, attention), tokens_of(1, PROMPT + 2 * WINDOW)
    if model is None:
        return
    cache = compressed(model, ids[:, :PROMPT])
    fixed, before = cache.fixed(2 * WINDOW), cache.get_seq_length()
    shapes = [t.shape for t in (*fixed.keys, *fixed.values, *fixed.biases)]
    found = singly(model, ids[:, PROMPT:], fixed)
    assert cache.get_seq_length() == before and int(fixed.get_seq_length()) == ids.shape[1] and fixed.tokens_left() == 0
    assert [t.shape for t in (*fixed.keys, *fixed.values, *fixed.biases)] == shapes
    assert near(found, singly(model, ids[:, PROMPT:], cache).double(), 1e-5)


@pytest.mark.parametrize("family", ["llama", "Gemma3Text"])
def test_heads_of_unlike_lengths(family):
    model, ids = some_model(family), tokens_of(2, PROMPT + 10)
    cache = compressed(model, ids[:, :PROMPT], "kvzip", 0.4, over="all_layers", floor=0.0)
    assert len(set(cache.cache.lengths(0).flatten().tolist())) > 1
    fixed = cache.fixed(10)
    assert near(singly(model, ids[:, PROMPT:], fixed), singly(model, ids[:, PROMPT:], cache).double(), 1e-5)


@pytest.mark.parametrize("family", ["llama", "Gemma3Text", "GptOss"])
def test_batches_with_padding(family):
    model, more = some_model(family, "eager"), tokens_of(3, 2 * WINDOW, seed=9)
    ids, mask = padded([tokens_of(n, seed=n) for n in (PROMPT, 9, 33)])
    cache = hf.KVMeldCache(model, CUT, budget=20, interval=64)
    read(model, ids, cache, attention_mask=mask, position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0))
    cache.compress()
    cache.budget = None
    fixed = cache.fixed(more.shape[1])
    for i in range(more.shape[1]):
        mask = torch.cat([mask, torch.ones(3, 1, dtype=torch.long)], dim=1)
        told = dict(attention_mask=mask, position_ids=mask.sum(dim=1, keepdim=True) - 1)
        expected = read(model, more[:, i : i + 1], cache, **told)
        assert near(read(model, more[:, i : i + 1], fixed, **told), expected.double(), 1e-5)


@pytest.mark.parametrize("family", ["llama", "Gemma3Text"])
def test_generate(family):
    model, ids = some_model(family), tokens_of(1, PROMPT)
    options = dict(max_new_tokens=WINDOW + 4, do_sample=False, eos_token_id=None)
    cache = compressed(model, ids[:, :-1])
    fixed = cache.fixed(WINDOW + 4)
    found = model.generate(ids, past_key_values=fixed, **options)
    assert torch.equal(found, model.generate(ids, past_key_values=cache, **options)) and fixed.tokens_left() == 0


# --- back


@pytest.mark.parametrize("family", ["llama", "Gemma3Text", "GptOss"])
def test_a_long_answer_in_the_same_tensors(family):
    """Every `interval` tokens the cache takes them, is compressed, and fills the same tensors again."""
    model, ids, interval = some_model(family, "eager"), tokens_of(1, PROMPT + 3 * WINDOW), 12
    cache = hf.KVMeldCache(model, CUT, budget=20, interval=interval)
    read(model, ids[:, :PROMPT], cache)
    cache.compress()
    alone, fixed = copy.deepcopy(cache), cache.fixed(interval)
    lie = [t.data_ptr() for t in (*fixed.keys, *fixed.values, *fixed.biases)]
    for at in range(PROMPT, ids.shape[1], interval):
        part = ids[:, at : at + interval]
        assert near(singly(model, part, fixed), singly(model, part, alone).double(), 1e-5)
        alone.compress()
        fixed.renew()
        assert fixed.tokens_left() == interval and cache.get_seq_length() == alone.get_seq_length() == at + part.shape[1]
        assert cache.cache.positions(0, 0, 0).tolist() == alone.cache.positions(0, 0, 0).tolist()
    assert [t.data_ptr() for t in (*fixed.keys, *fixed.values, *fixed.biases)] == lie
    assert near(read(model, ids[:, :5], cache), read(model, ids[:, :5], alone).double(), 1e-5)  # in one pass, behind it


# --- compiled


#: Such versions of transformers make it of a number, unless they are told.
TAKES_POSITIONS = "cache_position" in inspect.signature(transformers.LlamaModel.forward).parameters


def decoded(step, fixed, tokens, n):
    """n tokens, each the most probable one behind those before it."""
    found = [tokens.contiguous()]
    with torch.no_grad():
        for _ in range(n):
            told = dict(cache_position=torch.as_tensor(fixed.get_seq_length()).clone().view(1)) if TAKES_POSITIONS else {}
            found.append(step(found[-1], past_key_values=fixed, **told).logits[:, -1:].argmax(dim=-1))
    return torch.cat(found[1:], dim=1)


@pytest.mark.parametrize("family", ["llama", "qwen2", "Gemma2", "Gemma3Text", "GptOss"])
def test_it_is_compiled_once(family):
    model, ids = some_model(family, "eager"), tokens_of(2, PROMPT + 1)
    cache = hf.KVMeldCache(model, "chelsea", budget=20)
    read(model, ids[:, :PROMPT], cache)
    cache.compress()
    fixed, alone = cache.fixed(WINDOW), copy.deepcopy(cache).fixed(WINDOW)
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    step = torch.compile(model.forward, fullgraph=True, backend=graphs)
    for _ in range(2):
        expected = decoded(model.forward, alone, ids[:, PROMPT:], WINDOW)
        assert torch.equal(decoded(step, fixed, ids[:, PROMPT:], WINDOW), expected)
        fixed.renew()
        alone.renew()
    decoded(step, fixed, ids[:, :1], WINDOW)
    with pytest.raises((IndexError, RuntimeError)):
        decoded(step, fixed, ids[:, :1], 1)
    assert graphs.frame_count == 1 and fixed.tokens_left() == 0


def test_native_code():
    """The compiler of torch.compile makes programs of C++ on the host."""
    model, ids = model_of("llama", "sdpa"), tokens_of(1, PROMPT + 1)
    cache = compressed(model, ids[:, :PROMPT])
    expected = decoded(model.forward, cache, ids[:, PROMPT:], 10)
    cache = compressed(model, ids[:, :PROMPT])
    torch._dynamo.reset()
    step = torch.compile(model.forward, fullgraph=True)
    try:
        found = decoded(step, cache.fixed(10), ids[:, PROMPT:], 10)
    except Exception as problem:
        if "InvalidCxxCompiler" not in f"{type(problem).__name__} {problem}":
            raise
        pytest.skip("no compiler of C++")
    assert torch.equal(found, expected)


def test_other_caches_of_an_attached_model_compile_as_before():
    model, ids = model_of("llama", "sdpa"), tokens_of(1, PROMPT)
    hf.attach(model)
    torch._dynamo.reset()
    step = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert near(step(ids, use_cache=False).logits, model(ids).logits.double(), 1e-5)


# --- refusals


def test_refusals():
    model, ids = model_of("llama", "sdpa"), tokens_of(1, PROMPT)
    cache = hf.KVMeldCache(model, "dropkv", budget=20)
    with pytest.raises(ValueError, match="^fixed: the cache is empty; it must be one that has read a prompt"):
        cache.fixed(4)
    read(model, ids, cache)
    with pytest.raises(ValueError, match="^KVMeldCache: tokens is 0; it must be a whole number of at least 1"):
        cache.fixed(0)
    with pytest.raises(TypeError, match="tokens is 2.5"):
        cache.fixed(2.5)
    fixed = cache.fixed(4)
    with pytest.raises(ValueError, match="^update: tokens of a pass is 2; it must be 1"):
        read(model, ids[:, :2], fixed)
    for call in (fixed.crop, fixed.reset, fixed.reorder_cache, fixed.batch_select_indices):
        with pytest.raises(ValueError, match="it must be the KVMeldCache, after renew"):
            call(1)
    read(model, ids[:, :1], fixed)
    with pytest.raises(ValueError, match="^renew: policy is 'dropkv'; it must be one that ranks without queries of the answer"):
        fixed.renew()
    cache.budget = None
    fixed.renew()
    assert cache.get_seq_length() == PROMPT + 1 and fixed.tokens_left() == 3
    for _ in range(3):
        read(model, ids[:, :1], fixed)
    with pytest.raises((IndexError, RuntimeError)):
        read(model, ids[:, :1], fixed)
    with pytest.raises(ValueError, match=f"^renew: the cache is of {PROMPT + 4} entries; it must be of fewer than {PROMPT + 4}"):
        fixed.renew()
    fixed = cache.fixed(4)
    read(model, ids[:, :1], cache)
    with pytest.raises(ValueError, match=f"^renew: the cache is at {PROMPT + 5} tokens; it must be at {PROMPT + 4}, as it was given"):
        fixed.renew()


@pytest.mark.parametrize("family", ["Llama4Text", *(["Lfm2", "FalconH1"] if KEEPS_STATES else [])])
def test_other_layers_are_refused(family):
    model = made(family)
    cache = hf.KVMeldCache(model, CUT)
    read(model, tokens_of(1, PROMPT), cache)
    with pytest.raises(ValueError, match="^fixed: what the model keeps beside attention over all tokens is .*; it must be windows"):
        cache.fixed(4)
