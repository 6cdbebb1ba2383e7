"""A module of the Python package as Markdown for Doxygen: signatures as they are written, docstrings as text. Imports nothing.

A paragraph of a docstring that begins with `name: text` is a list, in which each such line begins an item. A paragraph that is
indented is code. `#:` documents the attributes on the lines behind it. A public name without a docstring is an error.
"""
import ast
import itertools
import re
import textwrap

ITEM = re.compile(r"(\w+(?:, \w+)*): (.*)")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def prose(text):
    """Text in which Doxygen finds neither markup nor names of C++. What is in backquotes stays code."""

    def plain(part):
        part = re.sub(r"([\\@#<>&*\[\]])", r"\\\1", part)
        return re.sub(r"\b(?=[A-Za-z]\w*\()|\b(?=[A-Z]\w*[a-z])", "%", part)

    return "".join(p if p.startswith("`") else plain(p) for p in re.split(r"(`[^`]*`)", text))


def docstring(text):
    out = []
    for paragraph in re.split(r"\n\n+", text):
        if paragraph.startswith("    "):
            out.append("```\n" + textwrap.dedent(paragraph) + "\n```")
            continue
        parts, listed = [], ITEM.match(paragraph)
        for line in paragraph.splitlines():
            if not parts or (listed and ITEM.match(line)):
                parts.append(line)
            else:
                parts[-1] += " " + line.strip()
        for part in parts:
            if item := listed and ITEM.match(part):
                names = ", ".join(f"`{name}`" for name in item.group(1).split(", "))
                out.append(f"- {names}: {prose(item.group(2))}")
            else:
                out.append(prose(part))
    return "\n\n".join(out)


def documentation(node, name):
    text = ast.get_docstring(node)
    if not text:
        raise SystemExit(f"{name} has no docstring")
    return docstring(text)


def public(body, kinds):
    return [node for node in body if isinstance(node, kinds) and not node.name.startswith("_")]


def python_module(path, module):
    """What the module documents. module: the name by which users call it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    out = []

    def signature(node):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        return lines[first - 1 : node.body[0].lineno - 1]

    def show(level, name, source, text):
        anchor = "python_" + re.sub(r"\W", "_", name)
        code = textwrap.dedent("\n".join(source)).rstrip()
        out.extend([f"{level} {name} {{#{anchor}}}", "", "```", code, "```", "", text, ""])  # .py links to names of C++

    for node in public(ast.parse("\n".join(lines)).body, (*FUNCTIONS, ast.ClassDef)):
        name, source = f"{module}.{node.name}", signature(node)
        members = node.body if isinstance(node, ast.ClassDef) else []
        for member in members:  # fields, and how it is made
            if isinstance(member, ast.AnnAssign):
                source += lines[member.lineno - 1 : member.end_lineno]
            elif isinstance(member, FUNCTIONS) and member.name == "__init__":
                source += signature(member)
        show("###", name, source, documentation(node, name))
        if isinstance(node, ast.ClassDef):
            body = lines[node.lineno - 1 : node.end_lineno]
            for i, line in enumerate(body):
                if found := re.match(r"\s+#: (.*)", line):
                    names = itertools.takewhile(bool, (re.match(r"\s+self\.([a-z]\w*)\b[^(]", x) for x in body[i + 1 :]))
                    names = ", ".join(f"`{x.group(1)}`" for x in names)
                    out.extend([f"- {names}: {prose(found.group(1))}", ""])
        for member in public(members, FUNCTIONS):
            show("####", f"{name}.{member.name}", signature(member), documentation(member, f"{name}.{member.name}"))
    return out
