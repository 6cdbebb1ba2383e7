"""Markdown as Doxygen shall see it: links, headings, formulas and diagrams become Doxygen's, so that pages read well here and
on a Git host.

- a link to a page or to one of its headings leads to it in the site, one to a public header to its documentation, one to another
  file to a copy of it that every browser shows;
- ```math and $`...`$ are formulas, and <!-- diagram: name.dot --> is a picture of docs/diagrams;
- <!-- header: include/kvmeld/kvmeld.h --> is a header in C, a heading for each of its sections;
- <!-- python: python/kvmeld/hf.py as kvmeld.hf --> is a module of Python, a heading for each of its names.
"""
import re
import shutil

from python import python_module

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
PARENTS = ["docs/index.md", "docs/guide.md", "docs/engines.md"]  # a page is listed below the first that links to it


def slug(heading):
    text = re.sub(r"[^\w\- ]", "", heading.lower())
    return text.replace(" ", "-")


def header_in_c(path):
    """A header in C as a page's text: /* --- section --- */ becomes a heading."""
    out = ["```{.c}"]
    for line in path.read_text().splitlines():
        if section := re.match(r"^/\* --- (.*?) -+ \*/$", line):
            while out[-1] == "":
                out.pop()
            out += ["```", "", f"### {section.group(1).capitalize()}", "", "```{.c}"]
        elif line or not out[-1].startswith("```"):
            out.append(line)
    return out + ["```"]


class page_set:
    """The pages of the repository, and which of them are listed below which."""

    def __init__(self, source, out, site, headers):
        self.source, self.out, self.site, self.headers = source, out, site, headers
        self.parents = {}
        names = [p for p in (source / "docs").rglob("*.md")]
        names += [source / n for n in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
        self.names = {p.resolve() for p in names if p.exists()}

    def identifier(self, page):
        name = page.relative_to(self.source.resolve()).with_suffix("").as_posix()
        return "page_" + re.sub(r"\W", "_", name.lower())

    def anchor(self, page, heading):
        return self.identifier(page) + "_" + re.sub(r"\W", "_", slug(heading))

    def link(self, page, image, text, target):
        if re.match(r"[a-z]+:", target):
            return f"{image}[{text}]({target})"
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if image:
            return f"![{text}]({file.name})"
        if file in self.names:
            if fragment:
                return f"[{text}](@ref {self.anchor(file, fragment)})"
            parent = page.relative_to(self.source.resolve()).as_posix()
            word = "ref"
            if parent in PARENTS and file not in self.parents and parent != file:
                self.parents[file] = parent
                word = "subpage"
            return f'@{word} {self.identifier(file)} "{text}"'
        if file in self.headers:
            return f'@ref {file.relative_to(self.source.resolve() / "include").as_posix()} "{text}"'
        if file.is_file():  # shown as text by every browser
            name = file.relative_to(self.source.resolve()).as_posix()
            copy = self.site / "source" / (name + ".txt")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
            return f'<a href="source/{name}.txt">{text.replace("`", "")}</a>'
        return text

    def line(self, page, line, seen):
        if heading := re.match(r"^(#+) (.*)$", line):
            first = not seen
            seen.append(heading.group(2))
            if first and page.name == "README.md":
                return f"# README {{#{self.identifier(page)}}}"
            name = self.identifier(page) if first else self.anchor(page, heading.group(2))
            return f"{heading.group(1)} {heading.group(2)} {{#{name}}}"
        if diagram := re.match(r"^<!-- diagram: (\S+) -->$", line):
            return f"@dotfile {diagram.group(1)}"
        line = re.sub(r"\*\*(`[^`]+`)\*\*", r"<b>\1</b>", line)
        line = re.sub(r"\$`([^`]+)`\$", r"\\f$\1\\f$", line)
        if header := re.match(r"^<!-- header: (\S+) -->$", line):
            return "\n".join(header_in_c(self.source / header.group(1)))
        if module := re.match(r"^<!-- python: (\S+) as (\S+) -->$", line):
            return "\n".join(python_module(self.source / module.group(1), module.group(2)))
        code = re.split(r"(?<!\[)(`[^`]*`)(?!\])", line)
        return "".join(
            part if part.startswith("`") else LINK.sub(lambda m: self.link(page, *m.groups()), part) for part in code)

    def text(self, page):
        seen, out, fence = [], [], None
        for line in page.read_text().splitlines():
            if fence is None and line.startswith("```"):
                fence = line[3:].strip()
                out.append({"math": "\\f[", "": "```", "c": "```{.c}", "cpp": "```{.cpp}"}.get(fence, "```"))
            elif fence is not None and line.startswith("```"):
                out.append("\\f]" if fence == "math" else "```")
                fence = None
            else:
                out.append(line if fence is not None else self.line(page, line, seen))
        return "\n".join(out) + "\n"

    def write(self):
        first = [self.source.resolve() / name for name in PARENTS]
        for page in first + sorted(self.names - set(first)):
            copy = self.out / page.relative_to(self.source.resolve())
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(self.text(page))


def prepare_pages(source, out, site, headers):
    """Writes all pages below out, and the sources that they link to below site/source."""
    page_set(source, out, site, headers).write()
