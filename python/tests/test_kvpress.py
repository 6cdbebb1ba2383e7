"""kvmeld.kvpress.MeldPress beside the presses of kvpress, on a tiny random model."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
kvpress = pytest.importorskip("kvpress")

from kvmeld.kvpress import MeldPress  # noqa: E402

RATIO = 0.6


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512,
    )
    return transformers.LlamaForCausalLM(config).eval()


def pressed(model, press, batch=2, tokens=200):
    """The cache's layers after a prompt that was read under a press, and the logits of the token behind it."""
    draw = torch.Generator().manual_seed(1)  # no token twice: their keys would be as long
    ids = torch.stack([torch.randperm(512, generator=draw)[:tokens] for _ in range(batch)])
    cache = transformers.DynamicCache()
    with torch.inference_mode():
        with press(model):
            model(ids, past_key_values=cache)
        after = model(ids[:, :1], past_key_values=cache, position_ids=torch.full((batch, 1), tokens)).logits
    return [(layer.keys[:, :, :-1], layer.values[:, :, :-1]) for layer in cache.layers], after


def rows(tensor):
    """The rows of each track, in an order of their own."""
    return [sorted(map(tuple, head.tolist())) for sequence in tensor for head in sequence]


@pytest.mark.parametrize(
    "policy, theirs",
    [
        ("knorm", lambda: kvpress.KnormPress(RATIO)),
        ("score=key_difference select=top identify=evict_rest merge=drop sinks=0 recents=0",
         lambda: kvpress.KeyDiffPress(RATIO)),
        ("streaming_llm", lambda: kvpress.StreamingLLMPress(RATIO)),
    ],
)
def test_the_same_entries_as_the_press_of_kvpress(model, policy, theirs):
    ours, our_logits = pressed(model, MeldPress(policy, RATIO))
    others, their_logits = pressed(model, theirs())
    for (keys, values), (their_keys, their_values) in zip(ours, others):
        assert keys.shape == their_keys.shape == (2, 2, 80, 16)
        assert rows(keys) == rows(their_keys) and rows(values) == rows(their_values)
    assert torch.allclose(our_logits, their_logits, atol=1e-5)


def test_snapkv_is_shown_the_same_attention(model):
    """Settings differ: kvpress pools over 5 with zeros at the ends. So most entries agree, not all."""
    ours, _ = pressed(model, MeldPress("snapkv", RATIO))
    others, _ = pressed(model, kvpress.SnapKVPress(RATIO, window_size=32, kernel_size=7))
    agree = [len(set(a) & set(b)) for (k, _), (t, _) in zip(ours, others) for a, b in zip(rows(k), rows(t))]
    assert min(agree) >= 75


@pytest.mark.parametrize("policy", ["leverage_dropkv", "chelsea", "compactor", "expected_attention"])
def test_any_policy(model, policy):
    layers, logits = pressed(model, MeldPress(policy, RATIO))
    assert all(keys.shape == values.shape == (2, 2, 80, 16) for keys, values in layers)
    assert logits.isfinite().all()


@pytest.mark.parametrize("policy", ["triattention", "expected_attention", "compactor"])
def test_the_rotation_is_the_models(model, policy):
    """Its base is 10000 here: the same entries as where the policy's text says it, and others than with another base."""
    frequencies = ",".join(str(10000 ** (-i / 8)) for i in range(8))
    kept = {
        words: [rows(keys) for keys, _ in pressed(model, MeldPress(policy + words, RATIO))[0]]
        for words in ("", f" rope=half_split frequencies={frequencies}", " rope=interleaved rope_base=50")
    }
    learned, told, other = kept.values()
    assert learned == told
    assert learned != other


def test_ratio_zero_and_refusals(model):
    layers, _ = pressed(model, MeldPress("chelsea", 0.0))
    assert layers[0][0].shape[2] == 200
    with pytest.raises(ValueError, match="second time"):
        pressed(model, MeldPress("kvzip", RATIO))
    with pytest.raises(ValueError, match="compression_ratio is 1"):
        MeldPress("chelsea", 1.0)
    with pytest.raises(ValueError, match="compression_ratio is nan"):
        MeldPress("chelsea", float("nan"))
    with pytest.raises(ValueError, match="policy: name is"):
        MeldPress("nosuch", 0.5)
    with pytest.raises(TypeError, match="policy is 7"):
        MeldPress(7, 0.5)


def test_the_pipeline_of_kvpress_runs_it(model):
    pipeline = pytest.importorskip("kvpress.pipeline").KVPressTextGenerationPipeline
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(i): i for i in range(97)}, unk_token="0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="1", eos_token="96")
    run = pipeline(model=model, tokenizer=tokenizer)
    context = " ".join(str(i % 90 + 3) for i in range(150))
    press = MeldPress("leverage_dropkv", RATIO)
    assert isinstance(run(context, question="5 6 7", press=press, max_new_tokens=8)["answer"], str)
