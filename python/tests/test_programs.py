"""The programs in Python, called as nobody should: each ends with a sentence and a status that is not 0."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from kvmeld import demo

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples" / "data" / "tiny-kjv"


def run(*command, **more):
    done = subprocess.run([sys.executable, *map(str, command)], text=True, stderr=subprocess.PIPE, timeout=300,
                          **{"stdout": subprocess.PIPE, **more})
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    return done


def refused(capsys, *arguments):
    """What demo.main says before it ends with 2, having printed nothing."""
    with pytest.raises(SystemExit) as end:
        demo.main(list(map(str, arguments)))
    told = capsys.readouterr()
    assert end.value.code == 2 and told.out == ""
    return told.err.splitlines()[-1]


@pytest.mark.parametrize("option", ["--contexts", "--context", "--needles", "--seed", "--budgets"])
@pytest.mark.parametrize("value", [
    "-1", "nan", "inf", "-inf", "1e400", "-0.5", "99999999999999999999999", "", " ", "text", "1;2", "0x1", "--seed", "1,,2"
])
def test_numbers_of_the_demo(capsys, option, value):
    assert option in refused(capsys, "--model", MODEL, option, value)


@pytest.mark.parametrize("arguments, told", [
    (["--contexts", "0"], "--contexts"), (["--context", "0"], "--context"), (["--context", "1048577"], "--context"),
    (["--context", "2000"], "to 1919"), (["--needles", "33"], "--needles"), (["--context", "100"], "--context"),
    (["--needles", "32", "--context", "1024"], "with 32 needles"), (["--budgets", "0"], "--budgets"),
    (["--budgets", "1.5"], "--budgets"), (["--budgets", "0.2,0.01"], "below 40 entries"), (["--policies", ""], "--policies"),
    (["--policies", "nothing"], "--policies: 'nothing'"), (["--policies", "snapkv,,"], "--policies"),
    (["--policies", "full"], "--policies"), (["--policies", "h2o heavy=nan"], "--policies"), (["--nothing"], "--nothing"),
    (["word"], "word"), (["--seed", str(2**64)], "--seed"),
])
def test_options_of_the_demo(capsys, arguments, told):
    assert told in refused(capsys, "--model", MODEL, *arguments)


def spoiled(change):
    def into(folder):
        shutil.copytree(MODEL, folder)
        change(folder)
    return into


def config(**changes):
    def change(folder):
        c = json.loads((folder / "config.json").read_text())
        c.update(changes)
        (folder / "config.json").write_text(json.dumps({name: x for name, x in c.items() if x != "left out"}))
    return spoiled(change)


def bytes_of(name, change):
    def changed(folder):
        (folder / name).write_bytes(change((folder / name).read_bytes()))
    return spoiled(changed)


def header(change):
    def changed(data):
        size = int.from_bytes(data[:8], "little")
        found = json.loads(data[8 : 8 + size])
        change(found)
        text = json.dumps(found).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + size :]
    return bytes_of("model.safetensors", changed)


def entry(**more):
    return header(lambda found: found["model.norm.weight"].update(more))


def replaced(name, make):
    def change(folder):
        (folder / name).unlink()
        make(folder / name)
    return spoiled(change)


NAMES = ["config.json", "model.safetensors", "heldout.txt"]
SPOILED = {
    "nothing": lambda folder: None, "a file": lambda folder: folder.write_text("x"), "empty": lambda folder: folder.mkdir(),
    **{f"no {name}": replaced(name, lambda path: None) for name in NAMES},
    **{f"{name} a folder": replaced(name, lambda path: path.mkdir()) for name in NAMES},
    **{f"{name} a pipe": replaced(name, os.mkfifo) for name in NAMES},
    **{f"{name} a device": replaced(name, lambda path: path.symlink_to("/dev/zero")) for name in NAMES},
    **{f"{name} empty": bytes_of(name, lambda data: b"") for name in NAMES},
    **{f"{name} cut": bytes_of(name, lambda data: data[: len(data) // 3]) for name in NAMES[:2]},
    **{f"{name} other": bytes_of(name, lambda data: b"\xff\x00" * 200) for name in NAMES[:2]},
    "short text": bytes_of("heldout.txt", lambda data: data[:500]),
    "config a list": bytes_of("config.json", lambda data: b"[1, 2]"),
    "config deep": bytes_of("config.json", lambda data: b"[" * 100000),
    **{f"{name} {x!r}": config(**{name: x})
       for name in ("num_hidden_layers", "head_dim", "rope_theta", "rms_norm_eps", "vocab_size", "num_key_value_heads")
       for x in ("left out", -1, 10**30, "4", None, True, [4], float("nan"))},
    "heads": config(num_key_value_heads=3), "layers": config(num_hidden_layers=5), "odd": config(head_dim=31),
    "no tensor": header(lambda found: found.pop("model.norm.weight")),
    "tensor a list": header(lambda found: found.update({"model.norm.weight": [1]})),
    "dtype": entry(dtype="F32"), "shape": entry(shape=[1]), "offsets": entry(data_offsets=[-512, 0]),
    "far": entry(data_offsets=[10**12, 10**12 + 480]), "text": entry(data_offsets="0"),
    "length": bytes_of("model.safetensors", lambda data: b"\xff" * 8 + data[8:]),
    "not a number": bytes_of("model.safetensors", lambda data: data[:-2000] + b"\xff" * 2000),
}


@pytest.mark.parametrize("how", SPOILED)
def test_models_of_the_demo(capsys, tmp_path, how):
    folder = tmp_path / "model"
    SPOILED[how](folder)
    told = refused(capsys, "--model", folder)
    assert told.startswith("python -m kvmeld.demo: error: argument --") and ("--model" in told or "--context" in told)


def test_the_demo_as_a_program():
    assert run("-m", "kvmeld.demo", "--model", "/nowhere").returncode == 2
    small = ["-m", "kvmeld.demo", "--model", MODEL, "--contexts", "1", "--context", "300", "--needles", "1",
             "--policies", "snapkv", "--budgets", "0.5"]
    assert run(*small).returncode == 0
    with open("/dev/full", "w") as full:
        assert run(*small, stdout=full).returncode == 1
        assert run("-m", "kvmeld.demo", "--help", stdout=full).returncode == 1
    assert run(*small, preexec_fn=lambda: os.close(1)).returncode == 1


def test_an_interrupted_demo():
    begin = ("from kvmeld import _program, demo; _program.start('python -m kvmeld.demo'); print('ready', flush=True); "
             f"demo.main(['--model', {str(MODEL)!r}, '--contexts', '1000'])")
    # A process in the background of a shell ignores SIGINT, and its children do.
    child = subprocess.Popen([sys.executable, "-c", begin], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == -signal.SIGINT and told.splitlines()[-1] == "python -m kvmeld.demo: interrupted"


# Every other program, with what it needs as a package, and arguments with which it would write or print.
PROGRAMS = {
    "examples/plot.py": ("matplotlib", ["{json}", "{out}"]),
    "examples/data/tiny-tasks/train.py": ("torch", ["--text", "{json}", "--write-tasks", "{out}"]),
    "examples/engines/flashinfer/log_degree.py": ("flashinfer", []),
    "examples/engines/hugging_face/compare.py": ("torch", ["--library", "/nowhere", "--context", "0"]),
    "examples/engines/llama_cpp/make_gguf.py": ("gguf", [str(MODEL), "{out}"]),
    "examples/engines/llama_cpp/slot_server_test.py": ("xllamacpp", [str(MODEL), "/nowhere"]),
    "examples/engines/llama_cpp/slot_trial.py": ("xllamacpp", ["/nowhere", "{json}", "/nowhere"]),
    "benchmarks/paired.py": (None, ["/nowhere", "--json", "{out}"]),
    "benchmarks/compile_time.py": (None, ["--runs", "0"]),
    "benchmarks/peer/generate.py": ("torch", ["--tokens", "0"]),
    "benchmarks/peer/ratios.py": (None, ["{json}", "/nowhere"]),
    "benchmarks/peer/torch_attention.py": ("torch", ["--device", "nothing"]),
    "benchmarks/peer/torch_peer.py": ("torch", ["--lengths", "-1"]),
    "benchmarks/peer/kvpress_side_by_side.py": ("kvpress", ["--contexts", "0"]),
    "packages/single_header.py": (None, ["{out}"]),
    "docs/check_call_sites.py": (None, ["/nowhere", "/nowhere"]),
    "docs/check_formulas.py": (None, ["/nowhere"]),
    "docs/check_links.py": (None, ["--sources"]),
    "docs/doxygen/prepare.py": (None, ["/nowhere"]),
    "tests/mutation/mutate.py": (None, ["/nowhere"]),
}


@pytest.mark.parametrize("program", [p for p, (package, _) in PROGRAMS.items() if package])
def test_programs_without_their_package(tmp_path, program):
    package, arguments = PROGRAMS[program]
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('none', name={package!r})")
    done = run(ROOT / program, *arguments, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    told = done.stdout + done.stderr
    needed = (package, "torch", "gguf")  # a program may ask for another one first, where that is not here either
    assert done.returncode in (1, 77) and any(name in told for name in (*needed, "NOTHING WAS MEASURED"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_called_wrongly(tmp_path, program):
    package, arguments = PROGRAMS[program]
    if package:
        pytest.importorskip(package)
    (tmp_path / "figures.json").write_text("[1]")
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    words = {"json": tmp_path / "figures.json", "out": tmp_path / "link"}
    done = run(ROOT / program, *(a.format(**words) for a in arguments))
    assert done.returncode not in (0, 77) and done.stderr.strip() and done.stdout == ""
    assert sorted(os.listdir(tmp_path)) == ["figures.json", "link"]


def test_the_table_has_every_program():
    found = {str(path.relative_to(ROOT)) for folder in ("examples", "benchmarks", "packages", "docs", "tests") for path in
             (ROOT / folder).rglob("*.py") if "_program.start(" in path.read_text()}
    assert found == set(PROGRAMS)
