"""Learns, once per model, which entries of a KV cache a second reading of a prompt would look at, from their keys alone.
Policies with the score "learned" then need one reading."""

from __future__ import annotations

import argparse
import importlib
import inspect
import math
import random
from typing import Any, Callable, Iterable, NamedTuple, Optional, Sequence

import numpy as np

from kvmeld import _program
from kvmeld.evaluate.models import add_options, opened
from kvmeld.learned import Learned, save

__all__ = ["Report", "learn", "learning_text", "main"]

LEAST = 1e-4  # added to scores before the logarithm: smaller ones differ by chance
RIDGES = (1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1)  # times the variance of a feature
HELD_OUT = 5  # every fifth passage is not learned from until the report is made
FIRST = 4  # tokens that are not learned from: all models look at the first ones
SHARE = 0.25  # of the entries, for the report's overlap
_MODULES = (
    "argparse logging unittest decimal datetime json pickle threading subprocess collections itertools functools statistics random"
    " heapq bisect calendar csv difflib email enum fractions inspect ipaddress pathlib pdb re sched shelve shlex socket string"
    " struct tarfile tempfile textwrap timeit tokenize trace types uuid weakref zipfile")


class Report(NamedTuple):
    """How well weights fit passages that were not learned from.

    r2: float64 [layers, kv_heads], the share of the variance of the scores' natural logarithms that the weights explain.
    rank: float64 [layers, kv_heads], the rank correlation of predicted and true scores.
    overlap: the share of the best quarter of a passage's entries that the weights find.
    ridge: the strength of the ridge that was chosen.
    tokens: how many tokens the weights were learned from.
    """

    r2: np.ndarray
    rank: np.ndarray
    overlap: float
    ridge: float
    tokens: int

    def __str__(self) -> str:
        return (f"ridge {self.ridge:g}, {self.tokens} tokens; on passages that were not learned from: R2"
                f" {float(np.mean(self.r2)):.2f} (heads {float(self.r2.min()):.2f} to {float(self.r2.max()):.2f}), rank correlation"
                f" {float(np.mean(self.rank)):.2f}, {self.overlap:.0%} of the best quarter found")


def learning_text() -> str:
    """Prose and code that Python itself carries: what modules of its library say of themselves, and some of their source."""
    parts: list[str] = []
    for name in _MODULES.split():
        module = importlib.import_module(name)
        members = [value for _, value in sorted(vars(module).items())
                   if inspect.isclass(value) and value.__module__.split(".")[0] == name]
        for thing in [module, *members]:
            if isinstance(thing.__doc__, str):
                parts.append(inspect.cleandoc(thing.__doc__))
        if len(name) % 3 == 0:
            try:
                parts.append(inspect.getsource(module)[:20000])
            except (OSError, TypeError):
                pass  # built in, or without its source
    return "\n\n".join(parts)


def _passages(tokens: Callable[[str], list[int]], text: str, count: int, length: int, seed: int) -> Iterable[list[int]]:
    """Stretches of neighbouring paragraphs, from random places of the text."""
    from kvmeld.evaluate.tasks import paragraphs_of

    paragraphs, between = paragraphs_of(text, length)
    rng = random.Random(seed)
    for number in range(count):
        share = (number * 0.6180339887 + rng.random() / count) % 1  # stretches far from each other, for any count
        at, body = int(share * 0.9 * len(paragraphs)), []
        while at < len(paragraphs) and len(body) < length:
            body += tokens((between if body else "") + paragraphs[at])
            at += 1
        if len(body) >= min(length, 64):
            yield body[:length]


def _scores(keys: Any, passes: Sequence[tuple[Any, Any]], scale: float, softcap: Optional[float] = None, sinks: Any = None
            ) -> Any:
    """KVzip's scores of one layer: [kv_heads, n], the largest probability that a query of the second reading pays.

    keys: [kv_heads, n, d]. passes: (keys [kv_heads, m, d], queries [query_heads, m, d]) of each of its passes. softcap, and
    sinks [query_heads] of this layer: as in kvmeld.Cache."""
    import torch

    kv_heads, n = keys.shape[:2]
    out = torch.zeros(kv_heads, n, device=keys.device)
    for own, queries in passes:
        m, group = queries.shape[1], queries.shape[0] // kv_heads
        later = torch.ones(m, n + m, dtype=torch.bool, device=keys.device).triu(n + 1)
        for head in range(kv_heads):
            seen = torch.cat([keys[head], own[head]]).float()
            for number in range(head * group, (head + 1) * group):
                logits = scale * (queries[number].float() @ seen.T)
                if softcap is not None:
                    logits = softcap * torch.tanh(logits / softcap)
                logits = logits.masked_fill_(later, float("-inf"))
                if sinks is not None:
                    logits = torch.cat([logits, sinks[number].to(logits).expand(m, 1)], dim=1)
                out[head] = torch.maximum(out[head], logits.softmax(dim=-1)[:, :n].amax(dim=0))
    return out


