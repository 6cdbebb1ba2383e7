#!/usr/bin/env python3
"""Draws what the demo, kvmeld_paged or a calibration has written as JSON. Needs matplotlib.

  examples/plot.py build/demo/report.json figures.svg        # degrees, fates and attention mass of every row
  examples/plot.py build/demo/turns.json figures.svg         # recall by turn told and asked (--turns, --generate, --read)
  examples/plot.py serving.json serving.svg                  # kvmeld_paged --compare
  examples/plot.py calibration.json calibration.svg          # thresholds by layer, and what each head is worth

The ending of the second name chooses the format (svg, png, pdf).
"""
import argparse
import io
import json
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("plot.py")

import matplotlib

matplotlib.use("Agg")  # draws to files, needs no screen
matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.ticker import PercentFormatter  # noqa: E402

DEGREES = ["1", "2-3", "4-7", "8-15", "16-31", "32+"]
FATES = ["kept", "merged", "dropped"]
FATE_COLOURS = ["#009e73", "#e69f00", "#c8c8c8"]


def stacked(axes, places, parts, colours, names):
    """Horizontal bars of parts that add up to 1."""
    left = [0.0] * len(places)
    for part, colour, name in zip(zip(*parts), colours, names):
        axes.barh(places, part, left=left, color=colour, height=0.7, label=name)
        left = [a + b for a, b in zip(left, part)]
    axes.set_xlim(0, 1)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncol=len(names), fontsize=7, frameon=False,
                handlelength=1, columnspacing=1)


def draw_report(report):
    rows = [r for r in report["rows"] if r["kind"] != "full" and r["degrees"]]
    if not rows:
        sys.exit("the report has no row of a compressed cache")
    rows.sort(key=lambda r: -r["budget"])
    figure, (degrees, fates, mass) = plt.subplots(
        1, 3, figsize=(12, 1.2 + 0.24 * len(rows)), sharey=True, width_ratios=[3, 2, 2], layout="constrained")
    figure.suptitle(f"What compression did to the cache\n{report['model']}, {report['contexts']} contexts of "
                    f"{report['context']} tokens; all layers and heads")
    budgets = sorted({r["budget"] for r in rows}, reverse=True)
    places = [i + 0.7 * budgets.index(r["budget"]) for i, r in enumerate(rows)]  # a gap between budgets
    classes = [r["degrees"][:5] + [sum(r["degrees"][5:])] for r in rows]
    shades = [plt.get_cmap("Blues")(0.2 + 0.15 * i) for i in range(len(DEGREES))]
    stacked(degrees, places, classes, shades, DEGREES)
    degrees.set_title("Entries by degree", fontsize=10, pad=20)
    stacked(fates, places, [[1 - r["merged"] - r["dropped"], r["merged"], r["dropped"]] for r in rows],
            FATE_COLOURS, FATES)
    fates.set_title("What became of the tokens", fontsize=10, pad=20)
    for place, r in zip(places, rows):
        kept = r["mass_retained"]
        mass.barh(place, kept or 0, color="#0072b2", height=0.7)
        mass.text((kept or 0) + 0.02, place, "no score" if kept is None else f"{kept:.1%}", va="center", fontsize=7)
    mass.set_xlim(0, 1.15)
    mass.set_xticks([0, 0.5, 1])
    mass.set_title("Share of the score's mass retained", fontsize=10, pad=20)
    degrees.set_yticks(places, [f"{r['method']}, {r['budget']:.0%}" for r in rows], fontsize=8)
    degrees.invert_yaxis()
    for axes in (degrees, fates, mass):
        axes.tick_params(axis="x", labelsize=7)
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.spines[["top", "right"]].set_visible(False)


def draw_thresholds(axes, calibration):
    for i, at in enumerate(calibration["thresholds"]):
        layers = range(len(at["theta"]))
        axes.plot(layers, [sum(x) / len(x) for x in at["theta"]], color=f"C{i}", label=f"{at['ratio']:.0%} kept")
        for layer, samples in zip(layers, at["theta"]):
            beside = [layer + 0.3 * (s / len(samples) - 0.5) for s in range(len(samples))]
            axes.plot(beside, samples, "o", color=f"C{i}", markersize=3)
    axes.set_xticks(range(calibration["layers"]))
    axes.set_xlabel("layer")
    axes.set_title("KVMerger's threshold by layer, a dot per sample", fontsize=10)
    axes.grid(axis="y", color="#dddddd")
    axes.legend(frameon=False, fontsize=8)


def draw_heads(axes, calibration):
    named = [("unmatched keys (Chelsea)", calibration["unmatched"])] if calibration["unmatched"] else []
    named += [(m["method"], [max(0.0, h["cost"][0]) for h in m["heads"]]) for m in calibration["methods"]]
    largest = [max(values) for _, values in named]
    axes.imshow([[x / most if most > 0 else 0 for x in values] for (_, values), most in zip(named, largest)],
                cmap="Blues", aspect="auto", vmin=0, vmax=1)
    axes.set_yticks(range(len(named)), [name for name, _ in named], fontsize=8)
    heads = calibration["kv_heads"]
    axes.set_xticks([layer * heads + (heads - 1) / 2 for layer in range(calibration["layers"])],
                    [f"layer {layer}" for layer in range(calibration["layers"])], fontsize=8)
    for layer in range(1, calibration["layers"]):
        axes.axvline(layer * heads - 0.5, color="#555555", linewidth=1)
    for row, most in enumerate(largest):
        axes.text(len(named[0][1]) - 0.3, row, f"{most:.2f}", va="center", fontsize=8)
    axes.set_title("Bits lost if one KV head alone keeps least; at the right the row's largest", fontsize=10)


