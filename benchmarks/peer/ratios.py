"""Joins the figures of kvmeld_bench and torch_peer.py into one table, in Markdown.

    python3 benchmarks/peer/ratios.py build/bench/results.json peer.json
"""
import json
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("ratios.py")


def figure(milliseconds):
    return f"{milliseconds:.3g}" if milliseconds < 100 else f"{milliseconds:.0f}"


def table(ours, theirs):
    """Rows of the methods and inputs that both have, as the peer lists them; memcpy is of the bytes that must move."""
    rows = {(row["name"], row["n"], row["dtype"]): row for row in ours["rows"]}
    lines = ["| method | n | dtype | kvmeld ms | PyTorch ms | PyTorch / kvmeld | PyTorch / memcpy |", "|---" * 7 + "|"]
    lonely = []
    for row in theirs:
        own = rows.get((f"compress/{row['method']}", row["n"], row["dtype"]))
        if own is None:
            lonely.append(f"{row['method']} {row['n']} {row['dtype']}")
            continue
        ratio = row["seconds"] / own["seconds"]
        lines.append(f"| {row['method']} | {row['n']} | {row['dtype']} | {figure(own['seconds'] * 1e3)} "
                     f"| {figure(row['seconds'] * 1e3)} | {ratio:.2f} | {ratio * own['ratio_to_memcpy']:.1f} |")
    return lines, lonely


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    read = []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            read.append(json.load(file))
    lines, lonely = table(*read)
    print("\n".join(lines))
    if lonely:
        print(f"kvmeld_bench has no row for: {', '.join(lonely)}", file=sys.stderr)
    return 0 if len(lines) > 2 else 1


if __name__ == "__main__":
    sys.exit(main())
