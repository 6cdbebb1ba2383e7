"""Writes a model of transformers, with contexts and questions in its tokens, as the C++ demo reads them.

Only torch and safetensors are needed.
"""

from __future__ import annotations

import json
import operator
import os
from typing import Any, Iterable, Optional, Sequence

import safetensors.torch
import torch

from kvmeld._program import write_file
from kvmeld.learned import Learned, save

__all__ = ["export"]


def _refuse(what: str, value: str, condition: str) -> None:
    raise ValueError(f"export: {what} is {value}; it must be {condition}")


def _config_of(model: Any) -> dict[str, Any]:
    """The fields of config.json that the engine reads; refuses what it could not run."""
    c = model.config
    if getattr(c, "model_type", None) != "llama":
        _refuse("model.config.model_type", repr(getattr(c, "model_type", None)), "'llama', whose layers the demo's engine has")
    if c.hidden_act != "silu":
        _refuse("model.config.hidden_act", repr(c.hidden_act), "'silu'")
    for name in ("attention_bias", "mlp_bias"):
        if getattr(c, name, False):
            _refuse(f"model.config.{name}", "True", "False, because the demo's engine adds no biases")
    for name in ("sliding_window", "quantization_config"):
        if getattr(c, name, None) is not None:
            _refuse(f"model.config.{name}", str(getattr(c, name)), "None")
    # transformers 5 has one dictionary; before, the base stood by itself and the dictionary was called rope_scaling.
    rope = getattr(c, "rope_parameters", None) or getattr(c, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        _refuse("model.config's kind of rotation", repr(kind), "'default', because the demo's engine scales no positions")
    share = rope.get("partial_rotary_factor", getattr(c, "partial_rotary_factor", None))
    if share not in (None, 1, 1.0):
        _refuse("model.config's partial_rotary_factor", str(share), "1, because the demo's engine turns whole heads")
    base = rope.get("rope_theta", getattr(c, "rope_theta", None))
    if base is None:
        _refuse("model.config's rope_theta", "None", "a number")
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads or c.num_attention_heads,
        "head_dim": getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.max_position_embeddings,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": base,
        "tie_word_embeddings": bool(c.tie_word_embeddings),
    }


def _weights_of(model: Any, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors that the engine reads, in half precision; refuses a model with others."""
    hidden, mlp, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads = (config[f"num_{which}_heads"] * config["head_dim"] for which in ("attention", "key_value"))
    wanted = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        wanted |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (hidden,),
                "self_attn.q_proj": (heads, hidden),
                "self_attn.k_proj": (kv_heads, hidden),
                "self_attn.v_proj": (kv_heads, hidden),
                "self_attn.o_proj": (hidden, heads),
                "post_attention_layernorm": (hidden,),
                "mlp.gate_proj": (mlp, hidden),
                "mlp.up_proj": (mlp, hidden),
                "mlp.down_proj": (hidden, mlp),
            }.items()
        }
    if not config["tie_word_embeddings"]:
        wanted["lm_head.weight"] = (vocabulary, hidden)
    found = {name: tensor for name, tensor in model.state_dict().items()
             if not (config["tie_word_embeddings"] and name == "lm_head.weight") and "rotary_emb" not in name}
    for name in sorted(found.keys() ^ wanted.keys()):
        _refuse(f"the model's tensor {name}", "unknown to the engine" if name in found else "missing",
                "one of a plain Llama model")
    out = {}
    for name, shape in wanted.items():
        if tuple(found[name].shape) != shape:
            _refuse(f"the model's tensor {name}", f"of shape {tuple(found[name].shape)}", f"of shape {shape}")
        out[name] = found[name].detach().to("cpu", torch.float16).contiguous()
        if not torch.isfinite(out[name]).all():
            _refuse(f"the model's tensor {name}", "not finite in half precision", "below 65520 everywhere")
    return out


def _tokens_of(what: str, tokens: Sequence[int], least: int, vocabulary: int) -> list[int]:
    out = [operator.index(token) for token in tokens]
    if len(out) < least:
        _refuse(what, f"of {len(out)} tokens", f"of at least {least}")
    for token in out:
        if not 0 <= token < vocabulary:
            _refuse(f"a token of {what}", str(token), f"a number from 0 to {vocabulary - 1}")
    return out


def export(model: Any, contexts: Iterable[Any], folder: str | os.PathLike[str], learned: Optional[Learned] = None) -> None:
    """Writes folder/config.json, folder/model.safetensors (half precision) and folder/tasks.jsonl, so that
    ``kvmeld_demo --model folder`` asks the same questions of the same model without Python.

    model: a causal language model of transformers with Llama's layers.
    contexts: each has `tokens`, the prompt up to a question, and `questions`, each with `task`, a name, `question`, all
        tokens between the context and the answer, and `answer`: lists of the numbers of tokens.
    learned: the weights of the score "learned" for this model. They go to folder/learned.safetensors, where the demo finds them.

    Makes the folder if there is none, and replaces these files in it. Raises ValueError for a model that the demo's
    engine cannot run and for tokens that the model does not have, and TypeError for tokens that are no whole numbers,
    before anything is written; OSError for a file that cannot be written.
    """
    config = _config_of(model)
    vocabulary, lines = config["vocab_size"], []
    for i, context in enumerate(contexts):
        tokens = _tokens_of(f"contexts[{i}].tokens", context.tokens, 1, vocabulary)
        for j, q in enumerate(context.questions):
            name = f"contexts[{i}].questions[{j}]"
            if not q.task:
                _refuse(f"{name}.task", repr(q.task), "a name")
            row = {"task": q.task, "context": tokens, "question": _tokens_of(f"{name}.question", q.question, 2, vocabulary),
                   "answer": _tokens_of(f"{name}.answer", q.answer, 1, vocabulary)}
            lines.append(json.dumps(row, separators=(",", ":")) + "\n")
    if not lines:
        _refuse("contexts", "without questions", "contexts with at least one question")
    weights = safetensors.torch.save(_weights_of(model, config), metadata={"format": "pt"})
    os.makedirs(folder, exist_ok=True)
    write_file(os.path.join(folder, "config.json"), json.dumps(config, indent=2) + "\n")
    write_file(os.path.join(folder, "model.safetensors"), weights)
    write_file(os.path.join(folder, "tasks.jsonl"), "".join(lines))
    if learned is not None:
        save(os.path.join(folder, "learned.safetensors"), learned)
