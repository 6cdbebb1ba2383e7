"""What the rows say together: means with intervals, a table, a chart, and which policy is worth its bytes."""

from __future__ import annotations

import io
from collections import defaultdict
from typing import Any, Optional, Sequence

import numpy as np

from kvmeld.evaluate.tasks import TASKS

__all__ = ["Key", "chart", "front", "key_of", "markdown", "summarise", "table", "verdict"]

Key = tuple[str, str, float]  # the name of a policy, the tracks that share a budget, the budget
DRAWS, LOW, HIGH = 2000, 2.5, 97.5  # of the bootstrap over contexts
LOSSES = (0.01, 0.05, 0.10)
ABLE = 0.2  # the least share of right answers with the full cache from which anything follows


def key_of(row: dict[str, Any]) -> Key:
    return row["policy"], row["over"], row["budget"]


def _interval(totals: np.ndarray, rng: np.random.Generator) -> list[float]:
    """[estimate, low, high] of sum / sum over contexts: totals [contexts, 2], of which some contexts are drawn."""
    estimate = totals[:, 0].sum() / max(totals[:, 1].sum(), 1e-300)
    drawn = totals[rng.integers(0, len(totals), (DRAWS, len(totals)))].sum(axis=1)
    low, high = np.percentile(drawn[:, 0] / np.maximum(drawn[:, 1], 1e-300), [LOW, HIGH])
    return [float(estimate), float(low), float(high)]