def draw_calibration(calibration):
    parts = [draw_thresholds] if calibration["thresholds"] else []
    parts += [draw_heads] if calibration["unmatched"] or calibration["methods"] else []
    if not parts:
        sys.exit("the calibration has neither thresholds nor heads")
    figure, axes = plt.subplots(1, len(parts), figsize=(6 * len(parts), 4.4), squeeze=False, layout="constrained")
    figure.suptitle(f"Calibration of {calibration['model']}, {calibration['samples']} samples of "
                    f"{calibration['tokens']} tokens")
    for draw, place in zip(parts, axes[0]):
        draw(place, calibration)


def draw_streams(report):
    rows = report["streams"]
    if not rows:
        sys.exit("the report has no row")
    columns = min(4, len(rows))
    height = -(-len(rows) // columns)
    figure = plt.figure(figsize=(3 * max(columns, 3), 3.6 + 2.9 * height), layout="constrained")
    lines, maps = figure.subfigures(2, 1, height_ratios=[3, 2.9 * height])
    figure.suptitle(f"A cache that is compressed while the text goes on\n{report['model']}, {report['contexts']} x "
                    f"{report['length']} tokens{', positions renumbered' if report['renumbered'] else ''}")
    bits, time = lines.subplots(1, 2)
    for i, row in enumerate(rows):
        ends = [sum(p["tokens"] for p in row["parts"][:j + 1]) / report["contexts"] for j in range(len(row["parts"]))]
        style = {"color": "black" if row["kind"] == "full" else f"C{i % 10}", "marker": "o", "markersize": 3,
                 "linestyle": ":" if row["kind"] == "full" else "-" if row["kind"] == "merge" else "--"}
        bits.plot(ends, [p["bits_per_byte"] for p in row["parts"]], label=named(row), **style)
        time.plot(ends, [p["ms_per_token"] for p in row["parts"]], **style)
    bits.set_title("bits per byte, outside of the numbers told", fontsize=10)
    time.set_title("ms per token, without compression", fontsize=10)
    time.set_ylim(bottom=0)
    for axes in (bits, time):
        axes.set_xlabel("tokens read", fontsize=8)
        axes.grid(axis="y", color="#dddddd")
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    bits.legend(frameon=False, fontsize=7)
    part = "turn" if report["mode"] == "turns" else "part"
    places = maps.subplots(height, columns, squeeze=False)
    for axes in places.flat[len(rows):]:
        axes.set_axis_off()
    for axes, row in zip(places.flat, rows):
        parts = len(row["parts"])
        shown = [[float("nan") if told > asked else row["parts"][asked]["recall"][told] for told in range(parts)]
                 for asked in range(parts)]
        picture = axes.imshow(shown, vmin=0, vmax=1, cmap="viridis", extent=(0.5, parts + 0.5, parts + 0.5, 0.5))
        axes.set_title(named(row), fontsize=9)
        axes.set_xlabel(f"told in {part}", fontsize=8)
        axes.set_ylabel(f"asked after {part}", fontsize=8)
        axes.tick_params(labelsize=7)
    maps.colorbar(picture, ax=places, format=PercentFormatter(1), shrink=0.6, label="digits recalled")


def draw_serving(report):
    rows = report["serving"]
    full = rows[0]
    figure, (running, speed, digits) = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    figure.suptitle(f"{report['requests']} requests of {report['mean_prompt']:.0f} tokens on average, "
                    f"{report['pages']} pages of {report['page_size']} tokens")
    for i, policy in enumerate(dict.fromkeys(r["policy"] for r in rows[1:])):
        of = sorted([full] + [r for r in rows if r["policy"] == policy], key=lambda r: r["share"])
        shares = [r["share"] for r in of]
        style = {"color": f"C{i % 10}", "marker": "o", "markersize": 4, "label": policy}
        running.plot(shares, [r["mean_running"] for r in of], **style)
        speed.plot(shares, [r["requests_per_second"] for r in of], **style)
        digits.plot(shares, [r["digits_right"] / max(r["digits"], 1) for r in of], **style)
    for axes, title in ((running, "requests that run at a time"), (speed, "requests answered a second"),
                        (digits, "digits right")):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("budget: share of the mean prompt", fontsize=8)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#dddddd")
        axes.tick_params(labelsize=7)
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.spines[["top", "right"]].set_visible(False)
    digits.yaxis.set_major_formatter(PercentFormatter(1))
    digits.legend(frameon=False, fontsize=8)


def named(row):
    return row["method"] if row["kind"] == "full" else f"{row['method']}, {row['budget']:.0%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", help="what the demo, kvmeld_paged (--json) or kvmeld_calibrate (--out) wrote")
    parser.add_argument("picture", type=_program.output_path, help="the file to write")
    given = parser.parse_args()
    found = json.loads(_program.read_file(given.json))
    if not isinstance(found, dict):
        found = {}
    if "rows" in found:
        draw_report(found)
    elif "streams" in found:
        draw_streams(found)
    elif "serving" in found:
        draw_serving(found)
    elif "kvmeld_calibration" in found:
        draw_calibration(found)
    else:
        sys.exit(f"{given.json}: no report of the demo or of kvmeld_paged, and no calibration")
    picture, ending = io.BytesIO(), pathlib.Path(given.picture).suffix[1:] or "png"
    plt.savefig(picture, format=ending, metadata={"Date": None} if ending == "svg" else None)
    _program.write_file(given.picture, picture.getvalue())


if __name__ == "__main__":
    main()
