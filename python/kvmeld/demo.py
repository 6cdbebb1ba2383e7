"""The demo's table, by NumPy and kvmeld alone: python -m kvmeld.demo

A small language model reads contexts of held-out text in which numbers are planted. Each policy compresses the KV cache
to a budget. Then the model is asked for the numbers, and reads on. Contexts are those of kvmeld_demo with the same
seed; docs/demo.md says what the columns mean.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
import time
from typing import Any, Callable, Iterator, Optional, Sequence

import numpy as np

import kvmeld
from kvmeld import _program

POLICIES = ["snapkv", "compactor", "kvzip", "attention_matching", "chelsea", "leverage_dropkv"]
NAMES = (
    "Abner Baruch Caleb Dinah Esther Festus Gideon Hannah Ishmael Jethro Keturah Lazarus Miriam Nathan Obadiah "
    "Philemon Rachel Samson Thomas Uriah Vashti Zadok Boaz Cyrus Elijah Joab Leah Mordecai Naomi Silas Titus Zilpah"
).split()
FREE_END, GAP = 48, 16  # bytes without a needle: at the end, and between two
READ_ON = 128  # bytes that are predicted behind a context
LEAST_KEPT = 40  # entries of a head: policies pin up to 32, and refuse a budget that leaves little beside them


class Random:
    """splitmix64 (Steele, Lea and Flood, 2014), as in examples/tiny_llama/random.hpp."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def __call__(self) -> int:
        word = 2**64 - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & word
        z = self.state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & word
        return z ^ z >> 31

    def below(self, count: int) -> int:
        return self() % count


