"""The functions of kvmeld.h that a cache for one sequence needs, by ctypes."""

import ctypes
import os

ELEMENTS = {"torch.float32": 0, "torch.float16": 1, "torch.bfloat16": 2}
SCOPES = {"head": 0, "layer": 1, "all_layers": 2}
PER_HEAD, SHARED, NONE = range(3)  # what attention can add to logits

u32, i32, i64, pointer = ctypes.c_uint32, ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


class Cache(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", pointer)] + [(axis + "_stride", i64) for axis in "layer sequence head token channel".split()]


class Allocator(ctypes.Structure):
    _fields_ = [("allocate", pointer), ("release", pointer), ("context", pointer)]


class Options(ctypes.Structure):
    _fields_ = (
        [("bytes", ctypes.c_size_t), ("policy", ctypes.c_char_p)]
        + [(n, u32) for n in "layers sequences kv_heads queries_per_kv_head key_dim value_dim capacity".split()]
        + [(n, i32) for n in "element scope budgets_over bias ignore_degree padded zero_emptied".split()]
        + [("first_layer", u32), ("first_kv_head", u32)]
        + [("page_size", u32), ("page_table", pointer), ("page_table_stride", i64)]
        + [("threads", u32), ("device", i32), ("stream", pointer), ("allocator", Allocator)]
    )


class Budget(ctypes.Structure):
    _fields_ = [("entries", u32), ("ratio", ctypes.c_double), ("over", i32), ("floor", ctypes.c_double), ("keep", i32)]


class Library:
    """Calls return nothing; what the library refuses is a ValueError with its text."""

    ABI = 1

    def __init__(self, path=None):
        self._lib = ctypes.CDLL(path or os.environ.get("LIBKVMELD", "libkvmeld.so.1"))
        self._lib.kvmeld_problem.restype = ctypes.c_char_p
        if self._lib.kvmeld_abi() != self.ABI:
            raise ValueError(f"libkvmeld has the C interface {self._lib.kvmeld_abi()}; it must be {self.ABI}")
        tensors = [ctypes.POINTER(Tensor), ctypes.POINTER(Tensor), u32]
        one, number = ctypes.POINTER(u32), ctypes.POINTER(u32)
        for name, arguments in {
            "options_init": [ctypes.POINTER(Options), ctypes.c_size_t],
            "create": [ctypes.POINTER(Options), *tensors, ctypes.POINTER(Cache)],
            "rebind": [Cache, *tensors],
            "destroy": [Cache],
            "open": [Cache, u32, u32, u32],
            "append": [Cache, one, one, u32],
            "commit": [Cache, one, one, u32],
            "needs": [Cache, ctypes.POINTER(i32), number, ctypes.POINTER(i32)],
            "observe_rows": [Cache, u32, u32, u32, pointer, i64, i64],
            "compress": [Cache, one, u32, Budget],
            "tokens": [Cache, u32, number],
            "longest": [Cache, u32, number],
            "log_degrees": [Cache, u32, u32, pointer, i64, u32],
        }.items():
            function = getattr(self._lib, "kvmeld_" + name)
            function.argtypes, function.restype = arguments, i32
            setattr(self, name, self._raising(function))

    def _raising(self, function):
        def call(*arguments):
            if function(*arguments) != 0:
                raise ValueError(self._lib.kvmeld_problem().decode())

        return call
