"""docs/check_call_sites.py on a tiny package, and on the engines that are installed here."""

import importlib.util
import pathlib
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULE = '''
LIMIT = 3

class Pool:
    size: int
    def __init__(self, blocks):
        self.free = list(blocks)
    def take(self, count, *, hint=None):
        taken = self.free[:count]
        return taken

async def serve(pool): ...
'''
PAGE = """| file | place | mentions | what |
|---|---|---|---|
| `core/pool.py` | `Pool.take(count, hint)` | `free`, `count` | a method |
| `core/pool.py` | `Pool.free` | - | set by a method |
| `core/pool.py` | `Pool.size` | prose | a field |
| `core/pool.py` | `Pool(blocks)` | - | what it is made from |
| `core/pool.py` | `LIMIT` | - | a variable |
| `core/pool.py` | `serve(pool)` | - | a function |
| another | table | of | the page |
"""


@pytest.fixture(params=["folder", "wheel"])
def package(tmp_path, request):
    folder = tmp_path / "engine"
    (folder / "core").mkdir(parents=True)
    (folder / "core" / "pool.py").write_text(MODULE)
    (tmp_path / "engine-1.2.dist-info").mkdir()
    if request.param == "folder":
        return folder
    wheel = tmp_path / "engine-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(folder / "core" / "pool.py", "engine/core/pool.py")
        archive.writestr("engine-1.2.dist-info/METADATA", "")
    return wheel


def check(page, package):
    return subprocess.run([sys.executable, str(ROOT / "docs" / "check_call_sites.py"), str(page), str(package)],
                          capture_output=True, text=True)


def test_places_that_are_there(tmp_path, package):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    done = check(page, package)
    assert done.returncode == 0 and done.stdout == f"{package} 1.2: 6 of 6 places are where {page} says\n", done


@pytest.mark.parametrize("was, now, told", [
    ("core/pool.py", "core/gone.py", "there is no such file; there is one in core/pool.py"),
    ("Pool.take", "Pond.take", "there is no Pond"),
    ("Pool.take", "Pool.give", "there is no Pool.give"),
    ("count, hint", "count, many", "Pool.take has no parameter many"),
    ("`free`, ", "`used`, ", "Pool.take does not mention used"),
])
def test_a_place_that_moved(tmp_path, package, was, now, told):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace(was, now, 1))
    done = check(page, package)
    assert done.returncode == 1 and done.stdout.splitlines()[0].endswith(told), done
    assert done.stdout.splitlines()[0].startswith(f"{page}:3: ") and "5 of 6" in done.stdout


@pytest.mark.parametrize("page, package", [("| a | b | c |", "engine"), (PAGE, "no_such_package"), (PAGE, "/nowhere")])
def test_nothing_to_check(tmp_path, page, package):
    (tmp_path / "engine").mkdir()
    (tmp_path / "page.md").write_text(page)
    done = check(tmp_path / "page.md", tmp_path / package if package == "engine" else package)
    assert done.returncode == 1 and done.stdout == "" and "must" in done.stderr


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_places_of_engines_that_are_here(engine):
    if importlib.util.find_spec(engine) is None:
        pytest.skip(f"no {engine} here: the places that docs/engines/{engine}.md names were not looked up")
    done = check(ROOT / "docs" / "engines" / f"{engine}.md", engine)
    assert done.returncode == 0, done.stdout + done.stderr
