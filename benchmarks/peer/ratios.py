"""Joins the figures of kvmeld_bench and torch_peer.py into one table, in Markdown.

    python3 benchmarks/peer/ratios.py build/bench/results.json peer.json
"""
import json
import sys


def figure(milliseconds):
    return f"{milliseconds:.3g}" if milliseconds < 100 else f"{milliseconds:.0f}"


def table(ours, theirs):
    """Rows of the methods and inputs that both have, as the peer lists them."""
    seconds = {(row["name"], row["n"], row["dtype"]): row["seconds"] for row in ours["rows"]}
    lines = ["| method | n | dtype | kvmeld ms | PyTorch ms | PyTorch / kvmeld |", "|---" * 6 + "|"]
    lonely = []
    for row in theirs:
        own = seconds.get((f"compress/{row['method']}", row["n"], row["dtype"]))
        if own is None:
            lonely.append(f"{row['method']} {row['n']} {row['dtype']}")
            continue
        lines.append(f"| {row['method']} | {row['n']} | {row['dtype']} | {figure(own * 1e3)} "
                     f"| {figure(row['seconds'] * 1e3)} | {row['seconds'] / own:.2f} |")
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
