"""Copies of a KVMeldCache: copy.deepcopy, pickle, files; and the memory that it holds."""

import copy
import gc
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from kvmeld import hf  # noqa: E402
from models import model_of, near, padded, read, reference, tokens_of  # noqa: E402

GREEDY = dict(do_sample=False, eos_token_id=None, pad_token_id=0)


def through_pickle(cache, model, path):
    return pickle.loads(pickle.dumps(cache))


def through_a_file(cache, model, path):
    cache.save(path / "cache.safetensors")
    return hf.KVMeldCache.load(model, path / "cache.safetensors")


COPIES = {
    "deepcopy": lambda cache, model, path: copy.deepcopy(cache),
    "copy": lambda cache, model, path: copy.copy(cache),
    "pickle": through_pickle,
    "file": through_a_file,
}


def life(model, policy, **options):
    """A cache in the middle of its life: a padded batch, compressed while it went on."""
    ids, mask = padded([tokens_of(90), tokens_of(50, seed=1)])
    cache = hf.KVMeldCache(model, policy, **options)
    model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=24, **GREEDY)
    mask = torch.cat([mask, torch.ones(2, cache.get_seq_length() - mask.shape[1], dtype=torch.long)], dim=1)
    return cache, mask


def go_on(model, cache, mask, steps=12):
    """Logits of further tokens, one by one, and what the cache holds at the end."""
    more, out = tokens_of(2, steps, seed=4), []
    for i in range(steps):
        mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], dim=1)
        positions = mask.sum(dim=1, keepdim=True) - 1
        out.append(read(model, more[:, i : i + 1], cache, attention_mask=mask, position_ids=positions))
    return torch.cat(out, dim=1), [cache.cache.save(sequence) for sequence in range(2)]


LIVES = {
    "leverage_dropkv": dict(budget=40, interval=8),
    "chelsea": dict(budget=0.5, interval=16),
    "h2o": dict(budget=40, interval=8, scope="layer"),
    "snapkv": dict(budget=40, interval=8, over="all_layers"),
    "triattention": dict(budget=40, interval=8),
    "keydiff": dict(),
}
CASES = [("deepcopy", policy, torch.float32) for policy in LIVES]
CASES += [(how, policy, torch.float32) for how in COPIES for policy in ("leverage_dropkv", "chelsea") if how != "deepcopy"]
CASES += [("file", "snapkv", torch.bfloat16), ("pickle", "triattention", torch.float16)]


@pytest.mark.parametrize("how, policy, dtype", CASES)
def test_a_copy_goes_on_as_the_cache_does(how, policy, dtype, tmp_path):
    options = LIVES[policy]
    model = model_of(dtype=dtype)
    cache, mask = life(model, policy, **options)
    copied = COPIES[how](cache, model, tmp_path)
    assert (copied.budget, copied.interval, copied.over, copied.floor) == (
        cache.budget, cache.interval, cache.over, cache.floor)
    assert copied.compressions == cache.compressions and copied.get_seq_length() == cache.get_seq_length()
    theirs, their_ledgers = go_on(model, copied, mask)  # and then the first cache: neither touches the other
    ours, our_ledgers = go_on(model, cache, mask)
    assert torch.equal(ours, theirs) and our_ledgers == their_ledgers
    assert copied.compressions == cache.compressions and (cache.budget is None or cache.compressions >= 2)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_an_empty_cache(how, tmp_path):
    model, ids = model_of(), tokens_of(1, 20)
    cache = hf.KVMeldCache(model, "chelsea", budget=32)
    copied = COPIES[how](cache, model, tmp_path)
    assert near(read(model, ids, copied)[0], reference(model, ids[0])) and cache.get_seq_length() == 0


def test_a_prompt_that_is_read_once_serves_several_questions():
    """The pattern of transformers' own documentation."""
    model, prompt = model_of(), tokens_of(1, 60)
    cache = hf.KVMeldCache(model, "keydiff", budget=40, interval=8)
    read(model, prompt, cache)
    cache.compress()
    for seed in range(3):
        question = torch.cat([prompt, tokens_of(1, 7, seed=seed + 10)], dim=1)
        ours = copy.deepcopy(cache)
        out = model.generate(question, past_key_values=ours, max_new_tokens=20, **GREEDY)
        assert out.shape[1] == 87 and cache.get_seq_length() == 60 and cache.cache.longest(0) == 40


@pytest.mark.parametrize("how", COPIES)
def test_a_cache_in_a_pass_is_not_copied(how, tmp_path):
    model, ids = model_of(), tokens_of(1, 20)
    cache, copied = hf.KVMeldCache(model), []

    def try_it(*_):
        with pytest.raises(ValueError, match="the pass is at layer"):
            copied.append(COPIES[how](cache, model, tmp_path))

    hook = model.model.layers[1].register_forward_hook(try_it)
    read(model, ids, cache)
    hook.remove()
    assert not copied


def test_a_file_holds_no_text_that_was_evicted(tmp_path):
    model = model_of()
    cache = hf.KVMeldCache(model, "snapkv", over="all_layers")
    read(model, tokens_of(1, 100), cache)
    evicted = cache.keys.clone()
    cache.cache.compress(0, 40, over="all_layers")  # the tensors keep their size
    kept = {tuple(row) for track in cache.keys.flatten(0, 2).unbind() for row in track.tolist()}
    lengths = cache.cache.lengths(0)
    through_a_file(cache, model, tmp_path)
    import safetensors.torch

    held = safetensors.torch.load_file(tmp_path / "cache.safetensors")["keys"]
    assert held.shape[3] == lengths.max() and kept and evicted is not None
    for layer in range(3):
        for head in range(2):
            assert not held[layer, 0, head, lengths[layer, head] :].any()


