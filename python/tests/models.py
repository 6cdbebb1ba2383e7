"""Tiny random models of transformers, what they should compute, and what caches of theirs hold."""

import pytest
import torch
import transformers

VOCABULARY = 97
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=4096, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    tie_word_embeddings=False,
)
KINDS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 8}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": None, "head_dim": 8}),
}


def model_of(kind="llama", attention="sdpa", dtype=torch.float32, **sizes):
    config_name, model_name, more = KINDS[kind]
    if not hasattr(transformers, config_name):
        pytest.skip(f"transformers {transformers.__version__} has no {config_name}")
    config = getattr(transformers, config_name)(**{**SIZES, **more, **sizes})
    config._attn_implementation = attention
    torch.manual_seed(0)
    model = getattr(transformers, model_name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # sharper attention than that of fresh weights
            parameter.mul_(3) if parameter.dim() > 1 else None
    return model.to(dtype)


def any_model(name, attention="eager", **sizes):
    """A tiny random model of a family; skips where the installed transformers does not have it."""
    config_of = getattr(transformers, f"{name}Config", None)
    base = name[:-4] if name.endswith("Text") else name
    made = getattr(transformers, f"{base}ForCausalLM", None) or getattr(transformers, f"{base}ForConditionalGeneration", None)
    if config_of is None or made is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    config = config_of(**{**SIZES, "tie_word_embeddings": True, **sizes})
    config._attn_implementation = attention
    torch.manual_seed(0)
    return made(config).eval()


def tokens_of(*shape, seed=0):
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def reference(model, ids, past=None, position=0, seen=None):
    """Logits [n, vocabulary] of tokens ids [n] at positions from `position` on. past: for each layer and KV head,
    keys and values [entries, head_dim] and degrees [entries]; every new token sees all of them. seen: gets, layer after
    layer, the attention of the last token: probabilities [query heads, entries]."""
    c, w = model.config, {name: x.double() for name, x in model.state_dict().items()}
    dim = model.model.layers[0].self_attn.head_dim
    group = c.num_attention_heads // c.num_key_value_heads
    base = getattr(c, "rope_theta", None) or c.rope_parameters["rope_theta"]
    n = len(ids)
    angles = (position + torch.arange(n))[:, None] * base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    cos, sin = angles.cos(), angles.sin()

    def norm(x, weight):
        return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + c.rms_norm_eps) * weight

    def rotated(x):
        a, b = x[:, : dim // 2], x[:, dim // 2 :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=1)

    x = w["model.embed_tokens.weight"][ids]
    for number in range(c.num_hidden_layers):
        name = f"model.layers.{number}."

        def project(h, which):
            return h @ w[f"{name}self_attn.{which}_proj.weight"].T + w.get(f"{name}self_attn.{which}_proj.bias", 0)

        def heads(h, which):
            rows = project(h, which).view(n, -1, dim).unbind(1)
            scale = w.get(f"{name}self_attn.{which}_norm.weight")
            return [norm(r, scale) if scale is not None else r for r in rows]

        h = norm(x, w[name + "input_layernorm.weight"])
        queries = [rotated(q) for q in heads(h, "q")]
        keys, values, out, last = [rotated(k) for k in heads(h, "k")], heads(h, "v"), [], []
        for head, q in enumerate(queries):
            k, v, degrees = keys[head // group], values[head // group], torch.ones(n, dtype=torch.float64)
            before = 0
            if past is not None:
                old_k, old_v, old_degrees = (t.double() for t in past[number][head // group])
                before = len(old_k)
                k, v, degrees = torch.cat([old_k, k]), torch.cat([old_v, v]), torch.cat([old_degrees, degrees])
            weights = (q @ k.T / dim**0.5).exp() * degrees
            weights = weights * (torch.arange(before + n) <= before + torch.arange(n)[:, None])
            weights = weights / weights.sum(dim=1, keepdim=True)
            out.append(weights @ v)
            last.append(weights[-1])
        if seen is not None:
            seen.append(torch.stack(last))
        x = x + torch.cat(out, dim=1) @ w[name + "self_attn.o_proj.weight"].T
        h = norm(x, w[name + "post_attention_layernorm.weight"])
        gate, up = h @ w[name + "mlp.gate_proj.weight"].T, h @ w[name + "mlp.up_proj.weight"].T
        x = x + (gate * gate.sigmoid() * up) @ w[name + "mlp.down_proj.weight"].T
    return norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


def held(cache, sequence=0):
    """The entries that a cache holds of a sequence, as `past` of the reference."""
    c = cache.cache
    return [
        [
            (
                cache.keys[layer, sequence, head, :n].clone(),
                cache.values[layer, sequence, head, :n].clone(),
                torch.from_numpy(c.degrees(layer, sequence, head)),
            )
            for head, n in enumerate(lengths)
        ]
        for layer, lengths in enumerate(c.lengths(sequence).tolist())
    ]


def read(model, ids, cache, **more):
    with torch.inference_mode():
        return model(ids, past_key_values=cache, **more).logits


def padded(rows, side="left"):
    """Rows of tokens as a batch, and its mask."""
    width = max(len(row) for row in rows)
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        at = slice(width - len(row), None) if side == "left" else slice(None, len(row))
        ids[i, at], mask[i, at] = row, 1
    return ids, mask


def near(actual, expected, tolerance=2e-4):
    return (actual.double() - expected).abs().max() <= tolerance * max(1, expected.abs().max())
