"""How a cache is made from one reading of a prompt, and what the model still answers from it."""

from __future__ import annotations

import copy
import functools
import time
from dataclasses import dataclass
from typing import Any, Iterator, Optional, Sequence

import torch

from kvmeld import _layers
from kvmeld.evaluate.formats import FORMATS
from kvmeld.evaluate.report import Key
from kvmeld.evaluate.tasks import Context, Dialogue, Question
from kvmeld.hf import KVMeldCache, _refusal, attach

__all__ = ["MODES", "Case", "Judge"]

MODES = {
    "prompt": "a finished prompt is compressed, then questions come",
    "inside": "each question is part of the prompt that is compressed",
    "parts": "a prompt is read in parts, and the cache compressed after each of them",
    "answer": "the model writes the text itself, into a cache of constant length",
    "turns": "a conversation whose cache is compressed after each turn",
}
RANDOM = "random"  # a policy that keeps entries at random
_RANDOM_PARTS = "score=given select=top identify=evict_rest merge=drop"
ONE_PLAN = "one_plan"  # in place of tracks that share a budget: all heads of all layers keep the same tokens
REPEAT = "\n\nRepeat the text above, word for word."  # what a second reading begins with
PART, SECOND = 512, 2048  # tokens of a part of a prompt, and of a pass of a second reading
STEP = 64  # tokens between two compressions of an answer
TURNS = 5  # of a conversation
SINGLY = 8  # tokens that are read one by one, for their speed


@dataclass(frozen=True)
class Case:
    """A policy at a budget.

    name: the policy's name in the table.
    policy: its text.
    over: the tracks that share a budget, or ONE_PLAN.
    budget: a share of the tokens.
    rows: the format to which a compression rounds all rows, of formats.FORMATS; without it they stay as they are."""

    name: str
    policy: str
    over: str
    budget: float
    rows: Optional[str] = None

    @property
    def key(self) -> Key:
        return self.name, self.over, self.budget


class _Recorder(_layers.Growing):
    """A plain cache that keeps queries, too: those of one pass, of each layer that keeps all tokens."""

    def __init__(self, layers: Sequence[Any], full: Sequence[int]) -> None:
        super().__init__(layers, full)
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.queries: list[torch.Tensor] = []
        self.scale: Optional[float] = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        if layer_idx not in self._full:
            return self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)
        layer = self._full.index(layer_idx)
        if layer == 0:
            self.queries = []
        if len(self.keys) == layer:
            self.keys.append(key_states)
            self.values.append(value_states)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], key_states], dim=2)
            self.values[layer] = torch.cat([self.values[layer], value_states], dim=2)
        marked = key_states.view_as(key_states)
        marked.kvmeld_attend = functools.partial(self._attend, layer)  # for the attention function of kvmeld.hf.attach
        return marked, value_states

    def _attend(self, layer: int, module: Any, query: torch.Tensor, mask: Any, inner: Any, causal: bool, **kwargs: Any
                ) -> Any:
        if len(self.queries) == layer:  # else another layer reads these entries
            self.queries.append(query[0])
        self.scale = kwargs.get("scaling")
        if layer == self._layers - 1:
            self._seen = self.keys[0].shape[2]
        return inner(module, query, self.keys[layer], self.values[layer], mask, **kwargs)

    def crop(self, tokens: int) -> None:
        self.keys = [k[:, :, :tokens] for k in self.keys]
        self.values = [v[:, :, :tokens] for v in self.values]
        self._seen = tokens


