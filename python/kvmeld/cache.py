"""kvmeld.Cache: a cache over tensors of NumPy or of a library with DLPack."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple, Optional, Sequence, Union

import numpy as np

from kvmeld import _core

_SCOPES = ("head", "layer", "all_layers")
_PAIRINGS = ("none", "half_split", "interleaved")
_BIASES = ("per_head", "shared", "none")
_OBSERVATIONS = ("nothing", "last_queries", "every_step", "replay")
_ELEMENTS = ("float32", "float16", "bfloat16")

_PLACES = ("cpu", "cuda") if _core.cuda else ("cpu",)
_PLACES_TEXT = (
    "in host memory or on a CUDA device" if _core.cuda else "in host memory: this build of kvmeld has no CUDA"
)

Numbers = Union[int, Sequence[int]]
Budget = Union[int, float]


def policies() -> dict[str, str]:
    """The names of the policies, each with a sentence that says what it does."""
    return dict(line.split("\t", 1) for line in _core.policies().splitlines())


class Needs(NamedTuple):
    """What a policy has to be shown before it compresses.

    when: "nothing"; "last_queries": the last `rows` queries before a compression; "every_step": the queries of prompts
        and of every generated token; "replay": the queries of a second reading of the prompt, and no others.
    rows: the number of last queries that count; 0: all.
    queries: whether only observe can show it, and observe_rows is refused.
    """

    when: str
    rows: int
    queries: bool


def _refusal(argument: str, value: Any, condition: str) -> ValueError:
    return ValueError(f"{argument} is {value}; it must be {condition}")


def _is_share(budget: Budget) -> bool:
    """Whether a budget is a share of the tokens, and not a number of entries."""
    return not isinstance(budget, numbers.Integral)


def _number_of(name: str, names: Sequence[str], argument: str) -> int:
    if name not in names:
        raise _refusal(argument, repr(name), "one of " + ", ".join(names))
    return names.index(name)


def _rotation(rope: str, rope_base: float, frequencies: Any) -> tuple[int, float, list[float]]:
    pairing = _number_of(rope, _PAIRINGS, "rope")
    if rope == "none" and frequencies is not None:
        raise _refusal("frequencies", "given", "None, because rope is none")
    if rope_base == 0:
        raise _refusal("rope_base", 0, "above 0")
    if frequencies is not None and len(frequencies) == 0:
        raise _refusal("frequencies", "empty", "None, or one number for each pair of channels that turn")
    return pairing, rope_base, [] if frequencies is None else [float(f) for f in frequencies]


def _list(numbers: Numbers) -> list[int]:
    return [int(numbers)] if isinstance(numbers, (int, np.integer)) else [int(n) for n in numbers]


def _tensors(tensors: Any, argument: str) -> list[Any]:
    """The tensors of an argument as a list, after checks that the extension module cannot make."""
    found = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
    for i, tensor in enumerate(found):
        item = f"{argument}[{i}]" if len(found) > 1 else argument
        if getattr(tensor, "requires_grad", False):
            raise _refusal(item, "a tensor that requires gradients", "without: call detach() first")
        if isinstance(tensor, np.ndarray) and not tensor.flags.writeable:
            raise _refusal(item, "a read-only array", "writable: entries are merged in place")
        place = getattr(tensor, "device", "cpu")
        if getattr(place, "type", "cpu") not in _PLACES:  # of PyTorch; the extension module refuses those of others
            raise _refusal(item, f"on {place}", _PLACES_TEXT)
    return found


def _first(tensors: Any) -> Any:
    return tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors


def _current_stream(tensors: Any) -> int:
    """PyTorch's current stream on the device of its tensors; 0 for others, and on the host."""
    first = _first(tensors)
    if not getattr(first, "is_cuda", False):
        return 0
    import torch

    return torch.cuda.current_stream(first.device).cuda_stream


