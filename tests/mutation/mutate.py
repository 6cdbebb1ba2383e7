#!/usr/bin/env python3
"""Mutation testing: which small changes of the headers does no test notice?

A copy of include/ gets a run-time switch at every place that can be changed (mutants.hpp), so that the tests compile once. A run
without a mutant tells which test cases reach which place; every mutant then runs only against those, the fastest first.

Needs clang++ and the Python package libclang (pip install libclang). For example:
  tests/mutation/mutate.py build --folders core select      # build/mutation: headers with switches, and the tests
  tests/mutation/mutate.py run --sample 300 --seed 1        # 300 mutants drawn at random; report in build/mutation
Mutants that cannot change what the library does are listed in equivalent.txt: path, mutation and source line, then the reason.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("mutate.py")

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ROOMS = ["core", "exec", "queries", "select", "identify", "merge", "apply", "policy", "rounds", "sequences", "save", "cache"]
TESTS = ROOMS + ["sequences", "properties", "preset", "score"]

BINARY = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne", "+": "add", "-": "sub", "*": "mul",
          "/": "div", "%": "rem", "&": "band", "|": "bor", "^": "bxor"}
ASSIGN = {"+=": "add_to", "-=": "sub_from", "*=": "mul_by", "/=": "div_by", "|=": "or_to", "&=": "and_to"}
OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "+", "/": "*",
         "%": "*", "&": "|", "|": "&", "^": "&", "+=": "-=", "-=": "+=", "*=": "+=", "/=": "*=", "|=": "&=",
         "&=": "|="}
# Calls that one lane does not need, and what only tells a compiler or a reader something.
KEPT_CALLS = re.compile(r"^(?:\w+[.\->]+)*(?:template )?(?:sync|end_tile|static_cast<void>|assert|found)\b|^\(void\)")


class Sources:
    """Finds the places in the headers, with libclang."""

    def __init__(self, rooms):
        import clang.cindex as cindex
        self.kind = cindex.CursorKind
        self.files = {}
        for room in rooms:
            for path in sorted((ROOT / "include/kvmeld" / room).rglob("*.hpp")):
                self.files[str(path)] = path.read_text()
        self.mutants, self.edits, self.taken = [], {}, set()
        resources = subprocess.run(["clang++", "-print-resource-dir"], capture_output=True, text=True, check=True)
        everything = "".join(f'#include "{path}"\n' for path in self.files)
        unit = cindex.Index.create().parse(
            "everything.cpp", args=["-std=c++17", "-I", str(ROOT / "include"), "-isystem",
                                    resources.stdout.strip() + "/include", "-w"],
            unsaved_files=[("everything.cpp", everything + "#include <kvmeld/kvmeld.hpp>\n")])
        errors = [d for d in unit.diagnostics if d.severity >= 3]
        if errors:
            sys.exit(f"libclang cannot read the headers: {errors[0]}")
        for cursor in unit.cursor.get_children():
            if cursor.location.file and "/kvmeld/" in cursor.location.file.name:
                self.outside(cursor)

    def text(self, cursor):
        return self.files[self.path][cursor.extent.start.offset:cursor.extent.end.offset]

    def outside(self, cursor):
        """Declarations: looks for bodies of functions that no constant expression calls."""
        if cursor.location.file is None or str(pathlib.Path(cursor.location.file.name).resolve()) not in self.files:
            if cursor.kind != self.kind.NAMESPACE:
                return
        else:
            self.path = str(pathlib.Path(cursor.location.file.name).resolve())
        if cursor.kind == self.kind.COMPOUND_STMT:
            return
        bodies = [c for c in cursor.get_children() if c.kind == self.kind.COMPOUND_STMT]
        functions = (self.kind.FUNCTION_DECL, self.kind.CXX_METHOD, self.kind.FUNCTION_TEMPLATE,
                     self.kind.CONSTRUCTOR, self.kind.DESTRUCTOR, self.kind.CONVERSION_FUNCTION)
        if cursor.kind in functions:
            if bodies:
                head = self.files[self.path][cursor.extent.start.offset:bodies[-1].extent.start.offset]
                if not re.search(r"\bconstexpr\b", head):
                    self.inside(bodies[-1])
            return
        for child in cursor.get_children():
            self.outside(child)

    def new(self, start, end, what):
        """A mutant of text [start, end) of the file; its number."""
        text = self.files[self.path]
        line = text.count("\n", 0, start) + 1
        source = text.splitlines()[line - 1].strip()
        self.mutants.append({"id": len(self.mutants), "path": str(pathlib.Path(self.path).relative_to(ROOT)),
                             "line": line, "what": what, "source": source})
        return len(self.mutants) - 1

    def wrap(self, start, end, before, after):
        edits = self.edits.setdefault(self.path, [])
        size, number = end - start, len(edits)  # of two that begin or end at one place, the first one lies outside
        edits.append((start, 1, -size, number, start, before))
        edits.append((end, 0, size, -number, end, after))

    def replace(self, start, end, by):
        self.edits.setdefault(self.path, []).append((start, 2, 0, 0, end, by))

    def gap(self, left, right):
        """The operator between two operands, if nothing else is there: (start, end, operator)."""
        text = self.files[self.path]
        begin, end = left.extent.end.offset, right.extent.start.offset
        if not 0 <= begin < end <= len(text):
            return None
        found = re.fullmatch(r"\s*([-+*/%<>=!&|^]+)\s*", text[begin:end])
        return (begin, end, found.group(1)) if found else None

    def in_braces(self, offset, begin):
        """Whether a place of a statement lies in an initializer list, where other types would be refused."""
        depth = 0
        for c in reversed(self.files[self.path][begin:offset]):
            if c in ")]}":
                depth += 1
            elif c in "([{":
                if depth == 0 and c == "{":
                    return True
                depth = max(0, depth - 1)
        return False

    def condition(self, c):
        start, end = c.extent.start.offset, c.extent.end.offset
        n = self.new(start, end, f"!({' '.join(self.text(c).split())})")
        self.wrap(start, end, f"::kvmeld_mutants::negated({n}, static_cast<bool>(", "))")

    def statement(self, c):
        """A statement that can be left out."""
        text, start, end = self.files[self.path], c.extent.start.offset, c.extent.end.offset
        if c.kind in (self.kind.BREAK_STMT, self.kind.CONTINUE_STMT):
            pass
        elif c.kind == self.kind.RETURN_STMT:
            if self.text(c).strip() != "return":
                return
        elif not c.kind.is_expression() or KEPT_CALLS.match(self.text(c)):
            return
        found = re.match(r"\s*;", text[end:])
        if not found or start in self.taken:
            return
        self.taken.add(start)
        n = self.new(start, end, "removed: " + " ".join(self.text(c).split()))
        self.wrap(start, end + found.end(), f"{{ if (::kvmeld_mutants::off({n})) ", " }")

    def inside(self, c, begin=None):
        """Statements and expressions of a body. begin: where the innermost statement begins."""
        k, text = self.kind, self.files[self.path]
        if c.location.file is None or str(pathlib.Path(c.location.file.name).resolve()) != self.path:
            return
        children = list(c.get_children())
        start, end = c.extent.start.offset, c.extent.end.offset
        if text.startswith("assert(", start):
            return
        if c.kind == k.COMPOUND_STMT:
            for child in children:
                self.statement(child)
                self.inside(child, child.extent.start.offset)
            return
        if c.kind in (k.IF_STMT, k.FOR_STMT, k.WHILE_STMT, k.CXX_FOR_RANGE_STMT):
            constant = re.match(r"if\s+constexpr", text[start:end])
            head = text.index("(", start)
            for i, child in enumerate(children):
                at = child.extent.start.offset
                last = i == len(children) - 1
                body = child.kind.is_statement() and child.kind != k.DECL_STMT or last or (
                    c.kind == k.IF_STMT and text[head:at].count("(") == text[head:at].count(")"))
                if body:
                    if child.kind != k.COMPOUND_STMT:
                        self.statement(child)
                    self.inside(child, at)
                    continue
                if constant:
                    continue
                rest = text[child.extent.end.offset:]
                before = text[head + 1:at].strip()
                if c.kind == k.IF_STMT and child.kind.is_expression() and re.match(r"\s*\)", rest) and (
                        before == "" or before.endswith(";")):
                    self.condition(child)
                if c.kind == k.FOR_STMT and child.kind == k.UNARY_OPERATOR:
                    continue  # its step: an endless loop
                self.inside(child, at)
            return
        if c.kind in (k.STATIC_ASSERT, k.ENUM_DECL, k.TYPEDEF_DECL, k.TYPE_ALIAS_DECL):
            return
        if c.kind == k.CASE_STMT:
            for child in children[1:]:
                self.statement(child)
                self.inside(child, child.extent.start.offset)
            return
        if c.kind == k.VAR_DECL:
            if re.search(r"\bconstexpr\b", text[start:end].split("=")[0]):
                return
            name = c.location.offset
            for child in children:
                if child.extent.start.offset > name and text[name:child.extent.start.offset].count("[") == text[
                        name:child.extent.start.offset].count("]"):
                    self.inside(child, begin)
            return
        if c.kind in (k.DECL_REF_EXPR, k.MEMBER_REF_EXPR, k.TYPE_REF, k.TEMPLATE_REF, k.OVERLOADED_DECL_REF):
            # An object before a dot is part of the run; arguments of templates are not.
            if c.kind == k.MEMBER_REF_EXPR and children and children[0].kind.is_expression():
                if children[0].kind not in (k.INTEGER_LITERAL, k.BINARY_OPERATOR):
                    self.inside(children[0], begin)
            return
        if c.kind == k.CONDITIONAL_OPERATOR and len(children) == 3:
            self.condition(children[0])
        if c.kind == k.BINARY_OPERATOR and len(children) == 2:
            gap = self.gap(*children)
            if gap and gap[2] in ("&&", "||"):
                for child in children:
                    s, e = child.extent.start.offset, child.extent.end.offset
                    n = self.new(s, e, f"without {gap[2]} operand: {' '.join(self.text(child).split())}")
                    if gap[2] == "&&":
                        self.wrap(s, e, f"(::kvmeld_mutants::on({n}) || (", "))")
                    else:
                        self.wrap(s, e, f"(::kvmeld_mutants::off({n}) && (", "))")
            elif gap and gap[2] in BINARY and '"' not in self.text(c):  # a sum of strings is a message
                n = self.new(start, end, f"{gap[2]} -> {OTHER[gap[2]]} in {' '.join(self.text(c).split())}")
                self.wrap(start, end, f"::kvmeld_mutants::{BINARY[gap[2]]}({n}, ", ")")
                self.replace(gap[0], gap[1], ", ")
        if c.kind == k.COMPOUND_ASSIGNMENT_OPERATOR and len(children) == 2:
            gap = self.gap(*children)
            if gap and gap[2] in ASSIGN:
                n = self.new(start, end, f"{gap[2]} -> {OTHER[gap[2]]} in {' '.join(self.text(c).split())}")
                self.wrap(start, end, f"::kvmeld_mutants::{ASSIGN[gap[2]]}({n}, ", ")")
                self.replace(gap[0], gap[1], ", ")
        if c.kind in (k.INTEGER_LITERAL, k.FLOATING_LITERAL):
            literal = re.match(r"[0-9][0-9a-fA-FxX.'upPlLfF+-]*$", text[start:end])
            if literal and begin is not None and not self.in_braces(start, begin):
                n = self.new(start, end, f"{text[start:end]} -> one more")
                self.wrap(start, end, f"::kvmeld_mutants::one_more({n}, ", ")")
            return
        if c.kind == k.CALL_EXPR:
            found = re.match(r"(min_of|max_of)\(", text[start:end])
            if found:
                n = self.new(start, end, f"{found.group(1)} -> the other in {' '.join(self.text(c).split())}")
                name = "lesser" if found.group(1) == "min_of" else "greater"
                self.replace(start, start + len(found.group(0)), f"::kvmeld_mutants::{name}({n}, ")
        for child in children:
            self.inside(child, begin)

    def rewritten(self, path):
        """The text of a header with its switches."""
        text, out, at = self.files[path], [], 0
        for start, _, _, _, end, by in sorted(self.edits.get(path, [])):
            out += [text[at:start], by]
            at = end
        return "".join(out) + text[at:]


def build(args):
    out = pathlib.Path(args.out)
    shutil.rmtree(out / "include", ignore_errors=True)
    shutil.copytree(ROOT / "include", out / "include")
    sources = Sources(args.rooms)
    for path in sources.files:
        (out / pathlib.Path(path).relative_to(ROOT)).write_text(sources.rewritten(path))
    (out / "mutants.json").write_text(json.dumps(sources.mutants, indent=0))
    print(f"{len(sources.mutants)} mutants in {len(sources.files)} headers", flush=True)
    flags = ["clang++", "-std=c++17", args.optimise, "-w", "-ferror-limit=0", "-include", str(HERE / "mutants.hpp"), f"-I{out / 'include'}",
             f"-I{ROOT / 'testing/include'}", f"-I{ROOT / 'tests'}"]
    (out / "objects").mkdir(parents=True, exist_ok=True)

    def compile_one(source, name):
        begin = time.time()
        command = flags + [f"-I{source.parent}", "-c", str(source), "-o", str(out / f"objects/{name}.o")]
        done = subprocess.run(command, capture_output=True, text=True)
        print(f"{name}: {time.time() - begin:.0f} s", flush=True)
        if done.returncode != 0:
            print("\n".join([l for l in done.stderr.splitlines() if "error:" in l][:20]), flush=True)
            sys.exit("does not compile with the switches")
        return command[-1]

    shared = [compile_one(ROOT / "tests/main.cpp", "main"), compile_one(ROOT / "tests/watch_refusals.cpp", "refusals"),
              compile_one(HERE / "reach_listener.cpp", "reach")]
    for folder in args.folders:
        files = sorted((ROOT / "tests" / folder).glob("*_test.cpp"))
        objects = []
        for i in range(0, len(files), args.together):
            unit = out / f"objects/{folder}_{i}.cpp"
            unit.write_text("".join(f'#include "{f}"\n' for f in files[i:i + args.together]))
            objects.append(compile_one(unit, f"{folder}_{i}"))
        subprocess.run(["clang++", *shared, *objects, "-Wl,--wrap=__cxa_throw", "-lpthread", "-o", str(out / f"test_{folder}")], check=True)


def equivalents():
    """(path, mutation, source line) -> reason."""
    out, key = {}, []
    for line in (HERE / "equivalent.txt").read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith("  because: "):
            out[tuple(key)] = line[len("  because: "):]
            key = []
        else:
            key.append(line.strip())
    return out


def environment(**more):
    return {**os.environ, "KVMELD_BRIEF_TESTS": "1", **more}


def reach(args, programs):
    """One run without a mutant: [(program, test case, seconds, mutants)]."""
    cases = []
    for program in programs:
        file = pathlib.Path(f"{program}.reach")
        if not file.exists() or file.stat().st_mtime < program.stat().st_mtime:
            print(f"which mutants {program.name} reaches", flush=True)
            done = subprocess.run([str(program)], env=environment(KVMELD_MUTANT_REACH=str(file)), capture_output=True)
            if done.returncode != 0:
                file.unlink()
                sys.exit(f"{program} fails without a mutant")
        for line in file.read_text().splitlines():
            name, seconds, numbers = line.split("\t")
            cases.append((str(program), name, float(seconds), [int(n) for n in numbers.split()]))
    return cases


def killed_by(args, mutant, cases):
    """What kills a mutant: a test case, or nothing. Cases: (program, name, seconds), the fastest first."""
    at, batch_seconds = 0, 0.1
    while at < len(cases):
        batch, seconds = [], 0.0
        while at < len(cases) and (not batch or seconds + cases[at][2] <= batch_seconds):
            batch.append(cases[at])
            seconds += cases[at][2]
            at += 1
        batch_seconds *= 4
        for program in sorted({c[0] for c in batch}):
            names = [re.sub(r"[,*\\]", "?", c[1]) for c in batch if c[0] == program]
            try:
                done = subprocess.run([program, "--abort-after=1", "-tc=" + ",".join(names)],
                                      env=environment(KVMELD_MUTANT=str(mutant)), capture_output=True,
                                      timeout=args.patience * seconds + args.patience)
            except subprocess.TimeoutExpired:
                return f"{pathlib.Path(program).name}: time"
            if done.returncode != 0:
                return pathlib.Path(program).name
    return None


def run(args):
    out = pathlib.Path(args.out)
    mutants = json.loads((out / "mutants.json").read_text())
    cases = reach(args, sorted(p for p in out.glob("test_*") if p.suffix == ""))
    reaching = {}
    for program, name, seconds, numbers in cases:
        for n in numbers:
            reaching.setdefault(n, []).append((program, name, seconds))
    for list_of_cases in reaching.values():
        list_of_cases.sort(key=lambda c: c[2])
    chosen = mutants
    if args.mutants:
        chosen = [mutants[i] for i in args.mutants]
    elif args.sample:
        chosen = random.Random(args.seed).sample(mutants, min(args.sample, len(mutants)))
    known, results = equivalents(), []
    deadline = time.time() + args.seconds

    def judge(m):
        if time.time() > deadline:
            return None
        reason = known.get((m["path"], m["what"], m["source"]))
        if reason is not None:
            return {**m, "outcome": "equivalent", "by": reason}
        if m["id"] not in reaching:
            return {**m, "outcome": "never reached", "by": ""}
        by = killed_by(args, m["id"], reaching[m["id"]])
        return {**m, "outcome": "killed" if by else "survived", "by": by or ""}

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for r in pool.map(judge, chosen):
            if r is None:
                continue
            results.append(r)
            if len(results) % 20 == 0:  # nothing is lost when a run is cut off
                (out / "report.json").write_text(json.dumps(results, indent=0))
                print(f"# {len(results)} of {len(chosen)}", flush=True)
            if r["outcome"] in ("survived", "never reached"):
                print(f"{r['id']} {r['outcome']}: {r['path']}:{r['line']}: {r['what']}\n    {r['source']}", flush=True)
    count = {o: sum(r["outcome"] == o for r in results) for o in ("killed", "survived", "never reached", "equivalent")}
    (out / "report.json").write_text(json.dumps(results, indent=0))
    relevant = count["killed"] + count["survived"] + count["never reached"]
    print(f"{len(results)} of {len(mutants)} mutants, seed {args.seed}: " +
          ", ".join(f"{n} {o}" for o, n in count.items()) +
          (f"; killed are {100 * count['killed'] / relevant:.1f}% of those not equivalent" if relevant else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["build", "run"])
    parser.add_argument("--out", default=str(ROOT / "build/mutation"))
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="folders of include/kvmeld to mutate")
    parser.add_argument("--folders", nargs="+", default=TESTS, help="folders of tests/ to build")
    parser.add_argument("--optimise", default="-O1", help="the compiler's optimisation")
    parser.add_argument("--together", type=int, default=10, help="test files to compile as one")
    parser.add_argument("--jobs", type=int, default=1, help="mutants to run at a time")
    parser.add_argument("--sample", type=int, default=0, help="mutants to draw at random; 0: all")
    parser.add_argument("--mutants", type=int, nargs="+", help="numbers of mutants to run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="no new mutant after this time")
    parser.add_argument("--patience", type=float, default=10, help="a run that takes so many times as long is killed")
    args = parser.parse_args()
    build(args) if args.action == "build" else run(args)


if __name__ == "__main__":
    main()
