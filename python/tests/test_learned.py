"""What was learned of a model: its file, the file attacked, and caches that score by it."""

import json

import numpy as np
import pytest

import kvmeld
from kvmeld import learned

LAYERS, HEADS, DIM, TOKENS = 2, 2, 8, 40
BASE = 10000.0


def weights_of(seed=1, layers=LAYERS, heads=HEADS, dim=DIM):
    return np.random.default_rng(seed).normal(size=(layers, heads, 2 * dim + 2)).astype(np.float32)


def keys_of(seed=4):
    return np.random.default_rng(seed).normal(size=(LAYERS, HEADS, DIM)).astype(np.float32)


def frequencies(dim=DIM):
    return [BASE ** (-2 * i / dim) for i in range(dim // 2)]


def some(**changes):
    return learned.Learned(**{**dict(weights=weights_of(), pairing="half_split", frequencies=frequencies(),
                                     about={"model": "none"}, keys=keys_of()), **changes})


def tensors(seed=2):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(LAYERS, 1, HEADS, TOKENS, DIM)).astype(np.float32) for _ in range(2)]


def expected_scores(keys, w):
    """[layers, heads, tokens], by the formula: naive loops in double over keys that are turned back."""
    out = np.zeros(keys.shape[:1] + keys.shape[2:4])
    for layer, head, p in np.ndindex(out.shape):
        k, back = keys[layer, 0, head, p].astype(np.float64), np.zeros(DIM)
        for i, f in enumerate(frequencies()):
            c, s, a, b = np.cos(p * f), np.sin(p * f), k[i], k[i + DIM // 2]
            back[i], back[i + DIM // 2] = a * c + b * s, b * c - a * s
        x = w[layer, head].astype(np.float64)
        out[layer, head, p] = (x[:DIM] * back).sum() + (x[DIM : 2 * DIM] * back**2).sum() + x[-2] * np.log(1 + p) + x[-1]
    return out


def test_a_file_holds_what_was_saved(tmp_path):
    path = tmp_path / "some.safetensors"
    learned.save(path, some())
    read = learned.load(path)
    assert (read.weights == some().weights).all() and (read.keys == keys_of()).all() and read[1:4] == some()[1:4]
    learned.save(path, some(keys=None))
    assert learned.load(path).keys is None and (learned.load(path).weights == some().weights).all()
    learned.save(path, some())
    safetensors = pytest.importorskip("safetensors.numpy")
    others = safetensors.load_file(path)  # others can read it
    assert (others["weights"] == some().weights).all() and (others["keys"] == keys_of()).all()


def test_the_weights_that_ship_can_be_read():
    assert "smollm2-135m-instruct" in learned.shipped()
    for name in learned.shipped():
        read = learned.load(name)
        assert np.abs(read.weights).max() > 0 and np.abs(read.keys).max() > 0 and read.about["model"]


def spoil(header=None, data=None, whole=None):
    """Bytes of a file, changed."""
    def changed(tmp_path):
        path = tmp_path / "good"
        learned.save(path, some())
        raw = path.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        head, body = json.loads(raw[8 : 8 + size]), raw[8 + size :]
        if header:
            header(head)
        if data:
            body = data(body)
        text = json.dumps(head).encode()
        raw = len(text).to_bytes(8, "little") + text + body
        return whole(raw) if whole else raw
    return changed


def about(name, value):
    def change(head):
        if value is None:
            del head["__metadata__"][name]
        else:
            head["__metadata__"][name] = value
    return change


def tensor(name="weights", **changes):
    return lambda head: head[name].update(changes)


SIZE = 4 * LAYERS * HEADS * (2 * DIM + 2)  # bytes of the weights


@pytest.mark.parametrize("spoiled, told", [
    (spoil(whole=lambda raw: b""), "header"), (spoil(whole=lambda raw: raw[:100]), "header"),
    (spoil(whole=lambda raw: b"\xff" * 8 + raw[8:]), "header"), (spoil(whole=lambda raw: b"no file at all, but long enough"), "header"),
    (spoil(whole=lambda raw: (2).to_bytes(8, "little") + b"[]"), "header"),
    (spoil(whole=lambda raw: (20000).to_bytes(8, "little") + b"[" * 20000), "header"),
    (spoil(header=about("kvmeld.learned", None)), "header"), (spoil(header=about("kvmeld.learned", "2")), "format '2'"),
    (spoil(header=about("features", "others")), "features 'others'"), (spoil(header=about("rope", "sideways")), "rotation"),
    (spoil(header=about("frequencies", "[1, NaN]")), "rotation"), (spoil(header=about("frequencies", "{}")), "rotates 0 channels"),
    (spoil(header=about("frequencies", "[1, 1, 1, 1, 1]")), "rotates 10 channels of 8"),
    (spoil(header=about("rope", "none")), "rotates 8 channels"), (spoil(header=tensor(dtype="F16")), "tensor is F16"),
    (spoil(header=tensor(shape=[LAYERS, HEADS])), "tensor"), (spoil(header=tensor(shape=[LAYERS, HEADS, 2 * DIM + 3])), "tensor"),
    (spoil(header=tensor(shape=[2**40, 2**40, 18])), "tensor"), (spoil(header=tensor(shape=[-2, -2, 18])), "tensor"),
    (spoil(header=tensor(data_offsets=[0, 4])), "tensor"), (spoil(header=tensor(data_offsets=[-8, 288])), "tensor"),
    (spoil(data=lambda body: body[:-4]), "tensor"), (spoil(data=lambda body: body + b"more"), "tensor"),
    (spoil(data=lambda body: b"\x00\x00\xc0\x7f" + body[4:]), "no finite numbers"),
    (spoil(data=lambda body: body[:-4] + b"\x00\x00\xc0\x7f"), "no finite numbers"),
    (spoil(header=tensor("keys", dtype="F16")), "keys are F16"), (spoil(header=tensor("keys", shape=[LAYERS, HEADS, DIM - 1])), "keys"),
    (spoil(header=tensor("keys", data_offsets=[0, SIZE + 4 * LAYERS * HEADS * DIM])), "keys"),
    (spoil(header=lambda head: head.update(keys=[1, 2])), "header"), (spoil(header=lambda head: head.pop("keys")), "tensor"),
])
def test_files_that_are_none_are_refused(tmp_path, spoiled, told):
    path = tmp_path / "spoiled"
    path.write_bytes(spoiled(tmp_path))
    with pytest.raises(ValueError, match=told) as refusal:
        learned.load(path)
    assert str(path) in str(refusal.value) and "kvmeld.learn wrote" in str(refusal.value)


def test_a_name_of_nothing_is_refused(tmp_path):
    with pytest.raises(OSError):
        learned.load(tmp_path / "nothing")
    with pytest.raises(OSError):
        learned.load("smollm")


def test_a_cache_keeps_what_scores_best():
    keys, values = tensors()
    scores = expected_scores(keys, weights_of())
    cache = kvmeld.Cache(keys, values, "learned sinks=0 recents=0", learned=some(), over="all_layers")
    assert cache.needs().when == "nothing"
    cache.open(0, TOKENS)
    cache.compress(0, 10, over="all_layers", floor=0.0)
    best = set(np.argsort(-scores.reshape(-1))[: 10 * LAYERS * HEADS])
    kept = {(layer * HEADS + head) * TOKENS + p for layer in range(LAYERS) for head in range(HEADS)
            for p in cache.positions(layer, 0, head)}
    assert len(kept - best) <= LAYERS * HEADS  # a head whose entries all score low keeps one
    assert cache.policy == "learned x top x evict_rest x drop"


def test_centroids_stand_for_all_tokens():
    keys, values = tensors()
    cache = kvmeld.Cache(keys, values, "learned_centroids", learned=some())
    cache.open(0, TOKENS)
    cache.compress(0, 15)
    for layer in range(LAYERS):
        for head in range(HEADS):
            degrees = cache.degrees(layer, 0, head)
            assert len(degrees) == 15 and degrees.sum() == TOKENS and (degrees > 1).any()


def test_a_rank_takes_its_part_of_the_weights():
    keys, values = tensors()
    whole = kvmeld.Cache(keys.copy(), values.copy(), "learned", learned=some())
    parts = [kvmeld.Cache(keys[1:].copy(), values[1:].copy(), "learned", learned=some(), first_layer=1)]
    for cache in (whole, *parts):
        cache.open(0, TOKENS)
        cache.compress(0, 12)
    for head in range(HEADS):
        assert (whole.positions(1, 0, head) == parts[0].positions(0, 0, head)).all()


@pytest.mark.parametrize("changes, told", [
    (dict(weights=weights_of(layers=1)), "options.learned.layers is 1; it must be at least 2, the cache's last layer"),
    (dict(weights=weights_of(heads=1)), "options.learned.kv_heads is 1; it must be at least 2, the cache's last KV head"),
    (dict(weights=weights_of(dim=6), frequencies=frequencies(6)), "options.learned.key_dim is 6; it must be 8"),
    (dict(weights=np.full((LAYERS, HEADS, 2 * DIM + 2), np.inf, np.float32)), "it must be a finite number"),
    (dict(weights=weights_of()[:, :, :-1]), "learned is of shape"),
])
def test_weights_of_another_model_are_refused(changes, told):
    keys, values = tensors()
    with pytest.raises(ValueError, match=told):
        kvmeld.Cache(keys, values, "learned", learned=some(**changes))


def test_what_does_not_go_together_is_refused():
    keys, values = tensors()
    with pytest.raises(ValueError, match="score::learned.weights is null"):
        kvmeld.Cache(keys, values, "learned", rope="none")
    with pytest.raises(ValueError, match="rope is given; it must be absent"):
        kvmeld.Cache(keys, values, "learned", learned=some(), rope="none")
    kvmeld.Cache(keys, values, "snapkv", learned=some())  # others do not read it
    kvmeld.Cache(keys, values, "compactor", learned=some())  # and learn the rotation from it


def test_a_saved_sequence_goes_on_with_the_same_weights_only():
    keys, values = tensors()
    cache = kvmeld.Cache(keys, values, "learned", learned=some())
    cache.open(0, TOKENS)
    cache.compress(0, 12)
    saved = cache.save(0)
    other = kvmeld.Cache(keys, values, "learned", learned=some(weights=weights_of(seed=9)))
    with pytest.raises(ValueError, match="digest of weights"):
        other.resume(0, saved)
    again = kvmeld.Cache(keys, values, "learned", learned=some())
    again.resume(0, saved)
    assert again.save(0) == saved