def _features(keys: Any, rotation: tuple[str, list[float]]) -> Any:
    """[kv_heads, n, 2 d + 2], in double: see learned.FEATURES. keys: of tokens at positions 0 to n - 1."""
    import torch

    from kvmeld import _model

    positions = torch.arange(keys.shape[1], dtype=torch.float64, device=keys.device)[:, None]
    frequencies = torch.tensor(rotation[1], dtype=torch.float64, device=keys.device)
    k = keys.double()
    if rotation[0] != "none":
        k = _model.turned(k, rotation[0], frequencies, -positions)
    rest = torch.cat([(1 + positions).log(), torch.ones_like(positions)], dim=1).expand(k.shape[0], -1, -1)
    return torch.cat([k, k * k, rest], dim=2)


class _Sums:
    """Gram matrices of features, and products with what is to be predicted, of each head: all that a fit needs."""

    def __init__(self, other: Optional[_Sums] = None) -> None:
        self.n = 0 if other is None else other.n
        self.gram, self.product, self.square = (0, 0, 0) if other is None else (other.gram, other.product, other.square)

    def add(self, features: Any, wanted: Any) -> None:
        """Adds n entries of each track: features [tracks, n, f], and what is to be predicted of them, wanted [tracks, n]."""
        self.n += features.shape[1]
        self.gram = self.gram + features.transpose(1, 2) @ features
        self.product = self.product + (features.transpose(1, 2) @ wanted[..., None])[..., 0]
        self.square = self.square + (wanted * wanted).sum(dim=1)

    def join(self, other: _Sums) -> _Sums:
        out = _Sums(self)
        out.n, out.gram = self.n + other.n, self.gram + other.gram
        out.product, out.square = self.product + other.product, self.square + other.square
        return out

    def fit(self, ridge: float) -> Any:
        """[tracks, f]: the weights that minimise the squared error, plus `ridge` times the variance of each feature times the
        square of its weight. The constant, the last feature, is free."""
        import torch

        mean = self.gram[..., -1] / self.n
        spread = (self.gram.diagonal(dim1=-2, dim2=-1) / self.n - mean * mean).clamp_min(1e-12) * self.n
        spread[..., -1] = 0
        return torch.linalg.solve(self.gram + ridge * torch.diag_embed(spread), self.product[..., None])[..., 0]

    def errors(self, weights: Any) -> Any:
        """[tracks]: the mean squared error of weights on what was added."""
        fit = (weights[:, None] @ self.gram @ weights[..., None])[:, 0, 0]
        return (self.square - 2 * (weights * self.product).sum(dim=1) + fit) / self.n

    def variance(self) -> Any:
        return self.square / self.n - (self.product[:, -1] / self.n) ** 2


def _ranks(x: Any) -> Any:
    return x.argsort(dim=-1).argsort(dim=-1).double()


