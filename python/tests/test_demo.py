"""python -m kvmeld.demo on the repository's model, and the model's forward pass against plain attention."""

import io
import pathlib
import sys
import types

import numpy as np
import pytest

from kvmeld import demo

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "data" / "tiny-kjv"


def test_contexts_are_those_of_the_cpp_demo():
    """splitmix64's first numbers for the seed 0, as published with it; and the form of a context."""
    random = demo.Random(0)
    assert [random(), random()] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    text = (FOLDER / "heldout.txt").read_bytes()
    context, after, facts = demo.planted(text, 1024, 4, 1, 0)
    assert len(context) == 1024 and len(after) == 129 and len(facts) == 4
    plain = context
    for question, answer in facts:
        assert context.count(question + answer + b".\n") == 1
        plain = plain.replace(question + answer + b".\n", b"")
    assert plain + after in text


def test_the_full_cache_gives_the_logits_of_plain_attention():
    model = demo.Model(FOLDER)
    tokens = (FOLDER / "heldout.txt").read_bytes()[:80]
    state = demo.State(model, "streaming_llm", 128)
    logits = np.concatenate([model.read(tokens[:50], state), model.read(tokens[50:], state)])
    w = {name: x.astype(np.float64) for name, x in model.weights.items()}
    n, dim, group = len(tokens), 32, 2

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[name]

    angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, dim, 2) / dim)

    def rotated(x):
        z = (x[:, : dim // 2] + 1j * x[:, dim // 2 :]) * np.exp(1j * angles)
        return np.concatenate([z.real, z.imag], axis=1)

    x = w["model.embed_tokens.weight"][list(tokens)]
    for layer in range(4):
        name = f"model.layers.{layer}."
        h = norm(x, name + "input_layernorm.weight")
        q, k, v = ((h @ w[f"{name}self_attn.{p}_proj.weight"].T).reshape(n, -1, dim) for p in "qkv")
        out = []
        for head in range(8):
            logit = rotated(q[:, head]) @ rotated(k[:, head // group]).T / np.sqrt(dim)
            p = np.exp(logit) * np.tri(n)
            out.append(p / p.sum(axis=1, keepdims=True) @ v[:, head // group])
        x = x + np.concatenate(out, axis=1) @ w[name + "self_attn.o_proj.weight"].T
        h = norm(x, name + "post_attention_layernorm.weight")
        gate = h @ w[name + "mlp.gate_proj.weight"].T
        up = h @ w[name + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[name + "mlp.down_proj.weight"].T
    expected = norm(x, "model.norm.weight") @ w["model.embed_tokens.weight"].T
    assert np.abs(logits - expected).max() < 0.05  # the cache holds float16
    assert np.abs(logits - expected).mean() < 0.005


def test_the_table(capsys):
    figures = demo.main(
        ["--model", str(FOLDER), "--contexts", "1", "--policies", "leverage_dropkv,kvzip", "--budgets", "0.2"]
    )
    full, kept = figures["full", 1.0], figures["leverage_dropkv", 0.2]
    assert full["kv_bytes"] == 2 * 2 * 4 * 4 * 32 * 1024
    for policy in ("leverage_dropkv", "kvzip"):
        assert figures[policy, 0.2]["kv_bytes"] == 2 * 2 * 4 * 4 * 32 * 204
    assert full["digits"] >= 0.9 and kept["digits"] >= 0.9 and full["bits_per_byte"] < 2.2
    assert "leverage_dropkv" in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stderr, told", [
    (Terminal(), "\rread: 0 of 3\rread: 1 of 3\rread: 2 of 3\rread: 3 of 3\n"), (io.StringIO(), "")
])
def test_progress_without_tqdm(monkeypatch, stderr, told):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys, "stderr", stderr)
    assert list(demo.with_progress("abc", "read")) == ["a", "b", "c"]
    assert stderr.getvalue() == told


def test_progress_with_tqdm(monkeypatch):
    calls = []

    def tqdm(items, **options):
        calls.append(options)
        return iter(items)

    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(tqdm=tqdm))
    assert list(demo.with_progress("abc", "read")) == ["a", "b", "c"]
    assert calls == [{"desc": "read", "disable": None}]
