"""kvmeld.learn on a tiny random model: KVzip's scores, the fit, the program; and KVMeldCache with what was learned."""

import copy
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
pytest.importorskip("tqdm")

import kvmeld  # noqa: E402
from kvmeld import _model, hf, learn, learned  # noqa: E402
from kvmeld.evaluate import __main__ as program, judge as judging, tasks  # noqa: E402
from models import any_model, model_of, tokens_of  # noqa: E402
from test_evaluate import VOCABULARY, tokenizer_of  # noqa: E402


@pytest.fixture(scope="module")
def model():
    return model_of("llama", vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def found(model):
    return learn.learn(model, tokenizer_of(), passages=6, tokens=200, seed=3)


@pytest.mark.parametrize("family", ["llama", "Gemma2", "GptOss"])
def test_scores_are_those_of_the_second_reading(model, family):
    """kvmeld's own KVzip keeps the entries that these scores rank first, by attention with caps and sinks, too."""
    if family != "llama":
        model = any_model(family, vocab_size=VOCABULARY, num_hidden_layers=2, head_dim=8, layer_types=["full_attention"] * 2,
                          **({"attn_logit_softcapping": 2.0} if family == "Gemma2" else {"num_local_experts": 4, "num_experts_per_tok": 2}))
    judge = judging.Judge(model, tokenizer_of())
    told = judge.cache("kvzip")._facts.attention
    assert (told["softcap"], told["sinks"] is None) == {"llama": (None, True), "Gemma2": (2.0, True), "GptOss": (None, False)}[family]
    (context,) = tasks.contexts(judge.dialogue, tasks.shipped_text(), 1, 520, 3)
    reading, n = judging.Reading(judge, context), len(context.tokens)
    cache, _ = reading.cache("kvzip sinks=0", "head")
    cache.compress(0.3)
    for layer in range(judge.layers):
        passes = [(p.keys[layer], p.queries[layer]) for p in reading.second()]
        sinks = None if told["sinks"] is None else told["sinks"][layer]
        scores = learn._scores(reading.first.keys[layer], passes, reading.scale, told["softcap"], sinks)
        for head in range(cache.cache.kv_heads):
            kept = cache.cache.positions(layer, 0, head)
            best = scores[head].argsort(descending=True)[: len(kept)].numpy()
            assert len(set(kept) & set(best)) >= len(kept) - 1 and len(kept) == int(0.3 * n)


def test_the_fit_is_that_of_ridge_regression():
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(1, 80, 5)), rng.normal(size=(1, 80))
    x[:, :, -1] = 1
    sums = learn._Sums()
    sums.add(torch.tensor(x[:, :30]), torch.tensor(y[:, :30]))
    more = learn._Sums()
    more.add(torch.tensor(x[:, 30:]), torch.tensor(y[:, 30:]))
    sums = sums.join(more)
    for ridge in (1e-4, 0.3):
        w = sums.fit(ridge)[0].numpy()
        penalty = ridge * 80 * x[0].var(axis=0)
        penalty[-1] = 0
        # At the minimum the gradient of squared error and penalty is 0.
        assert np.abs(x[0].T @ (x[0] @ w - y[0]) + penalty * w).max() < 1e-9
        assert float(sums.errors(torch.tensor(w[None]))) == pytest.approx(((x[0] @ w - y[0]) ** 2).mean())
    assert float(sums.variance()) == pytest.approx(y.var())


def test_learning_is_the_same_twice_and_says_how_well_it_fits(model, found):
    scores, report = found
    again, _ = learn.learn(model, tokenizer_of(), passages=6, tokens=200, seed=3)
    assert (again.weights == scores.weights).all()
    assert scores.weights.shape == (3, 2, 18) and scores.pairing == "half_split" and len(scores.frequencies) == 4
    assert report.r2.shape == report.rank.shape == (3, 2) and 0.25 < report.overlap <= 1
    assert "6" == scores.about["passages"] and "rank correlation" in str(report)
    assert learn.chart(report).startswith(b"<?xml")


def test_texts_that_are_too_short_are_refused(model):
    with pytest.raises(ValueError, match="at least 5"):
        learn.learn(model, tokenizer_of(), "One paragraph.", passages=6, tokens=200)
    most = model.config.max_position_embeddings
    with pytest.raises(ValueError, match=f"tokens is {most}; it must be at most .* the model has {most} positions"):
        learn.learn(model, tokenizer_of(), passages=6, tokens=most)


@pytest.mark.parametrize("between", ["\n\n", "\n", " "])
def test_passages_are_from_all_over_the_text_however_it_is_written(between):
    said = [f"Sentence {n} tells of the {n * 7}th of {n + 3} things that it knows." for n in range(2000)]
    passages = list(learn._passages(lambda text: list(text.encode()), between.join(said), 8, 400, 1))
    assert len({bytes(p) for p in passages}) == 8 and {len(p) for p in passages} == {400}
    begins = sorted(int(bytes(p).split()[1]) for p in passages)
    assert begins[0] < 300 and begins[-1] > 1400, begins
    assert bytes(passages[0]) in between.join(said).encode()


