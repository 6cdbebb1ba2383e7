"""kvmeld.hf.KVMeldCache on tiny random models of transformers. Expected logits come from a forward pass that is
written here, in double precision, from the weights alone."""

import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from kvmeld import hf  # noqa: E402
from models import KINDS, SIZES, held, model_of, near, padded, read, reference, tokens_of  # noqa: E402


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_budget_gives_the_logits_of_the_full_cache(kind, attention):
    model, ids = model_of(kind, attention), tokens_of(1, 50)
    expected = reference(model, ids[0])
    cache = hf.KVMeldCache(model)
    parts = [read(model, part, cache) for part in ids.split([20, 1, 17, 1, 11], dim=1)]  # a prompt in parts
    assert near(torch.cat(parts, dim=1)[0], expected)
    assert cache.get_seq_length() == 50 and cache.cache.longest(0) == 50


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["leverage_dropkv", "chelsea", "h2o"])
def test_logits_after_a_compression(kind, attention, policy):
    model, ids = model_of(kind, attention), tokens_of(1, 170)
    cache = hf.KVMeldCache(model, policy)
    read(model, ids[:, :150], cache)
    cache.compress(60)
    past = held(cache)
    assert cache.cache.longest(0) == 60
    merged = any((degrees > 1).any() for layer in past for _, _, degrees in layer)
    assert merged == (policy == "chelsea")
    expected = reference(model, ids[0, 150:], past, 150)
    logits = torch.cat([read(model, part, cache)[0] for part in ids[:, 150:].split([1, 12, 7], dim=1)])
    assert near(logits, expected)
    if merged:  # degrees that are left out show
        ones = [[(k, v, torch.ones_like(d)) for k, v, d in layer] for layer in past]
        assert not near(logits, reference(model, ids[0, 150:], ones, 150), 2e-3)


