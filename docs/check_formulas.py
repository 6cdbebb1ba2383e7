#!/usr/bin/env python3
"""Whether the formulas of a built site are ones that its MathJax can show: every command known to the parts that its pages
load, braces, \\left and environments in pairs.

    check_formulas.py --site build/docs/site
"""
import argparse
import collections
import html
import pathlib
import re
import sys


sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("check_formulas.py")

def known_commands(site, extensions):
    """Names of commands and environments in MathJax's TeX input and the extensions that pages load."""
    files = [site / "mathjax/jax/input/TeX/jax.js"]
    files += [site / "mathjax/extensions" / name for name in extensions]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    return set(re.findall(r'[{,]"?(?:\\\\)?([A-Za-z]+\*?)"?:', text))


def formulas(text):
    """The formulas of a page, as Doxygen writes them."""
    for block, line in re.findall(r'<p class="formulaDsp">\s*\\\[(.*?)\\\]|\\\(([^<]*?)\\\)', text, flags=re.DOTALL):
        yield html.unescape(block or line)


def formula_problems(formula, known):
    for name in re.findall(r"\\([A-Za-z]+)", formula):
        if name not in known and name not in ("begin", "end"):
            yield f"\\{name} is no command"
    for name in re.findall(r"\\begin\{(\w+\*?)\}", formula):
        if name not in known:
            yield f"{name} is no environment"
    bare = re.sub(r"\\[{}]", "", formula)
    if bare.count("{") != bare.count("}"):
        yield "braces are not in pairs"
    if len(re.findall(r"\\left\b", formula)) != len(re.findall(r"\\right\b", formula)):
        yield "\\left and \\right are not in pairs"
    if collections.Counter(re.findall(r"\\begin\{(.*?)\}", formula)) != collections.Counter(
            re.findall(r"\\end\{(.*?)\}", formula)):
        yield "\\begin and \\end are not in pairs"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--site", type=pathlib.Path, required=True, help="a built site")
    site = arguments.parse_args().site
    problems, count = [], 0
    for page in sorted(site.glob("*.html")):
        text = page.read_text(encoding="utf-8")
        loaded = re.search(r"extensions: \[([^\]]*)\]", text)
        known = None
        for formula in formulas(text):
            known = known or known_commands(site, re.findall(r'TeX/\w+\.js', loaded.group(1)))
            count += 1
            problems += [f"{page.name}: {p}: {' '.join(formula.split())}" for p in formula_problems(formula, known)]
    if count == 0:
        problems.append(f"{site}: no formulas at all, so nothing was checked")
    print("\n".join(problems) if problems else f"{count} formulas that MathJax knows")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
