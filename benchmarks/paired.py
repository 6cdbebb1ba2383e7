#!/usr/bin/env python3
"""Repeats the benchmarks alone and beside busy loops, in turn, and prints medians with their spread.

    python3 benchmarks/paired.py build/bench [--runs 5] [--loops 0,2] [--json PATH]
    python3 benchmarks/paired.py build/bench --python venv/bin/python      # with PyTorch: adds its times over ours
    python3 benchmarks/paired.py build/bench --loops 0,2,8 --demo build/demo/examples/demo/kvmeld_demo

Every ratio is taken within one run of one condition, so both of its times met the same machine. A figure is the median
of the runs, with the least and the largest in brackets. Run it on a machine that has nothing else to do.
"""
import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import pathlib
from pathlib import Path

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("paired.py")

HERE = Path(__file__).resolve().parent
PEERS = ("streaming_llm", "h2o", "snapkv", "kvmerger", "chelsea", "cam")
LENGTHS = ("4096", "65536")
# The rows that aims.cpp judges and that the peer has, at the two lengths.
FILTERS = [f"compress/{p} {n} " for p in PEERS for n in LENGTHS] + [
    "propose/chelsea 65536", "admit/chelsea 65536", "select/h2o 65536",
    "decode_step/ems/256", "decode_step/cam/256", "attend/unmerged 4096", "attend/merged 65536",
    "observe_chunk/attention", "observe_chunk/all",
] + [f"{stage}/{policy} 65536" for policy in ("chelsea", "kvmerger")
     for stage in ("apply_transposed", "apply_vllm_keys", "apply_vllm_values",
                   "merge_keys", "merge_values", "compact_keys", "compact_values")]
DEMO = ["--contexts", "1", "--context", "512", "--method", "full,chelsea,snapkv", "--budget", "0.2"]


@contextlib.contextmanager
def busy(loops):
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def quiet(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}:\n{done.stderr}")


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def bench(o, folder):
    """What one run measured, by the part of the table and the name of the figure."""
    ours = Path(folder) / "ours.json"
    quiet([o.build / "benchmarks/kvmeld_bench", "--json", ours, *(x for f in FILTERS for x in ("--filter", f))])
    figures = read(ours)
    out = {("aim", a["what"], f"{a['limit']:.2f}"): a["worst"] for a in figures["aims"] if "exponent" not in a["what"]}
    rows = {(r["name"][len("compress/"):], r["n"], r["dtype"]): r
            for r in figures["rows"] if r["name"].startswith("compress/")}
    for row, measured in rows.items():
        out["compress", row, "ms"] = measured["seconds"] * 1e3
        out["compress", row, "x memcpy"] = measured["ratio_to_memcpy"]
    if o.python:
        theirs = Path(folder) / "theirs.json"
        quiet([o.python, HERE / "peer/torch_peer.py", "--no-check", "--json", theirs, "--lengths", ",".join(LENGTHS),
               "--methods", ",".join(PEERS)])
        for t in read(theirs):
            row = t["method"], t["n"], t["dtype"]
            ratio = t["seconds"] / rows[row]["seconds"]
            out["compress", row, "PyTorch / kvmeld"] = ratio
            out["compress", row, "PyTorch x memcpy"] = ratio * rows[row]["ratio_to_memcpy"]
    return out


def demo(o):
    begin = time.perf_counter()
    quiet([o.demo, *DEMO])
    return {("demo", "the demo", "seconds"): time.perf_counter() - begin}


def figure(values):
    def short(x):
        return f"{x:.3f}" if x < 0.1 else f"{x:.2f}" if x < 10 else f"{x:.0f}"
    return f"{short(statistics.median(values))} ({short(min(values))}-{short(max(values))})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="build folder of the preset bench")
    parser.add_argument("--runs", type=_program.whole(1, 10000), default=5)
    parser.add_argument("--loops", type=_program.listed(_program.whole(0, 1024)), default=[0, 2],
                        help="numbers of busy loops beside the program, such as 0,2,8")
    parser.add_argument("--python", help="an interpreter that has PyTorch")
    parser.add_argument("--demo", type=Path, help="the program kvmeld_demo: times it instead")
    parser.add_argument("--json", type=_program.output_path, help="also write all figures to this file")
    o = parser.parse_args()
    program = o.demo or o.build / "benchmarks/kvmeld_bench"
    if not program.is_file():
        parser.error(f"there is no {program}; build it first (cmake --preset bench && cmake --build --preset bench)")
    found = {}  # figure -> {loops: values}
    with tempfile.TemporaryDirectory() as folder:
        for run in range(o.runs):
            for loops in o.loops:
                print(f"run {run + 1} of {o.runs}, {loops} busy loops", file=sys.stderr, flush=True)
                with busy(loops):
                    measured = demo(o) if o.demo else bench(o, folder)
                for key, value in measured.items():
                    found.setdefault(key, {}).setdefault(loops, []).append(value)
    if o.json:
        figures = [{"figure": key, "runs": values} for key, values in found.items()]
        _program.write_file(o.json, json.dumps(figures, indent=1))
    print_tables(found, o.loops)


def beside(loops):
    return f"beside {loops} loops" if loops else "alone"


def print_tables(found, loops):
    def cell(key, n):
        return figure(found[key][n]) if key in found else "-"

    def table(head, lines):
        if lines:
            print("\n".join(["", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines]))

    table(["ratio", "at most", *map(beside, loops)],
          [f"| {' | '.join([key[1], key[2], *(cell(key, n) for n in loops)])} |" for key in found if key[0] == "aim"])
    table(["", *map(beside, loops)],
          [f"| {key[1]}, {key[2]} | {' | '.join(cell(key, n) for n in loops)} |" for key in found if key[0] == "demo"])
    columns = ["ms", "x memcpy", "PyTorch x memcpy", "PyTorch / kvmeld"]
    for n in loops:
        rows = [key[1] for key in found if key[0] == "compress" and key[2] == "ms"]
        table([f"compression, {beside(n)}", "entries", "", *columns],
              [f"| {row[0]} | {row[1]} | {row[2]} | {' | '.join(cell(('compress', row, c), n) for c in columns)} |"
               for row in sorted(rows, key=lambda row: (row[1], row[2] != "f32", PEERS.index(row[0])))])


if __name__ == "__main__":
    main()