def planted(
    text: bytes, context: int, needles: int, seed: int, index: int
) -> tuple[bytes, bytes, list[tuple[bytes, bytes]]]:
    """A context with planted numbers, the text behind it, and questions with their answers, as
    examples/tiny_llama/needle_task.cpp makes them."""
    random = Random(seed ^ Random(index)())
    names, facts = list(NAMES), []
    for i in range(needles):
        j = i + random.below(len(names) - i)
        names[i], names[j] = names[j], names[i]
        answer = "".join(str(random.below(10)) for _ in range(5))
        facts.append((f"\nThe secret number of {names[i]} is ".encode(), answer.encode()))
    sentences = [question + answer + b".\n" for question, answer in facts]
    length, after = context - sum(map(len, sentences)), READ_ON + 1
    start = random.below(len(text) - length - after + 1)
    body, room, at, out = text[start : start + length], length - FREE_END, 0, b""
    for i, sentence in enumerate(sentences):
        first = max(room * i // needles, 0 if i == 0 else at + GAP)
        last = room * (i + 1) // needles - (GAP // 2 if i + 1 < needles else 0)
        place = first if first >= last else first + random.below(last - first)
        line_end = body.find(b"\n", place)
        cut = min(line_end if -1 < line_end < last else place, room)
        out += body[at:cut] + sentence
        at = cut
    return out + body[at:], text[start + length : start + length + after], facts


def _json_object(path: pathlib.Path, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: it must hold a JSON object")
    return found


def _setting(folder: pathlib.Path, c: dict[str, Any], name: str, kind: type, least: float, most: float) -> Any:
    """A number of config.json; NaN, true and a text are none."""
    value = c.get(name)
    kinds = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        raise ValueError(f"{folder / 'config.json'}: {name} is {value!r:.40}; it must be from {least:g} to {most:g}")
    return value


def _tensors(path: pathlib.Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The tensors of these names and shapes, in half precision in the file."""
    data = _program.read_file(path)
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        raise ValueError(f"{path}: its header is cut off")
    header, out = _json_object(path, data[8 : 8 + size]), {}
    for name, shape in shapes.items():
        entry = header.get(name)
        entry = entry if isinstance(entry, dict) else {}
        if entry.get("dtype") != "F16" or entry.get("shape") != list(shape):
            raise ValueError(f"{path}: {name} must be there, in half precision (F16), with the shape {list(shape)}")
        offsets, count = entry.get("data_offsets"), math.prod(shape)
        good = isinstance(offsets, list) and len(offsets) == 2 and all(type(x) is int for x in offsets)
        if not good or offsets[0] < 0 or offsets[1] - offsets[0] != 2 * count or offsets[1] > len(data) - 8 - size:
            raise ValueError(f"{path}: the data of {name} must be {2 * count} bytes inside the file")
        x = np.frombuffer(data, np.float16, count, 8 + size + offsets[0]).astype(np.float32)
        if not np.isfinite(x).all():
            raise ValueError(f"{path}: {name} holds a number that is not finite")
        out[name] = x.reshape(shape)
    return out


class Model:
    """A Llama of bytes in Hugging Face's format: config.json and model.safetensors."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Raises OSError for a file that cannot be read, ValueError for one that is not a model's."""
        c = _json_object(folder / "config.json", _program.read_file(folder / "config.json", 1 << 20))
        self.layers, self.heads, self.kv_heads, self.dim, hidden, inner, self.positions = (
            _setting(folder, c, name, int, least, most) for name, least, most in (
                ("num_hidden_layers", 1, 256), ("num_attention_heads", 1, 1024), ("num_key_value_heads", 1, 1024),
                ("head_dim", 2, 1024), ("hidden_size", 1, 1 << 16), ("intermediate_size", 1, 1 << 18),
                ("max_position_embeddings", 1, 1 << 24))
        )
        if self.dim % 2 or self.heads % self.kv_heads:
            raise ValueError(f"{folder / 'config.json'}: head_dim must be even, and num_key_value_heads divide "
                             f"num_attention_heads; they are {self.dim}, {self.kv_heads} and {self.heads}")
        _setting(folder, c, "vocab_size", int, 256, 256)
        self.epsilon = _setting(folder, c, "rms_norm_eps", float, 0, 1)
        base = _setting(folder, c, "rope_theta", float, 1, 1e12)
        self.turns = base ** (-np.arange(0, self.dim, 2) / self.dim)
        shapes = {"model.embed_tokens.weight": (256, hidden), "model.norm.weight": (hidden,)}
        for layer in range(self.layers):
            shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in (
                ("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,)),
                ("self_attn.q_proj", (self.heads * self.dim, hidden)),
                ("self_attn.k_proj", (self.kv_heads * self.dim, hidden)),
                ("self_attn.v_proj", (self.kv_heads * self.dim, hidden)),
                ("self_attn.o_proj", (hidden, self.heads * self.dim)),
                ("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)), ("mlp.down_proj", (hidden, inner)))}
        self.weights = _tensors(folder / "model.safetensors", shapes)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.epsilon) * self.weights[name]

    def rotated(self, x: np.ndarray, first: int) -> np.ndarray:
        """x [n, heads, dim] of the positions from `first` on, as [heads, n, dim]."""
        angles = ((first + np.arange(len(x)))[:, None] * self.turns)[:, None]
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        a, b = np.split(x, 2, axis=-1)
        return np.ascontiguousarray(np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).transpose(1, 0, 2))

    def read(self, tokens: bytes, state: State, show: Optional[Callable[[int, np.ndarray], None]] = None) -> np.ndarray:
        """Reads tokens into sequence 0 of a cache; returns logits [n, 256]. `show` gets each layer's queries."""
        cache, n, first = state.cache, len(tokens), state.cache.tokens(0)
        lengths = cache.lengths(0)
        cache.append(0, n)
        cache.commit(0, n)
        x = self.weights["model.embed_tokens.weight"][np.frombuffer(tokens, np.uint8)]
        for layer in range(self.layers):
            w = {name: self.weights[f"model.layers.{layer}.{name}.weight"] for name in (
                "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
                "mlp.up_proj", "mlp.down_proj")}
            h = self.norm(x, f"model.layers.{layer}.input_layernorm.weight")
            q = self.rotated((h @ w["self_attn.q_proj"].T).reshape(n, -1, self.dim), first)
            k = self.rotated((h @ w["self_attn.k_proj"].T).reshape(n, -1, self.dim), first)
            v = (h @ w["self_attn.v_proj"].T).reshape(n, -1, self.dim)
            for head in range(self.kv_heads):
                at = slice(lengths[layer, head], lengths[layer, head] + n)
                state.keys[layer, 0, head, at], state.values[layer, 0, head, at] = k[head], v[:, head]
            out = cache.attend(layer, 0, q)
            if show is not None:
                show(layer, q)
            x = x + out.transpose(1, 0, 2).reshape(n, -1) @ w["self_attn.o_proj"].T
            h = self.norm(x, f"model.layers.{layer}.post_attention_layernorm.weight")
            gate = h @ w["mlp.gate_proj"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T
        return self.norm(x, "model.norm.weight") @ self.weights["model.embed_tokens.weight"].T


class State:
    """A cache of one sequence with its tensors, and the queries that read the context."""

    def __init__(self, model: Model, policy: str, capacity: int, like: Optional[State] = None) -> None:
        shape = (model.layers, 1, model.kv_heads, capacity, model.dim)
        self.keys, self.values = (np.zeros(shape, np.float16) for _ in range(2))
        self.cache = kvmeld.Cache(
            self.keys, self.values, policy, queries_per_kv_head=model.heads // model.kv_heads, rope="half_split",
            frequencies=model.turns
        )
        self.queries: list[np.ndarray] = []
        if like is None:
            self.cache.open(0)
        else:
            tokens = like.cache.tokens(0)
            self.keys[..., :tokens, :] = like.keys[..., :tokens, :]
            self.values[..., :tokens, :] = like.values[..., :tokens, :]
            self.cache.open(0, tokens)


def observe(model: Model, state: State, context: bytes, queries: Sequence[np.ndarray]) -> None:
    """Shows a policy what it has to see before it compresses."""
    needs = state.cache.needs()
    if needs.when == "replay":  # the context once more, behind itself; then it is dropped
        model.read(context, state, lambda layer, q: state.cache.observe(layer, 0, q))
        state.cache.truncate(0, len(context))
    elif needs.when != "nothing":
        for layer, q in enumerate(queries):
            state.cache.observe(layer, 0, q)


def ask(model: Model, state: State, question: bytes, answer: bytes) -> int:
    """How many digits the model gets right, one after the other by itself."""
    before, right, given = state.cache.tokens(0), 0, question
    for expected in answer:
        given = bytes([int(model.read(given, state)[-1].argmax())])
        right += given[0] == expected
    state.cache.truncate(0, before)
    return right


def bits(model: Model, state: State, text: bytes) -> float:
    """Bits per byte of a text, each given those before it; the first is not predicted."""
    before = state.cache.tokens(0)
    logits = np.concatenate([model.read(text[i : i + 1], state) for i in range(len(text) - 1)]).astype(np.float64)
    state.cache.truncate(0, before)
    logits -= logits.max(axis=1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -log_p[np.arange(len(text) - 1), np.frombuffer(text[1:], np.uint8)].mean() / math.log(2)


def measure(model: Model, state: State, after: bytes, facts: Sequence[tuple[bytes, bytes]]) -> np.ndarray:
    """Bits per byte, digits and numbers right, and bytes held."""
    held = 2 * 2 * model.dim * int(state.cache.lengths(0).sum())
    right = [ask(model, state, question, answer) for question, answer in facts]
    return np.array([bits(model, state, after), sum(right), sum(r == 5 for r in right), held])


def with_progress(items: Sequence[Any], what: str) -> Iterator[Any]:
    """The items one by one. If stderr is a terminal, a bar of tqdm or else a line there says how far they are."""
    try:
        from tqdm import tqdm
    except ImportError:
        told = sys.stderr.isatty()
        for i, item in enumerate(items):
            if told:
                print(f"\r{what}: {i} of {len(items)}", end="", file=sys.stderr, flush=True)
            yield item
        if told:
            print(f"\r{what}: {len(items)} of {len(items)}", file=sys.stderr)
    else:
        yield from tqdm(items, desc=what, disable=None)  # None: if stderr is no terminal


def _check(parser: argparse.ArgumentParser, o: argparse.Namespace, model: Model, text_bytes: int) -> None:
    """Refuses what would fail in the middle."""
    # A needle's sentence, and the text between two; the context is read twice (kvzip), and then a question or the rest.
    least = FREE_END + o.needles * (44 + 2 * GAP) + 1
    most = min(text_bytes, model.positions) - READ_ON - 1
    if not least <= o.context <= most:
        parser.error(f"argument --context: it is {o.context}; it must be from {least}, with {o.needles} needles, to {most}, "
                     "which the text and the model's positions allow")
    for budget in o.budgets:
        if budget * o.context < LEAST_KEPT:
            parser.error(f"argument --budgets: {budget:g} of {o.context} bytes is below {LEAST_KEPT} entries, which policies "
                         "need; it must be a larger share, or --context larger")
    for policy in o.policies.split(","):
        try:
            State(model, policy, 64)
        except (ValueError, RuntimeError) as problem:
            parser.error(f"argument --policies: '{policy}': {_program.sentence(problem)}")


def main(arguments: Optional[Sequence[str]] = None) -> dict[tuple[str, float], dict[str, float]]:
    """Prints the table; returns, by policy and budget, bits_per_byte, digits and exact (shares, 0 to 1), kv_bytes and
    compress_ms: means over contexts, the shares over questions."""
    parser = argparse.ArgumentParser(prog="python -m kvmeld.demo", description=__doc__.splitlines()[0])
    shipped = pathlib.Path(__file__).parent / "data" / "tiny-kjv"
    parser.add_argument("--model", default=str(shipped), help="a folder as examples/data/tiny-kjv")
    parser.add_argument("--contexts", type=_program.whole(1, 10000), default=4)
    parser.add_argument("--context", type=_program.whole(64, 1 << 20), default=1024, help="bytes")
    parser.add_argument("--needles", type=_program.whole(0, len(NAMES)), default=4)
    parser.add_argument("--seed", type=_program.whole(0, 2**64 - 1), default=1)
    parser.add_argument("--policies", default=",".join(POLICIES), help="comma-separated; of kvmeld.policies()")
    parser.add_argument(
        "--budgets", type=_program.listed(_program.number(1e-6, 1)), default="0.2,0.06", help="shares kept, comma-separated"
    )
    o = parser.parse_args(arguments)
    folder = pathlib.Path(o.model)
    try:
        model, text = Model(folder), _program.read_file(folder / "heldout.txt", 1 << 30)
    except (OSError, ValueError) as problem:
        parser.error(f"argument --model: {_program.sentence(problem)}; it must be a folder with config.json, "
                     "model.safetensors and heldout.txt")
    budgets, chosen = o.budgets, o.policies.split(",")
    _check(parser, o, model, len(text))
    cases = [("full", 1.0)] + [(policy, budget) for budget in budgets for policy in chosen]
    sums, seconds = {case: np.zeros(4) for case in cases}, dict.fromkeys(cases, 0.0)
    steps = [(index, case) for index in range(o.contexts) for case in cases]
    for index, (policy, budget) in with_progress(steps, "caches measured"):
        if (policy, budget) == cases[0]:
            context, after, facts = planted(text, o.context, o.needles, o.seed, index)
            state = full = State(model, "streaming_llm", 2 * o.context)
            queries: list[np.ndarray] = []
            model.read(context, full, lambda layer, q: queries.append(q))
        else:
            state = State(model, policy, 2 * o.context, full)
            observe(model, state, context, queries)
            start = time.perf_counter()
            state.cache.compress(0, budget)
            seconds[policy, budget] += time.perf_counter() - start
        sums[policy, budget] += measure(model, state, after, facts)
    asked = o.contexts * o.needles
    print(f"{folder.name}: {o.contexts} contexts of {o.context} tokens, {o.needles} needles each, seed {o.seed}\n")
    print(f"{'policy':20}{'budget':>7}{'bits per byte':>15}{'digits':>9}{'exact':>9}{'KV KiB':>9}{'compress ms':>13}")
    asked = max(asked, 1)  # without needles no digit is right
    figures = {}
    for (policy, budget), (bits_, digits, exact, held) in sums.items():
        figures[policy, budget] = f = {
            "bits_per_byte": bits_ / o.contexts, "digits": digits / (5 * asked), "exact": exact / asked,
            "kv_bytes": held / o.contexts, "compress_ms": 1e3 * seconds[policy, budget] / o.contexts,
        }
        print(f"{policy:20}{budget:7.0%}{f['bits_per_byte']:15.3f}{f['digits']:9.1%}{f['exact']:9.1%}"
              f"{f['kv_bytes'] / 1024:9.0f}{f['compress_ms']:13.2f}")
    return figures


if __name__ == "__main__":
    _program.start("python -m kvmeld.demo")
    main()