def summarise(rows: Sequence[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    """Means over contexts, by (policy, over, budget), in the order of the rows.

    exact: the share of answers that are right in all tokens; of_full: the same over that of the full cache in the same
    contexts; nats: the loss of a token of the right answers, in nats; copy: the same of sentences to continue; kl: the
    divergence from the full cache on the text that follows, in nats a token. Each is [mean, low, high], with an interval of
    95% by 2,000 draws of contexts. by_task: exact, by the kind of question. The other numbers are plain means. All rows are
    of one mode."""
    of: dict[Key, dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        of[key_of(row)][row["context"]] = row
    full = next((found for (name, _, _), found in of.items() if name == "full"), {})

    def sums(row: dict[str, Any], what: str, copies: bool = False) -> list[float]:
        asked = [q for q in row["questions"] if (q["task"] == "copy") == copies]
        return [sum(q[what] for q in asked), len(asked) if what == "exact" else sum(q["tokens"] for q in asked)]

    out = {}
    for key, by_context in of.items():
        found = list(by_context.values())
        rng = np.random.default_rng(0)
        s: dict[str, Any] = {"contexts": len(found)}
        s["exact"] = _interval(np.array([sums(r, "exact") for r in found], float), rng)
        s["nats"] = _interval(np.array([sums(r, "nats") for r in found], float), rng)
        copies = np.array([sums(r, "nats", True) for r in found], float)
        s["copy"] = _interval(copies, rng) if copies[:, 1].sum() else None
        s["kl"] = _interval(np.array([[r["kl"], 1] for r in found]), rng) if "kl" in found[0] else None
        paired = [[sums(r, "exact")[0], sums(full[c], "exact")[0]] for c, r in by_context.items() if c in full]
        s["of_full"] = _interval(np.array(paired, float), rng) if paired and sum(p[1] for p in paired) else None
        s["by_task"] = {}
        for task in TASKS:
            right = [q["exact"] for r in found for q in r["questions"] if q["task"] == task]
            s["by_task"][task] = float(np.mean(right)) if right else None
        for name in ("entries", "kv_bytes", "full_bytes", "ledger_bytes", "tensor_bytes", "compress_ms", "observe_ms",
                     "tokens_per_s", "on_nats"):
            values = [r[name] for r in found if r.get(name) is not None]
            s[name] = float(np.mean(values)) if values else None
        out[key] = s
    return out


def _bytes(s: dict[str, Any]) -> float:
    """What a cache holds with its ledger, as a share of the full cache's rows."""
    return (s["kv_bytes"] + s["ledger_bytes"]) / s["full_bytes"]


def _own(summary: dict[Key, dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    return {key: s for key, s in summary.items() if key[0] not in ("full", "random") and s["of_full"] is not None}


def front(summary: dict[Key, dict[str, Any]]) -> list[Key]:
    """The policies and budgets that no other one beats: none gives more right answers with as few bytes. Those with the
    fewest bytes come first. Bytes are rounded to a percent of the full cache's."""
    best, kept = -1.0, []
    for key, s in sorted(_own(summary).items(), key=lambda item: (round(_bytes(item[1]), 2), -item[1]["of_full"][0])):
        if s["of_full"][0] > best:
            best = s["of_full"][0]
            kept.append(key)
    return kept


def _named(key: Key) -> str:
    name, over, _ = key
    return name if over == "head" else f"{name}@{over}"


def _by_budget(summary: dict[Key, dict[str, Any]]) -> list[tuple[Key, dict[str, Any]]]:
    """The full cache first, then the largest budgets."""
    return sorted(summary.items(), key=lambda item: (item[0][0] != "full", -item[0][2]))


def table(summary: dict[Key, dict[str, Any]]) -> str:
    """The figures as lines of a fixed width; a star marks what lies on the front of answers against bytes."""
    stars = set(front(summary))
    width = max([len(_named(key)) for key in summary] + [8]) + 1
    head = (f"{'policy':{width}} {'budget':>6}  {'exact':>5} {'of full':>7} {'(95%)':>12}  " +
            " ".join(f"{task:>6}" for task in TASKS) +
            f"  {'nats':>5} {'copy':>5} {'KL':>6}  {'entries':>7} {'KV MB':>6} {'ledger':>6} {'compress ms':>11} {'tokens/s':>8}")
    lines = [head, "-" * len(head)]
    before: Optional[float] = None

    def cell(value: Any, form: str, wide: int) -> str:
        value = value[0] if isinstance(value, list) else value
        return f"{'-':>{wide}}" if value is None else f"{value:{wide}{form}}"

    for key, s in _by_budget(summary):
        if before is not None and key[2] != before:
            lines.append("")
        before = key[2]
        of = s["of_full"]
        spread = f"{of[1]:5.0%} to {of[2]:.0%}" if of else ""
        lines.append(
            f"{_named(key):{width}} {key[2]:6.0%} {'*' if key in stars else ' '}{cell(s['exact'], '.0%', 5)} "
            f"{cell(of, '.0%', 7)} {spread:>12}  " +
            " ".join(cell(s["by_task"][task], ".0%", 6) for task in TASKS) +
            f"  {cell(s['nats'], '.2f', 5)} {cell(s['copy'], '.2f', 5)} {cell(s['kl'], '.3f', 6)}  "
            f"{cell(s['entries'], '.1%', 7)} {s['kv_bytes'] / 1e6:6.1f} {s['ledger_bytes'] / 1e6:6.2f} "
            f"{s['compress_ms']:11.0f} {cell(s['tokens_per_s'], '.1f', 8)}")
    return "\n".join(lines)


def markdown(summary: dict[Key, dict[str, Any]]) -> str:
    """The figures as a table of Markdown, with intervals."""
    lines = ["| policy | budget | exact of full | where / what / who / number | nats | copy | KL | MB |",
             "|---|---|---|---|---|---|---|---|"]

    def spread(value: Any, form: str) -> str:
        if value is None:
            return "-"
        return f"{value[0]:{form}} ({value[1]:{form}} to {value[2]:{form}})"

    for key, s in _by_budget(summary):
        tasks = " / ".join("-" if s["by_task"][task] is None else f"{s['by_task'][task]:.2f}" for task in TASKS)
        lines.append(f"| `{_named(key)}` | {key[2]:.0%} | {spread(s['of_full'], '.2f')} | {tasks} | {spread(s['nats'], '.2f')} "
                     f"| {spread(s['copy'], '.2f')} | {spread(s['kl'], '.3f')} | {(s['kv_bytes'] + s['ledger_bytes']) / 1e6:.1f} |")
    return "\n".join(lines)


def verdict(summary: dict[Key, dict[str, Any]]) -> str:
    """One sentence for each loss of answers: which policy with the fewest bytes loses less, and what it costs. Of those with
    as few bytes, to a percent of the full cache's, one that reads the prompt once comes first, and then the best."""
    own = _own(summary)
    said = []
    full = next((s["exact"][0] for (name, _, _), s in summary.items() if name == "full"), None)
    if full is not None and full < ABLE:
        said.append(f"The full cache itself answers {full:.0%} of the questions: the model, its tokenizer or its chat template does not"
                    " suit them, and nothing follows from the shares of these answers.")
    for loss in LOSSES:
        good = [key for key, s in own.items() if s["of_full"][0] >= 1 - loss]
        if not good:
            said.append(f"Nothing that was tried loses less than {loss:.0%} of the answers.")
            continue
        slow = {k: (own[k]["observe_ms"] or 0) >= 100 for k in good}  # a second reading, above all
        key = min(good, key=lambda k: (round(_bytes(own[k]), 2), slow[k], -own[k]["of_full"][0]))
        s = own[key]
        second = f" and {s['observe_ms'] / 1e3:.1f} s to observe" if slow[key] else ""
        said.append(f"Less than {loss:.0%} of the answers are lost by {_named(key)} at {key[2]:.0%} ({s['of_full'][0]:.0%} of the full"
                    f" cache's answers, {s['of_full'][1]:.0%} to {s['of_full'][2]:.0%}; {_bytes(s):.0%} of the bytes; {s['compress_ms']:.0f} ms to"
                    f" compress{second}).")
    return "\n".join(said)


def chart(summary: dict[Key, dict[str, Any]], title: str) -> bytes:
    """Answers against bytes as an SVG: a line for each policy, intervals, and rings where no other one is better. Needs
    matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullFormatter, PercentFormatter

    matplotlib.rcParams["svg.hashsalt"] = "kvmeld"
    figure, ax = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    drawn = {key: s for key, s in summary.items() if key[0] != "full" and s["of_full"] is not None}
    names = list(dict.fromkeys(_named(key) for key in drawn))
    best = {name: max(s["of_full"][0] for key, s in drawn.items() if _named(key) == name) for name in names}
    colours = matplotlib.colormaps["tab20"]
    marks = "osD^vP*Xphd<>"
    for i, name in enumerate(sorted(names, key=lambda n: -best[n])):
        points = sorted((_bytes(s), *s["of_full"]) for key, s in drawn.items() if _named(key) == name)
        x, y, low, high = map(np.array, zip(*points))
        grey = name.startswith("random")
        ax.errorbar(x, y, yerr=[np.maximum(y - low, 0), np.maximum(high - y, 0)], label=name, marker=marks[i % len(marks)], ms=5,
                    lw=1.2 + 2.4 * (1 - i / len(names)), elinewidth=0.6, capsize=2, color="0.6" if grey else colours(i % 20), ls=":" if grey else "-")
    stars = [(_bytes(summary[key]), summary[key]["of_full"][0]) for key in front(summary)]
    if stars:
        ax.scatter(*zip(*stars), s=150, facecolors="none", edgecolors="black", lw=1.3, zorder=5, label="no other one is better")
    ax.axhline(1, color="0.5", lw=0.8, ls="--")
    ax.set_xscale("log", base=2)
    shares = sorted({round(_bytes(s), 2) for s in drawn.values()})
    if shares:
        ticks = [t for t in (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1) if shares[0] / 2 <= t <= max(1, shares[-1])]
        ax.set_xticks(ticks)
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set(xlabel="bytes held, ledger included, of the full cache's keys and values", ylabel="answers that the full cache gives too",
           ylim=(-0.03, None))
    ax.set_title(title, fontsize="medium")
    ax.grid(True, lw=0.3)
    if names:
        ax.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    return picture.getvalue()
