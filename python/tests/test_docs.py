"""Runs the examples of docs/python.md: each block is a program of its own."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_there_are_examples():
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_examples_run(block, capsys):
    for module in ("torch", "transformers", "kvpress", "matplotlib"):
        if f"import {module}" in block or f"from {module}" in block or f"kvmeld.{module}" in block:
            found = pytest.importorskip(module)
            if module == "matplotlib":
                found.use("Agg")  # needs no screen
    exec(compile(block, str(PAGE), "exec"), {"__name__": "example"})
    printed = re.findall(r"^ *print\(.*# (.*)$", block, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == printed
