"""Tensors that a cache holds, and that move, shrink or change their shape: the next call that touches rows is refused."""

import numpy as np
import pytest

import kvmeld

SHAPE = (2, 2, 2, 32, 8)  # layers, sequences, KV heads, capacity, head_dim


def calls(cache, tensor_of):
    """The calls that read or write rows."""
    queries = tensor_of(np.ones((2, 1, 8), np.float32))
    return {
        "compress": lambda: cache.compress(0, 8),
        "fork": lambda: cache.fork(0, 1),
        "renumber": lambda: cache.renumber(0, "half_split"),
        "observe": lambda: cache.observe(0, 0, queries),
        "attend": lambda: cache.attend(0, 0, queries, tensor_of(np.ones((2, 1, 8), np.float32))),
    }


def refuses(cache, tensor_of, name):
    for call, make in calls(cache, tensor_of).items():
        with pytest.raises(ValueError, match=rf"^{name} is a tensor that was moved, resized or reshaped; it must be"):
            make()
            pytest.fail(call)
    assert cache.tokens(0) == 20  # calls that touch no rows still work
    cache.append(0, 1)
    cache.commit(0, 1)
    cache.close_all()


def numpy_pair():
    return [np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32) for _ in "kv"]


def resize(x):
    x.resize(SHAPE[:-1] + (4,), refcheck=False)


def resize_larger(x):
    x.resize((4,) + SHAPE[1:], refcheck=False)


def reshape(x):
    x.shape = (2, 2, 2, 8, 32)


def transpose(x):
    x.strides = x.strides[1::-1] + x.strides[2:]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("change", [resize, resize_larger, reshape, transpose])
@pytest.mark.parametrize("which", [0, 1])
def test_arrays_of_numpy(change, which):
    pair = numpy_pair()
    cache = kvmeld.Cache(*pair, "streaming_llm")
    cache.open(0, 20)
    change(pair[which])
    refuses(cache, np.asarray, ("keys", "values")[which])


def test_the_array_under_a_view():
    whole = np.zeros((3,) + SHAPE[1:], np.float32)
    keys, values = whole[:2], np.zeros(SHAPE, np.float32)
    cache = kvmeld.Cache(keys, values, "streaming_llm")
    cache.open(0, 20)
    whole.resize((1,), refcheck=False)
    refuses(cache, np.asarray, "keys")


def test_one_of_a_list_of_tensors():
    lists = [[np.zeros(SHAPE[1:], np.float32) for _ in range(2)] for _ in "kv"]
    cache = kvmeld.Cache(*lists, "streaming_llm")
    cache.open(0, 20)
    lists[1][1].resize((1,), refcheck=False)
    queries = np.ones((2, 1, 8), np.float32)
    assert cache.attend(0, 0, queries).shape == (2, 1, 8)  # which touches the first layer alone
    for call in (lambda: cache.attend(1, 0, queries), lambda: cache.compress(0, 8)):
        with pytest.raises(ValueError, match=r"^values\[1\] is a tensor that was moved, resized or reshaped"):
            call()


def test_a_page_table():
    pool = [np.zeros((2, 8, 2, 16, 8), np.float32) for _ in "kv"]
    table = np.arange(8, dtype=np.int32).reshape(2, 4)
    table = table.copy()
    cache = kvmeld.Cache(*pool, "streaming_llm", page_table=table)
    cache.open(0, 20)
    table[0] = table[0, ::-1]  # its numbers may change
    cache.compress(0, 10)
    cache.truncate(0, 20)
    table.resize((2, 1), refcheck=False)
    with pytest.raises(ValueError, match="^page_table is a tensor that was moved, resized or reshaped"):
        cache.compress(0, 8)


def test_contents_may_change():
    keys, values = numpy_pair()
    with kvmeld.Cache(keys, values, "streaming_llm") as cache:
        cache.open(0, 20)
        keys[:] = 1
        cache.compress(0, 8)
        assert cache.longest(0) == 8


def torch_changes():
    return {
        "resize_ larger": lambda x: x.resize_(4, *SHAPE[1:]),
        "resize_ smaller": lambda x: x.resize_(1),
        "set_": lambda x: x.set_(x.new_zeros(SHAPE)),
        "data": lambda x: setattr(x, "data", x.new_zeros(SHAPE)),
        "storage gone": lambda x: x.untyped_storage().resize_(0),
        "storage halved": lambda x: x.untyped_storage().resize_(x.untyped_storage().nbytes() // 2),
        "storage halved and moved back": lambda x: [
            x.untyped_storage().resize_(n) for n in (x.untyped_storage().nbytes() // 2, 16, 64)
        ],
        "transpose_": lambda x: x.transpose_(0, 1),
        "squeeze": lambda x: x.unsqueeze_(0),
    }


@pytest.mark.parametrize("change", sorted(torch_changes()))
@pytest.mark.parametrize("which", [0, 1])
def test_tensors_of_torch(change, which):
    torch = pytest.importorskip("torch")
    pair = [torch.zeros(SHAPE) for _ in "kv"]
    cache = kvmeld.Cache(*pair, "streaming_llm")
    cache.open(0, 20)
    torch_changes()[change](pair[which])
    refuses(cache, torch.from_numpy, ("keys", "values")[which])


def test_a_storage_that_a_view_of_torch_shares():
    torch = pytest.importorskip("torch")
    whole, values = torch.zeros(3, *SHAPE[1:]), torch.zeros(SHAPE)
    cache = kvmeld.Cache(whole[:2], values, "streaming_llm")
    cache.open(0, 20)
    whole.resize_(9, *SHAPE[1:])
    refuses(cache, torch.from_numpy, "keys")
