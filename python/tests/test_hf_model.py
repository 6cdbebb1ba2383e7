"""What a KVMeldCache learns of its model, and what it refuses before the first pass."""

import math
import pickle

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from kvmeld import _model, hf  # noqa: E402
from models import any_model, model_of, near, read, reference, tokens_of  # noqa: E402


# --- rotation


def plain(theta, pairs):
    return [theta ** (-i / pairs) for i in range(pairs)]


def llama3(theta, pairs, factor, low, high, original):
    """Llama 3.1's frequencies, by its report."""
    out = []
    for f in plain(theta, pairs):
        wave = 2 * math.pi / f
        if wave < original / high:
            out.append(f)
        elif wave > original / low:
            out.append(f / factor)
        else:
            smooth = (original / wave - low) / (high - low)
            out.append((1 - smooth) * f / factor + smooth * f)
    return out


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
ROTATIONS = {  # family, sizes, the pairing and the radians of each pair
    "theta": ("Llama", {"rope_theta": 100000.0}, "half_split", plain(1e5, 4)),
    "linear": ("Llama", {"rope_theta": 5000.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "half_split",
               [f / 4 for f in plain(5000.0, 4)]),
    "llama3": ("Llama", {"rope_theta": 500000.0, "rope_scaling": LLAMA3}, "half_split",
               llama3(5e5, 4, 8.0, 1.0, 4.0, 64)),
    "half of the channels": ("StableLm", {"partial_rotary_factor": 0.5}, "half_split", plain(1e4, 2)),
    "interleaved": ("Cohere", {"rope_theta": 7000.0}, "interleaved", plain(7000.0, 4)),
    "half, interleaved": ("Glm", {"head_dim": 8, "rope_theta": 3000.0}, "interleaved", plain(3000.0, 2)),
}


def rotated_model(name):
    family, sizes, pairing, frequencies = ROTATIONS[name]
    sizes = dict(sizes)
    if transformers.__version__ >= "5" and ("rope_theta" in sizes or "rope_scaling" in sizes):
        scaling = sizes.pop("rope_scaling", {"rope_type": "default"})
        sizes["rope_parameters"] = {"rope_theta": sizes.pop("rope_theta", 10000.0), **scaling}
    if name == "half of the channels" and transformers.__version__ < "5":
        pytest.skip(f"{family} of transformers {transformers.__version__} attends by itself, and is refused")
    return any_model(family, **sizes), pairing, frequencies


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ROTATIONS)
def test_the_rotation_is_the_models(name, dtype):
    model, pairing, frequencies = rotated_model(name)
    found = hf.KVMeldCache(model.to(dtype))._facts.rotation
    assert found is not None and found[0] == pairing
    assert found[1] == pytest.approx(frequencies, rel=1e-2 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("policy", ["triattention", "expected_attention", "compactor", "triattention_merging"])
@pytest.mark.parametrize("name", ROTATIONS)
def test_policies_that_turn_keys_turn_them_by_the_model(name, policy):
    """The same entries as with the rotation in the policy's text, and others than with that of most models."""
    model, pairing, frequencies = rotated_model(name)
    ids, kept = tokens_of(1, 120), {}
    words = {
        "learned": "",
        "told": f" rope={pairing} frequencies=" + ",".join(map(str, frequencies)),
        "assumed": " rope=half_split rope_base=10000",
    }
    for how, more in words.items():
        cache = hf.KVMeldCache(model, policy + more)
        read(model, ids, cache)
        cache.compress(48)
        kept[how] = [cache.cache.positions(layer, 0, head).tolist() for layer in range(3) for head in
                     range(cache.cache.kv_heads)]
    assert kept["learned"] == kept["told"]
    if policy == "triattention":  # which compares keys with turned queries at distances
        assert kept["learned"] != kept["assumed"]


def test_layers_that_rotate_in_different_ways():
    model = any_model("SmolLM3", no_rope_layers=[1, 1, 0])
    by_itself = hf.KVMeldCache(model)  # clusters keys as they lie
    assert by_itself._options["rope"] == "none" and "frequencies" not in by_itself._options
    with pytest.raises(ValueError, match="the rotation of keys is unknown; it must be known, because 'triattention' turns"):
        hf.KVMeldCache(model, "triattention")
    assert hf.KVMeldCache(model, "triattention rope=half_split rope_base=10000")._turning is None


def test_a_model_without_rotation_is_refused_for_policies_that_turn():
    model = any_model("GPT2", n_embd=32, n_layer=3, n_head=4, n_positions=256)
    assert hf.KVMeldCache(model)._options["rope"] == "none"
    with pytest.raises(ValueError, match="the rotation of keys is unknown"):
        hf.KVMeldCache(model, "compactor")


def test_a_rotation_that_changes_is_refused():
    """As dynamic ones do, once a text grows long."""
    model, ids = model_of(), tokens_of(1, 40)
    cache = hf.KVMeldCache(model, "triattention")
    read(model, ids[:, :20], cache)
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq / 2
    with pytest.raises(ValueError, match="the model's rotation is another one than before"):
        read(model, ids[:, 20:], cache)
    by_itself = hf.KVMeldCache(model)  # centroids of keys that were turned back by a little more or less do no harm
    read(model, ids[:, :20], by_itself)
    assert by_itself._options["rope"] == "half_split" and len(by_itself._options["frequencies"]) > 0
    other = hf.KVMeldCache(model, "triattention")  # learns it anew
    assert other._facts.rotation[1] == pytest.approx([f / 2 for f in cache._facts.rotation[1]])


def test_learning_leaves_the_model_as_it_was():
    model = model_of().train()
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    cache = hf.KVMeldCache(model)
    assert model.training and torch.equal(torch.random.get_rng_state(), before) and cache.get_seq_length() == 0
    model.eval()
    assert near(read(model, tokens_of(1, 9), cache)[0], reference(model, tokens_of(9)))


# --- kinds of models

OTHERS = {
    "Mamba": (dict(state_size=4), "Mamba|the layers that cache keys and values is 0 of 3|what the layers of MambaConfig keep"),
    "RecurrentGemma": ({}, "RecurrentGemma"),
    "Mistral": (dict(sliding_window=32, head_dim=8), "what the layers of MistralConfig keep is a window|a window is of 32"),
    "Falcon": (dict(rope_theta=10000.0), "the model's attention is one of its own"),
    "T5": (dict(num_layers=2, d_kv=8), "the model is an encoder and a decoder"),
}


@pytest.mark.parametrize("family", OTHERS)
def test_models_that_cannot_be_served_are_refused_at_once(family):
    sizes, text = OTHERS[family]
    model = any_model(family, **sizes)
    with pytest.raises(ValueError, match=f"^KVMeldCache: .*({text}).*; it must be"):
        hf.KVMeldCache(model)


def test_a_window_as_wide_as_the_model_hides_nothing():
    model, ids = any_model("Mistral", sliding_window=4096, head_dim=8), tokens_of(1, 60)
    expected = read(model, ids, transformers.DynamicCache())
    cache = hf.KVMeldCache(model, "streaming_llm")
    assert cache.full_layers == (0, 1, 2) and cache.full_share() == 1
    assert torch.equal(read(model, ids[:, :50], cache), expected[:, :50])
    for i in range(50, 60):
        assert near(read(model, ids[:, i : i + 1], cache)[0], expected[0, i].double())
    assert any_model("Mistral", sliding_window=None, head_dim=8).config.sliding_window is None


# --- numbers

WRONG = [  # keyword arguments, the exception, a part of its text
    (dict(policy="nosuch"), ValueError, "policy: name is"),
    (dict(policy="snapkv window=0"), ValueError, "window is 0"),
    (dict(policy=7), TypeError, "policy is 7; it must be a str"),
    (dict(budget="0.25"), TypeError, "budget is '0.25'; it must be a whole number of entries, or a share of the tokens"),
    (dict(policy=5), TypeError, "policy is 5; it must be a str"),
    (dict(policy="chelsea\0x"), ValueError, "it must be a text without NUL"),
    (dict(over="heads"), ValueError, "over is 'heads'"),
    (dict(over="layer", policy="chelsea", budget=0.5), ValueError, "does not decide by score alone"),
    (dict(over="layer", scope="layer", budget=0.5, policy="snapkv"), ValueError, "options.scope"),
    (dict(scope="track"), ValueError, "scope is 'track'"),
    (dict(over="layer", floor=1.5, budget=0.5, policy="snapkv"), ValueError, "floor"),
    (dict(over="layer", floor=math.nan, budget=0.5, policy="snapkv"), ValueError, "floor"),
    (dict(threads=-1), ValueError, "threads is -1; it must be a whole number of at least 0"),
    (dict(threads=1.5), TypeError, "threads is 1.5; it must be a whole number"),
    (dict(interval=0), ValueError, "interval is 0; it must be a whole number of at least 1"),
    (dict(interval=-3), ValueError, "interval is -3"),
    (dict(interval=2.5), TypeError, "interval is 2.5; it must be a whole number"),
    (dict(interval="8"), TypeError, "interval is '8'; it must be a whole number"),
    (dict(interval=True), TypeError, "interval is True"),
    (dict(over=1), TypeError, "over is 1"),
    (dict(floor="0.2"), TypeError, "floor is '0.2'"),
    (dict(floor=True), TypeError, "floor is True"),
    (dict(budget=0), ValueError, "budget is 0; it must be a whole number of at least 1"),
    (dict(budget=-1), ValueError, "budget is -1"),
    (dict(budget=0.0), ValueError, "budget is 0.0"),
    (dict(budget=-0.1), ValueError, "budget is -0.1"),
    (dict(budget=1.5), ValueError, "budget is 1.5"),
    (dict(budget=math.nan), ValueError, "budget is nan"),
    (dict(budget=math.inf), ValueError, "budget is inf"),
    (dict(budget="0.2"), TypeError, "budget is '0.2'"),
    (dict(budget=True), TypeError, "budget is True"),
    (dict(budget=[64]), TypeError, "budget is"),
    (dict(budget=31, policy="snapkv"), ValueError, "is 31; it must be at least 32"),
    (dict(budget=32, policy="snapkv identify=chunked_bipartite"), ValueError, "policy"),
    (dict(budget=20, policy="streaming_llm sinks=16 recents=16"), ValueError, "is 20; it must be at least 32"),
]


@pytest.mark.parametrize("arguments, error, text", WRONG, ids=[repr(w[0]) for w in WRONG])
def test_numbers_are_checked_when_the_cache_is_made(arguments, error, text):
    with pytest.raises(error, match=text.replace("(", "\\(")):
        hf.KVMeldCache(model_of(), **arguments)


def test_budgets_that_no_text_reaches():
    model = model_of(max_position_embeddings=1 << 30)
    for budget in (10**6, 2**32 - 1):
        cache = hf.KVMeldCache(model, budget=budget)
        read(model, tokens_of(1, 40), cache)
        assert cache.cache.longest(0) == 40
    with pytest.raises(TypeError, match="budget is 4294967296"):
        hf.KVMeldCache(model_of(), budget=2**32)


def test_the_least_that_is_accepted():
    model, ids = model_of(), tokens_of(1, 120)
    for policy, least in (("snapkv", 32), ("streaming_llm sinks=16 recents=16", 32), ("tova", 1)):
        cache = hf.KVMeldCache(model, policy, budget=least, interval=1)
        for part in ids.split(30, dim=1):
            read(model, part, cache)
        assert cache.cache.longest(0) <= least + 30
        assert cache.compressions >= 2


def test_facts_can_be_pickled():
    facts = hf.KVMeldCache(model_of())._facts
    assert pickle.loads(pickle.dumps(facts)) == facts


def test_a_fingerprint_looks_at_large_tensors_up_to_their_end():
    large = torch.nn.Module()
    large.register_parameter("w", torch.nn.Parameter(torch.zeros(2**24 + 3, dtype=torch.float16)))
    before = _model.fingerprint(large)
    with torch.no_grad():
        large.w[-1] = 1  # float32 has no number for this place
    assert _model.fingerprint(large) != before
