#!/usr/bin/env python3
"""Writes kvmeld for the host as one file: <kvmeld/kvmeld.hpp>, <kvmeld/cache/plan_readings.hpp>,
<kvmeld/calibrate.hpp>, the folders compose/ and testing/, and what they include.

    single_header.py kvmeld.hpp

Each header is there once, after the headers that it includes. A fragment (.inl) is there once for each instruction set
that includes it. The same sources give the same bytes.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("single_header.py")

ROOTS = ["kvmeld.hpp", "cache/plan_readings.hpp", "calibrate.hpp", "compose/*.hpp", "testing.hpp", "testing/*.hpp"]
FOLDERS = ["include", "testing/include", "tools/calibrate/include"]
INCLUDE = re.compile(r'#include (?:<(kvmeld/[^>]+)>|"([^"]+)"|<([^>]+)>)\n')


def refuse(where, what):
    sys.exit(f"single_header.py: {where}: {what}")


class single_header:
    def __init__(self, folders):
        self.folders, self.seen, self.standard, self.lines = folders, set(), set(), []

    def header(self, path):
        if path in self.seen:
            return
        self.seen.add(path)
        if self.text(path).count("#pragma once\n") != 1:
            refuse(path, "no #pragma once, or more than one")
        banner = f"\n// --- <{self.name(path)}>\n"
        self.lines += self.expand(path, [banner])

    def name(self, path):
        return next(path.relative_to(folder).as_posix() for folder in self.folders if path.is_relative_to(folder))

    def at(self, name):
        return next((folder / name for folder in self.folders if (folder / name).is_file()), self.folders[0] / name)

    def text(self, path):
        if not path.is_file():
            refuse(path, "no such file")
        return path.read_text(encoding="utf-8")

    def expand(self, path, own):
        """Appends a file's lines to `own`, and returns it. A header that the file includes goes to self.lines: before
        comments that lie above its #include, but after code that does."""
        depth, code = 0, False
        for line in self.text(path).splitlines(keepends=True):
            if re.match(r"#\s*if", line):
                depth += 1
            elif re.match(r"#\s*endif", line):
                depth -= 1
            found = INCLUDE.match(line)
            if line == "#pragma once\n" or line.startswith("// SPDX"):  # the file has one of its own
                continue
            if not found:
                if re.match(r"#\s*include", line):
                    refuse(path, f"an #include of another form: {line.strip()}")
                own.append(line)
                code = code or not re.match(r"\s*(//|$)", line)
            elif found[1]:
                if depth > 0:  # another header that includes the same one would lose it
                    refuse(path, f"a header of kvmeld under a condition: {found[1]}")
                if code:  # which the header needs: it defines what this file declares
                    self.lines += own
                    own.clear()
                self.header(self.at(found[1]))
            elif found[2]:
                self.expand(path.parent / found[2], own)
                code = True
            elif depth > 0:
                own.append(line)
                code = True
            else:
                self.standard.add(found[3])
        return own

    def write(self):
        for root in ROOTS:
            found = sorted(path for folder in self.folders for path in (folder / "kvmeld").glob(root))
            if not found:
                refuse(self.folders[0], f"no kvmeld/{root}")
            for path in found:
                self.header(path)
        config = self.text(self.at("kvmeld/core/config.hpp"))
        number = {n: v for n, v in re.findall(r"#define KVMELD_VERSION_(MAJOR|MINOR|PATCH) (\d+)\n", config)}
        top = (
            f"// kvmeld {number['MAJOR']}.{number['MINOR']}.{number['PATCH']} for the host, in one file."
            " Written by packages/single_header.py: do not edit.\n"
            "// SPDX-License-Identifier: Apache-2.0\n"
            "#ifndef KVMELD_SINGLE_HEADER\n#define KVMELD_SINGLE_HEADER\n\n"
        )
        text = top + "".join(f"#include <{name}>\n" for name in sorted(self.standard)) + "".join(self.lines)
        return re.sub(r"\n{3,}", "\n\n", text) + "\n#endif\n"


def main():
    parser = argparse.ArgumentParser(description="Writes kvmeld for the host as one file.")
    parser.add_argument("out", type=_program.output_path, help="the file to write")
    arguments = parser.parse_args()
    _program.write_file(arguments.out, single_header([ROOT / folder for folder in FOLDERS]).write())


if __name__ == "__main__":
    main()
