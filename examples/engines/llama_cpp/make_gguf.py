"""A small Hugging Face Llama model as GGUF, float32. If its vocabulary has 256 tokens, they are the bytes; otherwise tokens
are numbers without a text.

    pip install gguf numpy && python3 make_gguf.py examples/data/tiny-kjv tiny-kjv.gguf

With "gemma3" or "lfm2" in place of the folder: six layers of random weights, a token per byte, as these architectures have
them: with a window of 32 tokens in five layers, or with a recurrent state in four.
"""

import json
import pathlib
import struct
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("make_gguf.py")

import gguf
import numpy

PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def byte_tokens():
    """The bytes as GPT-2's vocabulary writes them: printable characters as they are, others from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("\xa1"), ord("\xac") + 1), *range(ord("\xae"), ord("\xff") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def tensors_of(path):
    """Name and array of every tensor of a safetensors file in half precision."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F16":
            sys.exit(f"{name} is {entry['dtype']}; this script reads F16")
        begin, end = (8 + size + x for x in entry["data_offsets"])
        yield name, numpy.frombuffer(data[begin:end], numpy.float16).reshape(entry["shape"]).astype(numpy.float32)


def pairs_side_by_side(weight, heads):
    """Rotation pairs (i, i + d/2) of every head become (2i, 2i + 1), which is how this architecture rotates."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def main():
    if len(sys.argv) != 3:
        sys.exit("two arguments must be given: the model's folder, gemma3 or lfm2, and the file to write")
    folder, target = pathlib.Path(sys.argv[1]), sys.argv[2]
    if problem := _program.output_problem(target):
        sys.exit(f"{target}: cannot be written ({problem})")
    with tempfile.TemporaryDirectory() as room:
        written = pathlib.Path(room) / "model.gguf"
        if sys.argv[1] in ("gemma3", "lfm2"):
            write_random(sys.argv[1], written)
        else:
            write(folder, written)
        _program.write_file(target, written.read_bytes())


def write(folder, target):
    c = json.loads((folder / "config.json").read_text())
    out = gguf.GGUFWriter(target, "llama")
    out.add_name(folder.name)
    out.add_block_count(c["num_hidden_layers"])
    out.add_context_length(c["max_position_embeddings"])
    out.add_embedding_length(c["hidden_size"])
    out.add_feed_forward_length(c["intermediate_size"])
    out.add_head_count(c["num_attention_heads"])
    out.add_head_count_kv(c["num_key_value_heads"])
    out.add_key_length(c["head_dim"])
    out.add_value_length(c["head_dim"])
    out.add_rope_dimension_count(c["head_dim"])
    out.add_rope_freq_base(c["rope_theta"])
    out.add_layer_norm_rms_eps(c["rms_norm_eps"])
    out.add_vocab_size(c["vocab_size"])
    if c["vocab_size"] == 256:
        add_byte_tokens(out)
    else:
        out.add_tokenizer_model("no_vocab")
    for name, weight in tensors_of(folder / "model.safetensors"):
        if name == "model.embed_tokens.weight":
            out.add_tensor("token_embd.weight", weight)
        elif name == "model.norm.weight":
            out.add_tensor("output_norm.weight", weight)
        elif name == "lm_head.weight":
            out.add_tensor("output.weight", weight)
        else:
            _, _, layer, part = name.removesuffix(".weight").split(".", 3)
            if part == "self_attn.q_proj":
                weight = pairs_side_by_side(weight, c["num_attention_heads"])
            if part == "self_attn.k_proj":
                weight = pairs_side_by_side(weight, c["num_key_value_heads"])
            out.add_tensor(f"blk.{layer}.{PARTS[part]}.weight", weight)
    finish(out)


def write_random(architecture, target):
    layers, width, heads, kv_heads, dim, inner = 6, 64, 4, 2, 16, 96
    windows = architecture == "gemma3"
    attends = [windows or layer % 3 == 2 for layer in range(layers)]
    rng = numpy.random.default_rng(1)
    out = gguf.GGUFWriter(target, architecture)
    out.add_block_count(layers)
    out.add_context_length(2048)
    out.add_embedding_length(width)
    out.add_feed_forward_length(inner)
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads if windows else [kv_heads * each for each in attends])
    out.add_key_length(dim)
    out.add_value_length(dim)
    out.add_rope_dimension_count(dim)
    out.add_rope_freq_base(10000.0)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_vocab_size(256)
    if windows:
        out.add_sliding_window(32)
    else:
        out.add_shortconv_l_cache(3)
    add_byte_tokens(out)

    def add(name, *shape):
        x = rng.standard_normal(shape)
        x = 1 + 0.1 * x if len(shape) == 1 else x * 1.5 / shape[-1] ** 0.5  # a norm, a matrix
        out.add_tensor(f"{name}.weight", x.astype(numpy.float32))

    embedding = (0.3 * rng.standard_normal((256, width))).astype(numpy.float32)
    embedding[:32] = embedding[127:] = 0  # never the likeliest: a server gives no probabilities of half a character
    out.add_tensor("token_embd.weight", embedding)
    add("output_norm" if windows else "token_embd_norm", width)
    for layer, attention in enumerate(attends):
        parts = {"attn_norm": [width], "ffn_norm": [width], "ffn_gate": [inner, width], "ffn_up": [inner, width],
                 "ffn_down": [width, inner]}
        if attention:
            parts |= {"attn_q": [heads * dim, width], "attn_k": [kv_heads * dim, width], "attn_v": [kv_heads * dim, width],
                      "attn_output": [width, heads * dim], "attn_q_norm": [dim], "attn_k_norm": [dim]}
        else:
            parts |= {"shortconv.in_proj": [3 * width, width], "shortconv.conv": [width, 3],
                      "shortconv.out_proj": [width, width]}
        if windows:
            parts |= {"post_attention_norm": [width], "post_ffw_norm": [width]}
        for part, shape in parts.items():
            add(f"blk.{layer}.{part}", *shape)
    finish(out)


def add_byte_tokens(out):
    tokens = byte_tokens()
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types([gguf.TokenType.NORMAL] * 256)
    out.add_token_merges([f"{tokens[0]} {tokens[1]}"])  # llama.cpp wants one; the vocabulary lacks what it makes
    out.add_bos_token_id(0)
    out.add_eos_token_id(0)
    out.add_add_bos_token(False)


def finish(out):
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


main()
