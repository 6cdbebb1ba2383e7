"""Masks that a KVMeldCache cannot heed are refused, in any pass; those of padding are heeded."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from kvmeld import hf  # noqa: E402
from models import model_of, near, read, reference, tokens_of  # noqa: E402

N, SEEN = 12, 9


def causal(n=N, seen=0):
    return torch.ones(n, seen + n, dtype=torch.bool).tril(diagonal=seen)


def changed(change, n=N, seen=0):
    mask = causal(n, seen)
    change(mask)
    return mask


def hide(rows, columns):
    def change(mask):
        mask[rows, columns] = False

    return change


def show(rows, columns):
    def change(mask):
        mask[rows, columns] = True

    return change


WRONG = {  # of a prompt
    "two texts side by side": hide(slice(6, None), slice(None, 6)),
    "one hole": hide(slice(7, None), 5),
    "a hole for the last token alone": hide(-1, 5),
    "a hole for one token": hide(8, 5),
    "a prefix that sees itself": show(slice(None, 5), slice(None, 5)),
    "all see all": show(slice(None), slice(None)),
    "one token that sees the next": show(3, 4),
    "a window": lambda mask: mask.logical_and_(~torch.ones_like(mask).tril(diagonal=-4)),
    "tokens that do not see themselves": lambda mask: mask.fill_diagonal_(False),
}


@pytest.mark.parametrize("attention, additive", [("eager", True), ("sdpa", True), ("sdpa", False)])
@pytest.mark.parametrize("what", WRONG)
def test_masks_that_are_not_causal_are_refused(attention, what, additive):
    model = model_of(attention=attention)
    mask = changed(WRONG[what])[None, None]
    if additive:
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    cache = hf.KVMeldCache(model)
    with pytest.raises(ValueError, match="attention_mask is one that (hides|shows).*it must be causal, apart from padding"):
        read(model, tokens_of(1, N), cache, attention_mask=mask)
    cache.reset()
    assert near(read(model, tokens_of(1, N), cache)[0], reference(model, tokens_of(N)))


LATER = {  # of a second part of n tokens, behind SEEN tokens
    "a token that was read": (1, hide(slice(None), 4)),
    "a token that was read, in a part": (7, hide(slice(None), 4)),
    "a token that was read, from one": (7, hide(5, 4)),
    "all that was read": (1, hide(slice(None), slice(None, SEEN))),
    "all that was read, in a part": (7, hide(slice(None), slice(None, SEEN))),
    "a new token from later ones": (7, hide(slice(6, None), SEEN + 5)),
}


@pytest.mark.parametrize("what", LATER)
def test_masks_of_later_parts(what):
    n, change = LATER[what]
    model, ids = model_of(), tokens_of(1, SEEN + n)
    cache = hf.KVMeldCache(model)
    read(model, ids[:, :SEEN], cache)
    with pytest.raises(ValueError, match="attention_mask is one that hides tokens"):
        read(model, ids[:, SEEN:], cache, attention_mask=changed(change, n, SEEN)[None, None])


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_mask_of_tokens_that_hides_what_was_read_is_refused(n, attention):
    model, ids = model_of(attention=attention), tokens_of(2, SEEN + n)
    cache = hf.KVMeldCache(model)
    read(model, ids[:, :SEEN], cache)
    mask = torch.ones(2, SEEN + n, dtype=torch.long)
    mask[1, 3] = 0
    with pytest.raises(ValueError, match="attention_mask is one that hides tokens that the cache holds"):
        read(model, ids[:, SEEN:], cache, attention_mask=mask)


def test_padding_that_a_later_mask_shows_is_refused():
    model, ids = model_of(), tokens_of(2, SEEN + 1)
    mask = torch.ones(2, SEEN, dtype=torch.long)
    mask[1, :3] = 0
    cache = hf.KVMeldCache(model)
    read(model, ids[:, :SEEN], cache, attention_mask=mask)
    shown = torch.ones(2, 1, 1, SEEN + 1, dtype=torch.bool)
    with pytest.raises(ValueError, match="attention_mask is one that shows tokens to earlier ones, or padding"):
        read(model, ids[:, SEEN:], cache, attention_mask=shown)


def test_a_pass_of_padding_alone_is_refused():
    model, ids = model_of(), tokens_of(1, SEEN + 2)
    cache = hf.KVMeldCache(model)
    read(model, ids[:, :SEEN], cache)
    mask = torch.ones(1, SEEN + 2, dtype=torch.long)
    mask[:, SEEN:] = 0
    with pytest.raises(ValueError, match="attention_mask is one that hides all tokens of the pass"):
        read(model, ids[:, SEEN:], cache, attention_mask=mask)


@pytest.mark.parametrize("number", [0.5, -0.5, -100.0, float("nan")])
def test_numbers_that_are_added_to_logits_are_refused(number):
    model, ids = model_of(attention="eager"), tokens_of(1, N)
    mask = torch.zeros(N, N).masked_fill(~causal(), torch.finfo(torch.float32).min)
    mask[7, 3] = number
    with pytest.raises(ValueError, match="attention_mask is one that adds numbers to logits"):
        read(model, ids, hf.KVMeldCache(model), attention_mask=mask[None, None])


def test_masks_that_differ_between_heads_are_refused():
    model, ids = model_of(attention="eager"), tokens_of(1, N)
    mask = causal()[None, None].repeat(1, 4, 1, 1)
    mask[0, 2, 7, 3] = False
    mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    with pytest.raises(ValueError, match="attention_mask is one that differs between heads"):
        read(model, ids, hf.KVMeldCache(model), attention_mask=mask)


@pytest.mark.parametrize("hidden", [float("-inf"), -1e9, torch.finfo(torch.float32).min])
def test_causal_masks_of_the_caller_are_heeded(hidden):
    model, ids = model_of(attention="eager"), tokens_of(2, SEEN + 4)
    cache = hf.KVMeldCache(model)
    read(model, ids[:, :SEEN], cache)
    mask = torch.zeros(4, SEEN + 4).masked_fill(~causal(4, SEEN), hidden)
    logits = read(model, ids[:, SEEN:], cache, attention_mask=mask[None, None])
    for row in range(2):
        assert near(logits[row], reference(model, ids[row])[SEEN:])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_that_sees_later_tokens_is_refused(attention):
    if attention == "sdpa" and transformers.__version__ < "4.53":
        pytest.skip("before transformers 4.53 what a layer says of is_causal changes nothing")
    model = model_of(attention=attention)
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    with pytest.raises(ValueError, match="is_causal is False|attention_mask is one that shows"):
        mask = None if attention == "sdpa" else torch.zeros(1, 1, N, N)
        read(model, tokens_of(1, N), hf.KVMeldCache(model), attention_mask=mask)
