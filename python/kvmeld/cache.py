"""kvmeld.Cache: a cache over tensors of NumPy or of a library with DLPack."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple, Optional, Sequence, Union

import numpy as np

from kvmeld import _core
from kvmeld.learned import read as read_learned

_SCOPES = ("head", "layer", "all_layers")
_PAIRINGS = ("none", "half_split", "interleaved")
_BIASES = ("per_head", "shared", "none")
_OBSERVATIONS = ("nothing", "last_queries", "every_step", "replay")
_ELEMENTS = ("float32", "float16", "bfloat16")

# Of PyTorch: the code of the type in DLPack, and its bits.
_TORCH_TYPES = {"torch.float32": (2, 32), "torch.float16": (2, 16), "torch.bfloat16": (4, 16), "torch.int32": (0, 32)}

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


def _type_refusal(argument: str, value: Any, condition: str) -> TypeError:
    return TypeError(str(_refusal(argument, repr(value), condition)))


# Arguments follow Python's types: a number of something is an integer of any kind (an __index__), but no bool, no float
# and no text. Nothing is rounded, parsed or cut.


def _index(value: Any, argument: str, most: int = 2**32 - 1, least: int = 0) -> int:
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise _type_refusal(argument, value, f"a whole number from {least} to {most}")
    return number


def _position(value: Any, argument: str) -> int:
    return _index(value, argument, 2**31 - 1, -(2**31))


def _ndim(value: Any) -> Optional[int]:
    return getattr(value, "ndim", None)


def _indices(values: Numbers, argument: str) -> list[int]:
    """One number, or a sequence of numbers, as a list."""
    if isinstance(values, (str, bytes, bytearray, dict)) or not hasattr(values, "__getitem__") or _ndim(values) == 0:
        return [_index(values, argument)]
    return [_index(value, f"{argument}[{i}]") for i, value in enumerate(values)]


def _real(value: Any, argument: str) -> float:
    if not isinstance(value, (str, bytes, bytearray, bool, np.bool_, complex, np.complexfloating)):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    raise _type_refusal(argument, value, "a number")


def _flag(value: Any, argument: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise _type_refusal(argument, value, "True or False")
    return bool(value)


def _text(value: Any, argument: str) -> str:
    if not isinstance(value, str):
        raise _type_refusal(argument, value, "a str")
    if "\0" in value:
        raise _refusal(argument, repr(value), "a text without NUL")
    return value


def _scale(scale: Optional[float]) -> float:
    """The scale of logits as the library takes it: 0 is its default."""
    if scale is None:
        return 0.0
    if _real(scale, "scale") == 0:
        raise _refusal("scale", scale, "another number, or None")
    return float(scale)


def _is_share(budget: Budget) -> bool:
    """Whether a budget is a share of the tokens, and not a number of entries."""
    return isinstance(budget, (float, np.floating))


def _number_of(name: str, names: Sequence[str], argument: str) -> int:
    if _text(name, argument) not in names:
        raise _refusal(argument, repr(name), "one of " + ", ".join(names))
    return names.index(name)


def _rotation(rope: str, rope_base: float, frequencies: Any) -> tuple[int, float, list[float]]:
    pairing = _number_of(rope, _PAIRINGS, "rope")
    listed = hasattr(frequencies, "__len__") and not isinstance(frequencies, (str, bytes, bytearray, dict))
    if frequencies is not None and not listed:
        raise _type_refusal("frequencies", frequencies, "None, or a sequence of numbers")
    if rope == "none" and frequencies is not None:
        raise _refusal("frequencies", "given", "None, because rope is none")
    base = _real(rope_base, "rope_base")
    if base == 0:
        raise _refusal("rope_base", 0, "above 0")
    if frequencies is None:
        return pairing, base, []
    if len(frequencies) == 0:
        raise _refusal("frequencies", "empty", "None, or one number for each pair of channels that turn")
    return pairing, base, [_real(f, f"frequencies[{i}]") for i, f in enumerate(frequencies)]


def cache_bytes(
    policy: str,
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    capacity: int,
    sequences: int = 1,
    queries_per_kv_head: int = 1,
    value_dim: Optional[int] = None,
    element: str = "float16",
    scope: str = "head",
    over: str = "head",
    padded: bool = False,
    threads: int = 1,
    page_size: int = 0,
    pool_pages: int = 0,
) -> dict[str, int]:
    """How many bytes a Cache would take beside its tensors, and how many the tensors do, before there are any.

    policy to threads: as for Cache; head_dim counts the channels of a key, and of a value if value_dim is None; capacity
    the slots of a track; element is "float32", "float16" or "bfloat16".
    page_size, pool_pages: for a server whose rows lie in a pool of so many pages of so many tokens, and whose ledger does,
        too (options.ledger_pages of C++, options.pool_pages of C; a Cache of Python has a ledger of its own).

    Returns {"rows": bytes of keys and values, "cache": bytes of ledger and workspace}. Without a pool both grow with layers *
    sequences * kv_heads * capacity, whatever lies in the slots; with one, with its tokens. The workspace grows with threads.
    The scratch of calls is not included. Takes no memory of that size, and does not wait.
    """
    count, slots = _index(sequences, "sequences"), _index(capacity, "capacity")
    sizes = [
        _index(layers, "layers"), _index(kv_heads, "kv_heads"), _index(queries_per_kv_head, "queries_per_kv_head"),
        _index(head_dim, "head_dim"), _index(head_dim if value_dim is None else value_dim, "value_dim"),
    ]
    number = _number_of(element, _ELEMENTS, "element")
    page, pages = _index(page_size, "page_size"), _index(pool_pages, "pool_pages")
    if page and not pages:
        raise _refusal("pool_pages", 0, "at least 1, because there are pages")
    cache = _core.bytes(
        _text(policy, "policy"), sizes, count, slots, number, _number_of(scope, _SCOPES, "scope"),
        _number_of(over, _SCOPES, "over"), _flag(padded, "padded"), _index(threads, "threads"),
        page, pages,
    )
    rows = sizes[0] * sizes[1] * (pages * page if pages else count * slots)
    return {"rows": rows * (sizes[3] + sizes[4]) * (4 if number == 0 else 2), "cache": cache}


def _told(rope: Optional[str], rope_base: Optional[float], frequencies: Any) -> Any:
    """How a model rotates keys, as a caller tells it; None if he does not."""
    if rope is None:
        if rope_base is not None or frequencies is not None:
            raise _refusal("rope", "None", f"one of {', '.join(_PAIRINGS)}, because other words say how far keys turn")
        return None
    turned = _rotation(rope, 1.0 if rope_base is None else rope_base, frequencies)
    if rope != "none" and (rope_base is None) == (frequencies is None):
        raise _refusal("rope_base", rope_base, "given, or frequencies, but not both: how far keys turn a position")
    return turned


def _attention(softcap: Optional[float], window: Optional[int], window_sinks: int) -> tuple[float, int, int]:
    """What a model adds to plain attention, as the library takes it: 0 is none."""
    for value, argument in ((softcap, "softcap"), (window, "window")):
        if value is not None and _real(value, argument) == 0:
            raise _refusal(argument, value, "above 0, or None")
    cap = 0.0 if softcap is None else float(softcap)
    return cap, 0 if window is None else _index(window, "window"), _index(window_sinks, "window_sinks", 2**31 - 1)


def _sinks(sinks: Any) -> Any:
    """Sink logits as float32 [layers, query heads]."""
    if sinks is None:
        return None
    host = sinks.detach().cpu().float().numpy() if hasattr(sinks, "detach") else sinks
    try:
        found = np.ascontiguousarray(np.asarray(host), np.float32)
    except (TypeError, ValueError):
        found = np.zeros(0, np.float32)
    if found.ndim != 2:
        raise _type_refusal("sinks", sinks, "None, or numbers [layers, query heads]")
    return found


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


def _detached(tensor: Any, argument: str) -> Any:
    """A tensor that is only read: its gradients do not matter."""
    return _exported(tensor.detach() if getattr(tensor, "requires_grad", False) else tensor, argument)


def _exported(tensor: Any, argument: str) -> Any:
    """A tensor as the extension module takes it. One of PyTorch in host memory is described in numbers, and one on a
    device exported here. The module does not ask PyTorch for it: until Python 3.13, the end of the interpreter ends
    other threads where they wait for the GIL, and a frame of C++ below would abort. PyTorch's own export waits, too."""
    if isinstance(tensor, tuple):  # the module would take it for such a description
        raise _type_refusal(argument, tensor, "a tensor: of NumPy, or with DLPack")
    if not hasattr(tensor, "untyped_storage"):
        return tensor
    kind = _TORCH_TYPES.get(str(getattr(tensor, "dtype", None)))
    try:
        if kind is not None and tensor.device.type == "cpu":
            return (tensor, tensor.data_ptr(), tuple(tensor.size()), tuple(tensor.stride()), *kind)
        return tensor.__dlpack__()
    except (BufferError, NotImplementedError, RuntimeError, TypeError) as problem:
        raise _refusal(argument, f"a {type(tensor).__name__} that cannot be exported ({problem})",
                       "a tensor: of NumPy, or with DLPack") from None


