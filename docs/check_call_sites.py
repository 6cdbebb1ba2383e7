#!/usr/bin/env python3
"""Whether the places in an engine that a page of docs/engines/ names are where the page says, in a package that is installed,
in its folder or in its wheel. Nothing of the package is imported.

    check_call_sites.py docs/engines/vllm.md vllm
    check_call_sites.py docs/engines/sglang.md sglang-0.5.23-py3-none-any.whl

The page's tables are what is read: rows whose first cell is a file, as `v1/request.py`, and whose second is a class, function,
method, attribute or field in it, as `Request.num_computed_tokens` or `BlockPool.touch(blocks)`. Names in parentheses have to
be parameters. A third cell of names alone, as `seq_lens`, `block_table`, says what the place has to mention; - is none.
"""
import argparse
import ast
import importlib.util
import pathlib
import re
import sys
import zipfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("check_call_sites.py")

FILE = re.compile(r"`([\w/]+\.py)`")
PLACE = re.compile(r"`([\w.]+)(?:\(([\w, ]*)\))?`")
NAMES = re.compile(r"`[\w.]+`(?:, `[\w.]+`)*")


def rows_of(page):
    """File, place, parameters and mentions of each row, with its line."""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        file, place = (FILE.fullmatch(cells[0]), PLACE.fullmatch(cells[1])) if len(cells) > 2 else (None, None)
        if file and place:
            names = re.findall(r"`([\w.]+)`", cells[2]) if NAMES.fullmatch(cells[2]) else []
            yield number, file[1], place[1].split("."), re.findall(r"\w+", place[2] or ""), names


class Folder:
    """A package as a folder."""

    def __init__(self, folder):
        self.folder = folder
        infos = sorted(folder.parent.glob(f"{folder.name.replace('-', '_')}*.dist-info"))
        self.version = infos[-1].stem.split("-")[1] if infos else "of unknown version"

    def names(self):
        return [path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.py")]

    def read(self, name):
        return (self.folder / name).read_text(encoding="utf-8")


class Wheel:
    """A package in a wheel: its folder is the one with most files."""

    def __init__(self, path):
        self.archive = zipfile.ZipFile(path)
        folders = [name.split("/")[0] for name in self.archive.namelist() if name.endswith(".py")]
        self.top = max(set(folders), key=folders.count) + "/" if folders else "/"
        self.version = path.name.split("-")[1] if "-" in path.name else "of unknown version"

    def names(self):
        return [n[len(self.top):] for n in self.archive.namelist() if n.startswith(self.top) and n.endswith(".py")]

    def read(self, name):
        return self.archive.read(self.top + name).decode("utf-8")


def package_at(where):
    path = pathlib.Path(where)
    if path.is_dir():
        return Folder(path.resolve())
    if path.is_file():
        return Wheel(path)
    found = importlib.util.find_spec(where) if where.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"PACKAGE {where} must be a folder, a wheel or an installed package")
    return Folder(pathlib.Path(list(found.submodule_search_locations)[0]))


def member(node, name):
    """What a module, class or function has under a name: a definition, a variable, a field, or a self.name that a method sets."""
    for inner in ast.walk(node):
        targets = []
        if isinstance(inner, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and inner is not node and inner.name == name:
            return inner
        if isinstance(inner, ast.Assign):
            targets = [t for target in inner.targets for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
        elif isinstance(inner, ast.AnnAssign):
            targets = [inner.target]
        for target in targets:
            if isinstance(target, ast.Name) and target.id == name:
                return inner
            if isinstance(target, ast.Attribute) and target.attr == name and getattr(target.value, "id", "") == "self":
                return inner
    return None


def parameters(node):
    """Of a function, or of what a class is made from."""
    if isinstance(node, ast.ClassDef):
        made = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
        if made is None:
            return {f.target.id for f in node.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)}
        node = made
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return set()
    return {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}


def mentioned(node):
    """Names, attributes, arguments and texts in a place."""
    found = set()
    for inner in ast.walk(node):
        found |= {getattr(inner, field, None) for field in ("id", "attr", "arg", "name")}
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            found.add(inner.value)
    return found


def elsewhere(package, first):
    """Where a class or function of a name is now, for a message."""
    text = re.compile(rf"^(?:class|def|async def) {re.escape(first)}\b", re.MULTILINE)
    found = [name for name in package.names() if text.search(package.read(name))]
    return f"; there is one in {', '.join(found[:3])}" if found else ""


def problem_of(package, file, place, wanted, names):
    """What is wrong with a row, and None if nothing is."""
    try:
        node = ast.parse(package.read(file))
    except (OSError, KeyError):
        return f"there is no such file{elsewhere(package, place[0])}"
    for i, name in enumerate(place):
        node = member(node, name)
        if node is None:
            return f"there is no {'.'.join(place[: i + 1])}{elsewhere(package, name) if i == 0 else ''}"
    missing = [name for name in wanted if name not in parameters(node)]
    if missing:
        return f"{'.'.join(place)} has no parameter {', '.join(missing)}"
    missing = [name for name in names if name.split(".")[-1] not in mentioned(node)]
    return f"{'.'.join(place)} does not mention {', '.join(missing)}" if missing else None


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("page", metavar="PAGE", type=pathlib.Path, help="a page of docs/engines/")
    arguments.add_argument("package", metavar="PACKAGE", help="the name of an installed package, its folder or its wheel")
    a = arguments.parse_args()
    package = package_at(a.package)
    rows = list(rows_of(a.page))
    if not rows:
        raise ValueError(f"PAGE {a.page} must have a table of places")
    moved = [f"{a.page}:{number}: {file}: {problem}" for number, file, place, wanted, names in rows
             if (problem := problem_of(package, file, place, wanted, names))]
    print("\n".join(moved + [f"{a.package} {package.version}: {len(rows) - len(moved)} of {len(rows)} places are where {a.page} says"]))
    sys.exit(1 if moved else 0)


if __name__ == "__main__":
    main()
