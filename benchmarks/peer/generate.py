"""Times generate() of transformers with kvmeld's bounded cache beside the unbounded DynamicCache.

    python3 benchmarks/peer/generate.py [--tokens 2000] [--budget 256] [--policy leverage_dropkv]

The model has the sizes of a small Llama and random weights: it writes nonsense, in the time of a model that does not.
Needs the Python package kvmeld, torch and transformers; without them it says so and exits with 77.
"""
import argparse
import logging
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("generate.py")

try:
    import torch
    import transformers
    import kvmeld.hf
except ImportError as missing:
    print(f"NOTHING WAS MEASURED: {missing} (pip install '.[hf]')", file=sys.stderr)
    sys.exit(77)


def held(cache):
    """MiB of keys and values."""
    if isinstance(cache, kvmeld.hf.KVMeldCache):
        tensors = [cache.keys, cache.values]
    else:
        tensors = [x for layer in cache.layers for x in (layer.keys, layer.values)]
    return sum(x.numel() * x.element_size() for x in tensors) / 2**20


class Clock(transformers.LogitsProcessor):
    """Notes when each token was computed."""

    def __init__(self):
        self.times = []

    def __call__(self, input_ids, scores):
        self.times.append(time.perf_counter())
        return scores


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=_program.whole(4, 1 << 20), default=2000, help="to generate")
    parser.add_argument("--prompt", type=_program.whole(1, 1 << 20), default=100, help="tokens before them")
    parser.add_argument("--budget", type=_program.whole(1, 1 << 20), default=256, help="entries of a head")
    parser.add_argument("--policy", default="leverage_dropkv")
    parser.add_argument("--hidden", type=_program.whole(256, 1 << 20), default=512)
    parser.add_argument("--layers", type=_program.whole(1, 1 << 20), default=8)
    parser.add_argument("--threads", type=_program.whole(1, 1 << 20), default=2)
    parser.add_argument("--device", default="cpu")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=o.hidden, intermediate_size=3 * o.hidden, num_hidden_layers=o.layers,
        num_attention_heads=o.hidden // 64, num_key_value_heads=max(1, o.hidden // 256),
        max_position_embeddings=1 << 20,
    )
    model = transformers.LlamaForCausalLM(config).eval().to(o.device)
    prompt = torch.randint(3, 1000, (1, o.prompt), device=o.device)
    options = dict(max_new_tokens=o.tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
    if tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24):
        name = "cache"
    else:
        name = "past_key_values"
    logging.getLogger("transformers").setLevel(logging.ERROR)
    print("| cache | tokens per second | the first 200 | the last 200 | MiB of K and V | compressions |")
    print("|---|---|---|---|---|---|")
    bounded = f"{o.policy}, {o.budget} entries"
    for title, make in (
        ("unbounded (DynamicCache)", transformers.DynamicCache),
        (bounded, lambda: kvmeld.hf.KVMeldCache(model, o.policy, o.budget, threads=o.threads)),
    ):
        kvmeld.hf.detach(model)
        cache, clock = make(), Clock()
        model.generate(prompt, logits_processor=[clock], **{name: cache}, **options)
        part = min(200, o.tokens // 2)
        speeds = [(len(t) - 1) / (t[-1] - t[0]) for t in (clock.times, clock.times[:part], clock.times[-part:])]
        print(f"| {title} | " + " | ".join(f"{s:.0f}" for s in speeds)
              + f" | {held(cache):.1f} | {getattr(cache, 'compressions', 0)} |", flush=True)


if __name__ == "__main__":
    main()