def test_without_a_policy_a_prompt_that_is_read_twice_is_kept_as_kvzip_keeps_it():
    model, ids = model_of(), tokens_of(2, 120)
    named = hf.KVMeldCache(model, "kvzip_centroids", 0.4, over="all_layers", floor=0.0)
    named.read(model, ids)
    cache = hf.KVMeldCache(model, budget=0.4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(2):  # the second time after a prompt that was read once
            cache.read(model, ids)
            for sequence in range(2):
                assert (cache.cache.lengths(sequence) == named.cache.lengths(sequence)).all()
                assert (cache.cache.positions(1, sequence, 0) == named.cache.positions(1, sequence, 0)).all()
            cache.reset()
            read(model, ids[:, :30], cache)
            assert cache.cache.policy.startswith("drop_error") and cache.over == "head" and cache.floor == 0.2
            cache.reset()


def test_without_a_policy_a_prompt_that_is_read_once_is_compressed_with_a_warning():
    model, ids = model_of(), tokens_of(1, 160)
    cache = hf.KVMeldCache(model, budget=64, interval=8)
    with pytest.warns(UserWarning, match="nothing was learned of this model, .* so 'dropkv' keeps what its end asks for"):
        read(model, ids[:, :150], cache)
        read(model, ids[:, 150:], cache)
    named = hf.KVMeldCache(model, "dropkv", 64, interval=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for part in ids.split([150, 10], dim=1):
            read(model, part, named)
    assert all((a == b).all() for a, b in zip(held(cache)[0][0], held(named)[0][0]))
    layers = hf.KVMeldCache(model, budget=64, over="layer")  # what a caller says stays
    layers.read(model, ids)
    assert layers.over == "layer" and (layers.cache.lengths(0).sum(axis=1) == 2 * 64).all()


@pytest.mark.parametrize("by_read", [False, True])
def test_without_a_policy_the_heads_of_a_model_of_few_keep_the_same_tokens(by_read):
    model, ids = model_of(num_hidden_layers=2), tokens_of(2, 120)  # 4 heads that keep all tokens
    cache, named = (hf.KVMeldCache(model, *more, budget=0.4, **options) for more, options in (
        ((), {}), (("leverage",), {"scope": "all_layers"})))
    assert "KVMeldCache('leverage', the same tokens in all heads of all layers, all layers, 0 tokens seen)" == repr(cache)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for of in (cache, named):
            if by_read:
                of.read(model, ids)
            else:
                read(model, ids, of)
                of.compress()
            assert of.compressions == 1
    for sequence in range(2):
        kept = {tuple(cache.cache.positions(layer, sequence, head)) for layer in range(2) for head in range(2)}
        assert kept == {tuple(named.cache.positions(0, sequence, 0))} and len(kept.pop()) == 48
    told = hf.KVMeldCache(model, budget=0.4, over="all_layers")  # what a caller says stays
    assert (told.over, told._options["scope"]) == ("all_layers", "head")
    assert hf.KVMeldCache(model, scope="head")._options["scope"] == hf.KVMeldCache(model, "leverage")._options["scope"] == "head"
    many = hf.KVMeldCache(model_of())  # 6 heads
    assert repr(many).startswith("KVMeldCache('kvzip_centroids' if read() reads the prompt, else 'dropkv', all layers")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_last_query_decides_for_tova(attention):
    model, ids, seen = model_of(attention=attention), tokens_of(1, 60), []
    cache = hf.KVMeldCache(model, "tova")
    read(model, ids[:, :45], cache)
    read(model, ids[:, 45:], cache)
    cache.compress(20)
    reference(model, ids[0], seen=seen)
    for layer, rows in enumerate(seen):
        for head in range(2):
            best = rows[2 * head : 2 * head + 2].mean(dim=0).argsort(descending=True)
            assert set(best[:18].tolist()) <= set(cache.cache.positions(layer, 0, head).tolist())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types(dtype):
    model, ids = model_of(dtype=dtype), tokens_of(1, 101)
    cache = hf.KVMeldCache(model, "chelsea")
    read(model, ids[:, :100], cache)
    cache.compress(0.5)
    expected = reference(model, ids[0, 100:], held(cache), 100)
    assert near(read(model, ids[:, 100:], cache)[0], expected, 30 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_never_enters_the_cache(attention, side):
    model, lengths = model_of(attention=attention), [70, 100, 41]
    rows = [tokens_of(n, seed=n) for n in lengths]
    ids, mask = padded(rows, side)
    cache = hf.KVMeldCache(model, "chelsea")
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = read(model, ids, cache, attention_mask=mask, position_ids=positions)
    for i, row in enumerate(rows):
        assert cache.cache.tokens(i) == lengths[i]
        assert near(logits[i][mask[i].bool()], reference(model, row))
    cache.compress(0.5)
    pasts = [held(cache, i) for i in range(3)]
    assert [len(past[0][0][0]) for past in pasts] == [n // 2 for n in lengths]
    more = tokens_of(3, 6, seed=9)
    mask = torch.cat([mask, torch.ones(3, 6, dtype=torch.long)], dim=1)
    positions = torch.tensor(lengths)[:, None] + torch.arange(6)
    logits = read(model, more, cache, attention_mask=mask, position_ids=positions)
    for i in range(3):
        assert near(logits[i], reference(model, more[i], pasts[i], lengths[i]))


def test_budgets_that_heads_share():
    model, ids = model_of(), tokens_of(1, 110)
    cache = hf.KVMeldCache(model, "snapkv", over="all_layers")
    read(model, ids[:, :100], cache)
    cache.compress(50)
    assert len(set(cache.cache.lengths(0).flatten().tolist())) > 1
    expected = reference(model, ids[0, 100:], held(cache), 100)
    logits = torch.cat([read(model, part, cache)[0] for part in ids[:, 100:].split([1, 9], dim=1)])
    assert near(logits, expected)


def greedy(model, prompt, n, budget, interval, cache_policy):
    """The tokens that generate() should give, from the reference alone but for the entries that stay."""
    mirror = hf.KVMeldCache(model, cache_policy)
    row, out = prompt, []
    for _ in range(n):
        if mirror.cache is not None and mirror.cache.longest(0) + row.shape[1] > budget + interval:
            mirror.compress(budget)
        past = held(mirror) if mirror.cache is not None else None
        logits = reference(model, row[0], past, mirror.get_seq_length())
        read(model, row, mirror)
        row = logits[-1].argmax()[None, None]
        out.append(int(row))
    return out


GREEDY = dict(do_sample=False, eos_token_id=None, pad_token_id=0)


@pytest.mark.parametrize("policy", ["leverage_dropkv", "chelsea"])
def test_generate_compresses_while_it_generates(policy):
    model, prompt = model_of(), tokens_of(1, 90)
    cache = hf.KVMeldCache(model, policy, budget=64, interval=16)
    ids = model.generate(prompt, past_key_values=cache, max_new_tokens=60, **GREEDY)
    assert cache.compressions >= 4
    assert ids[0, 90:].tolist() == greedy(model, prompt, 60, 64, 16, policy)


def test_generate_without_a_budget_is_that_of_the_model():
    for attention in ("eager", "sdpa"):
        model, prompt = model_of(attention=attention), tokens_of(2, 30)
        expected = model.generate(prompt, max_new_tokens=40, **GREEDY)
        cache = hf.KVMeldCache(model)
        assert torch.equal(model.generate(prompt, past_key_values=cache, max_new_tokens=40, **GREEDY), expected)
        assert cache.cache.tokens(1) == cache.get_seq_length() == 69
        # attached, and with a cache of its own
        assert torch.equal(model.generate(prompt, max_new_tokens=40, **GREEDY), expected)
        hf.detach(model)
        assert model.config._attn_implementation == attention


def test_two_thousand_tokens_in_a_bounded_cache():
    model, prompt = model_of(), tokens_of(1, 40)
    cache = hf.KVMeldCache(model, "keydiff", budget=128, interval=64)
    ids = model.generate(prompt, past_key_values=cache, max_new_tokens=2000, **GREEDY)
    assert ids.shape == (1, 2040) and cache.get_seq_length() == 2039
    assert cache.cache.longest(0) <= 192 and cache.cache.capacity <= 192
    assert cache.compressions >= 25


def test_a_long_prompt_in_parts_takes_bounded_memory():
    model, prompt = model_of(), tokens_of(1, 1000)
    cache = hf.KVMeldCache(model, "keydiff", budget=100, interval=50)
    for part in prompt.split(50, dim=1):
        read(model, part, cache)
    assert cache.cache.capacity <= 150 and cache.cache.tokens(0) == 1000
    whole = hf.KVMeldCache(model, "keydiff", budget=100, interval=50)
    read(model, prompt, whole)
    assert whole.cache.capacity == 1000
    read(model, prompt[:, :1], whole)
    assert whole.cache.capacity == 150 and whole.cache.longest(0) == 101


def test_padded_batches_generate_what_each_prompt_alone_does():
    model, lengths = model_of(), [60, 85]
    rows = [tokens_of(n, seed=n) for n in lengths]
    ids, mask = padded(rows)
    cache = hf.KVMeldCache(model, "streaming_llm", budget=0.5, interval=8)
    out = model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=30, **GREEDY)
    assert cache.compressions >= 2
    assert cache.cache.tokens(0) == 60 + 29 and cache.cache.tokens(1) == 85 + 29
    full = hf.KVMeldCache(model)
    out = model.generate(ids, attention_mask=mask, past_key_values=full, max_new_tokens=30, **GREEDY)
    for i, row in enumerate(rows):
        alone = model.generate(row[None], past_key_values=hf.KVMeldCache(model), max_new_tokens=30, **GREEDY)
        assert alone[0, len(row) :].tolist() == out[i, 85:].tolist()


def test_beams_and_sampling():
    model, prompt = model_of(), tokens_of(2, 40)
    options = dict(num_beams=4, max_new_tokens=30, do_sample=False, pad_token_id=0, eos_token_id=None)
    expected = model.generate(prompt, **options)
    assert torch.equal(model.generate(prompt, past_key_values=hf.KVMeldCache(model), **options), expected)
    cache = hf.KVMeldCache(model, "chelsea", budget=32, interval=8)
    assert model.generate(prompt, past_key_values=cache, **options).shape == (2, 70)
    assert cache.compressions >= 2 and cache.batch_size == 8 and cache.cache.longest(7) <= 40
    options = dict(do_sample=True, num_return_sequences=3, max_new_tokens=30, pad_token_id=0, eos_token_id=None)
    torch.manual_seed(3)
    expected = model.generate(prompt, **options)
    torch.manual_seed(3)
    assert torch.equal(model.generate(prompt, past_key_values=hf.KVMeldCache(model), **options), expected)


def test_selected_sequences_keep_their_degrees():
    model, ids = model_of(), tokens_of(3, 80)
    cache = hf.KVMeldCache(model, "chelsea")
    read(model, ids, cache)
    cache.compress(40)
    pasts = [held(cache, i) for i in range(3)]
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    more = tokens_of(3, 4, seed=5)
    logits = read(model, more, cache)
    for i, source in enumerate([2, 0, 0]):
        assert near(logits[i], reference(model, more[i], pasts[source], 80))
    cache.crop(-4)
    cache.batch_select_indices(torch.tensor([1]))
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 2
    logits = read(model, more[:2], cache)
    for i in range(2):
        assert near(logits[i], reference(model, more[i], pasts[0], 80))


def test_crop_and_reset():
    model, ids = model_of(), tokens_of(1, 60)
    cache = hf.KVMeldCache(model, "chelsea")
    read(model, ids, cache)
    cache.crop(50)
    assert near(read(model, ids[:, 50:], cache)[0], reference(model, ids[0])[50:])
    cache.compress(30)
    with pytest.raises(ValueError, match="truncate"):
        cache.crop(-1)
    cache.reset()
    assert near(read(model, ids, cache)[0], reference(model, ids[0]))


def test_crop_counts_padding_and_changes_all_sequences_or_none():
    model, ids = model_of(), tokens_of(2, 40)
    mask = torch.ones(2, 40, dtype=torch.long)
    mask[1, 30:] = 0  # the second prompt is shorter
    cache = hf.KVMeldCache(model, "chelsea")
    read(model, ids, cache, attention_mask=mask)
    cache.crop(34)
    assert [cache.cache.tokens(i) for i in range(2)] == [34, 30] and cache.get_seq_length() == 34
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.crop(-9)
    assert [cache.cache.tokens(i) for i in range(2)] == [25, 25] and cache.get_seq_length() == 25
    ids, mask = ids[[1, 0]], torch.ones(2, 30, dtype=torch.long)
    logits = read(model, ids[:, 25:30], cache, attention_mask=mask)
    for i in range(2):
        assert near(logits[i], reference(model, ids[i, :30])[25:])

    cache.cache.compress([1], 20)  # only one of them
    before = [cache.cache.save(i) for i in range(2)]
    with pytest.raises(ValueError, match="truncate"):
        cache.crop(28)
    assert [cache.cache.save(i) for i in range(2)] == before and cache.get_seq_length() == 30


def test_refusals():
    model, ids = model_of(), tokens_of(1, 30)
    with pytest.raises(ValueError, match="gradients"):
        model(ids, past_key_values=hf.KVMeldCache(model))
    with pytest.raises(ValueError, match="reads a prompt once, unless"):
        read(model, ids, hf.KVMeldCache(model, "kvzip"))
    with pytest.raises(ValueError, match="no such policy|policy"):
        read(model, ids, hf.KVMeldCache(model, "no such policy"))
    cache = hf.KVMeldCache(model)
    with pytest.raises(ValueError, match="budget is None"):
        cache.compress()
    read(model, ids, cache)
    with pytest.raises(ValueError, match="the batch is 2"):
        read(model, tokens_of(2, 3), cache)
    hf.detach(model)
    with pytest.raises(ValueError, match="attach"):
        read(model, ids, hf_attached_elsewhere(model))


def hf_attached_elsewhere(model):
    """A cache of a model whose attention was changed afterwards."""
    cache = hf.KVMeldCache(model)
    hf.detach(model)
    return cache


def test_a_mask_of_other_tokens_is_refused():
    model, ids = model_of(), tokens_of(1, 12)
    cache = hf.KVMeldCache(model)
    read(model, ids[:, :8], cache)
    with pytest.raises(ValueError, match="^KVMeldCache: attention_mask is of 8 tokens; it must be of 12"):
        read(model, ids[:, 8:], cache, attention_mask=torch.zeros(1, 1, 4, 8))


def scores_of_a_second_reading(model, ids, prefix, part):
    """[layers, kv_heads, tokens]: the most attention that a query of a second reading gives a token of the prompt, by
    transformers alone."""
    n, most = ids.shape[1], 0
    for at in range(0, n, part):
        whole = torch.cat([ids, prefix[None], ids[:, at : at + part]], dim=1)
        with torch.no_grad():
            rows = model(whole, output_attentions=True).attentions
        rows = torch.stack([r[0, :, n:, :n].max(dim=1).values for r in rows])  # [layers, query heads, tokens]
        most = torch.maximum(rows, torch.as_tensor(most))
    return most.view(len(most), 2, 2, n).max(dim=2).values


@pytest.mark.parametrize("part", [25, 200])
def test_kvzip_keeps_what_a_second_reading_looks_at(part):
    model, ids, prefix = model_of(attention="eager"), tokens_of(1, 60), tokens_of(7, seed=3)
    cache = hf.KVMeldCache(model, "kvzip sinks=0 recents=0", budget=0.3, over="all_layers", floor=0.0)
    cache.read(model, ids, prefix=prefix, part=part)
    assert cache.get_seq_length() == 60 and cache.cache.tokens(0) == 60 and cache.compressions == 1
    hf.detach(model)
    scores = scores_of_a_second_reading(model, ids, prefix, part).flatten()
    hf.attach(model)
    kept = torch.zeros(3, 2, 60, dtype=torch.bool)
    for layer in range(3):
        for head in range(2):
            kept[layer, head, cache.cache.positions(layer, 0, head).tolist()] = True
    assert kept.sum() == 18 * 6
    border = scores.sort(descending=True).values[18 * 6 - 1]
    assert kept.flatten()[scores > border * 1.001].all() and not kept.flatten()[scores < border * 0.999].any()
    # The question behind the prompt reads what is left.
    more, past = tokens_of(1, 6, seed=9), held(cache)
    assert near(read(model, more, cache)[0], reference(model, more[0], past, 60))


def test_a_prompt_that_is_read_waits_if_a_share_leaves_less_than_is_pinned():
    model = model_of()
    cache = hf.KVMeldCache(model, "streaming_llm sinks=4 recents=10", budget=0.3)
    cache.read(model, tokens_of(1, 10))
    assert cache.compressions == 0 and cache.cache.longest(0) == 10
    with pytest.raises(TypeError, match="^model is of type LlamaConfig; it must be a model of transformers"):
        hf.KVMeldCache(model.config)


def test_attention_matching_after_a_second_reading():
    model, ids, more = model_of(), tokens_of(1, 100), tokens_of(1, 20, seed=5)
    whole = reference(model, torch.cat([ids[0], more[0]]))[100:]
    errors = {}
    for policy in ("attention_matching", "streaming_llm"):
        cache = hf.KVMeldCache(model, policy, budget=50)
        cache.read(model, ids)
        assert cache.compressions == 1 and cache.cache.longest(0) == 50
        errors[policy] = (read(model, more, cache)[0] - whole).abs().mean()
    assert errors["attention_matching"] < errors["streaming_llm"]


def test_a_second_reading_knows_padding():
    model, lengths = model_of(), [40, 60]
    rows = [tokens_of(n, seed=n) for n in lengths]
    ids, mask = padded(rows)
    options = dict(policy="kvzip sinks=0 recents=0", budget=0.5)
    together = hf.KVMeldCache(model, **options)
    together.read(model, ids, mask, part=200)
    for i, row in enumerate(rows):
        alone = hf.KVMeldCache(model, **options)
        alone.read(model, row[None], part=200)
        for layer in range(3):
            for head in range(2):
                assert (
                    together.cache.positions(layer, i, head).tolist() == alone.cache.positions(layer, 0, head).tolist()
                )


def test_generate_goes_on_behind_a_prompt_that_was_read_twice():
    model, ids = model_of(), tokens_of(1, 80)
    cache = hf.KVMeldCache(model, "kvzip", budget=40, over="all_layers")
    cache.read(model, ids[:, :70])
    out = model.generate(ids, past_key_values=cache, max_new_tokens=50, do_sample=False, eos_token_id=None)
    assert out.shape[1] == 130 and cache.get_seq_length() == 129 and cache.compressions == 1


def test_generate_goes_on_from_turn_to_turn():
    model, ids = model_of(), tokens_of(1, 30)
    plain, cache = ids, hf.KVMeldCache(model)
    for turn in range(3):
        more = tokens_of(1, 12, seed=turn)
        plain, ids = torch.cat([plain, more], dim=1), torch.cat([ids, more], dim=1)
        plain = model.generate(plain, max_new_tokens=8, do_sample=False, eos_token_id=None)
        ids = model.generate(ids, past_key_values=cache, max_new_tokens=8, do_sample=False, eos_token_id=None)
        assert (plain == ids).all() and cache.get_seq_length() == ids.shape[1] - 1


def test_what_read_refuses():
    model, ids = model_of(), tokens_of(1, 30)
    cache = hf.KVMeldCache(model, "kvzip", budget=20)
    with pytest.raises(ValueError, match="KVMeldCache: policy is 'kvzip'; .* unless the prompt is read by read\\(model, input_ids\\)"):
        read(model, ids, cache)
    cache.reset()
    with pytest.raises(ValueError, match="read: part is 0; it must be at least 1"):
        cache.read(model, ids, part=0)
    with pytest.raises(ValueError, match=r"read: attention_mask is of shape \[1, 20\]; it must be of shape \[1, 30\]"):
        cache.read(model, ids, torch.ones(1, 20))
    cache.read(model, ids)
    with pytest.raises(ValueError, match="read: the cache is of 30 tokens; it must be empty"):
        cache.read(model, ids)
    cache.reset()
    cache.read(model, ids)
    assert cache.compressions == 2 and cache.cache.longest(0) == 20


class Full(Exception):
    """In place of a device without memory."""


def failing(model, layer):
    """Has a layer's attention fail once, after it has read the cache."""
    module = model.model.layers[layer].self_attn

    def fail(*_):
        hook.remove()
        raise Full

    hook = module.register_forward_hook(fail)


def test_after_a_pass_that_failed_the_cache_waits_for_reset():
    model, ids = model_of(), tokens_of(1, 50)
    cache = hf.KVMeldCache(model)
    read(model, ids[:, :30], cache)
    failing(model, 1)
    with pytest.raises(Full):
        read(model, ids[:, 30:], cache)
    for again in (lambda: read(model, ids[:, 30:], cache), lambda: cache.compress(10)):
        with pytest.raises(ValueError, match="reset"):
            again()
    cache.reset()
    assert near(read(model, ids, cache)[0], reference(model, ids[0]))


def test_a_first_layer_that_fails_in_its_attention():
    model, ids = model_of(attention="eager"), tokens_of(1, 20)
    cache = hf.KVMeldCache(model)
    read(model, ids[:, :10], cache)
    whole, cache._mask = cache._mask, lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        read(model, ids[:, 10:], cache)
    cache._mask = whole
    with pytest.raises(ValueError):
        read(model, ids[:, 10:], cache)
    cache.reset()
    assert near(read(model, ids, cache)[0], reference(model, ids[0]))


def test_a_second_reading_that_fails_leaves_an_empty_cache():
    model, ids = model_of(), tokens_of(1, 80)
    cache = hf.KVMeldCache(model, "kvzip", budget=40)
    count = 0

    def hook(*_):
        nonlocal count
        count += 1
        if count == 3:
            raise Full

    handle = model.model.layers[-1].register_forward_hook(hook)
    with pytest.raises(Full):
        cache.read(model, ids, part=50)
    handle.remove()
    assert cache.get_seq_length() == 0 and cache.cache.tokens(0) == 0
    cache.read(model, ids, part=50)
    assert cache.cache.longest(0) == 40
    assert cache.keys.shape[3] == 40 + cache.interval  # what the prompt took is free again


def test_shared_budgets_are_compressed_as_often_as_others():
    model, ids = model_of(), tokens_of(1, 60)
    counts = {}
    for over in ("head", "all_layers"):
        cache = hf.KVMeldCache(model, "snapkv", budget=40, interval=16, over=over)
        model.generate(ids, past_key_values=cache, max_new_tokens=100, do_sample=False, eos_token_id=None)
        counts[over] = cache.compressions
    assert abs(counts["head"] - counts["all_layers"]) <= 1 and counts["head"] >= 5


def test_masks_that_are_not_causal_are_refused():
    model, ids = model_of(), tokens_of(1, 12)
    packed = torch.ones(12, 12, dtype=torch.bool).tril()
    packed[6:, :6] = False  # two texts side by side
    with pytest.raises(ValueError, match="attention_mask is one that hides tokens from later ones; it must be causal"):
        read(model, ids, hf.KVMeldCache(model), attention_mask=packed[None, None])


def test_parts_of_a_model_keep_their_kind_of_attention():
    class Vision(torch.nn.Module):
        config = transformers.LlamaConfig(**SIZES)

    model = model_of()
    model.add_module("vision", Vision())
    model.vision.config._attn_implementation = "eager"
    hf.attach(model)
    assert model.vision.config._attn_implementation == "kvmeld_eager"
    assert model.config._attn_implementation == "kvmeld_sdpa"
    hf.detach(model)
    assert model.vision.config._attn_implementation == "eager" and model.config._attn_implementation == "sdpa"
