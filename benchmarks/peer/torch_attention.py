"""Times PyTorch's scaled_dot_product_attention with a bias per entry: one decode step of one layer, as a user of merged
entries would write it.

    python3 benchmarks/peer/torch_attention.py [--device cuda] [--lengths 8192,32768] [--json PATH]

Prints a JSON row per measurement: {"what", "n", "d", "dtype", "seconds", "of_copy"}, where of_copy is the speed of the
bytes that must be read over that of a copy on the device in the same run, as kvmeld_cuda_bench prints it. Without PyTorch,
or without the device, it says so and exits with 0.
"""
import argparse
import json
import statistics
import sys
import time

HEADS, GROUP = 8, 4


def skip(why):
    print("#" * 88, f"# NOTHING WAS MEASURED: {why}.", "#" * 88, sep="\n", file=sys.stderr)
    sys.exit(0)


try:
    import torch
    import torch.nn.functional as functional
except ImportError:
    skip("there is no PyTorch here (pip install torch)")


def seconds_of(body, device, times=9):
    """Median of some runs after one that is not counted; on a device by its own clock."""
    taken = []
    for i in range(times + 1):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            body()
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end) * 1e-3)
        else:
            begin = time.perf_counter()
            body()
            taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])


def copy_speed(device):
    """Bytes read plus bytes written per second."""
    source = torch.zeros((1 << 28) if device == "cuda" else (1 << 26), dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / seconds_of(lambda: target.copy_(source), device)


def attend(query, keys, values, bias):
    """[1, heads x group, 1, d] on [1, heads, n, d]; bias [1, heads, 1, n] is added to the logits."""
    wide = bias.repeat_interleave(GROUP, dim=1)
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=wide, enable_gqa=True)


def check(device):
    """Against the formula in double precision: softmax(q k / sqrt d + log degree) v."""
    draw = torch.Generator().manual_seed(1)
    query, keys, values = (torch.randn(1, h, n, 16, generator=draw)
                           for h, n in ((HEADS * GROUP, 1), (HEADS, 40), (HEADS, 40)))
    bias = torch.randint(1, 9, (1, HEADS, 1, 40), generator=draw).float().log()
    found = attend(*(x.to(device) for x in (query, keys, values, bias))).cpu().double()
    k, v, b = (x.double().repeat_interleave(GROUP, dim=1) for x in (keys, values, bias))
    wanted = torch.softmax(query.double() @ k.transpose(2, 3) / 4 + b, dim=-1) @ v
    if not torch.allclose(found, wanted, atol=2e-3):
        print("torch_attention: scaled_dot_product_attention is not the formula", file=sys.stderr)
        sys.exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--lengths", default="1638,8192,32768,131072", help="entries held")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--json", help="also write the rows to this file, as one list")
    o = parser.parse_args()
    if o.device == "cuda" and not torch.cuda.is_available():
        skip("there is no CUDA device here; --device cpu measures on the processor")
    torch.set_grad_enabled(False)
    check(o.device)
    speed = copy_speed(o.device)
    print(f"torch_attention: a copy moves {speed * 1e-9:.0f} GB/s, read and written", file=sys.stderr)
    rows = []
    for d in map(int, o.dims.split(",")):
        for n in map(int, o.lengths.split(",")):
            query = torch.randn(1, HEADS * GROUP, 1, d, device=o.device).to(torch.bfloat16)
            keys, values = (torch.randn(1, HEADS, n, d, device=o.device).to(torch.bfloat16) for _ in range(2))
            bias = torch.randint(1, 9, (1, HEADS, 1, n), device=o.device).float().log().to(torch.bfloat16)
            seconds = seconds_of(lambda: attend(query, keys, values, bias), o.device)
            read = HEADS * n * (2 * d * 2 + 4)
            rows.append({"what": "sdpa", "n": n, "d": d, "dtype": "bf16", "seconds": seconds,
                         "of_copy": round(read / seconds / speed, 4)})
            print(json.dumps(rows[-1]), flush=True)
    if o.json:
        with open(o.json, "w", encoding="utf-8") as out:
            json.dump(rows, out, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