def test_a_cache_of_what_was_learned(model, found, tmp_path):
    path = tmp_path / "learned.safetensors"
    learned.save(path, found[0])
    cache = hf.KVMeldCache(model, budget=40, learned=path, interval=16)
    ids = tokens_of(1, 120) % VOCABULARY
    with torch.inference_mode():
        model(input_ids=ids, past_key_values=cache)
        cache.compress()
    assert cache.cache.policy == "learned x top x centroids x score_weighted" and cache.over == "all_layers"
    lengths = cache.cache.lengths(0)
    assert lengths.sum() == 40 * lengths.size
    for layer in range(2):
        for head in range(2):
            assert cache.cache.degrees(layer, 0, head).sum() == 120
    cache.save(tmp_path / "cache")
    loaded, copied = hf.KVMeldCache.load(model, tmp_path / "cache"), copy.deepcopy(cache)
    with torch.inference_mode():
        outputs = [model(input_ids=ids[:, :3], past_key_values=c).logits for c in (cache, loaded, copied)]
    assert (outputs[0] == outputs[1]).all() and (outputs[0] == outputs[2]).all()


@pytest.fixture
def shipped(monkeypatch, found):
    """As if weights of the model came with kvmeld, and others of a model of the same sizes."""
    files = {"other": found[0]._replace(keys=-found[0].keys), "this": found[0]}
    monkeypatch.setattr(_model, "shipped", lambda: list(files))
    monkeypatch.setattr(_model, "load", files.__getitem__)
    monkeypatch.setattr(_model, "_weights", weakref.WeakKeyDictionary())


@pytest.mark.filterwarnings("error:KVMeldCache")
def test_a_model_whose_weights_ship_is_recognised(model, found, shipped):
    assert found[0].keys.shape == (3, 2, 8)
    ids = tokens_of(1, 90) % VOCABULARY
    told = hf.KVMeldCache(model, budget=40, learned=found[0], interval=16)
    by_itself = hf.KVMeldCache(model, budget=40, interval=16)
    for cache in (told, by_itself):
        with torch.inference_mode():
            model(input_ids=ids, past_key_values=cache)
            model(input_ids=ids[:, :30], past_key_values=cache)
    assert by_itself.compressions == told.compressions > 0 and by_itself.over == "all_layers"
    assert "centroids" in by_itself.cache.policy
    assert by_itself.cache.save(0) == told.cache.save(0)
    by_itself.reset()
    by_itself.read(model, ids)  # twice: no weights are needed
    assert by_itself._options["policy"] == "kvzip_centroids" and by_itself.compressions == told.compressions + 1
    assert hf.KVMeldCache(model, "learned")._learned is not None and hf.KVMeldCache(model, "snapkv")._learned is None


@pytest.mark.parametrize("change, same", [
    (lambda m: [setattr(p, "data", p.data.to(torch.bfloat16)) for p in m.parameters()], True), (lambda m: [p.data.mul_(0.95) for p in m.parameters()], True),
    (lambda m: [p.data.normal_(std=0.5) for p in m.parameters()], False)])
def test_models_of_other_weights_are_not_recognised(model, shipped, change, same):
    other = copy.deepcopy(model)
    change(other)
    assert (hf.KVMeldCache(other)._learned is not None) == same


def test_what_was_learned_of_another_model_is_refused(model, found):
    other = found[0]._replace(frequencies=[2 * f for f in found[0].frequencies])
    with pytest.raises(ValueError, match="rotates keys in another way"):
        hf.KVMeldCache(model, "learned", learned=other)
    with pytest.raises(ValueError, match="options.learned.layers is 1"):
        hf.KVMeldCache(model, "learned", learned=found[0]._replace(weights=found[0].weights[:1]))
    with pytest.raises(ValueError, match="weights is null"):
        hf.KVMeldCache(model, "learned")
    assert "learned" in kvmeld.policies()


def test_the_program(tmp_path, capsys, model, monkeypatch):
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer_of().save_pretrained(folder)
    out = tmp_path / "out.safetensors"
    learn.main([str(folder), "--out", str(out), "--passages", "5", "--tokens", "100", "--chart", str(tmp_path / "c.svg")])
    assert "of the best quarter found" in capsys.readouterr().out
    assert learned.load(out).about["model"] == "model" and (tmp_path / "c.svg").stat().st_size > 1000
    for arguments, told in (([str(folder)], "--out"), ([str(tmp_path / "none"), "--out", str(out)], "argument model"),
                            ([str(folder), "--out", str(out), "--passages", "4"], "--passages"),
                            ([str(folder), "--out", str(out), "--text", str(tmp_path)], "--text"),
                            ([str(folder), "--out", str(tmp_path)], "--out")):
        with pytest.raises(SystemExit) as end:
            learn.main(arguments)
        assert end.value.code == 2 and told in capsys.readouterr().err
    judged = [str(folder), "--policies", "learned_centroids@all_layers", "--budgets", "0.5", "--contexts", "1", "--tokens", "520"]
    found = program.main([*judged, "--learned", str(out)])
    assert found["prompt"]["learned_centroids", "all_layers", 0.5]["entries"] == pytest.approx(0.5, abs=0.01)
    capsys.readouterr()
    for more, told in ((["--learned", str(tmp_path / "none")], "No such file"), ([], "weights is null"),
                       (["--learned", "smollm2-135m-instruct"], "rotates keys in another way")):
        with pytest.raises(SystemExit) as end:
            program.main([*judged, *more])
        assert end.value.code == 2 and told in capsys.readouterr().err