@dataclass
class _Pass:
    """The rows [kv_heads, n, head_dim] and queries [query_heads, n, head_dim] of a pass, by layer."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    queries: list[torch.Tensor]


class Reading:
    """One reading of a prompt, and a second one once it is asked for."""

    def __init__(self, judge: Judge, context: Context) -> None:
        self.judge, self.tokens, self.opening = judge, context.tokens, context.opening
        self.recorder = _Recorder(*_layers.layers_of(judge.model, _refusal))
        judge.run(self.recorder, self.tokens)
        self.beside = self.recorder.layers  # as the prompt leaves them
        self.scale = self.recorder.scale
        self.first = self._last(len(self.tokens))
        self._second: Optional[list[_Pass]] = None
        self.second_ms = 0.0

    def _last(self, n: int) -> _Pass:
        r = self.recorder
        return _Pass([k[0, :, -n:] for k in r.keys], [v[0, :, -n:] for v in r.values], r.queries)

    def second(self) -> list[_Pass]:
        """The text behind the words that ask to repeat it, in passes that each lie behind the first reading."""
        if self._second is None:
            start, self._second = time.perf_counter(), []
            for at in range(self.opening, len(self.tokens), SECOND):
                ids = self.judge.repeat + self.tokens[at : at + SECOND]
                self.recorder.layers = copy.deepcopy(self.beside)
                self.judge.run(self.recorder, ids)
                self._second.append(self._last(len(ids)))
                self.recorder.crop(len(self.tokens))
            self.second_ms = 1e3 * (time.perf_counter() - start)
        return self._second

    def cache(self, policy: str, over: str) -> tuple[KVMeldCache, float]:
        """Returns a cache in the state that reading the prompt itself would leave, after the policy was shown all that it has
        to see. Also returns the milliseconds that the showing took, the second reading included."""
        judge, n = self.judge, len(self.tokens)
        made = judge.cache(policy, over)
        first = self.first
        more = max(p.keys[0].shape[1] for p in self.second()) if judge.needs_second_reading(policy) else 0
        made._create(1, first.keys[0].shape[0], n + more, first.values[0].shape[-1], first.keys[0])
        held = made.cache
        for layer in range(judge.layers):
            made.keys[layer, 0, :, :n], made.values[layer, 0, :, :n] = first.keys[layer], first.values[layer]
        held.open(0, n)
        made._seen, made.layers = n, copy.deepcopy(self.beside)
        start = time.perf_counter()
        if made._needs.when == "replay":
            for p in self.second():
                m = p.keys[0].shape[1]
                held.append(0, m)
                held.commit(0, m)
                for layer in range(judge.layers):
                    made.keys[layer, 0, :, n : n + m] = p.keys[layer]
                    made.values[layer, 0, :, n : n + m] = p.values[layer]
                for layer in range(judge.layers):
                    held.observe(layer, 0, p.queries[layer].contiguous(), scale=self.scale)
                held.truncate(0, n)
        elif made._needs.when != "nothing":
            rows = made._needs.rows if made._needs.when == "last_queries" and made._needs.rows else n
            for layer in range(judge.layers):
                held.observe(layer, 0, first.queries[layer][:, -rows:].contiguous(), scale=self.scale)
        return made, 1e3 * (time.perf_counter() - start) + (self.second_ms if made._needs.when == "replay" else 0.0)


def _forget(cache: Any, tokens: int, layers: list[Any]) -> None:
    """Takes the last tokens back. layers: what cache.layers were before them, because windows and states cannot."""
    if isinstance(cache, KVMeldCache):
        cache._crop(cache.get_seq_length() - tokens)
        cache.layers = layers
    else:
        cache.crop(-tokens)


def _log_softmax(logits: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits.float(), dim=-1)


def _graded(q: Question, logits: torch.Tensor) -> dict[str, Any]:
    """logits: [tokens of the answer, vocabulary], each behind the right tokens before it."""
    log_p, answer = _log_softmax(logits), torch.tensor(q.answer, device=logits.device)
    right = log_p.argmax(dim=-1) == answer
    return {"task": q.task, "exact": int(right.all()), "right": int(right.sum()), "tokens": len(q.answer),
            "nats": float(-log_p[torch.arange(len(q.answer)), answer].sum())}


class Judge:
    """Measures what a model answers from caches that policies have compressed.

    model, tokenizer: of transformers, in host memory or on one device. threads: of a cache, as in kvmeld.Cache.
    floor: see kvmeld.Cache.compress; for budgets that tracks share. learned: see KVMeldCache. bits: how many a number in
    a row counts that no format holds; those of the model's type without it.
    """

    def __init__(self, model: Any, tokenizer: Any, *, floor: float = 0.0, threads: int = 0, seed: int = 1,
                 learned: Any = None, bits: Optional[int] = None) -> None:
        attach(model)
        self.bits = torch.finfo(model.dtype).bits if bits is None else bits
        self.model, self.dialogue, self.floor, self.threads, self.seed = model, Dialogue(tokenizer), floor, threads, seed
        self.learned = learned if learned is not None else KVMeldCache(model)._learned
        self.layers = len(_layers.layers_of(model, _refusal)[1])  # that keep all tokens
        self.device = model.get_input_embeddings().weight.device
        self._replays: dict[str, bool] = {}
        self.repeat = self.dialogue.tokens(REPEAT + self.dialogue.reply)

    # --- the model

    def run(self, cache: Any, tokens: Sequence[int], last: int = 0) -> torch.Tensor:
        """Reads tokens into a cache; returns the logits of the last ones, [last, vocabulary]."""
        ids = torch.tensor([list(tokens)], device=self.device)
        with torch.inference_mode():
            if last == 0:
                self.model.base_model(input_ids=ids, past_key_values=cache, use_cache=True,
                                      position_ids=self._positions(cache, len(tokens)))
                return torch.empty(0)
            return self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=last,
                              position_ids=self._positions(cache, len(tokens))).logits[0, -last:]

    def _positions(self, cache: Any, n: int) -> torch.Tensor:
        seen = cache.next_position() if hasattr(cache, "next_position") else cache.get_seq_length()
        return torch.arange(seen, seen + n, device=self.device)[None]

    def cache(self, policy: str, over: str = "head", budget: Any = None, interval: int = STEP) -> KVMeldCache:
        text = _RANDOM_PARTS if policy == RANDOM else policy
        over, scope = ("head", "all_layers") if over == ONE_PLAN else (over, "head")
        return KVMeldCache(self.model, text, budget, interval=interval, over=over, floor=self.floor, scope=scope,
                           threads=self.threads, learned=self.learned)

    def check(self, case: Case, tokens: int) -> None:
        """Raises ValueError for a case that this model, these shared budgets or this budget of a text refuse."""
        facts = self.cache(case.policy, case.over, max(1, int(case.budget * tokens)))._facts
        if case.rows is not None:
            FORMATS[case.rows].check(facts.key_dim, facts.value_dim)

    def needs_second_reading(self, policy: str) -> bool:
        if policy not in self._replays:
            c = self.cache(policy)
            like = torch.zeros(1, c._facts.key_dim, dtype=self.model.dtype, device=self.device)
            c._create(1, c._facts.kv_heads, 64, c._facts.value_dim, like)
            self._replays[policy] = c._needs.when == "replay"
        return self._replays[policy]

    # --- compression

    def _compress(self, cache: KVMeldCache, case: Case, budget: Any, number: int) -> float:
        """Milliseconds of a compression."""
        if case.policy == RANDOM:
            generator = torch.Generator().manual_seed(self.seed * 1000003 + number)
            held = cache.cache
            for layer in range(held.layers):
                scores = torch.rand(held.kv_heads, held.longest(0), generator=generator)
                held.set_scores(layer, 0, scores.to(cache.keys.device))
        start = time.perf_counter()
        cache.compress(budget)
        if cache.keys.is_cuda:
            torch.cuda.synchronize(cache.keys.device)
        spent = 1e3 * (time.perf_counter() - start)
        if case.rows is not None:
            self._round(cache, case.rows)
        return spent

    def _round(self, cache: KVMeldCache, rows: str) -> None:
        """Rounds all entries to a format. What tokens append later stays as it is until the next compression."""
        held = cache.cache.longest(0)
        for layer in range(self.layers):
            for tensor in (cache.keys[layer, :, :, :held], cache.values[layer, :, :, :held]):
                tensor.copy_(FORMATS[rows].rounded(tensor.float()))

    def held(self, cache: KVMeldCache, rows: Optional[str] = None) -> dict[str, float]:
        """What a cache holds of its tokens: the share of entries, their bytes in a format, those of the ledger, and of
        KVMeldCache's tensors, which hold rows of a format as any others."""
        c = cache.cache
        lengths = c.lengths(0)
        numbers = c.key_dim + c.value_dim
        every = lengths.size * c.tokens(0)
        return {
            "entries": float(lengths.sum()) / every,
            "kv_bytes": int(lengths.sum()) * numbers * (self.bits if rows is None else FORMATS[rows].bits) / 8,
            "full_bytes": every * numbers * self.bits / 8,
            "ledger_bytes": len(c.save(0)),
            "tensor_bytes": int(lengths.max()) * lengths.size * numbers * cache.keys.element_size(),
        }

    # --- questions

    def answers(self, cache: Any, asked: Sequence[tuple[Sequence[int], Question]]) -> list[dict[str, Any]]:
        """What the model makes of the answers of questions. Each question stands behind the tokens that are given with it.
        The cache stays as it was: each question goes to a copy of it. The copies are the sequences of a batch, padded on the
        left."""
        if not isinstance(cache, KVMeldCache):
            return [self._answer(cache, given, q) for given, q in asked]
        rows = [[*given, *q.answer[:-1]] for given, q in asked]
        if cache._facts.beside and len(set(map(len, rows))) > 1:  # padding between tokens takes room in windows and states
            found = {n: iter(self.answers(cache, [one for one, row in zip(asked, rows) if len(row) == n]))
                     for n in set(map(len, rows))}
            return [next(found[len(row)]) for row in rows]
        n, seen = max(map(len, rows)), cache.get_seq_length()
        copies = copy.deepcopy(cache)
        copies._select([0] * len(rows), copies._longest() + n)
        ids = torch.zeros(len(rows), n, dtype=torch.long)
        shown = torch.ones(len(rows), seen + n, dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, n - len(row) :] = torch.tensor(row)
            shown[i, seen : seen + n - len(row)] = 0
        most = max(len(q.answer) for _, q in asked)
        with torch.inference_mode():
            logits = self.model(
                input_ids=ids.to(self.device), attention_mask=shown.to(self.device), past_key_values=copies, use_cache=True,
                position_ids=(shown.cumsum(dim=1)[:, seen:] - 1).to(self.device), logits_to_keep=most).logits
        return [_graded(q, logits[i, -len(q.answer) :]) for i, (_, q) in enumerate(asked)]

    def _answer(self, cache: Any, given: Sequence[int], q: Question) -> dict[str, Any]:
        """The same of one question, which the cache reads and forgets again."""
        logits = self.run(cache, [*given, *q.answer[:-1]], len(q.answer))
        cache.crop(-(len(given) + len(q.answer) - 1))
        return _graded(q, logits)

    def _read_on(self, cache: Any, after: Sequence[int], full: Optional[torch.Tensor]) -> tuple[dict[str, Any], torch.Tensor]:
        """Nats a token of the text that follows, and how far the distributions are from those of the full cache; the first
        tokens come one by one, for the speed. Returns the distributions, too. The cache forgets them again."""
        layers = copy.deepcopy(cache.layers) if isinstance(cache, KVMeldCache) else []
        logits, start = [], time.perf_counter()
        singly = min(SINGLY, len(after) - 1)
        for i in range(singly):
            logits.append(self.run(cache, after[i : i + 1], 1))
        seconds = time.perf_counter() - start
        if len(after) - 1 > singly:
            logits.append(self.run(cache, after[singly:-1], len(after) - 1 - singly))
        _forget(cache, len(after) - 1, layers)
        log_p = _log_softmax(torch.cat(logits))
        target = torch.tensor(after[1:], device=log_p.device)
        found = {"on_nats": float(-log_p[torch.arange(len(target)), target].mean()), "tokens_per_s": singly / seconds}
        if full is not None:
            found["kl"] = float((full.exp() * (full - log_p)).sum(dim=-1).mean())
        else:
            found["kl"] = 0.0
        return found, log_p

    def measure(self, cache: Any, context: Context, full: Optional[torch.Tensor]) -> tuple[dict[str, Any], torch.Tensor]:
        found, log_p = self._read_on(cache, context.after, full)
        found["questions"] = self.answers(cache, [(q.question, q) for q in context.questions + context.copies])
        return found, log_p

    # --- modes

    def rows(self, context: Context, cases: Sequence[Case], mode: str = "prompt", presses: Sequence[Any] = ()
             ) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Measures each case in a context, the full cache first, and then presses of kvpress: (case, what was found)."""
        if mode in ("prompt", "inside"):
            yield from self._of_reading(context, cases, mode, presses)
        else:
            yield from self._of_stream(context, cases, mode)

    def _of_reading(self, context: Context, cases: Sequence[Case], mode: str, presses: Sequence[Any]
                    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        reading = Reading(self, context)
        plain, _ = reading.cache("streaming_llm", "head")
        found, full = self.measure(plain, context, None)
        yield FULL, {**found, **self.held(plain), "compress_ms": 0.0, "observe_ms": 0.0}
        del plain
        seen: Optional[KVMeldCache] = None
        of = None
        for case in cases:
            if of != (case.policy, case.over):
                seen, observe_ms = reading.cache(case.policy, case.over)
                of = case.policy, case.over
            if mode == "prompt":
                cache = copy.deepcopy(seen)
                compress_ms = self._compress(cache, case, case.budget, context.number)
                found, _ = self.measure(cache, context, full)
                held = self.held(cache, case.rows)
            else:
                found, held, compress_ms = self._inside(seen, context, case)
            yield case, {**found, **held, "compress_ms": compress_ms, "observe_ms": observe_ms}
        if presses:
            from kvmeld.evaluate.presses import rows

            yield from rows(self, context, presses, full)

    def _inside(self, seen: KVMeldCache, context: Context, case: Case) -> tuple[dict[str, Any], dict[str, Any], float]:
        answers, held, spent = [], {}, 0.0
        for q in context.questions + context.copies:
            cache = copy.deepcopy(seen)
            replays = cache._needs.when == "replay"
            cache._reading = replays
            self.run(cache, q.ask)
            if replays:  # the question, too, is read a second time
                layers = copy.deepcopy(cache.layers)
                cache._again = True
                self.run(cache, self.repeat + q.ask)
                _forget(cache, len(self.repeat + q.ask), layers)
                cache._reading = cache._again = False
            spent += self._compress(cache, case, case.budget, context.number)
            answers += self.answers(cache, [(q.lead, q)])
            held = self.held(cache, case.rows)
        return {"questions": answers}, held, spent / max(1, len(answers))

    def _segments(self, context: Context, mode: str) -> list[list[int]]:
        """The prompt as it comes in a mode, piece by piece; the last piece ends where questions begin."""
        d = self.dialogue
        if mode == "parts":
            return [context.tokens[i : i + PART] for i in range(0, len(context.tokens), PART)]
        if mode == "answer":
            opening = d.tokens(d.opening + "Write down what comes to your mind." + d.reply)
            told = d.tokens(context.between.join(context.texts))
            return [opening] + [told[i : i + STEP] for i in range(0, len(told), STEP)] + [d.tokens(d.turn)]
        size = -(-len(context.texts) // TURNS)
        said = [context.between.join(context.texts[i : i + size]) for i in range(0, len(context.texts), size)]
        pieces = [d.tokens(d.opening + said[0])]
        for text in said[1:]:
            pieces[-1] += d.tokens(f"\n\nRemember this.{d.reply}I will.{d.turn}")
            pieces.append(d.tokens(text))
        return pieces

    def _of_stream(self, context: Context, cases: Sequence[Case], mode: str) -> Iterator[tuple[Case, dict[str, Any]]]:
        segments = self._segments(context, mode)
        total = sum(map(len, segments))
        full: Optional[torch.Tensor] = None
        for case in [FULL, *cases]:
            constant = max(1, int(case.budget * total)) if mode == "answer" and case is not FULL else None
            cache = self.cache(case.policy, case.over, constant)
            spent = 0.0
            for piece in segments:
                if constant is not None and cache.cache is not None:
                    if cache._is_due(0, len(piece)):  # as the pass itself would; here it is timed
                        spent += self._compress(cache, case, constant, context.number)
                self.run(cache, piece)
                if constant is None and case is not FULL and int(case.budget * cache.get_seq_length()) >= cache._least:
                    spent += self._compress(cache, case, case.budget, context.number)
            cache.budget = None  # questions are forgotten again: no compression may meet them
            found, log_p = self.measure(cache, context, full)
            if full is None:
                full = log_p
            yield case, {**found, **self.held(cache, case.rows), "compress_ms": spent, "observe_ms": 0.0}


FULL = Case("full", "streaming_llm", "head", 1.0)
