"""What every program in Python shares: how it ends, what it takes as a number, and how it writes files."""

import argparse
import os
import pathlib
import resource
import signal
import socket
import stat
import subprocess
import sys
import time

import pytest

from kvmeld import _program

BEGIN = f"import sys; sys.path.append({str(pathlib.Path(_program.__file__).parent)!r}); import _program; _program.start('p')\n"


def run(code, **more):
    return subprocess.run([sys.executable, "-c", BEGIN + code], text=True, stderr=subprocess.PIPE, timeout=60, **more)


@pytest.mark.parametrize("code, told", [
    ("open('/nowhere/x')", "p: /nowhere/x: No such file or directory"),
    ("raise MemoryError", "p: out of memory"),
    ("import no_such_package", "p: the package no_such_package is needed, and is not installed"),
    ("raise ValueError('budget is 0;\\nit must be more')", "p: budget is 0; it must be more"),
    ("{}['key']", "p: KeyError: 'key'"),
    ("raise AssertionError", "p: AssertionError"),
    ("print('x' * 100000); 1 / 0", "p: ZeroDivisionError: division by zero"),
])
def test_a_failure_is_one_sentence(code, told):
    done = run(code, stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, told + "\n")


def test_sys_exit_and_the_end_stay_what_they_are():
    assert run("print('a')", stdout=subprocess.PIPE).returncode == 0
    done = run("sys.exit('no model')", stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, "no model\n")
    assert run("sys.exit(3)", stdout=subprocess.PIPE).returncode == 3


@pytest.mark.parametrize("code", ["print('a')", "print('x' * 100000)", "print('a', flush=True); print('b')"])
def test_lost_output_is_a_failure(code):
    def closed():
        os.close(1)

    with open("/dev/full", "w") as full:
        done = run(code, stdout=full)
    told = ("p: No space left on device\n", "stdout: not all of the output could be written\n")
    assert done.returncode == 1 and done.stderr in (*told, "".join(told))
    done = run(code, preexec_fn=closed)
    assert (done.returncode, done.stderr) == (1, "p: stdout: it is closed\n")
    reader, writer = os.pipe()
    os.close(reader)
    done = run(code, stdout=writer)
    os.close(writer)
    told = ("p: Broken pipe\n", told[1])
    assert done.returncode == 1 and done.stderr in (*told, "".join(told))
    assert run("pass", preexec_fn=closed).returncode == 0


