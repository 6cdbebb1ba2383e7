"""Arguments follow Python's types: no number is rounded, no text parsed, no boolean counted."""

import inspect

import numpy as np
import pytest

import kvmeld

HEADS, CAPACITY, DIM = 2, 32, 8
TENSOR = np.ones((HEADS, 1, DIM), np.float32)

NO_COUNT = [0.9, 1.0, "5", b"5", True, np.True_, np.float32(1), np.array(1.0), 1 + 0j, -1, 2**32, object(), {}, {1}, {0: 1}]
NO_POSITION = [x for x in NO_COUNT if x != -1]
NO_COUNTS = [0.9, "0", b"\0", True, [True], [0.0], ["0"], [[0]], np.array([0.5]), np.array([True]), [None], {0: 1}, {0}, -1]
NO_FLAG = [0, 1, 1.0, "x", "", None, [], np.int64(1)]
NO_NUMBER = ["1", b"1", True, np.True_, 1j, [1.0, 2.0], object()]
NO_TEXT = [5, 1.0, True, b"head", ["head"], object()]
NO_TENSOR = [5, 1.0, True, "text", {}, object(), (5, 64, (1,), (1,), 2, 32)]

# Each public function, with arguments that are right, and what each of them may not be.
CALLS = {
    "open": [("sequence", 1, NO_COUNT), ("tokens", 4, NO_COUNT), ("frozen", 1, NO_COUNT)],
    "close": [("sequence", 0, NO_COUNT)],
    "append": [("sequences", [0], NO_COUNTS), ("counts", [1], NO_COUNTS)],
    "commit": [("sequences", 0, NO_COUNTS), ("accepted", 0, NO_COUNTS)],
    "fork": [("source", 0, NO_COUNT), ("into", 1, NO_COUNT)],
    "truncate": [("sequence", 0, NO_COUNT), ("tokens", 20, NO_COUNT)],
    "renumber": [
        ("sequence", 0, NO_COUNT), ("rope", "half_split", NO_TEXT), ("rope_base", 10000.0, NO_NUMBER),
        ("frequencies", [0.1] * 4, [5, "1234", b"1234", ["0.1"] * 4, [True] * 4, {0: 1}]),
    ],
    "drop_positions": [("sequence", 0, NO_COUNT), ("first", 5, NO_POSITION), ("last", 9, NO_POSITION)],
    "shift": [
        ("sequence", 0, NO_COUNT), ("offset", 3, NO_POSITION), ("rope", "half_split", NO_TEXT),
        ("rope_base", 10000.0, NO_NUMBER), ("frequencies", [0.1] * 4, [5, "1234", b"1234", ["0.1"] * 4, {0: 1}]),
        ("first", 2, NO_POSITION),
    ],
    "needs": [],
    "observe": [
        ("layer", 0, NO_COUNT), ("sequence", 0, NO_COUNT), ("queries", TENSOR, NO_TENSOR), ("lse", None, NO_TENSOR),
        ("scale", 0.5, NO_NUMBER),
    ],
    "observe_rows": [
        ("layer", 0, NO_COUNT), ("sequence", 0, NO_COUNT), ("rows", np.ones((HEADS, 1, CAPACITY), np.float32), NO_TENSOR),
    ],
    "set_scores": [
        ("layer", 0, NO_COUNT), ("sequence", 0, NO_COUNT), ("scores", np.ones((HEADS, CAPACITY), np.float32), NO_TENSOR),
    ],
    "compress": [
        ("sequences", 0, NO_COUNTS), ("budget", 8, ["5", b"5", True, np.True_, None, [5], 1j, -1, 2**32, np.array(0.5)]),
        ("over", "head", NO_TEXT), ("floor", 0.2, NO_NUMBER), ("keep", False, NO_FLAG),
    ],
    "tokens": [("sequence", 0, NO_COUNT)],
    "longest": [("sequence", 0, NO_COUNT)],
    "lengths": [("sequence", 0, NO_COUNT)],
    "degrees": [("layer", 0, NO_COUNT), ("sequence", 0, NO_COUNT), ("kv_head", 0, NO_COUNT)],
    "positions": [("layer", 0, NO_COUNT), ("sequence", 0, NO_COUNT), ("kv_head", 0, NO_COUNT)],
    "log_degrees": [
        ("layer", 0, NO_COUNT), ("sequence", 0, NO_COUNT), ("columns", CAPACITY, NO_COUNT), ("out", None, NO_TENSOR),
    ],
    "warnings": [("sequence", 0, NO_COUNT)],
    "attend": [
        ("layer", 0, NO_COUNT), ("sequence", 0, NO_COUNT), ("queries", TENSOR, NO_TENSOR), ("out", None, NO_TENSOR),
        ("lse", None, NO_TENSOR), ("scale", 0.5, NO_NUMBER),
    ],
    "save": [("sequence", 0, NO_COUNT)],
    "resume": [("sequence", 1, NO_COUNT), ("saved", None, [5, "text", bytearray(9), None, [1], object()])],
    "close_all": [],
}
INIT = {
    "policy": ("streaming_llm", NO_TEXT), "queries_per_kv_head": (1, NO_COUNT), "scope": ("head", NO_TEXT),
    "over": ("head", NO_TEXT), "bias": ("per_head", NO_TEXT), "ignore_degree": (False, NO_FLAG),
    "padded": (False, NO_FLAG), "zero_emptied": (False, NO_FLAG), "threads": (1, NO_COUNT),
    "first_layer": (0, NO_COUNT), "first_kv_head": (0, NO_COUNT), "page_table": (None, NO_TENSOR),
    "rope": ("half_split", NO_TEXT), "rope_base": (10000.0, NO_NUMBER), "frequencies": (None, [5, "12", {0: 1}]),
    "learned": (None, [5, 2.5, True, b"name", [1.0], {0: 1}]), "stream": (0, [x for x in NO_COUNT if x != 2**32]),
    "softcap": (None, [x for x in NO_NUMBER if x is not None]), "window": (None, [x for x in NO_COUNT if x is not None]),
    "window_sinks": (0, NO_COUNT), "sinks": (None, [5, 2.5, "text", [1.0], {0: 1}, [[1.0], [1.0, 2.0]], object()]),
    "keys": (None, NO_TENSOR), "values": (None, NO_TENSOR),
}
COMPACT = {
    "n": (8, NO_COUNT), "policy": ("streaming_llm", NO_TEXT), "scale": (None, NO_NUMBER), "rope": ("none", NO_TEXT),
    "rope_base": (10000.0, NO_NUMBER), "frequencies": (None, [5, "12", {0: 1}]), "queries": (None, NO_TENSOR),
    "keys": (None, NO_TENSOR), "values": (None, NO_TENSOR),
}


