"""What a score has learned of a model, and its file."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any, NamedTuple, Optional, Union

import numpy as np

__all__ = ["Learned", "load", "save"]

FORMAT = "1"
FEATURES = "key, key squared, log(1 + position), 1"
PROBE = 100  # the token whose keys tell models apart
_MOST = 1 << 30  # bytes of a file
_FOLDER = pathlib.Path(__file__).with_name("weights")


class Learned(NamedTuple):
    """The weights of the score "learned", for one model.

    weights: float32 [layers, kv_heads, 2 * key_dim + 2]: of the channels of a key before its rotation, of their squares,
        of the logarithm of one plus the position, and a constant.
    pairing, frequencies: how the model rotates keys, as kvmeld.Cache takes it: "none", or "half_split" or
        "interleaved" and radians a position.
    about: what the file says beside, as texts: the model, the texts, how well the weights fit.
    keys: float32 [layers, kv_heads, key_dim], which the model makes of the token number PROBE where it stands alone, at
        position 0; or None. By these a model is recognised.
    """

    weights: np.ndarray
    pairing: str
    frequencies: list[float]
    about: dict[str, str]
    keys: Optional[np.ndarray] = None


def shipped() -> list[str]:
    """The names of the models whose weights come with kvmeld; load takes them as it takes files."""
    return sorted(path.stem for path in _FOLDER.glob("*.safetensors"))


def _refusal(path: Any, problem: str) -> ValueError:
    return ValueError(f"{path}: {problem}; it must be a file that python -m kvmeld.learn wrote, or one of"
                      f" {', '.join(shipped()) or 'no names'}")


def load(name: Union[str, pathlib.Path]) -> Learned:
    """Reads a file, or the weights of a model that come with kvmeld by their name. Raises ValueError for what is no such file,
    and OSError where there is none."""
    from kvmeld._program import read_file

    path = pathlib.Path(name)
    if str(name) in shipped():
        path = _FOLDER / f"{name}.safetensors"
    data = read_file(path, _MOST)
    # The header is a number, 8 bytes, and as many bytes of JSON; the tensor follows.
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size]) if len(data) >= 8 + size else None
        about, tensor, probe = dict(header["__metadata__"]), header["weights"], header.get("keys")
        shape, (first, last) = [int(n) for n in tensor["shape"]], tensor["data_offsets"]
        keys_shape, keys_at = (None, [last, last]) if probe is None else (
            [int(n) for n in probe["shape"]], [int(n) for n in probe["data_offsets"]])
        frequencies = [float(f) for f in json.loads(about.pop("frequencies"))]
        pairing, version, features = about.pop("rope"), about.pop("kvmeld.learned"), about.pop("features")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise _refusal(name, "its header is none of a learned score") from None
    if (version, features) != (FORMAT, FEATURES):
        raise _refusal(name, f"it has format {version!r} and features {features!r}, not {FORMAT!r} and {FEATURES!r}")
    if pairing not in ("none", "half_split", "interleaved") or not np.isfinite(frequencies).all():
        raise _refusal(name, "it says no rotation")
    numbers = np.frombuffer(data, np.uint8, offset=8 + size)
    fits = len(shape) == 3 and min(shape) > 0 and shape[2] >= 4 and shape[2] % 2 == 0 and tensor.get("dtype") == "F32"
    if not fits or first != 0 or last != 4 * shape[0] * shape[1] * shape[2] or keys_at[1] != len(numbers):
        raise _refusal(name, f"its tensor is {tensor.get('dtype')} of shape {shape} in {len(numbers)} bytes")
    of_keys = [*shape[:2], shape[2] // 2 - 1]
    if probe is not None and (probe.get("dtype") != "F32" or keys_shape != of_keys
                              or keys_at != [last, last + 4 * of_keys[0] * of_keys[1] * of_keys[2]]):
        raise _refusal(name, f"its keys are {probe.get('dtype')} of shape {keys_shape} at {keys_at}")
    if (pairing == "none") != (not frequencies) or 2 * len(frequencies) > shape[2] // 2 - 1:
        raise _refusal(name, f"it rotates {2 * len(frequencies)} channels of {shape[2] // 2 - 1}")
    weights = numbers[:last].view("<f4").astype(np.float32).reshape(shape)
    keys = None if probe is None else numbers[last:].view("<f4").astype(np.float32).reshape(of_keys)
    if not all(x is None or np.isfinite(x).all() for x in (weights, keys)):
        raise _refusal(name, "it has weights or keys that are no finite numbers")
    return Learned(weights, pairing, frequencies, {k: str(v) for k, v in about.items()}, keys)


def save(path: Any, learned: Learned) -> None:
    """Writes a file of the format of safetensors. An existing file is replaced once the new one is whole."""
    from kvmeld._program import write_file

    tensors = {"weights": learned.weights} if learned.keys is None else {"weights": learned.weights, "keys": learned.keys}
    facts, body = {}, b""
    for name, tensor in tensors.items():
        data = np.ascontiguousarray(tensor, "<f4").tobytes()
        facts[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    texts = {**learned.about, "kvmeld.learned": FORMAT, "features": FEATURES, "rope": learned.pairing,
             "frequencies": json.dumps(learned.frequencies)}
    header = json.dumps({"__metadata__": texts, **facts}).encode()
    header += b" " * (-len(header) % 8)
    write_file(path, len(header).to_bytes(8, "little") + header + body)


def read(learned: Any) -> Learned:
    """Learned, or what load takes. Raises TypeError for anything else."""
    if isinstance(learned, Learned):
        return learned
    if not isinstance(learned, (str, os.PathLike)):
        raise TypeError(f"learned is {learned!r}; it must be a file, the name of a model, or what kvmeld.learned.load returns")
    return load(learned)