def test_an_interrupt():
    child = subprocess.Popen(
        [sys.executable, "-c", BEGIN + "import time; print('ready', flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=60)
    assert (child.returncode, told) == (-signal.SIGINT, "p: interrupted\n")  # a shell says 130


HOSTILE = ["-1", "nan", "-nan", "inf", "-inf", "1e400", "99999999999999999999999", "", " ", "text", "1 2", "1,2", "0x1"]


@pytest.mark.parametrize("text", HOSTILE)
def test_numbers(text):
    for kind in (_program.whole(0, 100), _program.number(0, 100), _program.listed(_program.whole(5, 100))):
        with pytest.raises(argparse.ArgumentTypeError, match="it must be"):
            kind(text)
    assert _program.whole(-1, 3)("-1") == -1 and _program.number(0.1, 1)("0.25") == 0.25
    assert _program.listed(_program.whole(0, 9))("1,2") == [1, 2]


# --- files to write ----------------------------------------------------------------------------------------------


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_a_new_file_follows_the_umask_and_a_replaced_one_keeps_its_mode(tmp_path):
    path, before = tmp_path / "new", os.umask(0o027)
    try:
        _program.write_file(path, "one")
    finally:
        os.umask(before)
    assert mode(path) == 0o640 and path.read_text() == "one"
    for kept in (0o604, 0o600, 0o755):
        path.chmod(kept)
        _program.write_file(path, b"two")
        assert mode(path) == kept and path.read_text() == "two"
    assert os.listdir(tmp_path) == ["new"]


def test_files_and_links_beside_the_target_stay(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    (tmp_path / "report.part").write_text("a part")
    (tmp_path / "other.part").symlink_to(theirs)
    os.link(theirs, tmp_path / "same")
    for name in ("report", "other", "same"):
        assert _program.output_problem(tmp_path / name) == ""
        _program.write_file(tmp_path / name, "new")
    assert theirs.read_text() == "theirs" and (tmp_path / "report.part").read_text() == "a part"
    assert (tmp_path / "other.part").is_symlink()


def test_only_files_are_replaced(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    (tmp_path / "link").symlink_to(theirs)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    device = "/dev/full"
    try:
        os.mknod(tmp_path / "full", stat.S_IFCHR | 0o600, os.makedev(1, 7))
        device = tmp_path / "full"
    except PermissionError:
        pass
    with socket.socket(socket.AF_UNIX) as here:
        here.bind(str(tmp_path / "socket"))
        names = sorted(os.listdir(tmp_path))
        for path, problem in (
            (tmp_path / "link", "it is a symbolic link"), (tmp_path / "dangling", "it is a symbolic link"),
            (tmp_path / "folder", "it is a folder"), (tmp_path / "fifo", "it is a pipe"),
            (tmp_path / "socket", "it is a device or a socket"), (device, "it is a device or a socket"),
            ("/dev/stdout", "it is a symbolic link"), ("-", "'-' is no file here: stdout gets what is printed"),
            (f"{tmp_path}/folder/", "it names no file"), (tmp_path / "none" / "file", "No such file or directory"),
            (theirs / "file", "Not a directory"), (tmp_path / ("n" * 300), "File name too long"),
            ("a\0b", "its name holds a NUL"), ("", "it names no file"),
        ):
            assert _program.output_problem(path) == problem
            with pytest.raises(OSError, match="cannot be written"):
                _program.write_file(path, "new")
            with pytest.raises(argparse.ArgumentTypeError, match="it must be a file that can be written"):
                _program.output_path(os.fspath(path))
        assert sorted(os.listdir(tmp_path)) == names and theirs.read_text() == "theirs"
        assert stat.S_ISCHR(os.lstat(device).st_mode) and stat.S_ISFIFO(os.lstat(tmp_path / "fifo").st_mode)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    (tmp_path / "old").write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name in ("old", "new"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            with pytest.raises(OSError, match="cannot be written \\(File too large\\)"):
                _program.write_file(tmp_path / name, b"x" * 100000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == ["old"] and (tmp_path / "old").read_text() == "old"


def test_only_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    begin = time.monotonic()
    for path in (tmp_path / "fifo", "/dev/zero", tmp_path):
        with pytest.raises(OSError):
            _program.read_file(path)
    assert time.monotonic() - begin < 10
    (tmp_path / "large").write_bytes(b"x" * 11)
    with pytest.raises(OSError, match="11 bytes long; at most 10"):
        _program.read_file(tmp_path / "large", 10)


# --- files that grow


def test_lines_are_there_once_they_are_added(tmp_path):
    path = tmp_path / "rows"
    lines = _program.Lines(path)
    lines.add("one")
    assert path.read_bytes() == b"one\n"
    lines.add("zw\u00f6lf")
    lines.close()
    again = _program.Lines(path)
    again.add("three")
    again.close()
    assert path.read_text(encoding="utf-8") == "one\nzw\u00f6lf\nthree\n"


def test_lines_go_to_regular_files_alone(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", ".", "no/folder"):
        with pytest.raises(OSError):
            _program.Lines(tmp_path / name)
    with pytest.raises(OSError):
        _program.Lines("-")
    assert not (tmp_path / "theirs").exists() and not os.path.exists("-")


def test_lines_that_do_not_fit_are_told(tmp_path):
    code = (BEGIN + "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))\n"
            f"lines = _program.Lines({str(tmp_path / 'rows')!r}); lines.add('a' * 6); lines.add('b' * 6)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "cannot be written (File too large)" in done.stderr
