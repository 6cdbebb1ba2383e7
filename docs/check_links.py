#!/usr/bin/env python3
"""Whether links lead anywhere: in a built site, every href, src and #anchor on disk; in the repository's Markdown, every
relative link and every heading that one names. Asks no network; links to other hosts are not looked at.

    check_links.py --site build/docs/site --source .
    check_links.py --source .
"""
import argparse
import html.parser
import pathlib
import re
import subprocess
import sys
import urllib.parse

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("check_links.py")

ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


class page_reader(html.parser.HTMLParser):
    """The links of a page, and the names that links to it may end in."""

    def __init__(self):
        super().__init__()
        self.links, self.names = [], set()

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if value is None:
                continue
            if name in ("id", "name"):
                self.names.add(value)
            if name in ("href", "src", "xlink:href") or (tag == "object" and name == "data"):
                self.links.append(value)


def read_page(path):
    reader = page_reader()
    reader.feed(path.read_text(encoding="utf-8", errors="replace"))
    return reader


def site_problems(site):
    """What is wrong in a built site, and how many links there are."""
    parts = [site / "mathjax", site / "source", site / "doxygen.svg"]  # what others drew, and sources as text
    files = [p for p in site.rglob("*") if p.suffix in (".html", ".svg") and not any(x == p or x in p.parents for x in parts)]
    read = {p.resolve(): read_page(p) for p in files}
    problems, count = [], 0
    for path, page in sorted(read.items()):
        for link in page.links:
            if ELSEWHERE.match(link):
                continue
            count += 1
            name, _, anchor = urllib.parse.unquote(link).partition("#")
            to = (path.parent / name.partition("?")[0]).resolve() if name else path
            where = f"{path.relative_to(site.resolve())}: {link}"
            if not to.exists():
                problems.append(f"{where}: no such file")
            elif anchor and to in read and anchor not in read[to].names:
                problems.append(f"{where}: no such anchor")
    return problems, count


def without_code(text):
    """Markdown without fenced blocks and code spans, which hold no links. Lines stay where they are."""
    blank = lambda m: "\n" * m.group(0).count("\n")
    text = re.sub(r"^```.*?^```", blank, text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda m: "`" * len(m.group(0)), text)


def slugs(text):
    """The anchors that Git hosts give to the headings of a page."""
    seen, out = {}, set()
    fenceless = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ +(.*?)\s*$", fenceless, flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        out.add(slug + (f"-{seen[slug]}" if slug in seen else ""))
        seen[slug] = seen.get(slug, 0) + 1
    return out


def repository_files(source):
    """What Git tracks or would track; of a copy without Git all but build/."""
    if not (source / ".git").exists():
        names = [p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file()]
        return [n for n in names if not n.startswith("build/")]
    listed = subprocess.run(["git", "-C", source, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            check=True, capture_output=True, text=True).stdout
    return [n for n in listed.split("\0") if n]


def markdown_problems(source):
    """What is wrong in the repository's Markdown, and how many links there are."""
    names = repository_files(source)
    known = {(source / n).resolve() for n in names}
    known |= {folder for file in known for folder in file.parents}
    problems, count = [], 0
    for name in sorted(n for n in names if n.endswith(".md")):
        path = (source / name).resolve()
        if not path.exists():
            continue
        text = path.read_text(encoding="utf-8")
        for number, line in enumerate(without_code(text).splitlines(), 1):
            for link in re.findall(r"\]\(([^)\s]+)\)", line):
                if ELSEWHERE.match(link):
                    continue
                count += 1
                file, _, anchor = urllib.parse.unquote(link).partition("#")
                to = (path.parent / file).resolve() if file else path
                if to not in known:
                    problems.append(f"{name}:{number}: {link}: the repository has no such file")
                elif anchor and to.suffix == ".md" and anchor not in slugs(to.read_text(encoding="utf-8")):
                    problems.append(f"{name}:{number}: {link}: no such heading")
    return problems, count


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--site", type=pathlib.Path, help="a built site")
    arguments.add_argument("--source", type=pathlib.Path, help="the repository")
    a = arguments.parse_args()
    problems, told = [], []
    for folder, look, what in ((a.site, site_problems, "the site"), (a.source, markdown_problems, "Markdown")):
        if folder is None:
            continue
        found, count = look(folder)
        problems += found
        told.append(f"{count} links of {what}")
        if count == 0:
            problems.append(f"{folder}: no links at all, so nothing was checked")
    print("\n".join(problems) if problems else "links that lead somewhere: " + ", ".join(told))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
