"""How the project's programs in Python begin and end, how they read numbers from a command line, and how they write files.

Only the standard library: programs of this repository import this file where the package is not installed.
"""

from __future__ import annotations

import argparse
import atexit
import os
import secrets
import stat
import sys
import types
from typing import Callable, Optional, Type, Union


# --- the beginning and the end ------------------------------------------------------------------------------------


class _Closed:
    """What a program gets as its stdout if the caller closed it: whoever prints fails."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise OSError("stdout: it is closed")

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def sentence(problem: BaseException) -> str:
    """An exception as one line."""
    text = " ".join(str(problem).split())
    if isinstance(problem, KeyboardInterrupt):
        return "interrupted"
    if isinstance(problem, MemoryError):
        return f"out of memory ({text})" if text else "out of memory"
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename}: {problem.strerror}" if problem.filename is not None else problem.strerror
    if isinstance(problem, ModuleNotFoundError):
        return f"the package {problem.name} is needed, and is not installed"
    if isinstance(problem, (ImportError, ValueError, RuntimeError, OSError)) and text:
        return text
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__


def start(name: str) -> None:
    """The first call of a program. Whatever it raises becomes one line on stderr, with the status 1 (python -X dev shows
    where). Ctrl-C ends it as SIGINT does, which a shell reports as 130. Output that stdout did not take is a status of 1."""

    def told(kind: Type[BaseException], problem: BaseException, trace: Optional[types.TracebackType]) -> None:
        if sys.flags.dev_mode:
            sys.__excepthook__(kind, problem, trace)
        print(f"{name}: {sentence(problem)}", file=sys.stderr)

    def end() -> None:
        try:
            sys.stdout.flush()
        except (OSError, ValueError):
            print("stdout: not all of the output could be written", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)  # at its own end the interpreter would fail in words of its own

    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    if sys.stdout is None:
        sys.stdout = _Closed()  # type: ignore[assignment]
    sys.excepthook = told
    atexit.register(end)


# --- numbers of a command line ---------------------------------------------------------------------------------------


def whole(least: int, most: int) -> Callable[[str], int]:
    """The type of an option that is a whole number."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"it is '{text}'; it must be a whole number from {least} to {most}")
        return number

    return read


def number(least: float, most: float) -> Callable[[str], float]:
    """The type of an option that is a number; NaN is none."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"it is '{text}'; it must be a number from {least:g} to {most:g}")
        return value

    return read


def listed(of: Callable[[str], object]) -> Callable[[str], list]:
    """The type of an option with several of them, separated by commas."""
    return lambda text: [of(part) for part in text.split(",")]


# --- files to write -----------------------------------------------------------------------------------------------

Path = Union[str, "os.PathLike[str]"]


def _looked_at(path: Path) -> tuple[Optional[os.stat_result], str]:
    """What a file would replace, and why it must not; empty if it may."""
    name = os.fspath(path)
    if name == "-":
        return None, "'-' is no file here: stdout gets what is printed"
    if not os.path.basename(name):
        return None, "it names no file"
    try:
        there = os.lstat(name)
    except FileNotFoundError:
        return None, ""
    except OSError as problem:
        return None, problem.strerror
    except ValueError:
        return None, "its name holds a NUL"
    kinds = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"))
    if not stat.S_ISREG(there.st_mode):
        return there, "it is " + next((kind for is_one, kind in kinds if is_one(there.st_mode)), "a device or a socket")
    return there, "" if os.access(name, os.W_OK) else "Permission denied"


class _NewFile:
    """A file beside the target, under a name that nobody can foresee. It takes the target's place, or goes."""

    def __init__(self, path: Path) -> None:
        self.path, self.file, self.placed = os.fspath(path), -1, False
        there, self.problem = _looked_at(path)
        if self.problem:
            return
        folder = os.path.dirname(self.path) or "."
        self.temporary = os.path.join(folder, f".kvmeld-{secrets.token_hex(8)}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        try:
            # The umask decides about a new file. One that replaces another is closed to others until it has that one's mode.
            self.file = os.open(self.temporary, flags, 0o666 if there is None else 0o600)
            if there is not None and hasattr(os, "fchmod"):
                try:
                    os.fchown(self.file, there.st_uid, there.st_gid)
                except OSError:
                    pass  # only root gives files away
                os.fchmod(self.file, there.st_mode & 0o777)
        except OSError as problem:
            self.problem = problem.strerror

    def __enter__(self) -> _NewFile:
        return self

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.file, view):]
        os.fsync(self.file)

    def place(self) -> None:
        os.replace(self.temporary, self.path)
        self.placed = True

    def __exit__(self, *_: object) -> None:
        if self.file >= 0:
            os.close(self.file)
            if not self.placed:
                os.unlink(self.temporary)


def output_problem(path: Path) -> str:
    """Why write_file would refuse a path now; empty if it would not. Leaves what is there as it is."""
    with _NewFile(path) as file:
        return file.problem


def output_path(text: str) -> str:
    """The type of an option that names a file to write: refused before the work begins."""
    problem = output_problem(text)
    if problem:
        raise argparse.ArgumentTypeError(f"it is '{text}'; it must be a file that can be written ({problem})")
    return text


def write_file(path: Path, data: Union[bytes, str]) -> None:
    """Writes data, a str as UTF-8, to a regular file or a new one; a file keeps its mode. Raises OSError: for a link, a
    device, a pipe or a folder, for "-", and if the data cannot be written. Then the old file is there, and no other."""
    with _NewFile(path) as file:
        if file.problem:
            raise OSError(f"{os.fspath(path)}: cannot be written ({file.problem})")
        try:
            file.write(data.encode() if isinstance(data, str) else data)
            file.place()
        except OSError as problem:
            raise OSError(f"{os.fspath(path)}: cannot be written ({problem.strerror})") from None


class Lines:
    """A regular file that grows line by line, as long work goes on. Raises OSError for a link, a device, a pipe or a folder,
    and if a line cannot be written to its end."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        _, problem = _looked_at(path)
        if problem:
            raise OSError(f"{self.path}: cannot be written ({problem})")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        self.file = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)

    def add(self, line: str) -> None:
        view = memoryview(line.encode() + b"\n")
        try:
            while view:
                view = view[os.write(self.file, view):]
        except OSError as problem:
            raise OSError(f"{self.path}: cannot be written ({problem.strerror})") from None

    def close(self) -> None:
        os.close(self.file)


# --- files to read ------------------------------------------------------------------------------------------------


def read_file(path: Path, most: int = 1 << 32) -> bytes:
    """The bytes of a regular file. Raises OSError for anything else, which might never end."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            now = os.fstat(file.fileno())
            if not stat.S_ISREG(now.st_mode):
                raise OSError(f"{os.fspath(path)}: is not a regular file")
            if now.st_size > most:
                raise OSError(f"{os.fspath(path)}: is {now.st_size} bytes long; at most {most} are allowed")
            return file.read()
    except ValueError:
        raise OSError(f"{os.fspath(path)!r}: its name holds a NUL") from None
