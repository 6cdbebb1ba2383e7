"""Times PyTorch's scaled_dot_product_attention: one decode step of one layer, by each backend that takes it. `bias` has a
bias per entry, as a user of merged entries would write it; the other backends are pinned and have none.

    python3 benchmarks/peer/torch_attention.py [--device cuda] [--lengths 4096,32768] [--batches 1,8] [--json PATH]

Prints a JSON row per measurement: {"what", "batch", "n", "d", "dtype", "seconds", "copies"}. `copies` is the time over that
of a copy on the device of the bytes that must be read, in the same run, as kvmeld_cuda_bench prints it. On a device, steps
of as many layers as fill 1 GiB follow each other in a CUDA graph, so that launches cost little and caches help nobody.
Without PyTorch, or without the device, it says so and exits with 77.
"""
import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import time

HEADS, GROUP = 8, 4


sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("torch_attention")

def skip(why):
    print("#" * 88, f"# NOTHING WAS MEASURED: {why}.", "#" * 88, sep="\n", file=sys.stderr)
    sys.exit(77)


try:
    import torch
    import torch.nn.functional as functional
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    skip("there is no PyTorch here (pip install torch)")


BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


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


def attend(query, keys, values, bias=None):
    """[batch, heads x group, 1, d] on [batch, heads, n, d]; bias [batch, heads, 1, n] is added to the logits."""
    wide = None if bias is None else bias.repeat_interleave(GROUP, dim=1)
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


def seconds_of_step(what, device, batch, n, d):
    """Of one layer; None where the backend refuses."""
    size = 2 * 2 * batch * HEADS * n * d
    layers = max(1, min(32, (1 << 30) // size)) if device == "cuda" else 1
    query = torch.randn(batch, HEADS * GROUP, 1, d, device=device).to(torch.bfloat16)
    rows = [torch.randn(2, batch, HEADS, n, d, device=device, dtype=torch.bfloat16) for _ in range(layers)]
    bias = None
    if what == "bias":
        bias = torch.randint(1, 9, (batch, HEADS, 1, n), device=device).float().log().to(torch.bfloat16)

    def step():
        for keys, values in rows:
            attend(query, keys, values, bias)

    pinned = contextlib.nullcontext() if what == "bias" else sdpa_kernel(BACKENDS[what])
    try:
        with pinned:
            if device != "cuda":
                return seconds_of(step, device) / layers
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            return seconds_of(graph.replay, device) / layers
    except RuntimeError as refused:
        torch.cuda.synchronize() if device == "cuda" else None
        print(f"torch_attention: {what}, batch {batch}, {n} entries: {str(refused).splitlines()[0]}", file=sys.stderr)
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--lengths", type=_program.listed(_program.whole(1, 1 << 24)), default="4096,32768,131072", help="entries held")
    parser.add_argument("--batches", type=_program.listed(_program.whole(1, 1 << 16)), default="1,8,64", help="sequences of that many entries each")
    parser.add_argument("--dims", type=_program.listed(_program.whole(1, 4096)), default="128")
    parser.add_argument("--json", type=_program.output_path, help="also write the rows to this file, as one list")
    o = parser.parse_args()
    if o.device == "cuda" and not torch.cuda.is_available():
        skip("there is no CUDA device here; --device cpu measures on the processor")
    torch.set_grad_enabled(False)
    check(o.device)
    speed = copy_speed(o.device)
    print(f"torch_attention: a copy moves {speed * 1e-9:.0f} GB/s, read and written", file=sys.stderr)
    rows = []
    for d in o.dims:
        for n in o.lengths:
            for batch in o.batches:
                for what in ("bias", *(BACKENDS if o.device == "cuda" else ())):
                    seconds = seconds_of_step(what, o.device, batch, n, d)
                    if seconds is None:
                        continue
                    read = batch * HEADS * n * (2 * d * 2 + (4 if what == "bias" else 0))
                    rows.append({"what": what, "batch": batch, "n": n, "d": d, "dtype": "bf16", "seconds": seconds,
                                 "copies": round(seconds * speed / read, 3)})
                    print(json.dumps(rows[-1]), flush=True)
    if o.json:
        _program.write_file(o.json, json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
