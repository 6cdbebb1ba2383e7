"""A row of a batch is compressed as if it were alone: tokens and ledgers are those of the row alone."""

import random

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import kvmeld  # noqa: E402
from kvmeld import hf  # noqa: E402
from models import model_of, padded, read, tokens_of  # noqa: E402

# Policies that the engine's own scores, a second reading or learned weights feed have tests of their own.
FED = ("kvzap", "kvzip", "kvzip_centroids", "kvzip_plus", "attention_matching", "learned", "learned_centroids",
       "learned_leverage")
POLICIES = [name for name in kvmeld.policies() if name not in FED]
GREEDY = dict(do_sample=False, eos_token_id=None, pad_token_id=0)


def ledgers(cache, sequence):
    """Positions and degrees of every track of a sequence."""
    c = cache.cache
    return [
        (c.positions(layer, sequence, head).tolist(), c.degrees(layer, sequence, head).round(3).tolist())
        for layer in range(c.layers)
        for head in range(c.kv_heads)
    ]


def run(model, parts, cache):
    """Reads parts of a batch, (ids, mask) each, with the positions of the tokens that are no padding; the logits of
    each row's own tokens."""
    out, whole = [[] for _ in parts[0][0]], None
    for ids, mask in parts:
        whole = mask if whole is None else torch.cat([whole, mask], dim=1)
        if not mask.any():
            continue
        positions = (whole.cumsum(1) - 1).clamp(min=0)[:, -mask.shape[1] :]
        logits = read(model, ids, cache, attention_mask=whole, position_ids=positions)
        for row, real in enumerate(mask.bool()):
            out[row].append(logits[row][real])
    return [torch.cat(rows) for rows in out]


def distinct(n, seed):
    """Tokens that differ from each other: equal ones have keys of equal length, and so scores that tie but for rounding,
    which differs between batches of other sizes."""
    return 3 + torch.randperm(400, generator=torch.Generator().manual_seed(seed))[:n]


def model_of_many_tokens():
    return model_of(vocab_size=403, num_hidden_layers=2)


def compare(model, policy, budget, side, lengths, steps, draw, **options):
    rows = [distinct(n + steps, draw.randrange(10**6)) for n in lengths]
    prompts, mask = padded([row[:n] for row, n in zip(rows, lengths)], side)
    new = torch.stack([row[n:] for row, n in zip(rows, lengths)])
    ones = torch.ones(len(rows), 1, dtype=torch.long)
    together = hf.KVMeldCache(model, policy, budget, **options)
    logits = run(model, [(prompts, mask)] + [(new[:, i : i + 1], ones) for i in range(steps)], together)
    compressions = 0
    for i, (row, n) in enumerate(zip(rows, lengths)):
        alone = hf.KVMeldCache(model, policy, budget, **options)
        parts = [(row[None, :n], torch.ones(1, n, dtype=torch.long))]
        parts += [(row[None, at : at + 1], ones[:1]) for at in range(n, n + steps)]
        expected = run(model, parts, alone)[0]
        assert together.cache.tokens(i) == alone.cache.tokens(0) == n + steps
        ours, its = ledgers(together, i), ledgers(alone, 0)
        if n + steps <= 2 * together.cache.key_dim:  # so few keys span no space: leverage ties but for rounding
            ours, its = ([len(positions) for positions, _ in tracks] for tracks in (ours, its))
            expected = logits[i]
        assert ours == its, (policy, budget, side, lengths, i)
        assert (logits[i] - expected).abs().max() < 1e-2 * expected.abs().max()
        compressions += alone.compressions
    return compressions


@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_is_its_rows(policy):
    """Random lengths, sides of padding, budgets as numbers and shares, and batches of one to four rows."""
    model, draw, compressions = model_of_many_tokens(), random.Random(policy), 0
    for shares in (True, False):
        budget = draw.choice([0.2, 0.35, 0.5, 0.75]) if shares else draw.choice([48, 56, 64, 80])
        lengths = [draw.choice([1, 7, 33, 60]) + draw.randrange(4) for _ in range(draw.randrange(1, 4))]
        lengths.insert(draw.randrange(len(lengths)), draw.randrange(90, 130))
        side = draw.choice(["left", "right"])
        compressions += compare(model, policy, budget, side, lengths, 8, draw, interval=draw.choice([1, 4, 8]))
    assert compressions > 0


@pytest.mark.parametrize("over", ["layer", "all_layers"])
def test_a_batch_is_its_rows_where_heads_share_budgets(over):
    model, draw = model_of_many_tokens(), random.Random(over)
    for policy in ("snapkv", "keydiff", "leverage_dropkv"):
        assert compare(model, policy, 0.4, "left", [150, 60, 33], 14, draw, interval=4, over=over) > 0
        assert compare(model, policy, 40, "right", [33, 90], 14, draw, interval=8, over=over) > 0


def test_a_short_row_of_a_padded_batch_keeps_its_entries():
    model = model_of()
    ids, mask = padded([tokens_of(200), tokens_of(60, seed=1)])
    cache = hf.KVMeldCache(model, "leverage_dropkv", budget=0.2)
    model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=3, **GREEDY)
    assert cache.cache.longest(0) < 50 and cache.cache.longest(1) == 62


def test_a_share_that_leaves_less_than_the_policy_pins_waits():
    """snapkv keeps its last 32 queries: 0.3 of a short row is less."""
    model = model_of()
    ids, mask = padded([tokens_of(300), tokens_of(60, seed=1)])
    cache = hf.KVMeldCache(model, "snapkv", budget=0.3, interval=8)
    model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=60, **GREEDY)
    assert cache.compressions >= 1
    assert cache.cache.longest(0) <= 0.3 * 360 + 9
    assert cache.cache.longest(1) <= max(0.3 * 120, 33) + 9 + 8


def test_numbers_of_entries_count_for_each_row():
    model = model_of()
    rows = [tokens_of(n, seed=n) for n in (70, 33, 9)]
    ids, mask = padded(rows)
    together = hf.KVMeldCache(model, "streaming_llm", budget=24, interval=8)
    model.generate(ids, attention_mask=mask, past_key_values=together, max_new_tokens=4, **GREEDY)
    for i, row in enumerate(rows):
        alone = hf.KVMeldCache(model, "streaming_llm", budget=24, interval=8)
        model.generate(row[None], past_key_values=alone, max_new_tokens=4, **GREEDY)
        assert ledgers(together, i) == ledgers(alone, 0)


def test_a_prompt_in_parts_with_padding_in_all_of_the_first():
    model = model_of_many_tokens()
    rows = [distinct(n, n) for n in (100, 30)]
    ids, mask = padded(rows)
    cache = hf.KVMeldCache(model, "chelsea", budget=48, interval=8)
    logits = run(model, list(zip(ids.split(40, dim=1), mask.split(40, dim=1))), cache)
    for i, row in enumerate(rows):
        alone = hf.KVMeldCache(model, "chelsea", budget=48, interval=8)
        cuts = [int(m[i].sum()) for m in mask.split(40, dim=1)]
        parts = [(part[None], torch.ones(1, len(part), dtype=torch.long)) for part in row.split(cuts) if len(part)]
        expected = run(model, parts, alone)[0]
        assert ledgers(cache, i) == ledgers(alone, 0)
        assert (logits[i] - expected).abs().max() < 1e-2 * expected.abs().max()
    assert cache.compressions >= 1