def _rank_correlation(a: Any, b: Any) -> Any:
    """The rank correlation of a and b along the last axis; there are hardly any ties."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(dim=-1, keepdim=True), y - y.mean(dim=-1, keepdim=True)
    return (x * y).sum(dim=-1) / (x.norm(dim=-1) * y.norm(dim=-1))


def learn(
    model: Any,
    tokenizer: Any,
    text: Optional[str] = None,
    *,
    passages: int = 24,
    tokens: Optional[int] = None,
    seed: int = 1,
    called: str = "",
    progress: Optional[Callable[[int, int], None]] = None,
) -> tuple[Learned, Report]:
    """Learns a model's weights for the score "learned"; returns them, and how well they fit.

    The model reads passages of the text (learning_text() without one), each twice, as KVzip has it. A ridge regression,
    solved in double, predicts the natural logarithm of the largest attention that the second reading pays to an entry from
    its key. Every fifth passage chooses the strength of the ridge, and gives the report; then the weights are fitted to
    all passages. Memory does not grow with the number of passages. The same arguments give the same weights on the same
    machine.

    model, tokenizer: of transformers, in host memory or on one device.
    passages: how many passages the model reads.
    tokens: the length of a passage. None: 1,024, or as many as the model has positions for when it reads them twice.
    called: what the file is to call the model.
    progress: is called with the number of passages done, and the number of all.

    Raises ValueError for models that KVMeldCache refuses, for those whose rotation is unknown, for passages that are longer than
    the model has positions for, and for a text that is too short.
    """
    import torch
    import transformers

    from kvmeld import _model
    from kvmeld.evaluate.judge import Judge, Reading
    from kvmeld.evaluate.tasks import Context

    judge = Judge(model, tokenizer, seed=seed)
    facts = judge.cache("kvzip")._facts
    if facts.rotation is None:
        raise ValueError(f"learn: the rotation of keys is unknown; it must be known ({facts.unknown})")
    wanted = learning_text() if text is None else text
    sums, held, kept = _Sums(), _Sums(), []
    opening = judge.dialogue.tokens(judge.dialogue.opening)
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30
    most = (positions - len(opening) - len(judge.repeat)) // 2
    if tokens is not None and tokens > most:
        raise ValueError(f"learn: tokens is {tokens}; it must be at most {most}: the model has {positions} positions, and reads a"
                         " passage twice")
    tokens = min(most, 1024) if tokens is None else tokens
    attention = facts.attention
    read = list(_passages(judge.dialogue.tokens, wanted, passages, tokens, seed))
    if len(read) < HELD_OUT:
        raise ValueError(f"learn: the text holds {len(read)} passages; it must hold at least {HELD_OUT}")
    for number, body in enumerate(read):
        reading = Reading(judge, Context(number, opening + body, len(opening), [], []))
        features, logs = [], []
        for layer in range(judge.layers):
            keys = reading.first.keys[layer]
            passes = [(p.keys[layer], p.queries[layer]) for p in reading.second()]
            scores = _scores(keys, passes, reading.scale or 1 / math.sqrt(keys.shape[-1]), attention["softcap"],
                             None if attention["sinks"] is None else attention["sinks"][layer])
            features.append(_features(keys, facts.rotation)[:, FIRST:])
            logs.append((scores.double() + LEAST).log()[:, FIRST:])
        x, y = torch.cat(features), torch.cat(logs)  # [layers * kv_heads, n, ...]
        is_held = number % HELD_OUT == HELD_OUT - 1
        (held if is_held else sums).add(x, y)
        if is_held and len(kept) < 2:
            kept.append((x.float(), y.float()))
        if progress is not None:
            progress(number + 1, len(read))
    ridge = min(RIDGES, key=lambda r: float(held.errors(sums.fit(r)).mean()))
    fitted = sums.fit(ridge)
    r2 = 1 - held.errors(fitted) / held.variance().clamp_min(1e-12)
    rank, found = [], []
    for x, y in kept:
        guess = (x @ fitted.float()[..., None])[..., 0]
        rank.append(_rank_correlation(guess, y))
        best = int(SHARE * y.numel())
        chosen = torch.zeros(y.numel(), dtype=torch.bool, device=y.device)
        chosen[guess.flatten().topk(best).indices] = True
        found.append(float(chosen[y.flatten().topk(best).indices].double().mean()))
    shape = judge.layers, facts.kv_heads
    every = sums.join(held)
    weights = every.fit(ridge).float().cpu().numpy().reshape(*shape, -1)
    report = Report(r2.cpu().numpy().reshape(shape), torch.stack(rank).mean(dim=0).cpu().numpy().reshape(shape),
                    float(np.mean(found)), ridge, every.n)
    about = {"model": called, "passages": str(len(read)), "fit": str(report), "torch": torch.__version__,
             "transformers": transformers.__version__, "seed": str(seed)}
    keys = _model.keys_of(model).numpy()
    return Learned(weights, facts.rotation[0], list(facts.rotation[1]), about, keys), report


def chart(report: Report) -> bytes:
    """SVG: how well each head of each layer is predicted."""
    from io import BytesIO

    from matplotlib.figure import Figure

    layers, heads = report.rank.shape
    figure = Figure(figsize=(1.8 + max(2.6, 0.22 * layers), 1.2 + max(1.2, 0.3 * heads)), layout="constrained")
    ax = figure.subplots()
    image = ax.imshow(report.rank.T, cmap="viridis", aspect="auto", vmin=0, vmax=1)
    ax.set_xlabel("layer")
    ax.set_ylabel("KV head")
    ax.set_yticks(range(heads))
    figure.colorbar(image, ax=ax, label="rank correlation, held out")
    picture = BytesIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kvmeld.learn", description=__doc__)
    add_options(parser, "texts like those that the model is to read, UTF-8 [what modules of Python say of themselves, and some of"
                " their source]")
    parser.add_argument("--out", type=_program.output_path, required=True, help="the file to write, FILE.safetensors")
    parser.add_argument("--passages", type=_program.whole(5, 10**6), default=24, help="[24]")
    parser.add_argument("--tokens", type=_program.whole(64, 1 << 20),
                        help="of a passage [1024, or what the model has positions for when it reads it twice]")
    parser.add_argument("--seed", type=_program.whole(0, 2**63 - 1), default=1, help="[1]")
    parser.add_argument("--chart", type=_program.output_path, help="how well each head is predicted, as SVG")
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> Report:
    """Writes the file, and prints the report."""
    parser = _parser()
    o = parser.parse_args(arguments)
    try:
        import torch  # noqa: F401
        from tqdm import tqdm
    except ImportError as problem:
        raise ImportError(f"{_program.sentence(problem)}: pip install 'kvmeld[evaluate]'") from None
    model, tokenizer, called, text = opened(parser, o)
    bar = tqdm(total=o.passages, desc="passages read twice", unit="", disable=None)
    try:
        learned, report = learn(model, tokenizer, text, passages=o.passages, tokens=o.tokens, seed=o.seed, called=called,
                                progress=lambda done, _: bar.update(done - bar.n))
    except ValueError as problem:
        bar.close()
        parser.error(_program.sentence(problem))
    bar.close()
    save(o.out, learned)
    if o.chart:
        _program.write_file(o.chart, chart(report))
    print(f"{called}: {report}")
    print(f"written to {o.out}: KVMeldCache(model, budget=0.25, learned={o.out!r})")
    return report


if __name__ == "__main__":
    _program.start("python -m kvmeld.learn")
    main()