def test_a_file_is_read_in_another_process(tmp_path):
    model, ids = model_of(), tokens_of(1, 80)
    cache = hf.KVMeldCache(model, "chelsea", budget=40, interval=8)
    read(model, ids[:, :70], cache)
    cache.compress()
    cache.save(tmp_path / "cache.safetensors")
    model.save_pretrained(tmp_path / "model")
    torch.save(ids, tmp_path / "ids.pt")
    program = f"""
import torch, transformers
from kvmeld import hf
model = transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path / "model")!r}, attn_implementation="sdpa").eval()
ids = torch.load({str(tmp_path / "ids.pt")!r})
cache = hf.KVMeldCache.load(model, {str(tmp_path / "cache.safetensors")!r})
with torch.inference_mode():
    torch.save(model(ids[:, 70:], past_key_values=cache).logits, {str(tmp_path / "logits.pt")!r})
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert torch.equal(torch.load(tmp_path / "logits.pt"), read(model, ids[:, 70:], cache))


def other_weights(model):
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight[-1, -1] += 1
    return model


OTHERS = {
    "weights": lambda: other_weights(model_of()),
    "type": lambda: model_of(dtype=torch.bfloat16),
    "family": lambda: model_of("qwen2"),
    "layers": lambda: model_of(num_hidden_layers=2),
    "rotation": lambda: model_of(rope_parameters={"rope_type": "default", "rope_theta": 50000.0})
    if transformers.__version__ >= "5" else model_of(rope_theta=50000.0),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_file_of_another_model_is_refused(what, tmp_path):
    model = model_of()
    cache = hf.KVMeldCache(model)
    read(model, tokens_of(1, 10), cache)
    cache.save(tmp_path / "cache")
    with pytest.raises(ValueError, match="^load: model is another one; it must be the one that the cache was saved with"):
        hf.KVMeldCache.load(OTHERS[what](), tmp_path / "cache")


def test_files_that_are_none_are_refused(tmp_path):
    import safetensors.torch

    model = model_of()
    cache = hf.KVMeldCache(model)
    read(model, tokens_of(1, 10), cache)
    path = tmp_path / "cache"
    cache.save(path)
    whole = path.read_bytes()
    for n in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:n])
        with pytest.raises(ValueError, match="^load: .*; it must be a file that save\\(\\) wrote"):
            hf.KVMeldCache.load(model, path)
    safetensors.torch.save_file({"keys": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="^load: .* is of format None"):
        hf.KVMeldCache.load(model, path)
    with pytest.raises(FileNotFoundError):
        hf.KVMeldCache.load(model, tmp_path / "nothing")
    flipped = bytearray(whole)
    for at in [*range(len(whole) - 1, 0, -len(whole) // 40), 0, 8, 9]:  # header, ledgers and rows
        flipped[at] ^= 0x55
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match="^load: "):
            hf.KVMeldCache.load(model, path)
        flipped[at] ^= 0x55
    path.write_bytes(flipped)
    assert hf.KVMeldCache.load(model, path).get_seq_length() == 10


def test_copies_of_copies_and_of_models_that_are_gone(tmp_path):
    model, ids = model_of(), tokens_of(1, 20)
    cache = hf.KVMeldCache(model)
    read(model, ids, cache)
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(cache))))
    again.save(tmp_path / "cache")
    assert hf.KVMeldCache.load(model, tmp_path / "cache").get_seq_length() == 20
    other = hf.KVMeldCache(model)
    del model
    gc.collect()
    with pytest.raises(ValueError, match="^save: the model is gone; it must be alive"):
        other.save(tmp_path / "cache")


def test_a_file_goes_where_files_may_go(tmp_path):
    model = model_of()
    cache = hf.KVMeldCache(model)
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    for path in (tmp_path / "link", tmp_path, tmp_path / "none" / "cache"):
        with pytest.raises(OSError, match="cannot be written"):
            cache.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["link"]


# --- memory


def held_bytes(cache):
    return sum(t.numel() * t.element_size() for t in (cache.keys, cache.values))


@pytest.mark.parametrize("policy, over", [("leverage_dropkv", "head"), ("chelsea", "head"), ("snapkv", "all_layers")])
def test_a_compression_by_hand_gives_memory_back(policy, over):
    model = model_of()
    cache = hf.KVMeldCache(model, policy, interval=16, over=over)
    read(model, tokens_of(1, 400), cache)
    before = held_bytes(cache)
    cache.compress(0.25)
    assert cache.keys.shape[3] == cache.cache.longest(0) + 16
    assert held_bytes(cache) < before / 2
    small = held_bytes(cache)
    cache.compress(0.25)  # nothing is left to do
    assert held_bytes(cache) == small


def test_crop_of_zero_is_that_of_the_installed_transformers():
    model, ids = model_of(), tokens_of(1, 20)
    theirs, ours = transformers.DynamicCache(), hf.KVMeldCache(model)
    read(model, ids, theirs)
    read(model, ids, ours)
    theirs.crop(0)
    ours.crop(0)
    assert ours.get_seq_length() == theirs.get_seq_length()
    if ours.get_seq_length() == 0:
        assert near(read(model, ids, ours)[0], reference(model, ids[0]))