def pair():
    return [np.ones((1, 2, HEADS, CAPACITY, DIM), np.float32) for _ in "kv"]


def refused(call, value, tensor):
    """Tensors of a wrong kind raise ValueError, too: the text says what they are."""
    try:
        call()
    except TypeError:
        return
    except ValueError as problem:
        assert tensor, f"{value!r}: {problem}"
        return
    pytest.fail(f"{value!r} was taken")


def test_the_tables_name_every_public_function_and_argument():
    public = {name for name, member in inspect.getmembers(kvmeld.Cache, callable) if name[0] != "_"}
    assert public == set(CALLS)
    for name, arguments in CALLS.items():
        assert list(inspect.signature(getattr(kvmeld.Cache, name)).parameters)[1:] == [a for a, _, _ in arguments], name
    assert set(inspect.signature(kvmeld.Cache.__init__).parameters) == {"self", *INIT}
    assert set(inspect.signature(kvmeld.compact).parameters) == set(COMPACT)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_calls_of_a_cache(name):
    policy = "score=given select=top" if name == "set_scores" else "h2o" if name.startswith("observe") else "streaming_llm"
    with kvmeld.Cache(*pair(), policy, threads=1) as cache:
        cache.open(0, 20)
        saved = cache.save(0)
        right = {argument: saved if argument == "saved" else value for argument, value, _ in CALLS[name]}
        for argument, _, wrong in CALLS[name]:
            for value in wrong:
                refused(lambda: getattr(cache, name)(**{**right, argument: value}), (argument, value), wrong is NO_TENSOR)
        assert cache.save(0) == saved  # nothing has changed
        getattr(cache, name)(**right)


def test_integers_of_any_kind_are_taken():
    torch = pytest.importorskip("torch")
    with kvmeld.Cache(*pair(), "streaming_llm", threads=np.int64(1)) as cache:
        cache.open(np.uint8(0), np.int32(20))
        cache.append(np.array([0]), (np.int16(1),))
        cache.commit(torch.tensor([0]), range(1, 2))
        cache.compress(np.int64(0), np.uint16(8), keep=np.False_, floor=1)
        assert cache.longest(torch.tensor(0)) == 8
        cache.compress(0, np.float32(0.25))
        assert cache.longest(0) == 5
        assert len(cache.save(np.int8(0))) > 0


@pytest.mark.parametrize("argument", sorted(INIT))
def test_options_of_a_cache(argument):
    keys, values = pair()
    right = {name: value for name, (value, _) in INIT.items()}
    right.update(keys=keys, values=values)
    for value in INIT[argument][1]:
        refused(lambda: kvmeld.Cache(**{**right, argument: value}), (argument, value), INIT[argument][1] is NO_TENSOR)
    kvmeld.Cache(**right).close_all()


@pytest.mark.parametrize("argument", sorted(COMPACT))
def test_arguments_of_compact(argument):
    keys, values = (x[:, 0] for x in pair())
    right = {name: value for name, (value, _) in COMPACT.items()}
    right.update(keys=keys, values=values)
    for value in COMPACT[argument][1]:
        refused(lambda: kvmeld.compact(**{**right, argument: value}), (argument, value), COMPACT[argument][1] is NO_TENSOR)
    kvmeld.compact(**right)


def test_texts_end_where_they_end():
    for argument in ("policy", "scope", "over", "bias"):
        for text in ("chelsea\0x", "head\0", "\0"):
            with pytest.raises(ValueError, match=f"^{argument} is .*; it must be a text without NUL"):
                kvmeld.Cache(*pair(), **{"policy": "snapkv", argument: text})


def test_a_scale_of_nothing_is_refused():
    with kvmeld.Cache(*pair(), "h2o") as cache:
        cache.open(0, 20)
        for call in (cache.observe, cache.attend):
            with pytest.raises(ValueError, match="^scale is 0.0; it must be another number, or None"):
                call(0, 0, TENSOR, scale=0.0)