def _hold(held: Any, name: str, layer: int, tensor: Any) -> None:
    """Notes where a tensor's elements lie, and its shape: neither must change while a cache holds it."""
    if hasattr(tensor, "untyped_storage"):  # of PyTorch; the storage may shrink under a tensor
        held.add_calls(name, layer, [tensor.data_ptr, tensor.size, tensor.stride, tensor.untyped_storage().nbytes])
        return
    if not held.add_buffer(name, layer, tensor):
        held.add_calls(name, layer, [functools.partial(_core.extent, tensor)])
    owner = tensor
    while isinstance(getattr(owner, "base", None), np.ndarray):
        owner = owner.base
    if owner is not tensor:  # the array whose memory a view shows may be resized
        held.add_buffer(name, layer, owner)


class Cache:
    """A KV cache that lies in tensors of the caller and is shrunk in place.

    keys, values: one tensor [layers, sequences, kv_heads, capacity, head_dim], or a list with a tensor
        [sequences, kv_heads, capacity, head_dim] for each layer. Any strides; float32, float16 or bfloat16, all of
        the same type. values may have another head_dim. The cache keeps references to the tensors until close_all()
        or its own end. It reads and writes their memory, and never copies or moves them.
    policy: a name of policies(), or parts, as
        "score=key_difference select=top identify=chunked_bipartite merge=degree_weighted chunk=64".
        docs/real_models.md says what they are worth: over all layers "learned_centroids" keeps most of a prompt that is read
        once, if scores were learned of the model, and "kvzip_centroids" of one that can be read twice; else "dropkv" keeps what the
        last queries ask for.
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
    learned: for policies with the score "learned": what python -m kvmeld.learn has learned of the model, as a file, or as
        kvmeld.learned.load returns it. It says how the model rotates keys, too: rope must not be given.
    rope, rope_base, frequencies: how the model rotates queries, and the keys that lie in the tensors, as in renumber;
        rope_base or frequencies is given, unless rope is "none". Policies that turn keys back (compactor,
        expected_attention, triattention) are refused without it, unless their text has the words; others do not read
        it.
    softcap, window, window_sinks, sinks: how the model's attention differs from softmax(scale * q.k + log degree). attend
        computes it, and observe counts by it. softcap c: c * tanh(x / c) takes the place of x = scale * q.k (Gemma 2).
        window w: a query at position p sees entries at positions above p - w, and those below window_sinks. sinks, numbers
        [layers, query heads]: logits that take part in the softmax and have no value (gpt-oss); log-sum-exps contain them. A
        cache has layers of one kind: where a model has several, each kind that shall shrink is a cache of its own.
    stream: for tensors on a CUDA device, the stream that calls enqueue to, as a number. Without it PyTorch's current
        stream for its tensors, and the default stream (0) for others. It must outlive the cache.

    On a CUDA device (kvmeld.cuda says whether this build has it) the tensors of all arguments lie on the device of
    keys. Calls enqueue their work to the stream and return, in the order of the calls. "Waits" in a method's text means:
    waits for the stream, on a device. Some methods wait only for unknown lengths: those after a compression by
    thresholds, with `over`, or with `keep`, and after drop_positions() among compressed tokens.

    A refused call changes nothing and raises ValueError with the library's text. An argument of a wrong type raises
    TypeError: numbers of things are integers (of NumPy, too) from 0 on, no floats, booleans or texts. A lack of memory
    raises MemoryError. Returned arrays are copies.

    The tensors must stay where they are, in their shape. A call that reads or writes rows is refused once one of them
    was resized or moved (resize_(), set_(), .data, resize(refcheck=False), a storage that shrank). This check costs
    about 10 us for arrays of NumPy in 30 layers, 40 us for tensors of PyTorch, and 1 us if one tensor holds all layers.

    Calls on the host return when their work is done. All calls release the GIL. Different threads may use different
    caches at the same time; a call during another call on the same cache is refused. Results are the same bits for any
    number of threads. A thread may be inside a call when the interpreter ends. In a child of os.fork caches work as
    before, except those that another thread was using at the fork, which stay in use.

    A `with` block closes the cache at its end. Attributes: layers, sequences, kv_heads, query_heads, capacity, key_dim,
    value_dim; element, the name of the element type; policy, its parts as a text; device, the number of the CUDA
    device, or -1; stream, as above.
    """

    def __init__(
        self,
        keys: Any,
        values: Any,
        policy: str,
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
        rope: Optional[str] = None,
        rope_base: Optional[float] = None,
        frequencies: Any = None,
        learned: Any = None,
        softcap: Optional[float] = None,
        window: Optional[int] = None,
        window_sinks: int = 0,
        sinks: Any = None,
    ) -> None:
        turned, weights = _told(rope, rope_base, frequencies), None
        if learned is not None:
            known = read_learned(learned)
            if turned is not None:
                raise _refusal("rope", "given", "absent, because what was learned says how the model rotates keys")
            turned, weights = _rotation(known.pairing, 1.0, known.frequencies or None), known.weights
        self.stream = _current_stream(keys) if stream is None else _index(stream, "stream", 2**64 - 1)
        k, v = _tensors(keys, "keys"), _tensors(values, "values")
        self._c = _core.Cache(
            [_exported(x, f"keys[{i}]") for i, x in enumerate(k)],
            [_exported(x, f"values[{i}]") for i, x in enumerate(v)],
            _text(policy, "policy"),
            _index(queries_per_kv_head, "queries_per_kv_head"),
            _number_of(scope, _SCOPES, "scope"),
            _number_of(over, _SCOPES, "over"),
            _number_of(bias, _BIASES, "bias"),
            _flag(ignore_degree, "ignore_degree"),
            _flag(padded, "padded"),
            _flag(zero_emptied, "zero_emptied"),
            _index(threads, "threads"),
            _index(first_layer, "first_layer"),
            _index(first_kv_head, "first_kv_head"),
            _exported(page_table, "page_table"),
            self.stream,
            turned,
            weights,
            _attention(softcap, window, window_sinks),
            _sinks(sinks),
        )
        self._held = _core.Held()
        for name, listed in (("keys", k), ("values", v)):
            for i, x in enumerate(listed):
                _hold(self._held, f"{name}[{i}]" if len(listed) > 1 else name, i if len(listed) > 1 else -1, x)
        if page_table is not None:
            _hold(self._held, "page_table", -1, page_table)
        sizes = self._c.sizes()
        self.layers, self.sequences, self.kv_heads, self.capacity, self.key_dim, self.value_dim = sizes[:6]
        element, self.device = sizes[6:]
        self.query_heads = self.kv_heads * operator.index(queries_per_kv_head)
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
        """Frees the ledger and gives the tensors back. Later calls raise ValueError. Does not wait: on a device, work that
        was enqueued before still uses the tensors."""
        if not self._closed:
            self._c.destroy()
            self._closed = True
            self._like = None
            self._held.clear()

    def _check_held(self, layer: int = -1) -> None:
        """Refuses to go on if a tensor that this cache holds has moved or changed its shape: a call that reads or
        writes rows comes next, of one layer or of all."""
        changed = self._held.changed(layer)
        if changed is not None:
            raise _refusal(changed, "a tensor that was moved, resized or reshaped",
                           "as it was when the cache was made (make a new cache, and resume its sequences there)")

    # --- sequences

    def open(self, sequence: int, tokens: int = 0, frozen: int = 0) -> None:
        """Begins a sequence that is not open. The rows of its first `tokens` tokens lie in keys and values already. The
        first `frozen` entries are never written or moved. Refused if `tokens` exceeds the capacity, or `frozen` exceeds
        `tokens`. Takes time in proportion to `tokens`. Does not wait."""
        self._c.open(_index(sequence, "sequence"), _index(tokens, "tokens"), _index(frozen, "frozen"))

    def close(self, sequence: int) -> None:
        """Ends a sequence; its number can be opened again. Does not wait."""
        self._c.close(_index(sequence, "sequence"))

    def append(self, sequences: Numbers, counts: Numbers) -> None:
        """Makes room for counts[i] pending tokens behind each track of sequences[i]. The caller writes the
        rows of these tokens. In each track they begin at the slot that lengths() gave before this call.
        Waits only if a bound of the lengths leaves too little room. Refused if a track has too little room.

        6 tokens were seen, and a track has 4 entries. It is 7 long after append(0, 3): slots 4 to 6 have the positions
        6 to 8. commit(0, 2) then leaves 6 entries, and 8 tokens seen."""
        self._c.append(_indices(sequences, "sequences"), _indices(counts, "counts"))

    def commit(self, sequences: Numbers, accepted: Numbers) -> None:
        """Keeps the first accepted[i] pending tokens of sequences[i] and drops the others. Does not wait. Refused if fewer
        are pending."""
        self._c.commit(_indices(sequences, "sequences"), _indices(accepted, "accepted"))

    def fork(self, source: int, into: int) -> None:
        """Copies a sequence, which has nothing pending, into the closed sequence `into`: rows, degrees, positions and
        scores. Does not wait."""
        source, into = _index(source, "source"), _index(into, "into")
        self._check_held()
        self._c.fork(source, into)

    def truncate(self, sequence: int, tokens: int) -> None:
        """Goes back to the first `tokens` tokens: forgets the entries at positions from `tokens` on. Waits only if it
        goes back to before a gap that drop_positions() or shift() left. Refused while tokens are pending, if a token to
        forget came before a compression that changed the sequence, and if frozen entries are among those to forget.

        Of 8 tokens, 6 were there at the last compression. Then truncate(0, 7) forgets one entry of every track, and
        truncate(0, 5) is refused."""
        self._c.truncate(_index(sequence, "sequence"), _index(tokens, "tokens"))

    def drop_positions(self, sequence: int, first: int, last: int) -> None:
        """Drops the entries at positions first to last - 1 from every head of every layer, in place: a document or a
        tool's output leaves the middle of a context.

        The other entries move to the beginning of their head and keep their order, degrees, positions and scores. An
        entry goes or stays by its own position, with all the tokens it stands for: an entry outside the range stays as it
        is, even if it merged tokens of the range. What a policy pins (sinks, recents) goes too. tokens() stays, and
        positions do not close up: shift(sequence, first - last, first=last) or renumber() closes the gap. truncate() can
        still go back to every token that came after the last compression (with padded: only to tokens(), if heads get
        empty slots).
        Queries that are observed together afterwards are of tokens from `last` on. Waits only if the sequence has frozen
        entries. Refused while tokens are pending, if the range is not within tokens(), and if it holds a frozen entry.

        Of the positions 0, 2, 4, 5, 6, 7, drop_positions(0, 1, 5) drops 2 and 4.
        """
        sequence = _index(sequence, "sequence")
        first, last = _position(first, "first"), _position(last, "last")
        self._check_held()
        self._c.drop_positions(sequence, first, last)

    def shift(
        self,
        sequence: int,
        offset: int,
        rope: str = "none",
        rope_base: float = 10000.0,
        frequencies: Any = None,
        first: int = 0,
    ) -> None:
        """Moves the entries at positions from `first` on, and the next token, by `offset` positions.

        Entries below `first` (sinks) stay; an offset of 0 changes nothing. Logits stay the same, up to rounding, for
        queries that are rotated likewise, merged keys included. tokens(), budgets that are a share of the tokens and
        truncate() count by the new positions; the fewest tokens that truncate() can go back to move by `offset`, too.
        Waits. Refused while tokens are pending, if `first` is above tokens(), if an entry would come to a position
        below 0 or not above one that stays, and if a key that would turn is frozen.

        rope, rope_base, frequencies: how keys lie rotated, as for renumber(). Keys turn in place by `offset` positions;
            with "none" they stay as they lie.

        The positions 0, 5, 6, 7, with 8 for the next token, are 0, 1, 2, 3 and 4 after shift(0, -4, first=5).
        """
        sequence, turned = _index(sequence, "sequence"), _rotation(rope, rope_base, frequencies)
        offset, first = _position(offset, "offset"), _position(first, "first")
        self._check_held()
        self._c.shift(sequence, offset, turned, first)

    def renumber(
        self, sequence: int, rope: str = "none", rope_base: float = 10000.0, frequencies: Any = None
    ) -> None:
        """Gives entries positions without gaps, as if they were all that was read.

        The newest entry of every head comes to longest - 1, the one before it to longest - 2, and so on, where longest
        is the length of the longest head. The next token has position longest, and later budgets that are a share of
        the tokens count from it. Logits change, because entries come closer to each other and to later queries. Queries
        that a policy keeps do not turn: show the last ones again before the next compression. Waits. Refused while tokens are
        pending, if a key that would turn is frozen, and if padded heads have empty slots.

        rope: how keys lie rotated. Keys turn in place by as much as their positions change. "half_split" pairs channel
            i with i + d / 2 (Llama, Qwen and Mistral in transformers), "interleaved" 2 i with 2 i + 1. With "none" keys
            stay as they lie.
        rope_base: pair i turns by rope_base ** (-2 i / d) radians a position.
        frequencies: d / 2 radians a position instead, such as a model's inv_freq: any sequence of numbers. Fewer of
            them: only the first channels, two for each number, lie rotated.
        """
        sequence, turned = _index(sequence, "sequence"), _rotation(rope, rope_base, frequencies)
        self._check_held()
        self._c.renumber(sequence, turned)

    # --- compression

    def needs(self) -> Needs:
        """What the policy has to be shown before it compresses. Does not wait."""
        when, rows, queries = self._c.needs()
        return Needs(_OBSERVATIONS[when], rows, queries)

    def observe(self, layer: int, sequence: int, queries: Any, lse: Any = None, scale: Optional[float] = None) -> None:
        """Shows the policy the queries of the last n tokens of a sequence in one layer. Waits only for unknown lengths.
        Refused while tokens are pending, and if n exceeds the entries of a track or, with padded, the tokens since the
        last compression.

        queries: [query_heads, n, head_dim], rotated as for attention; float32, float16 or bfloat16; channels lie side
            by side. Only read.
        lse: float32 [query_heads, n], natural log-sum-exps of the logits, log degrees included. Only read. If the
            policy needs them and they are not given, kvmeld computes the attention first, which takes about as long
            again.
        scale: logits are scale * q.k; 1 / sqrt(head_dim) without it.

        The last query has the logits 0, 0 and ln 2 on the three entries of a track, so its lse is ln 4. The scores of "h2o"
        grow by 1/4, 1/4 and 1/2.
        """
        layer, sequence = _index(layer, "layer"), _index(sequence, "sequence")
        self._check_held(min(layer, self.layers))
        self._c.observe(layer, sequence, _detached(queries, "queries"), _detached(lse, "lse"), _scale(scale))

    def observe_rows(self, layer: int, sequence: int, rows: Any) -> None:
        """Shows the policy probabilities: float32 [query_heads, n, entries], those of the last n queries of a
        sequence on the entries of the layer's tracks, as many columns as the longest track at least. Only read. Does not
        wait. Refuses policies that need queries."""
        self._c.observe_rows(_index(layer, "layer"), _index(sequence, "sequence"), _detached(rows, "rows"))

    def set_scores(self, layer: int, sequence: int, scores: Any) -> None:
        """Sets scores of the caller's own, for policies with score=given: float32 [kv_heads, entries], pending entries
        included. NaN ranks lowest. Only read. Does not wait."""
        self._c.set_scores(_index(layer, "layer"), _index(sequence, "sequence"), _detached(scores, "scores"))

    def compress(
        self, sequences: Numbers, budget: Budget, *, over: str = "head", floor: float = 0.2, keep: bool = False
    ) -> None:
        """Shrinks sequences to a budget, in place, in every layer and head. What stays moves to the beginning of its
        track and keeps its order. Does not wait. Refused while tokens are pending, if the budget is smaller than what the policy
        pins, and if the policy ranks by attention and was shown none of a layer. The time depends on the
        policy (docs/performance.md).

        budget: an int: entries per track; a float: a share of the tokens seen (`tokens`),
            above 0 to 1, rounded down. 1 is one entry, 1.0 all tokens.
        over: tracks that share their budgets: "head" (none), "layer" or "all_layers", up to the `over` that the cache
            was made with. Any but "head" needs the scope "head" and a policy that decides by score alone what stays.
        floor: the share of its own budget, 0 to 1, that each of these tracks keeps. Not read if over is "head".
        keep: for a track that merging does not bring to its budget. True: it stays longer. False: its entries with the
            lowest scores are evicted.

        The 6 entries of a track have the keys (9, 0), (1, 0), (1, 0.1), (1, 0.2), (0, 1) and (0, 9). With the policy
        "chelsea" and the budget 4, slots 1, 2 and 3 become one entry: degree 3, position 2, key (1, 0.1), their mean. The
        first and the last entry are pinned. Slots 0 to 3 then have the positions 0, 2, 4 and 5.
        """
        listed = _indices(sequences, "sequences")
        entries, ratio = (0, float(budget)) if _is_share(budget) else (_index(budget, "budget"), 0.0)
        among = _number_of(over, _SCOPES, "over")
        share, keeps = _real(floor, "floor"), _flag(keep, "keep")
        self._check_held()
        self._c.compress(listed, entries, ratio, among, share if among else 0.0, keeps)

    # --- what the cache holds

    def tokens(self, sequence: int) -> int:
        """Tokens seen, pending ones included: the position of the next token. `renumber` sets them to the length of the
        longest head. Does not wait."""
        return self._c.tokens(_index(sequence, "sequence"))

    def longest(self, sequence: int) -> int:
        """The length of the longest track of a sequence. Waits only for unknown lengths."""
        return self._c.longest(_index(sequence, "sequence"))

    def lengths(self, sequence: int) -> np.ndarray:
        """The length of each track of a sequence, pending entries and empty slots (padded) included: uint32
        [layers, kv_heads]. Waits only for unknown lengths."""
        out = np.empty((self.layers, self.kv_heads), np.uint32)
        self._c.lengths(_index(sequence, "sequence"), out)
        return out

    def degrees(self, layer: int, sequence: int, kv_head: int) -> np.ndarray:
        """How many tokens each entry of a track stands for: float32 [length]; 0 for empty slots (padded). Waits."""
        return self._of_track(self._c.degrees, np.float32, layer, sequence, kv_head)

    def positions(self, layer: int, sequence: int, kv_head: int) -> np.ndarray:
        """The token position that the key of each entry of a track is rotated for: int32 [length]. Waits."""
        return self._of_track(self._c.positions, np.int32, layer, sequence, kv_head)

    def _of_track(self, call: Any, kind: Any, layer: int, sequence: int, kv_head: int) -> np.ndarray:
        track = _index(layer, "layer"), _index(sequence, "sequence"), _index(kv_head, "kv_head")
        return np.frombuffer(call(*track), kind).copy()

    def log_degrees(self, layer: int, sequence: int, columns: Optional[int] = None, out: Any = None) -> Any:
        """What attention adds to logits: float32 [query_heads, columns], the natural logarithm of the degree of each
        entry, and the lowest finite float for empty slots and behind the last entry of a track. Waits only for unknown
        lengths.

        columns: longest(sequence) without it; at least the length of the layer's longest track.
        out: where to write it, of as many columns; returned. A new array without it: of NumPy, or on a device of
            PyTorch.
        """
        layer, sequence = _index(layer, "layer"), _index(sequence, "sequence")
        if columns is not None:
            columns = _index(columns, "columns", 2**31 - 1)
        if out is None:
            out = self._empty(self.query_heads, self.longest(sequence) if columns is None else columns)
        self._c.log_degrees(layer, sequence, _exported(out, "out"))
        return out

    def warnings(self, sequence: int) -> int:
        """What the last compression of a sequence found, as a sum of bits: 1: rows with NaN or infinity, which never
        merge; 2: a track is longer than its budget, and nothing was left that could merge; 4: entries were evicted to
        reach the budget; 8: entries beyond the capacity were dropped. Waits."""
        return self._c.warnings(_index(sequence, "sequence"))

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
        as its log-sum-exp. Sums are in float. Does not wait.

        queries: as in observe.
        out: [query_heads, n, head_dim of the values], float32 or the type of the queries; written. It must not overlap
            other tensors. Without it a new float32 array: of NumPy, or on a device of PyTorch.
        lse: float32 [query_heads, n]; if given, it gets the natural log-sum-exps.
        scale: logits are scale * q.k; 1 / sqrt(head_dim) without it.

        Two entries have the degrees 3 and 1 and the values 1 and 5. A query whose products with both keys are 0 gets 2, and
        ln 4 as its log-sum-exp.
        """
        layer, sequence = _index(layer, "layer"), _index(sequence, "sequence")
        if out is None:
            if _ndim(queries) != 3:
                raise _type_refusal("queries", queries, "a tensor of three dimensions")
            out = self._empty(queries.shape[0], queries.shape[1], self.value_dim)
        (to,) = _tensors([out], "out")
        self._check_held(min(layer, self.layers))
        self._c.attend(
            layer, sequence, _detached(queries, "queries"), _exported(to, "out"), _exported(lse, "lse"), _scale(scale)
        )
        return out

    # --- saving

    def save(self, sequence: int) -> bytes:
        """The ledger of a sequence, pending tokens included, with a checksum. The caller keeps the rows of keys and
        values. Waits."""
        return self._c.save(_index(sequence, "sequence"))

    def resume(self, sequence: int, saved: bytes) -> None:
        """Opens a closed sequence in the state that was saved, in this cache or another one. It then continues as
        without the save.

        Policy, layers, heads, head_dims, element type, scope, ignore_degree, padded, first_layer and first_kv_head have
        to agree; capacity, number of sequences, pages and the other options may differ, but bias has to suit the
        degrees. The caller restores the rows. May wait. Refuses bytes of a cache that does not agree in these, bytes
        that were changed, and bytes in another version of the format.

        A sequence was saved with 6 entries in a track and 8 tokens seen. The resumed one has both, and the caller copies
        rows 0 to 5 of the track."""
        if not isinstance(saved, bytes):
            raise _type_refusal("saved", saved, "bytes")
        self._c.resume(_index(sequence, "sequence"), saved)
