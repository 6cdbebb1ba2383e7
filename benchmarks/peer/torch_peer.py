"""Times the methods in plain PyTorch on the inputs of kvmeld_bench, after holding them against loops.

    python3 benchmarks/peer/torch_peer.py [--json PATH] [--lengths 4096,16384] [--methods h2o,ems] [--device cuda]

Prints a JSON row per measurement: {"method", "n", "dtype", "seconds"}. Without PyTorch it says so and exits
with 77.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("torch_peer")

try:
    import torch
except ImportError:
    print("#" * 88, "# NOTHING WAS MEASURED: there is no PyTorch here (pip install torch numpy).", "#" * 88,
          sep="\n", file=sys.stderr)
    sys.exit(77)

import inputs
import loops
import methods

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
CALLS = {
    "streaming_llm": lambda k, v, b, s: methods.streaming_llm(k, v, b),
    "h2o": lambda k, v, b, s: methods.h2o(k, v, b, s[0]),
    "snapkv": lambda k, v, b, s: methods.snapkv(k, v, b, s[1]),
    "kvmerger": lambda k, v, b, s: methods.kvmerger(k, v, b, s[0]),
    "chelsea": lambda k, v, b, s: methods.chelsea(k, v, b),
    "ems": lambda k, v, b, s: methods.ems(k, v, b, s[0], s[1]),
    "cam": lambda k, v, b, s: methods.cam(k, v, b, s[0]),
}


class Different(Exception):
    pass


def agree(name, found, head, expected, tolerance=2e-5):
    """`expected` is {position: (key, value, degree)} of one head."""
    positions = found["position"][head].tolist()
    if sorted(positions) != sorted(expected):
        raise Different(f"{name} keeps {positions}, the loop {sorted(expected)}")
    for place, position in enumerate(positions):
        key, value, degree = expected[position]
        for what, y in (("keys", key), ("values", value), ("degree", degree)):
            x = found[what][head][place].double()
            if not torch.allclose(x, torch.tensor(y, dtype=torch.float64), atol=tolerance, rtol=tolerance):
                raise Different(f"{name}: {what} of position {position} is {x.tolist()}, in the loop {y}")


def check(n, seed, budget):
    """All methods on three small heads: neighbours alike, as keys are."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(4, 3, n, 8, generator=generator)
    walk = drawn[0]
    for t in range(1, n):
        walk[:, t] += 0.8 * walk[:, t - 1]
    keys, values = walk + 0.5, walk + 0.7 * drawn[1] + 0.5
    scores = drawn[2:, :, :, 0] ** 2
    found = {
        "streaming_llm": methods.streaming_llm(keys, values, budget),
        "h2o": methods.h2o(keys, values, budget, scores[0]),
        "snapkv": methods.snapkv(keys, values, budget, scores[1], window=5),
        "kvmerger": methods.kvmerger(keys, values, budget, scores[0]),
        "chelsea": methods.chelsea(keys, values, budget, sinks=2, recents=5, chunk=16),
        "ems": methods.ems(keys, values, budget, scores[0], scores[1], gamma=3, tau=0.5, window=5),
        "cam": methods.cam(keys, values, budget, scores[0], generator),
    }
    for head in range(3):
        k, v = keys[head].double().tolist(), values[head].double().tolist()
        total, local = scores[0, head].double().tolist(), scores[1, head].double().tolist()
        shared, members, norms = loops.ems(k, v, budget, total, local, gamma=3, tau=0.5, window=5)
        expected = {
            "streaming_llm": loops.streaming_llm(k, v, budget),
            "h2o": loops.h2o(k, v, budget, total),
            "snapkv": loops.snapkv(k, v, budget, local, window=5),
            "kvmerger": loops.kvmerger(k, v, budget, total),
            "chelsea": loops.chelsea(k, v, budget, sinks=2, recents=5, chunk=16),
            "ems": shared,
            "cam": loops.cam(k, v, budget, found["cam"]["mask"][head].tolist()),
        }
        for name, result in expected.items():
            agree(name, found[name], head, result)
        agree_members(found["ems"], head, members, norms)
    agree_rates(keys, values, scores[0], budget)


