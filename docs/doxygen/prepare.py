#!/usr/bin/env python3
"""Makes the copy of headers and pages that Doxygen reads, so that the sources stay free of markup."""
import argparse
import pathlib
import shutil
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("prepare.py")

from headers import prepare_headers
from pages import prepare_pages


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--source", type=pathlib.Path, required=True, help="the repository")
    arguments.add_argument("--out", type=pathlib.Path, required=True, help="where the copy goes; replaced")
    arguments.add_argument("--site", type=pathlib.Path, required=True, help="where the site goes; replaced")
    a = arguments.parse_args()
    for folder in (a.out, a.site):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    shown = prepare_headers(a.source, a.out)
    shutil.copyfile(pathlib.Path(__file__).parent / "groups.dox", a.out / "groups.dox")
    prepare_pages(a.source, a.out, a.site, shown)


if __name__ == "__main__":
    main()
