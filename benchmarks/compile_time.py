#!/usr/bin/env python3
"""What kvmeld costs a compiler: python3 benchmarks/compile_time.py [--runs 5] [--nvcc PATH] [--kokkos FOLDER]

Compiles a unit of three standard headers, one that only includes kvmeld, the ten-line example, and a cache that is composed at run
time, whole and without the host's vector kernels (backend/host/extern_kernels.hpp). Prints a Markdown table:
seconds (median) of the processor and of the clock, the ratio to the standard headers of the same run and compiler, bytes of code
and data in the object, and lines that the compiler saw. Compilers that are not there are left out and named.
"""

import argparse
import os
import shutil
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
_program.start("compile_time.py")

ROOT = Path(__file__).resolve().parent.parent
COMPOSED = "examples/choose_at_run_time.cpp"  # a cache that is composed at run time
STANDARD = "#include <algorithm>\n#include <string>\n#include <vector>\n"


def units(umbrella, example, flags):
    """Name and text of what is compiled: the yardstick first."""
    yield "`<vector>`, `<string>`, `<algorithm>`", STANDARD
    yield f"`#include <kvmeld/{umbrella}>`", f"#include <kvmeld/{umbrella}>\n"
    if example:
        yield f"`{example}`", f'#include "{ROOT / example}"\n'
    if umbrella == "kvmeld.hpp" and "-O0" not in flags:
        yield f"`{COMPOSED}`", f'#include "{ROOT / COMPOSED}"\n'
        yield "the same without kernels", f'#include <kvmeld/backend/host/extern_kernels.hpp>\n#include "{ROOT / COMPOSED}"\n'
        yield "the kernels", f'#include "{ROOT}/cmake/kernels.cpp"\n'


def compile_once(command):
    """Seconds of the processor and of the clock."""
    before, begin = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)
    took, after = time.perf_counter() - begin, os.times()
    return after.children_user - before.children_user, took


def section_bytes(compiled):
    """Code and data, without what debuggers and unwinders read."""
    text = subprocess.run(["size", compiled], check=True, capture_output=True, text=True).stdout
    code, data = text.splitlines()[1].split()[:2]
    return int(code) + int(data)


def lines_seen(command, source):
    text = subprocess.run(command + ["-E", source], check=True, capture_output=True, text=True).stdout
    return sum(1 for line in text.splitlines() if line.strip() and not line.startswith("#"))


def rows(compiler, flags, umbrella, example, suffix, runs, folder):
    command = [compiler, "-std=c++17", f"-I{ROOT / 'include'}", f"-I{ROOT / 'examples'}", *flags]
    compiled = str(folder / "unit.o")
    sources = []
    for name, text in units(umbrella, example, flags):
        source = folder / f"unit_{len(sources)}.{suffix}"
        _program.write_file(source, text)
        sources.append((name, str(source)))
    times = {name: [] for name, _ in sources}
    for _ in range(runs):  # side by side, so that other work on the machine meets all of them
        for name, source in sources:
            times[name].append(compile_once(command + ["-c", source, "-o", compiled]))
    yardstick = statistics.median(user for user, _ in times[sources[0][0]])
    for name, source in sources:
        compile_once(command + ["-c", source, "-o", compiled])
        user = statistics.median(user for user, _ in times[name])
        wall = statistics.median(wall for _, wall in times[name])
        label = " ".join([Path(compiler).name, *(f for f in flags if f.startswith(("-O", "-arch")))])
        yield (f"| {label} | {name} | {user:.2f} | {wall:.2f} | {user / yardstick:.1f} | {section_bytes(compiled):,} | "
               f"{lines_seen(command, source):,} |")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--runs", type=_program.whole(1, 10000), default=5)
    arguments.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    arguments.add_argument("--kokkos", default="/usr/include/trilinos", help="folder of Kokkos_Core.hpp")
    options = arguments.parse_args()

    ways = [("g++", ["-O0"], "kvmeld.hpp", "examples/preset.cpp", "cpp"),
            ("g++", ["-O1"], "kvmeld.hpp", "examples/preset.cpp", "cpp"),
            ("g++", ["-O2"], "kvmeld.hpp", "examples/preset.cpp", "cpp"),
            ("g++", ["-O3"], "kvmeld.hpp", "examples/preset.cpp", "cpp"),
            ("clang++", ["-O0"], "kvmeld.hpp", "examples/preset.cpp", "cpp"),
            ("clang++", ["-O2"], "kvmeld.hpp", "examples/preset.cpp", "cpp"),
            (options.nvcc, ["-O2", "-arch=sm_90"], "cuda.cuh", "examples/cuda/preset.cu", "cu")]
    kokkos = "examples/kokkos/preset.cpp"
    if (ROOT / "include/kvmeld/kokkos.hpp").exists() and (Path(options.kokkos) / "Kokkos_Core.hpp").exists():
        there = kokkos if (ROOT / kokkos).exists() else None
        ways.append(("g++", ["-O0", "-isystem", options.kokkos], "kokkos.hpp", there, "cpp"))
    else:
        print("no Kokkos backend, or no Kokkos here: left out", file=sys.stderr)

    print("| compiler | unit | s, processor | s, clock | x standard headers | bytes of object | lines seen |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="kvmeld_compile_time_") as folder:
        for compiler, flags, umbrella, example, suffix in ways:
            if not shutil.which(compiler):
                print(f"no {compiler} here: left out", file=sys.stderr)
                continue
            for row in rows(compiler, flags, umbrella, example, suffix, options.runs, Path(folder)):
                print(row, flush=True)


if __name__ == "__main__":
    main()
