"""kvmeld.evaluate._export on tiny random models: what it writes computes what the model computes."""

import json
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from kvmeld import learned  # noqa: E402
from kvmeld.evaluate._export import export  # noqa: E402
from models import model_of, near, reference, tokens_of  # noqa: E402


def question(task="where", question=(5, 6, 7), answer=(8, 9)):
    return types.SimpleNamespace(task=task, question=list(question), answer=list(answer))


def context(tokens=(1, 2, 3), questions=None):
    return types.SimpleNamespace(tokens=list(tokens), questions=[question()] if questions is None else questions)


def files(folder):
    return (json.loads((folder / "config.json").read_text()), safetensors.load_file(folder / "model.safetensors"),
            [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()])


@pytest.mark.parametrize("tied", [False, True])
def test_the_folder_has_the_models_logits(tied, tmp_path):
    model, ids = model_of(tie_word_embeddings=tied, rms_norm_eps=1e-3, rope_theta=500.0).half().float(), tokens_of(40)
    with torch.no_grad():
        expected = model(ids[None]).logits[0].double()
    export(model, [context()], tmp_path / "new" / "folder")
    config, weights, _ = files(tmp_path / "new" / "folder")
    assert config["rope_theta"] == 500
    assert all(w.dtype == torch.float16 for w in weights.values())
    assert ("lm_head.weight" in weights) == (not tied)
    # A model of what the files say alone. The engine reads no rope_parameters.
    read = types.SimpleNamespace(**config)
    head = {"lm_head.weight": weights["model.embed_tokens.weight"]} if config["tie_word_embeddings"] else {}
    attention = types.SimpleNamespace(head_dim=config["head_dim"])
    layer = types.SimpleNamespace(self_attn=attention)
    again = types.SimpleNamespace(config=read, state_dict=lambda: {**weights, **head},
                                  model=types.SimpleNamespace(layers=[layer]))
    assert near(reference(again, ids), expected)


def test_each_question_is_a_line(tmp_path):
    asked = [question(), question("who", (10, 11), (12,))]
    export(model_of(), (c for c in [context((1, 2, 3), asked), context((4,))]), tmp_path)
    assert files(tmp_path)[2] == [
        {"task": "where", "context": [1, 2, 3], "question": [5, 6, 7], "answer": [8, 9]},
        {"task": "who", "context": [1, 2, 3], "question": [10, 11], "answer": [12]},
        {"task": "where", "context": [4], "question": [5, 6, 7], "answer": [8, 9]},
    ]


def test_what_scores_learned_comes_along(tmp_path):
    weights = learned.load("smollm2-135m-instruct")
    export(model_of(), [context()], tmp_path / "without")
    export(model_of(), [context()], tmp_path / "with", weights)
    assert not (tmp_path / "without" / "learned.safetensors").exists()
    found = learned.load(tmp_path / "with" / "learned.safetensors")
    assert (found.weights == weights.weights).all() and found[1:4] == weights[1:4] and (found.keys == weights.keys).all()


def changed(**fields):
    model = model_of()
    for name, value in fields.items():
        setattr(model.config, name, value)
    return model


def with_more(name):
    model = model_of()
    model.register_buffer(name, torch.zeros(1))
    return model


def too_large():
    model = model_of()
    with torch.no_grad():
        model.model.norm.weight[3] = 1e6
    return model


@pytest.mark.parametrize("model, said", [
    (lambda: model_of("qwen2"), "model_type is 'qwen2'; it must be 'llama'"),
    (lambda: model_of("mistral"), "model_type is 'mistral'"),
    (lambda: changed(hidden_act="gelu"), "hidden_act is 'gelu'; it must be 'silu'"),
    (lambda: model_of(attention_bias=True), "attention_bias is True"),
    (lambda: model_of(mlp_bias=True), "mlp_bias is True"),
    (lambda: changed(sliding_window=16), "sliding_window is 16; it must be None"),
    (lambda: changed(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}), "rotation is 'linear'"),
    (lambda: changed(rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 1e4}),
     "partial_rotary_factor is 0.5"),
    (lambda: changed(vocab_size=98), "embed_tokens.weight is of shape (97, 32); it must be of shape (98, 32)"),
    (lambda: with_more("another"), "tensor another is unknown to the engine"),
    (too_large, "model.norm.weight is not finite in half precision"),
])
def test_models_that_the_engine_cannot_run_are_refused(model, said, tmp_path):
    with pytest.raises(ValueError) as refusal:
        export(model(), [context()], tmp_path / "folder")
    assert str(refusal.value).startswith("export: ") and said in str(refusal.value)
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("contexts, said", [
    ([], "contexts is without questions"),
    ([context(questions=[])], "contexts is without questions"),
    ([context(())], "contexts[0].tokens is of 0 tokens; it must be of at least 1"),
    ([context(), context((1, 97))], "a token of contexts[1].tokens is 97; it must be a number from 0 to 96"),
    ([context((-1,))], "a token of contexts[0].tokens is -1"),
    ([context(questions=[question(), question(question=(5,))])],
     "contexts[0].questions[1].question is of 1 tokens; it must be of at least 2"),
    ([context(questions=[question(answer=())])], "contexts[0].questions[0].answer is of 0 tokens"),
    ([context(questions=[question("")])], "contexts[0].questions[0].task is ''; it must be a name"),
])
def test_tokens_that_the_model_does_not_have_are_refused(contexts, said, tmp_path):
    with pytest.raises(ValueError) as refusal:
        export(model_of(), contexts, tmp_path / "folder")
    assert said in str(refusal.value)
    assert not (tmp_path / "folder").exists()


def test_tokens_are_whole_numbers(tmp_path):
    with pytest.raises(TypeError):
        export(model_of(), [context((1.0, 2))], tmp_path / "folder")
    export(model_of(), [context(torch.tensor([1, 2]))], tmp_path)
    assert files(tmp_path)[2][0]["context"] == [1, 2]