def agree_members(found, head, members, norms):
    positions = found["position"][head].tolist()
    owners = [positions[i] for i in found["member_owner"][head].tolist()]
    lengths = found["member_norm"][head].tolist()
    have = dict(zip(found["member_position"][head].tolist(), zip(owners, lengths)))
    if {m: owner for m, (owner, _) in have.items()} != {m: owner for m, (owner, _) in members.items()}:
        raise Different(f"ems: members are {have}, in the loop {members}")
    own = {p: x for p, x in zip(positions, found["own_norm"][head].tolist()) if x > 0}
    pairs = [(have[m][1], members[m][1]) for m in members] + [(own.get(p, -1), x) for p, x in norms.items()]
    if own.keys() != norms.keys() or any(abs(x - y) > 1e-4 * y for x, y in pairs):
        raise Different(f"ems: norms are {have} and {own}, in the loop {members} and {norms}")


def agree_rates(keys, values, scores, budget, draws=400):
    """The share of the draws in which an entry is merged, against its rate."""
    generator = torch.Generator().manual_seed(1)
    seen = sum(methods.cam(keys, values, budget, scores, generator)["mask"] for _ in range(draws)) / draws
    for head, total in enumerate(scores.double().tolist()):
        for x, p in zip(seen[head].tolist(), loops.cam_rates(budget, total)):
            if abs(x - p) > 5 * (p * (1 - p) / draws) ** 0.5 + 3 / draws:  # seldom ones are not normal
                raise Different(f"cam merges in {x} of the draws, its rate is {p}")


def seconds_of(work, device):
    """Median as kvmeld_bench takes it, after one run that is not counted unless it was long."""
    def body():
        work()
        if device == "cuda":
            torch.cuda.synchronize()

    begin = time.perf_counter()
    body()
    first = time.perf_counter() - begin
    times = [first] if first > 5 else []
    while sum(times) < 15 and (len(times) < 3 or (sum(times) < 0.2 and len(times) < 25)):
        begin = time.perf_counter()
        body()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=_program.output_path, help="also write the rows to this file, as one list")
    parser.add_argument("--lengths", type=_program.listed(_program.whole(64, 1 << 24)), default="4096,16384,65536")
    parser.add_argument("--methods", default=",".join(CALLS))
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--threads", type=_program.whole(1, 1024), default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--check", action="store_true", help="only hold the methods against loops")
    parser.add_argument("--no-check", action="store_true", help="only measure")
    o = parser.parse_args()
    for what, asked, known in (("method", o.methods, CALLS), ("dtype", o.dtypes, DTYPES)):
        for name in asked.split(","):
            if name not in known:
                parser.error(f"there is no {what} '{name}'; there are {', '.join(known)}")
    torch.set_num_threads(o.threads)
    torch.set_grad_enabled(False)
    try:
        for n, seed, budget in () if o.no_check else ((60, 1, 24), (97, 2, 20), (300, 3, 61)):
            check(n, seed, budget)
    except Different as difference:
        print(f"torch_peer: {difference}", file=sys.stderr)
        return 1
    verdict = "NOT CHECKED" if o.no_check else f"{len(CALLS)} methods agree with loops"
    print(f"torch_peer: {verdict}", file=sys.stderr)
    if o.device == "cuda" and not torch.cuda.is_available():
        print("# NOTHING WAS MEASURED: there is no CUDA device here", file=sys.stderr)
        return 77
    torch.set_default_device(o.device)
    measured = []
    for n in [] if o.check else o.lengths:
        keys, scores = (torch.from_numpy(x).to(o.device) for x in (inputs.keys(n), inputs.scores(n, 2)))
        for dtype in o.dtypes.split(","):
            k = keys.to(DTYPES[dtype])
            v = k.clone()
            for name in o.methods.split(","):
                budget = methods.share(methods.KEPT, n)
                seconds = seconds_of(lambda: CALLS[name](k, v, budget, scores), o.device)
                measured.append({"method": name, "n": n, "dtype": dtype, "seconds": seconds})
                print(json.dumps(measured[-1]), flush=True)
    if o.json and measured:
        _program.write_file(o.json, json.dumps(measured, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