def _detached(tensor: Any) -> Any:
    """A tensor that is only read: its gradients do not matter."""
    return tensor.detach() if getattr(tensor, "requires_grad", False) else tensor


class Cache:
    """A KV cache that lies in tensors of the caller and is shrunk in place.

    keys, values: one tensor [layers, sequences, kv_heads, capacity, head_dim], or a list with a tensor
        [sequences, kv_heads, capacity, head_dim] for each layer. Any strides; float32, float16 or bfloat16, all of
        the same type. values may have another head_dim. The cache keeps references to the tensors until close_all()
        or its own end. It reads and writes their memory, and never copies or moves them.
    policy: a name of policies(), or parts, as
        "score=key_difference select=top identify=chunked_bipartite merge=degree_weighted chunk=64".
    queries_per_kv_head: query heads that read one KV head (GQA). Query head h reads KV head h // queries_per_kv_head.
    scope: tracks that share a plan: "head", "layer" or "all_layers". A track is one KV head of one layer of one
        sequence.
    over: the widest scope of a budget that compress may ask for.
    bias: what the caller's attention can add to the logits of merged entries: "per_head", "shared" (one row for all
        heads of a layer; needs a scope that is wider than "head") or "none" (refused if the policy merges, unless
        ignore_degree is set).
    ignore_degree: every entry counts as one token, whatever its degree.
    padded: the tracks of a sequence have the same length after a compression; slots behind a track's own end have
        degree 0 and rows of zeros.
    zero_emptied: value rows behind a shortened track become zeros; padded implies it.
    threads: 0: as many as this process may use; 1: the thread of the caller alone.
    first_layer, first_kv_head: the model's numbers of the cache's first layer and first KV head, if this rank
        holds a part of the model.
    page_table: for rows in pages (as vLLM has them): int32 [sequences, pages of a sequence]. keys and values are then
        the pool, [layers, pages, kv_heads, page_size, head_dim] or a list of [pages, kv_heads, page_size, head_dim],
        and page_table[s, i] is the page that holds tokens i * page_size to (i + 1) * page_size - 1 of sequence s. The
        capacity is that of a row of the table. The cache reads the table in place: give a sequence its pages before
        append(). Pages behind lengths(s).max() are free after a compression. Two sequences must not share a page.
        Calls that read or write rows refuse numbers of pages that the pool does not have. A table on a device is not
        checked.
    stream: for tensors on a CUDA device, the stream that calls enqueue to, as a number. Without it PyTorch's current
        stream for its tensors, and the default stream (0) for others. It must outlive the cache.

    On a CUDA device (kvmeld.cuda says whether this build has it) the tensors of all arguments lie on the device of
    keys. Calls enqueue their work and return, in the order of the stream. Those that return numbers wait for it;
    longest() and lengths() only after a compression by thresholds, with `over`, or with `keep`.

    A refused call changes nothing and raises ValueError with the library's text. An argument of a wrong type, such as a
    negative number of tokens, raises TypeError; a lack of memory raises MemoryError. Returned arrays are copies.
    Calls on the host return when their work is done. All calls release the GIL. Different threads may use different caches at the same
    time; a call during another call on the same cache is refused. Results are the same bits for any number of threads.

    A `with` block closes the cache at its end. Attributes: layers, sequences, kv_heads, query_heads, capacity, key_dim,
    value_dim; element, the name of the element type; policy, its parts as a text; device, the number of the CUDA
    device, or -1; stream, as above.
    """

    def __init__(
        self,
        keys: Any,
        values: Any,
        policy: str = "recommended",
        *,
        queries_per_kv_head: int = 1,
        scope: str = "head",
        over: str = "head",
        bias: str = "per_head",
        ignore_degree: bool = False,
        padded: bool = False,
        zero_emptied: bool = False,
        threads: int = 0,
        first_layer: int = 0,
        first_kv_head: int = 0,
        page_table: Any = None,
        stream: Optional[int] = None,
    ) -> None:
        self.stream = _current_stream(keys) if stream is None else stream
        self._c = _core.Cache(
            _tensors(keys, "keys"),
            _tensors(values, "values"),
            policy,
            queries_per_kv_head,
            _number_of(scope, _SCOPES, "scope"),
            _number_of(over, _SCOPES, "over"),
            _number_of(bias, _BIASES, "bias"),
            ignore_degree,
            padded,
            zero_emptied,
            threads,
            first_layer,
            first_kv_head,
            page_table,
            self.stream,
        )
        sizes = self._c.sizes()
        self.layers, self.sequences, self.kv_heads, self.capacity, self.key_dim, self.value_dim = sizes[:6]
        element, self.device = sizes[6:]
        self.query_heads = self.kv_heads * queries_per_kv_head
        self.element = _ELEMENTS[element]
        self.policy = self._c.policy()
        self._closed = False
        self._like = _first(keys)

    def __repr__(self) -> str:
        where = f" on CUDA device {self.device}" if self.device >= 0 else ""
        return (
            f"<kvmeld.Cache {self.policy}: {self.layers} layers, {self.sequences} sequences, {self.kv_heads} KV heads, "
            f"{self.capacity} entries of {self.element}{where}{', closed' if self._closed else ''}>"
        )

    def _empty(self, *shape: int) -> Any:
        """A new float32 array where the cache's tensors are: of NumPy on the host, of PyTorch on a device."""
        if self.device < 0:
            return np.empty(shape, np.float32)
        if not hasattr(self._like, "new_empty"):
            raise _refusal("out", "None", "a tensor on the cache's device, because the keys are none of PyTorch")
        import torch

        return self._like.new_empty(shape, dtype=torch.float32)

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_all()

    def close_all(self) -> None:
        """Frees the ledger and gives the tensors back. Later calls raise ValueError."""
        if not self._closed:
            self._c.destroy()
            self._closed = True
            self._like = None

    # --- sequences

    def open(self, sequence: int, tokens: int = 0, frozen: int = 0) -> None:
        """Begins a sequence that is not open. The rows of its first `tokens` tokens lie in keys and values already. The
        first `frozen` entries are never written or moved. Refused if `tokens` exceeds the capacity, or `frozen` exceeds
        `tokens`. Takes time in proportion to the capacity."""
        self._c.open(sequence, tokens, frozen)

    def close(self, sequence: int) -> None:
        """Ends a sequence; its number can be opened again."""
        self._c.close(sequence)

    def append(self, sequences: Numbers, counts: Numbers) -> None:
        """Makes room for counts[i] pending tokens behind each track of sequences[i]. The caller writes the
        rows of these tokens. In each track they begin at the slot that lengths() gave before this call.
        Refused if a track has too little room."""
        self._c.append(_list(sequences), _list(counts))

    def commit(self, sequences: Numbers, accepted: Numbers) -> None:
        """Keeps the first accepted[i] pending tokens of sequences[i] and drops the others. Refused if fewer are
        pending."""
        self._c.commit(_list(sequences), _list(accepted))

    def fork(self, source: int, into: int) -> None:
        """Copies a sequence, which has nothing pending, into the closed sequence `into`: rows, degrees, positions and
        scores."""
        self._c.fork(source, into)

    def truncate(self, sequence: int, tokens: int) -> None:
        """Goes back to the first `tokens` tokens. Refused while tokens are pending, if a token that would go
        was there at a compression that changed the sequence, and if frozen entries would go."""
        self._c.truncate(sequence, tokens)

    def renumber(
        self, sequence: int, rope: str = "none", rope_base: float = 10000.0, frequencies: Any = None
    ) -> None:
        """Gives entries positions without gaps, as if they were all that was read.

        The newest entry of every head comes to longest - 1, the one before it to longest - 2, and so on, where longest
        is the length of the longest head. The next token has position longest, and later budgets that are a share of
        the tokens count from it. Logits change, because entries come closer to each other and to later queries. Queries
        that a policy keeps do not turn: show the last ones again before the next compression. Refused while tokens are
        pending, if a key that would turn is frozen, and if padded heads have empty slots.

        rope: how keys lie rotated. Keys turn in place by as much as their positions change. "half_split" pairs channel
            i with i + d / 2 (Llama, Qwen and Mistral in transformers), "interleaved" 2 i with 2 i + 1. With "none" keys
            stay as they lie.
        rope_base: pair i turns by rope_base ** (-2 i / d) radians a position.
        frequencies: d / 2 radians a position instead, such as a model's inv_freq: any sequence of numbers. Fewer of
            them: only the first channels, two for each number, lie rotated.
        """
        self._c.renumber(sequence, *_rotation(rope, rope_base, frequencies))

    # --- compression

    def needs(self) -> Needs:
        """What the policy has to be shown before it compresses."""
        when, rows, queries = self._c.needs()
        return Needs(_OBSERVATIONS[when], rows, queries)

    def observe(self, layer: int, sequence: int, queries: Any, lse: Any = None, scale: Optional[float] = None) -> None:
        """Shows the policy the queries of the last n tokens of a sequence in one layer. Refused while tokens are
        pending, and if n exceeds the entries of a track or, with padded, the tokens since the last compression.

        queries: [query_heads, n, head_dim], rotated as for attention; float32, float16 or bfloat16; channels lie side
            by side. Only read.
        lse: float32 [query_heads, n], natural log-sum-exps of the logits, log degrees included. Only read. If the
            policy needs them and they are not given, kvmeld computes the attention first, which takes about as long
            again.
        scale: logits are scale * q.k; 1 / sqrt(head_dim) without it.
        """
        self._c.observe(layer, sequence, _detached(queries), _detached(lse), scale or 0.0)

    def observe_rows(self, layer: int, sequence: int, rows: Any) -> None:
        """Shows the policy probabilities: float32 [query_heads, n, entries], those of the last n queries of a
        sequence on the entries of the layer's tracks, as many columns as the longest track at least. Only read."""
        self._c.observe_rows(layer, sequence, _detached(rows))

    def set_scores(self, layer: int, sequence: int, scores: Any) -> None:
        """Sets scores of the caller's own, for policies with score=given: float32 [kv_heads, entries], pending entries
        included. NaN ranks lowest. Only read."""
        self._c.set_scores(layer, sequence, _detached(scores))

    def compress(
        self, sequences: Numbers, budget: Budget, *, over: str = "head", floor: float = 0.2, keep: bool = False
    ) -> None:
        """Shrinks sequences to a budget, in place, in every layer and head. What stays moves to the beginning of its
        track and keeps its order. Refused while tokens are pending, if the budget is smaller than what the policy
        pins, and if the policy ranks by attention and was shown none of a layer. The time depends on the
        policy (docs/performance.md).

        budget: an int: entries per track; a float: a share of the tokens seen (`tokens`),
            above 0 to 1, rounded down. 1 is one entry, 1.0 all tokens.
        over: tracks that share their budgets: "head" (none), "layer" or "all_layers", up to the `over` that the cache
            was made with. Any but "head" needs the scope "head" and a policy that decides by score alone what stays.
        floor: the share of its own budget, 0 to 1, that each of these tracks keeps. Not read if over is "head".
        keep: for a track that merging does not bring to its budget. True: it stays longer. False: its entries with the
            lowest scores are evicted.
        """
        entries, ratio = (0, float(budget)) if _is_share(budget) else (int(budget), 0.0)
        among = _number_of(over, _SCOPES, "over")
        self._c.compress(_list(sequences), entries, ratio, among, floor if among else 0.0, keep)

    # --- what the cache holds

    def tokens(self, sequence: int) -> int:
        """Tokens seen, pending ones included: the position of the next token. `renumber` sets them to the length of the
        longest head."""
        return self._c.tokens(sequence)

    def longest(self, sequence: int) -> int:
        """The length of the longest track of a sequence."""
        return self._c.longest(sequence)

    def lengths(self, sequence: int) -> np.ndarray:
        """The length of each track of a sequence, pending entries and empty slots (padded) included: uint32
        [layers, kv_heads]."""
        out = np.empty((self.layers, self.kv_heads), np.uint32)
        self._c.lengths(sequence, out)
        return out

    def degrees(self, layer: int, sequence: int, kv_head: int) -> np.ndarray:
        """How many tokens each entry of a track stands for: float32 [length]; 0 for empty slots (padded)."""
        return self._of_track(self._c.degrees, np.float32, layer, sequence, kv_head)

    def positions(self, layer: int, sequence: int, kv_head: int) -> np.ndarray:
        """The token position that the key of each entry of a track is rotated for: int32 [length]."""
        return self._of_track(self._c.positions, np.int32, layer, sequence, kv_head)

    def _of_track(self, call: Any, kind: Any, layer: int, sequence: int, kv_head: int) -> np.ndarray:
        lengths = self.lengths(sequence)
        known = 0 <= layer < self.layers and 0 <= kv_head < self.kv_heads
        out = np.empty(int(lengths[layer, kv_head]) if known else 0, kind)
        call(layer, sequence, kv_head, out)
        return out

    def log_degrees(self, layer: int, sequence: int, columns: Optional[int] = None, out: Any = None) -> Any:
        """What attention adds to logits: float32 [query_heads, columns], the natural logarithm of the degree of each
        entry, and the lowest finite float for empty slots and behind the last entry of a track.

        columns: longest(sequence) without it; at least the length of the layer's longest track.
        out: where to write it, of as many columns; returned. A new array without it: of NumPy, or on a device of
            PyTorch.
        """
        if out is None:
            out = self._empty(self.query_heads, self.longest(sequence) if columns is None else columns)
        self._c.log_degrees(layer, sequence, out)
        return out

    def warnings(self, sequence: int) -> int:
        """What the last compression of a sequence found, as a sum of bits: 1: rows with NaN or infinity, which never
        merge; 2: a track is longer than its budget, and nothing was left that could merge; 4: entries were evicted to
        reach the budget; 8: entries beyond the capacity were dropped."""
        return self._c.warnings(sequence)

    # --- attention

    def attend(
        self,
        layer: int,
        sequence: int,
        queries: Any,
        out: Any = None,
        *,
        lse: Any = None,
        scale: Optional[float] = None,
    ) -> Any:
        """kvmeld's own attention of the last n queries of a sequence in one layer, log degrees included; returns out.

        It is causal. The last query is that of the last token, pending ones included. The n tokens must have come since
        the last compression, which is not checked. A query that sees no entry gets zeros, and the lowest finite float
        as its log-sum-exp. Sums are in float.

        queries: as in observe.
        out: [query_heads, n, head_dim of the values], float32 or the type of the queries; written. It must not overlap
            other tensors. Without it a new float32 array: of NumPy, or on a device of PyTorch.
        lse: float32 [query_heads, n]; if given, it gets the natural log-sum-exps.
        scale: logits are scale * q.k; 1 / sqrt(head_dim) without it.
        """
        if out is None:
            out = self._empty(queries.shape[0], queries.shape[1], self.value_dim)
        self._c.attend(layer, sequence, _detached(queries), *_tensors(out, "out"), lse, scale or 0.0)
        return out

    # --- saving

    def save(self, sequence: int) -> bytes:
        """The ledger of a sequence, pending tokens included, with a checksum. The caller keeps the rows of keys and
        values."""
        return self._c.save(sequence)

    def resume(self, sequence: int, saved: bytes) -> None:
        """Opens a closed sequence as the one that was saved, in this cache or another one of the same policy, layers,
        heads and head_dims; capacity and number of sequences may differ. The caller restores the rows. Refuses bytes
        that do not fit or were changed."""
        self._c.resume(sequence, saved)
