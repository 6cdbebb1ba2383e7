"""kvmeld.Cache on NumPy arrays; expected values are computed here, by NumPy alone."""

import gc
import pathlib
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import kvmeld

LAYERS, SEQUENCES, HEADS, CAPACITY, DIM = 2, 2, 3, 64, 8


def tensors(kind=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    shape = (LAYERS, SEQUENCES, HEADS, CAPACITY, DIM)
    return rng.standard_normal(shape).astype(kind), rng.standard_normal(shape).astype(kind)


def attention(q, k, v, degrees, softcap=None, window=None, window_sinks=0, sink=-np.inf):
    """One query head: q [n, dim], the last n entries are those of the queries; double precision."""
    q, k, v, degrees = (x.astype(np.float64) for x in (q, k, v, degrees))
    n, held = len(q), len(k)
    logits = q @ k.T / np.sqrt(q.shape[1])
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
    logits += np.log(degrees)
    at = (held - n + np.arange(n))[:, None]
    logits[np.arange(held) > at] = -np.inf
    if window is not None:
        logits[(np.arange(held) <= at - window) & (np.arange(held) >= window_sinks)] = -np.inf
    weights = np.exp(np.c_[logits, np.full(n, sink)])
    return (weights / weights.sum(axis=1, keepdims=True))[:, :held] @ v


def test_policies_have_sentences():
    known = kvmeld.policies()
    assert {"leverage_dropkv", "snapkv", "chelsea", "streaming_llm"} <= set(known)
    assert all(sentence for sentence in known.values())


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_streaming_llm_keeps_the_first_and_the_last_in_place(kind):
    keys, values = tensors(kind)
    before_k, before_v, places = keys.copy(), values.copy(), (keys.ctypes.data, values.ctypes.data)
    with kvmeld.Cache(keys, values, "streaming_llm") as cache:
        cache.open(1, 50)
        cache.compress(1, 20)
        stay = [*range(4), *range(34, 50)]
        assert cache.lengths(1).tolist() == [[20] * HEADS] * LAYERS
        assert cache.tokens(1) == 50 and cache.longest(1) == 20
        for head in range(HEADS):
            assert cache.positions(1, 1, head).tolist() == stay
            assert cache.degrees(1, 1, head).tolist() == [1] * 20
    assert places == (keys.ctypes.data, values.ctypes.data)
    assert np.array_equal(keys[:, 1, :, :20], before_k[:, 1][:, :, stay])
    assert np.array_equal(values[:, 1, :, :20], before_v[:, 1][:, :, stay])
    assert np.array_equal(keys[:, 0], before_k[:, 0]) and np.array_equal(keys[:, 1, :, 50:], before_k[:, 1, :, 50:])


def test_chelsea_merges_to_means_and_attention_adds_log_degrees():
    keys, values = tensors()
    before = keys.astype(np.float64), values.astype(np.float64)
    cache = kvmeld.Cache(keys, values, "chelsea", queries_per_kv_head=2)
    cache.open(0, 60)
    cache.compress(0, 0.5)
    rng = np.random.default_rng(1)
    queries = rng.standard_normal((2 * HEADS, 5, DIM)).astype(np.float32)
    merged = False
    for layer in range(LAYERS):
        assert cache.lengths(0)[layer].tolist() == [30] * HEADS
        bias = cache.log_degrees(layer, 0, columns=40)
        out = cache.attend(layer, 0, queries)
        for head in range(HEADS):
            degrees = cache.degrees(layer, 0, head)
            merged |= bool((degrees > 1).any())
            assert degrees.sum() == 60
            for tensor, old in ((keys, before[0]), (values, before[1])):
                total = (degrees[:, None] * tensor[layer, 0, head, :30]).sum(axis=0)
                assert np.allclose(total, old[layer, 0, head, :60].sum(axis=0), atol=1e-3)
            for q in (2 * head, 2 * head + 1):
                assert np.allclose(bias[q, :30], np.log(degrees), atol=1e-6)
                assert (bias[q, 30:] == np.finfo(np.float32).min).all()
                expected = attention(queries[q], keys[layer, 0, head, :30], values[layer, 0, head, :30], degrees)
                assert np.allclose(out[q], expected, atol=1e-5)
    assert merged


@pytest.mark.parametrize(
    "told", [{"softcap": 1.5}, {"window": 9}, {"window": 9, "window_sinks": 3}, {"sinks": True},
             {"softcap": 0.5, "window": 20, "window_sinks": 1, "sinks": True}])
def test_softcap_windows_and_sinks_are_part_of_attention(told):
    keys, values = tensors()
    rng = np.random.default_rng(2)
    sinks = 6 + rng.standard_normal((LAYERS, 2 * HEADS))
    if "sinks" in told:
        told = told | {"sinks": sinks}
    one_head = {name: value for name, value in told.items() if name != "sinks"}
    queries = (4 * rng.standard_normal((2 * HEADS, 5, DIM))).astype(np.float32)
    cache = kvmeld.Cache(keys, values, "streaming_llm", queries_per_kv_head=2, **told)
    cache.open(0, 60)
    ones = np.ones(60)
    for layer in range(LAYERS):
        out = cache.attend(layer, 0, queries)
        for q in range(2 * HEADS):
            rows = keys[layer, 0, q // 2, :60], values[layer, 0, q // 2, :60]
            sink = sinks[layer, q] if "sinks" in told else -np.inf
            assert np.allclose(out[q], attention(queries[q], *rows, ones, **one_head, sink=sink), atol=1e-5)
            assert not np.allclose(out[q], attention(queries[q], *rows, ones), atol=1e-3)


def test_what_attention_is_refused():
    for told, text in (
        ({"softcap": 0}, "softcap is 0; it must be above 0, or None"),
        ({"softcap": -2.0}, "softcap is -2; it must be 0, which means none, or a finite number above 0"),
        ({"window": 0}, "window is 0; it must be above 0, or None"),
        ({"window_sinks": 2}, "window_sinks is 2; it must be 0, because there is no window"),
        ({"sinks": np.zeros((LAYERS, HEADS + 1))}, r"sinks is of shape \[\d+, \d+\]; it must be of shape .* \(layers, query heads\)"),
        ({"sinks": np.full((LAYERS, HEADS), np.nan)}, r"sinks\[0\] is nan; it must be a finite number"),
    ):
        with pytest.raises(ValueError, match=text):
            kvmeld.Cache(*tensors(), "streaming_llm", **told)


def test_what_a_cache_takes_is_known_before_there_is_one():
    shape = {"layers": 8, "kv_heads": 4, "head_dim": 64, "queries_per_kv_head": 2}
    slots = 8 * 3 * 4
    for policy, channels in (("streaming_llm", 0), ("h2o", 1), ("learned_centroids", 1), ("kvzip_centroids", 1)):
        short, long = (kvmeld.cache_bytes(policy, capacity=n, sequences=3, **shape) for n in (1 << 14, 1 << 15))
        assert short["rows"] == slots * (1 << 14) * 2 * 64 * 2
        # The ledger has 9 bytes an entry and 4 for each channel; planning takes 83 of the two tracks that one thread plans.
        more = long["cache"] - short["cache"]
        assert (slots * (9 + 4 * channels) + 2 * 83) * (1 << 14) <= more <= (slots * (9 + 4 * channels) + 2 * 90) * (1 << 14)
        # A budget over all layers has scores of all tracks of a sequence beside.
        wide = kvmeld.cache_bytes(policy, capacity=1 << 14, sequences=3, over="all_layers", **shape)
        extra = wide["cache"] - short["cache"]
        assert 30 * 4 * (1 << 14) <= extra <= 32 * (4 * (1 << 14) + 2048)
    half, full = (kvmeld.cache_bytes("h2o", capacity=64, element=e, value_dim=32, **shape) for e in ("bfloat16", "float32"))
    assert full["rows"] == 2 * half["rows"] == 8 * 4 * 64 * (64 + 32) * 4
    for told, text in (
        ({"capacity": 0}, "capacity is 0"), ({"element": "int8"}, "element is 'int8'; it must be one of"),
        ({"policy": "nothing"}, "nothing"), ({"queries_per_kv_head": 0}, "queries_per_kv_head is 0"),
        ({"page_size": 16}, "pool_pages is 0; it must be at least 1"), ({"pool_pages": 4}, "pool_pages is 4; it must be 0"),
    ):
        with pytest.raises(ValueError, match=text):
            kvmeld.cache_bytes(**{"policy": "h2o", "capacity": 64, **shape, **told})
    with pytest.raises(TypeError):
        kvmeld.cache_bytes("h2o", capacity=64.0, **shape)


def test_a_ledger_in_pages_takes_bytes_for_the_pool():
    shape = {"layers": 8, "kv_heads": 4, "head_dim": 64, "page_size": 16}
    few, many = (kvmeld.cache_bytes("snapkv", sequences=n, capacity=1 << 14, pool_pages=4096, **shape) for n in (8, 64))
    assert few["rows"] == many["rows"] == 8 * 4 * 4096 * 16 * 2 * 64 * 2
    assert many["cache"] - few["cache"] < 8 * 4 * 56 * 128, "a track has its numbers, whatever its slots are"
    twice = kvmeld.cache_bytes("snapkv", sequences=8, capacity=1 << 14, pool_pages=8192, **shape)
    assert twice["cache"] - few["cache"] == 8 * 4 * 4096 * 16 * (9 + 2 * 4)


def test_the_page_of_limits_says_what_models_take():
    page = pathlib.Path(__file__).resolve().parents[2] / "docs" / "limits.md"
    table = page.read_text().split("## Bytes of models")[1].split("\n## ")[0]
    said = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| ")]
    assert len(said) == 11 and said[0][0] == "model"
    for name, layers, heads, queries, dim, *bytes_said in said[1:]:
        shape = {"layers": int(layers), "kv_heads": int(heads), "queries_per_kv_head": int(queries), "head_dim": int(dim),
                 "capacity": 131072}
        one, pool, own = (kvmeld.cache_bytes("snapkv", **shape, **more) for more in (
            {}, {"sequences": 256, "page_size": 16, "pool_pages": 524288 // 16}, {"sequences": 256}))
        found = [one["rows"], one["cache"], pool["rows"], pool["cache"], own["cache"]]
        assert bytes_said == [f"{n / 2**30:.2f}" for n in found], name


def test_append_and_commit_and_truncate():
    keys, values = tensors()
    cache = kvmeld.Cache(keys, values, "streaming_llm")
    cache.open(0)
    cache.open(1, 3)
    cache.append([0, 1], [10, 4])
    assert cache.lengths(0).tolist() == [[10] * HEADS] * LAYERS
    cache.commit([0, 1], [10, 2])
    assert (cache.tokens(0), cache.tokens(1), cache.longest(1)) == (10, 5, 5)
    cache.truncate(0, 7)
    assert cache.tokens(0) == 7
    cache.compress(0, 6)
    with pytest.raises(ValueError, match="truncate: tokens is 6"):
        cache.truncate(0, 6)
    cache.close(0)
    with pytest.raises(ValueError, match="sequence"):
        cache.append(0, 1)


def test_scores_decide():
    """snapkv of observed probabilities, and scores of the caller's own."""
    keys, values = tensors()
    rng = np.random.default_rng(2)
    scores = rng.permutation(np.arange(HEADS * 40, dtype=np.float32)).reshape(HEADS, 40)
    with kvmeld.Cache(keys, values, "score=given select=top identify=evict_rest merge=drop recents=0 sinks=0") as cache:
        cache.open(0, 40)
        for layer in range(LAYERS):
            cache.set_scores(layer, 0, scores)
        cache.compress(0, 10)
        for head in range(HEADS):
            assert cache.positions(0, 0, head).tolist() == sorted(np.argsort(-scores[head])[:10])


def test_what_is_observed_decides():
    keys, values = tensors()
    with kvmeld.Cache(keys, values, "tova") as cache:
        assert cache.needs() == ("last_queries", 1, False)
        cache.open(0, 40)
        with pytest.raises(ValueError, match="attention"):
            cache.compress(0, 10)
        rng = np.random.default_rng(3)
        rows = rng.random((HEADS, 1, 40)).astype(np.float32)
        for layer in range(LAYERS):
            cache.observe_rows(layer, 0, rows)
        cache.compress(0, 10)
        by_rows = [cache.positions(1, 0, head).tolist() for head in range(HEADS)]
    for head in range(HEADS):
        best = np.argsort(-rows[head, 0])[:10]
        assert set(by_rows[head]) >= set(best[:9])


def test_observed_queries_give_the_same_as_their_probabilities():
    first, second = tensors(), tensors()
    queries = np.random.default_rng(4).standard_normal((HEADS, 1, DIM)).astype(np.float32)
    kept = []
    for (keys, values), by_queries in ((first, True), (second, False)):
        with kvmeld.Cache(keys, values, "tova") as cache:
            cache.open(0, 40)
            for layer in range(LAYERS):
                if by_queries:
                    cache.observe(layer, 0, queries)
                    continue
                logits = np.einsum("hqd,hkd->hqk", queries, keys[layer, 0, :, :40]) / np.sqrt(DIM)
                weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
                cache.observe_rows(layer, 0, (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32))
            cache.compress(0, 10)
            kept.append([cache.positions(0, 0, head).tolist() for head in range(HEADS)])
    assert kept[0] == kept[1]


def test_any_strides_and_lists_give_the_same_bits():
    keys, values = tensors()
    results = []
    for form in ("whole", "layers", "token first", "backing of a larger array"):
        if form == "layers":
            k, v = [x.copy() for x in keys], [x.copy() for x in values]
        elif form == "token first":
            k, v = (np.ascontiguousarray(x.transpose(0, 1, 3, 2, 4)).transpose(0, 1, 3, 2, 4) for x in (keys, values))
        elif form == "whole":
            k, v = keys.copy(), values.copy()
        else:
            wide = [np.zeros((*x.shape[:-1], 2 * DIM), np.float32) for x in (keys, values)]
            k, v = (x[..., :DIM] for x in wide)
            k[:], v[:] = keys, values
        with kvmeld.Cache(k, v, "chelsea") as cache:
            cache.open(0, 60)
            cache.compress(0, 25)
        results.append((np.stack(list(k))[:, 0, :, :25], np.stack(list(v))[:, 0, :, :25]))
    for k, v in results[1:]:
        assert np.array_equal(k, results[0][0]) and np.array_equal(v, results[0][1])


def test_shared_budgets():
    keys, values = tensors()
    with kvmeld.Cache(keys, values, "knorm", over="layer") as cache:
        cache.open(0, 60)
        cache.compress(0, 20, over="layer", floor=0.1)
        lengths = cache.lengths(0)
        assert lengths.sum(axis=1).tolist() == [20 * HEADS] * LAYERS
        assert len(set(lengths.flatten().tolist())) > 1
    with kvmeld.Cache(keys, values, "knorm") as cache:
        cache.open(0, 60)
        with pytest.raises(ValueError, match="over"):
            cache.compress(0, 20, over="layer")


def test_fork_save_and_resume():
    keys, values = tensors()
    with kvmeld.Cache(keys, values, "chelsea") as cache:
        cache.open(0, 60)
        cache.compress(0, 30)
        cache.fork(0, 1)
        assert np.array_equal(keys[:, 0, :, :30], keys[:, 1, :, :30])
        saved = cache.save(0)
        cache.compress(0, 20)
        assert cache.longest(0) == 20 and cache.longest(1) == 30
        cache.close(0)
        keys[:, 0], values[:, 0] = keys[:, 1], values[:, 1]
        cache.resume(0, saved)
        for head in range(HEADS):
            assert np.array_equal(cache.degrees(0, 0, head), cache.degrees(0, 1, head))
        cache.compress([0, 1], 20)
        assert np.array_equal(keys[:, 0, :, :20], keys[:, 1, :, :20])
        cache.close(0)
        with pytest.raises(ValueError):
            cache.resume(0, saved[:-1])


def test_refusals():
    keys, values = tensors()
    with pytest.raises(ValueError, match="policy"):
        kvmeld.Cache(keys, values, "no such policy")
    with pytest.raises(ValueError, match="scope is 'all'; it must be one of head, layer, all_layers"):
        kvmeld.Cache(keys, values, "snapkv", scope="all")
    with pytest.raises(ValueError, match=r"keys is of shape|dimensions"):
        kvmeld.Cache(keys[0, 0], values[0, 0], "snapkv")
    with pytest.raises(ValueError, match=r"values\[0\] is of shape"):
        kvmeld.Cache(keys, values[:, :, :, :-1], "snapkv")
    with pytest.raises(ValueError, match="element type"):
        kvmeld.Cache(keys, values.astype(np.float16), "snapkv")
    with pytest.raises(ValueError, match="float32, float16 or bfloat16"):
        kvmeld.Cache(keys.astype(np.float64), values.astype(np.float64), "snapkv")
    with pytest.raises(ValueError, match="writable"):
        kvmeld.Cache("keys", values, "snapkv")
    with pytest.raises(ValueError, match="no value shares bytes with a key"):
        kvmeld.Cache(keys, keys, "snapkv")
    frozen = keys.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kvmeld.Cache(frozen, values, "snapkv")
    with kvmeld.Cache(keys, values, "snapkv") as cache:
        cache.open(0, 40)
        with pytest.raises(ValueError, match="sequence"):
            cache.open(0, 40)
        with pytest.raises(ValueError, match="tokens"):
            cache.open(1, CAPACITY + 1)
        with pytest.raises(ValueError, match="queries is of shape"):
            cache.observe(0, 0, np.zeros((HEADS, 4, DIM + 1), np.float32))
        with pytest.raises(ValueError, match="stride"):
            cache.observe(0, 0, np.zeros((HEADS, 4, 2 * DIM), np.float32)[..., ::2])
        with pytest.raises(ValueError, match="out is"):
            cache.attend(0, 0, np.zeros((HEADS, 4, DIM), np.float32), np.zeros((HEADS, 3, DIM), np.float32))
        rows = np.zeros((HEADS, 4, DIM), np.float32)
        for lse, why in ((np.zeros((HEADS, 4)), "lse is of another element type; it must be of float32"),
                         (np.zeros((HEADS, 5), np.float32), "lse is of shape"), ([0.0], "lse is a list")):
            with pytest.raises(ValueError, match=why):
                cache.attend(0, 0, rows, rows.copy(), lse=lse)
            with pytest.raises(ValueError, match=why):
                cache.observe(0, 0, rows, lse=lse)
        for layer, head in ((LAYERS, 0), (0, HEADS)):
            with pytest.raises(ValueError):
                cache.degrees(layer, 0, head)
        with pytest.raises(ValueError):
            cache.compress(0, 0)
        with pytest.raises(ValueError):
            cache.compress(0, 1.5)
    with pytest.raises(ValueError):  # closed
        cache.open(0)
    assert "closed" in repr(cache)


def test_a_budget_is_a_share_or_a_number_by_its_type_also_of_numpy():
    for budget, left in ((20, 20), (np.int64(20), 20), (0.5, 20), (np.float32(0.5), 20), (1.0, 40)):
        keys, values = tensors()
        with kvmeld.Cache(keys, values, "streaming_llm") as cache:
            cache.open(0, 40)
            cache.compress(0, budget)
            assert cache.lengths(0).tolist() == [[left] * HEADS] * LAYERS, budget


def test_a_cache_keeps_its_tensors_alive_until_it_ends():
    keys, values = tensors()

    class Marked(np.ndarray):
        pass

    marked = keys.view(Marked)
    gone = weakref.ref(marked)
    cache = kvmeld.Cache(marked, values, "chelsea")
    del marked, keys
    gc.collect()
    assert gone() is not None
    cache.open(0, 60)
    cache.compress(0, 20)
    cache.close_all()
    cache.close_all()
    gc.collect()
    assert gone() is None


def test_other_threads_run_meanwhile():
    shape = (1, 1, 8, 4096, 64)
    rng = np.random.default_rng(5)
    keys, values = (rng.standard_normal(shape, np.float32) for _ in range(2))
    with kvmeld.Cache(keys, values, "chelsea", threads=1) as cache:
        cache.open(0, 4096)
        counted, done = 0, threading.Event()

        def work():
            cache.compress(0, 256)
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        while not done.is_set():
            counted += 1
            time.sleep(0.001)
        thread.join()
        assert cache.longest(0) == 256
    assert counted > 3


def test_caches_in_threads_of_their_own_give_the_same_bits():
    results = {}

    def work(name):
        keys, values = tensors(seed=7)
        with kvmeld.Cache(keys, values, "chelsea") as cache:
            cache.open(0, 60)
            cache.compress(0, 20)
        results[name] = keys[:, 0, :, :20].tobytes()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and len(set(results.values())) == 1


def test_the_interpreter_ends_with_a_cache_alive():
    code = (
        "import numpy, kvmeld\n"
        "k = numpy.zeros((1, 1, 1, 8, 4), numpy.float32)\n"
        "cache = kvmeld.Cache(k, k.copy(), 'chelsea')\n"
        "cache.open(0, 8)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_compact():
    keys, values = (x[:, 0, :, :40] for x in tensors())
    before = keys.copy()
    k, v, positions, degrees = kvmeld.compact(None, keys, values, 12, "streaming_llm")
    stay = [*range(4), *range(32, 40)]
    assert np.array_equal(k, keys[:, :, stay]) and np.array_equal(v, values[:, :, stay])
    assert positions.shape == degrees.shape == (LAYERS, HEADS, 12)
    assert (positions == stay).all() and (degrees == 1).all() and np.array_equal(keys, before)
    queries = np.random.default_rng(6).standard_normal((LAYERS, 2 * HEADS, 8, DIM)).astype(np.float32)
    k, v, positions, degrees = kvmeld.compact(queries, keys, values, 12, "leverage_dropkv")
    for layer in range(LAYERS):
        for head in range(HEADS):
            assert np.array_equal(k[layer, head], keys[layer, head, positions[layer, head]])
    with pytest.raises(ValueError, match="n is 41"):
        kvmeld.compact(None, keys, values, 41, "streaming_llm")
    for shape in ((LAYERS - 1, HEADS, 8, DIM), (LAYERS, HEADS + 1, 8, DIM), (LAYERS, 0, 8, DIM)):
        with pytest.raises(ValueError, match="queries is of shape"):
            kvmeld.compact(np.zeros(shape, np.float32), keys, values, 12, "leverage_dropkv")


def rotated(rows, positions, frequencies, interleaved=False):
    """Rows [..., tokens, d] rotated for positions [tokens], in double (RoFormer)."""
    pairs = len(frequencies)
    a = np.arange(pairs) * (2 if interleaved else 1)
    b = a + (1 if interleaved else pairs)
    angles = np.asarray(positions, float)[:, None] * np.asarray(frequencies, float)
    out = np.array(rows, float)
    out[..., a] = rows[..., a] * np.cos(angles) - rows[..., b] * np.sin(angles)
    out[..., b] = rows[..., a] * np.sin(angles) + rows[..., b] * np.cos(angles)
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("given", ["base", "frequencies", "a part of the channels"])
def test_renumber_and_compact_rotate_keys(interleaved, given):
    raw, values = (x[:, 0, :, :40] for x in tensors())
    frequencies = np.float32(500.0) ** (-np.arange(DIM // 2, dtype=np.float32) / (DIM // 2))
    if given == "a part of the channels":
        frequencies = frequencies[: DIM // 2 - 1]
    how = {"rope": "interleaved" if interleaved else "half_split"}
    how.update({"rope_base": 500.0} if given == "base" else {"frequencies": frequencies})
    keys = rotated(raw, range(40), frequencies, interleaved).astype(np.float32)
    k, v, positions, degrees = kvmeld.compact(None, keys, values, 12, "streaming_llm", **how)
    stay = [*range(4), *range(32, 40)]
    assert (positions == stay).all() and np.array_equal(v, values[:, :, stay])
    expected = rotated(raw[:, :, stay], range(12), frequencies, interleaved)
    assert np.abs(k - expected).max() < 1e-5 and np.abs(k - keys[:, :, stay]).max() > 0.1

    keys, values = np.ascontiguousarray(keys[:, None]), np.ascontiguousarray(values[:, None])
    with kvmeld.Cache(keys, values, "streaming_llm") as cache:
        cache.open(0, 40)
        cache.compress(0, 12)
        cache.renumber(0, **how)
        assert (cache.positions(1, 0, 1) == np.arange(12)).all() and cache.tokens(0) == 12
        assert np.abs(keys[:, 0, :, :12] - expected).max() < 1e-5


def test_renumber_refuses():
    keys, values = tensors()
    with kvmeld.Cache(keys, values, "streaming_llm") as cache:
        cache.open(0, 40)
        cache.compress(0, 12)
        with pytest.raises(ValueError, match="rope is 'neox'; it must be one of none, half_split, interleaved"):
            cache.renumber(0, "neox")
        with pytest.raises(ValueError, match="rope.base is -1; it must be above 0"):
            cache.renumber(0, "half_split", -1.0)
        with pytest.raises(ValueError, match="rope_base is 0; it must be above 0"):
            cache.renumber(0, "half_split", 0)
        with pytest.raises(ValueError, match="frequencies is empty"):
            cache.renumber(0, "half_split", frequencies=[])
        with pytest.raises(ValueError, match="frequencies is given; it must be None, because rope is none"):
            cache.renumber(0, frequencies=[1.0])
        with pytest.raises(ValueError, match="rope is 'neox'"):
            kvmeld.compact(None, keys[:, 0], values[:, 0], 12, "streaming_llm", rope="neox")
        with pytest.raises(ValueError, match="rope.rotary_dim is"):
            cache.renumber(0, "half_split", frequencies=np.ones(DIM))
        with pytest.raises(ValueError, match="rope.frequencies"):
            cache.renumber(0, "half_split", frequencies=[float("inf")])
        before = keys.copy()
        cache.renumber(0)
        assert np.array_equal(keys, before) and (cache.positions(0, 0, 0) == np.arange(12)).all()


def held(cache, s=1):
    return [cache.positions(layer, s, head).tolist() for layer in range(LAYERS) for head in range(cache.kv_heads)]


def test_drop_positions_takes_a_range_out_of_the_middle():
    keys, values = tensors()
    before = keys.copy(), values.copy()
    with kvmeld.Cache(keys, values, "streaming_llm") as cache:
        cache.open(1, 40)
        cache.drop_positions(1, 10, 25)
        stay = [*range(10), *range(25, 40)]
        assert held(cache) == [stay] * len(held(cache)) and cache.tokens(1) == 40 and cache.warnings(1) == 0
        for now, then in ((keys, before[0]), (values, before[1])):
            assert np.array_equal(now[:, 1, :, : len(stay)], then[:, 1][:, :, stay])
        cache.truncate(1, 30)  # behind the gap, and before it
        cache.truncate(1, 12)
        assert held(cache) == [list(range(10))] * len(held(cache)) and cache.tokens(1) == 12


def test_drop_positions_goes_by_the_position_of_an_entry():
    keys, values = tensors()
    with kvmeld.Cache(keys, values, "chelsea") as cache:
        cache.open(1, 60)
        cache.compress(1, 30)
        places, degrees = held(cache), [cache.degrees(0, 1, h) for h in range(cache.kv_heads)]
        cache.drop_positions(1, 20, 41)
        assert held(cache) == [[p for p in track if not 20 <= p < 41] for track in places]
        for h in range(cache.kv_heads):
            kept = [d for d, p in zip(degrees[h], places[h]) if not 20 <= p < 41]
            assert cache.degrees(0, 1, h).tolist() == kept


def test_drop_positions_refuses():
    keys, values = tensors()
    with kvmeld.Cache(keys, values, "streaming_llm") as cache:
        with pytest.raises(ValueError, match="drop_positions: sequence is 1; it must be open"):
            cache.drop_positions(1, 0, 0)
        cache.open(1, 40, 4)
        before = keys.copy()
        for first, last, why in (
            (0, 41, "last is 41; it must be 0 to 40, the tokens seen"),
            (5, 4, "first is 5; it must be 0 to last, which is 4"),
            (-1, 4, "first is -1"),
            (3, 9, "slot 3 of track .* is frozen"),
        ):
            with pytest.raises(ValueError, match=why):
                cache.drop_positions(1, first, last)
        cache.append(1, 1)
        with pytest.raises(ValueError, match="number of pending entries of sequence 1 is 1"):
            cache.drop_positions(1, 5, 6)
        with pytest.raises(TypeError):
            cache.drop_positions(1, 0.5, 6)
        assert np.array_equal(keys, before) and held(cache) == [list(range(41))] * len(held(cache))


@pytest.mark.parametrize("interleaved", [False, True])
def test_shift_turns_keys_and_closes_a_gap(interleaved):
    raw, values = tensors()
    frequencies = np.float32(500.0) ** (-np.arange(DIM // 2, dtype=np.float32) / (DIM // 2))
    keys = raw.copy()
    keys[:, 1, :, :40] = rotated(raw[:, 1, :, :40], range(40), frequencies, interleaved)
    how = {"rope": "interleaved" if interleaved else "half_split", "frequencies": frequencies}
    with kvmeld.Cache(keys, values, "streaming_llm") as cache:
        cache.open(1, 40)
        cache.drop_positions(1, 10, 25)
        cache.shift(1, -15, first=25, **how)
        stay = [*range(10), *range(25, 40)]
        assert held(cache) == [list(range(25))] * len(held(cache)) and cache.tokens(1) == 25
        expected = rotated(raw[:, 1][:, :, stay], range(25), frequencies, interleaved)
        assert np.abs(keys[:, 1, :, :25] - expected).max() < 1e-5
        before = keys.copy()
        cache.shift(1, 0, **how)
        assert np.array_equal(keys, before)
        cache.shift(1, 7)  # without keys
        assert np.array_equal(keys, before) and held(cache) == [list(range(7, 32))] * len(held(cache))


def test_shift_refuses():
    keys, values = tensors()
    with kvmeld.Cache(keys, values, "streaming_llm") as cache:
        cache.open(0, 40, 2)
        for arguments, why in (
            ({"offset": -1}, "offset is -1; it must be at least 0"),
            ({"offset": 1, "first": 41}, "first is 41; it must be 0 to 40"),
            ({"offset": 1, "rope": "half_split"}, "slot 0 of track .* is frozen"),
            ({"offset": 1, "rope": "neox"}, "rope is 'neox'; it must be one of none, half_split, interleaved"),
            ({"offset": 1, "rope": "half_split", "frequencies": []}, "frequencies is empty"),
        ):
            with pytest.raises(ValueError, match=why):
                cache.shift(0, **arguments)
        assert cache.tokens(0) == 40


PAGE = 8


def paged(dense, rng):
    """A pool whose pages hold the rows of `dense` in any order, with some that nobody uses, and its table."""
    layers, sequences, heads, capacity, dim = dense.shape
    each = capacity // PAGE
    numbers = rng.permutation(sequences * each + 3)[: sequences * each].astype(np.int32).reshape(sequences, each)
    pool = np.full((layers, sequences * each + 3, heads, PAGE, dim), 9.0, dense.dtype)
    for s in range(sequences):
        for i in range(each):
            pool[:, numbers[s, i]] = dense[:, s, :, i * PAGE : (i + 1) * PAGE]
    return pool, numbers


def rows_of(pool, table, s):
    return np.concatenate([pool[:, page] for page in table[s]], axis=2)


@pytest.mark.parametrize("policy", ["chelsea", "keydiff", "snapkv", "kvmerger"])
@pytest.mark.parametrize("per_layer", [False, True])
def test_pages_hold_what_tensors_hold(policy, per_layer):
    rng = np.random.default_rng(3)
    keys, values = tensors()
    pool_k, table = paged(keys, rng)
    pool_v = paged(values, np.random.default_rng(3))[0]
    given = (lambda pool: list(pool)) if per_layer else (lambda pool: pool)
    dense = kvmeld.Cache(keys, values, policy)
    pages = kvmeld.Cache(given(pool_k), given(pool_v), policy, page_table=table)
    assert (pages.sequences, pages.capacity) == (SEQUENCES, CAPACITY)
    queries = rng.standard_normal((HEADS, 4, DIM)).astype(np.float32)
    for cache in (dense, pages):
        cache.open(1, 60)
        for layer in range(LAYERS):
            cache.observe(layer, 1, queries)
        cache.compress(1, 40)
        cache.fork(1, 0)
    for s in range(SEQUENCES):
        held = dense.lengths(s)
        assert np.array_equal(held, pages.lengths(s))
        for pool, tensor in ((pool_k, keys), (pool_v, values)):
            rows = rows_of(pool, table, s)
            for layer in range(LAYERS):
                for head in range(HEADS):
                    n = held[layer, head]
                    assert np.array_equal(rows[layer, head, :n], tensor[layer, s, head, :n])
        assert np.array_equal(dense.attend(1, s, queries), pages.attend(1, s, queries))
    unused = np.setdiff1d(np.arange(pool_k.shape[1]), table)
    assert np.all(pool_k[:, unused] == 9.0) and len(unused) == 3


def test_what_pages_are_refused_for():
    keys, values = tensors()
    pool_k, table = paged(keys, np.random.default_rng(0))
    pool_v, _ = paged(values, np.random.default_rng(0))

    def refused(match, page_table):
        with pytest.raises(ValueError, match=match):
            kvmeld.Cache(pool_k, pool_v, "streaming_llm", page_table=page_table)

    refused("page_table is of another element type; it must be of int32", table.astype(np.int64))
    refused("page_table is of shape \\[16\\]", table.reshape(-1))
    refused("page_table is with a stride of 2 elements", np.zeros((2, 16), np.int32)[:, ::2])
    refused("page_table is a list", table.tolist())
    cache = kvmeld.Cache(pool_k, pool_v, "streaming_llm", page_table=table)
    cache.open(0, 30)
    table[0, 3], right = 19, table[0, 3]
    with pytest.raises(ValueError, match="page_table\\[0, 3\\] is 19; it must be 0 to 18, a page of the pool"):
        cache.compress(0, 20)
    with pytest.raises(ValueError, match="page_table\\[0, 3\\] is 19"):
        cache.fork(0, 1)
    table[0, 3], table[0, 4] = right, -5  # the fifth page holds nothing yet
    cache.compress(0, 20)
    assert cache.longest(0) == 20
    table[1, 0] = -1
    with pytest.raises(ValueError, match="page_table\\[1, 0\\] is -1"):
        cache.fork(0, 1)
    held = weakref.ref(table)
    del table
    gc.collect()
    assert held() is not None  # the cache reads it
    cache.close_all()
    gc.collect()
    assert held() is None
