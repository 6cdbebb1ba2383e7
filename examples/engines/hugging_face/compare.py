"""tiny-kjv through Hugging Face transformers, its DynamicCache merged by kvmeld; see docs/engines/hugging_face.md.

    python3 compare.py --library libkvmeld.so [--model examples/data/tiny-kjv]

Checks that generation without merging is the model's own, bit for bit, and that logits over merged entries are those of
a plain forward pass in double precision that gets K, V and degrees, and shares no code with the model or with kvmeld.
In the line "(mask left out)" the model is not given the log degrees: that has to show.
"""

import argparse
import contextlib
import math
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("compare.py")

import torch
import transformers
from kvmeld_cache import MeldedCache
from transformers import DynamicCache, LlamaForCausalLM

HERE = pathlib.Path(__file__).resolve().parent


def reference_logits(model, melded, ids):
    """Logits of one more token, from the cache as it lies there, in double precision, by the formulas alone."""
    c, weights = model.config, {name: w.double() for name, w in model.state_dict().items()}
    dim = model.model.layers[0].self_attn.head_dim
    base = c.rope_parameters["rope_theta"] if hasattr(c, "rope_parameters") else c.rope_theta
    turns = melded.tokens * base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    cos, sin = torch.cos(turns), torch.sin(turns)

    def norm(x, weight):
        return x / torch.sqrt((x * x).mean() + c.rms_norm_eps) * weight

    def rotate(x):  # halves of a head are the pairs
        a, b = x[:, : dim // 2], x[:, dim // 2 :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=1)

    x = weights["model.embed_tokens.weight"][ids[0, 0]]
    for number, layer in enumerate(melded.past.layers):
        w = {name.split(".", 3)[3]: t for name, t in weights.items() if name.startswith(f"model.layers.{number}.")}
        h = norm(x, w["input_layernorm.weight"])
        q = rotate((w["self_attn.q_proj.weight"] @ h).view(-1, dim))
        k = rotate((w["self_attn.k_proj.weight"] @ h).view(-1, dim))
        v = (w["self_attn.v_proj.weight"] @ h).view(-1, dim)
        degrees = torch.exp(melded.log_degree(number).double())
        group, out = q.shape[0] // k.shape[0], []
        for head in range(q.shape[0]):
            keys = torch.cat([layer.keys[0, head // group].double(), k[head // group][None]])
            values = torch.cat([layer.values[0, head // group].double(), v[head // group][None]])
            weight = torch.cat([degrees[head], torch.ones(1, dtype=torch.float64)])
            weight = weight * torch.exp(keys @ q[head] / math.sqrt(dim))
            out.append((weight / weight.sum()) @ values)
        x = x + w["self_attn.o_proj.weight"] @ torch.cat(out)
        h = norm(x, w["post_attention_layernorm.weight"])
        gate, up = w["mlp.gate_proj.weight"] @ h, w["mlp.up_proj.weight"] @ h
        x = x + w["mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return head @ norm(x, weights["model.norm.weight"])


def generate(read, ids, tokens):
    """Greedy tokens, and all logits that led to them."""
    rows = []
    for _ in range(tokens):
        rows.append(read(ids)[-1])
        ids = rows[-1].argmax()[None, None]
    return [int(row.argmax()) for row in rows], torch.stack(rows)


def check_unmerged(model, prompt, make):
    """The model alone, the model's generate(), and the melded cache without a compression."""
    past = DynamicCache(config=model.config)
    plain, plain_rows = generate(lambda ids: model(ids, past_key_values=past).logits[0], prompt, 64)
    with make("chelsea", "head").attached() as melded:
        ours, our_rows = generate(melded.read, prompt, 64)
    own = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, do_sample=False,
                         eos_token_id=None, pad_token_id=0)[0, prompt.shape[1] :].tolist()
    return plain == ours == own and torch.equal(plain_rows, our_rows)


def bits_per_byte(rows, following):
    log = torch.log_softmax(rows.double(), dim=-1)
    return -log.gather(1, following[0][:, None]).mean().item() / math.log(2)


def measure(model, melded, share, prompt, following, mask=True):
    """Reads the prompt, merges, and goes on: bits per byte, and how far the logits are from the reference's."""
    needs = melded.needs_attention
    with melded.attached() if mask else contextlib.nullcontext():
        last = melded.read(prompt, observe=needs)[-1:]
        if share < 1:
            melded.compress(share)
        entries, apart = melded.longest, 0.0
        sample = []
        for i in range(8):  # a token at a time, each against the reference
            token = following[:, i : i + 1]
            expected = reference_logits(model, melded, token)
            sample.append(melded.read(token)[-1])
            apart = max(apart, (sample[-1].double() - expected).abs().max().item())
        rest = melded.read(following[:, 8:-1])  # the rest at once, causal among themselves
    rows = torch.cat([last, torch.stack(sample), rest])
    return entries, bits_per_byte(rows, following), apart, rows


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--library", required=True)
    parse.add_argument("--model", default=str(HERE.parents[1] / "data" / "tiny-kjv"))
    parse.add_argument("--context", type=_program.whole(64, 1 << 20), default=1024)
    parse.add_argument("--attention", default="eager", choices=["eager", "sdpa"])
    parse.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    options = parse.parse_args()
    transformers.logging.set_verbosity_error()
    model = LlamaForCausalLM.from_pretrained(
        options.model, dtype=getattr(torch, options.dtype), attn_implementation=options.attention
    ).eval()
    text = (pathlib.Path(options.model) / "heldout.txt").read_bytes()
    ids = torch.tensor(list(text[: options.context + 256]))[None]
    prompt, following = ids[:, : options.context], ids[:, options.context :]

    def make(method, scope, ignore=False):
        return MeldedCache(model, method, 2 * options.context, scope, ignore, options.library)

    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {options.attention}, {options.dtype}")
    with torch.inference_mode():
        same = check_unmerged(model, prompt[:, :256], make)
        print("without merging: the model's own tokens and logits, bit for bit:", "yes" if same else "NO")
        print(f"\n{'method':22}{'budget':>8}{'entries':>9}{'bits per byte':>15}{'from reference':>16}{'from full':>12}")
        full = measure(model, make("chelsea", "head"), 1, prompt, following)
        worst, control = full[2], math.inf
        print(f"{'full':22}{'100%':>8}{full[0]:9}{full[1]:15.4f}{full[2]:16.1e}{0:12.3f}")
        for share in (0.5, 0.2):
            for name, method, scope in (
                ("chelsea", "chelsea", "head"),
                ("chelsea, one plan", "chelsea", "all_layers"),
                ("chelsea, no degrees", "chelsea", "head"),
                ("(mask left out)", "chelsea", "head"),
                ("kvmerger", "kvmerger", "head"),
                ("snapkv", "snapkv", "head"),
            ):
                if options.attention != "eager" and method in ("kvmerger", "snapkv"):
                    continue  # only eager attention gives its probabilities away
                melded = make(method, scope, name.endswith("no degrees"))
                masked = not name.startswith("(")
                entries, bits, apart, rows = measure(model, melded, share, prompt, following, masked)
                change = (rows.double() - full[3].double()).abs().mean().item()
                print(f"{name:22}{share:8.0%}{entries:9}{bits:15.4f}{apart:16.1e}{change:12.3f}")
                if masked:
                    worst = max(worst, apart)
                else:
                    control = min(control, apart)
    if options.dtype == "float32":  # the model's own rounding hides it in bfloat16
        print("\na mask that is left out shows:", "yes" if control > 10 * worst else "NO")
    good = same and worst <= 3 * full[2] and (options.dtype != "float32" or control > 10 * worst)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
