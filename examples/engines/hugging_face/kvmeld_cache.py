"""kvmeld on a Hugging Face DynamicCache: K and V are merged in the model's own tensors.

    melded = MeldedCache(model, "chelsea", capacity=2048)
    with torch.inference_mode(), melded.attached():
        logits = melded.read(prompt)        # any number of tokens, as often as you like
        melded.compress(0.2)                # down to a fifth of the tokens seen
        logits = melded.read(next_token)    # attention adds the log degrees, positions go on counting tokens

Host memory, one sequence without padding. The library is found by KVMELD_C_SHIM or given as `library`.
"""

import contextlib
import ctypes
import os

import torch
from transformers import DynamicCache

ELEMENTS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
SCOPES = {"head": 0, "layer": 1, "group": 2}


class Sizes(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in (
            "layers sequences kv_heads group head_dim capacity element scope ignore_degree first_layer first_kv_head"
        ).split()
    ]


def load(path=None):
    """The functions of shim.h, with their types."""
    lib = ctypes.CDLL(path or os.environ["KVMELD_C_SHIM"])
    u32, i64, pointer = ctypes.c_uint32, ctypes.c_int64, ctypes.c_void_p
    three = i64 * 3
    lib.kvmeld_problem.restype = ctypes.c_char_p
    lib.kvmeld_create.restype = pointer
    lib.kvmeld_create.argtypes = [ctypes.c_char_p, ctypes.POINTER(Sizes)]
    lib.kvmeld_destroy.argtypes = [pointer]
    lib.kvmeld_destroy.restype = None
    for name, arguments, result in (
        ("bind", [u32, pointer, pointer, three, three], ctypes.c_int),
        ("open", [u32, u32], ctypes.c_int),
        ("close", [u32], ctypes.c_int),
        ("append", [u32, u32], ctypes.c_int),
        ("commit", [u32, u32], ctypes.c_int),
        ("observe_rows", [u32, u32, u32, pointer, i64, i64], ctypes.c_int),
        ("compress", [u32, ctypes.c_double, ctypes.c_int], ctypes.c_int),
        ("needs_attention", [], ctypes.c_int),
        ("tokens", [u32], u32),
        ("longest", [u32], u32),
        ("length", [u32, u32, u32], u32),
        ("log_degree", [u32, u32, pointer], ctypes.c_int),
    ):
        function = getattr(lib, "kvmeld_" + name)
        function.argtypes, function.restype = [pointer, *arguments], result
    return lib


class MeldedCache:
    """A DynamicCache and kvmeld's ledger beside it.

    scope "head" lets every KV head merge by itself; its log degrees differ from layer to layer, and a hook hands each
    attention module its own mask. scope "group" makes one plan for all heads of all layers: then the mask is the same
    everywhere and goes through the model's own `attention_mask`.
    """

    def __init__(self, model, method="chelsea", capacity=2048, scope="head", ignore_degree=False, library=None):
        c = model.config
        heads = c.num_key_value_heads
        dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        self.model, self.scope, self.capacity = model, scope, capacity
        self.layers, self.kv_heads, self.query_heads = c.num_hidden_layers, heads, c.num_attention_heads
        self.lib = load(library)
        sizes = Sizes(self.layers, 1, heads, c.num_attention_heads // heads, dim, capacity,
                      ELEMENTS[model.dtype], SCOPES[scope], int(ignore_degree), 0, 0)
        self.handle = self.lib.kvmeld_create(method.encode(), ctypes.byref(sizes))
        if not self.handle:
            raise ValueError(self.lib.kvmeld_problem().decode())
        self.past = DynamicCache(config=c)
        self.compressed = False
        self._masks = {}
        self._call("open", 0, 0)

    def __del__(self):
        if getattr(self, "handle", None):
            self.lib.kvmeld_destroy(self.handle)

    def _call(self, name, *arguments):
        if getattr(self.lib, "kvmeld_" + name)(self.handle, *arguments) != 0:
            raise ValueError(self.lib.kvmeld_problem().decode())

    @property
    def tokens(self):
        return self.lib.kvmeld_tokens(self.handle, 0)

    @property
    def longest(self):
        return self.lib.kvmeld_longest(self.handle, 0)

    def log_degree(self, layer):
        """[query_heads, entries held], float32."""
        out = torch.empty(self.query_heads, self.capacity)
        self._call("log_degree", layer, 0, out.data_ptr())
        return out[:, : self.longest]

    def _mask(self, layer, queries):
        """[1, query_heads, queries, entries]: log degrees, causal among the last `queries` entries."""
        mask = self.log_degree(layer)[None, :, None, :].expand(1, -1, queries, -1)
        lowest = torch.finfo(torch.float32).min
        later = torch.full((queries, mask.shape[-1]), lowest).triu(mask.shape[-1] - queries + 1)
        return torch.clamp(mask + later, min=lowest).to(self.model.dtype)

    @contextlib.contextmanager
    def attached(self):
        """Hands every attention module its layer's mask while merged entries are there (scope "head")."""

        def give(module, arguments, keywords):
            if module.layer_idx in self._masks:
                keywords["attention_mask"] = self._masks[module.layer_idx]
            return arguments, keywords

        hooks = [
            layer.self_attn.register_forward_pre_hook(give, with_kwargs=True) for layer in self.model.model.layers
        ]
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()

    def read(self, ids, observe=False):
        """Reads ids [1, n], keeps their entries, returns logits [n, vocabulary]."""
        n = ids.shape[1]
        first = self.tokens
        self._call("append", 0, n)
        keywords = {"output_attentions": True} if observe else {}
        self._masks = {}
        if self.compressed and self.scope == "head":
            self._masks = {layer: self._mask(layer, n) for layer in range(self.layers)}
        if self.compressed and self.scope == "group":
            keywords["attention_mask"] = self._mask(0, n)
        out = self.model(ids, past_key_values=self.past, use_cache=True,
                         position_ids=torch.arange(first, first + n)[None], **keywords)
        self._call("commit", 0, n)
        if observe:
            for layer, seen in enumerate(out.attentions):
                seen = seen[0].float().contiguous()
                self._call("observe_rows", layer, 0, n, seen.data_ptr(), seen.stride(0), seen.stride(1))
        return out.logits[0]

    def compress(self, share):
        """Merges down to a share of the tokens seen, then cuts the tensors to what is left.

        Heads keep equal lengths, since the next torch.cat appends behind all of them alike.
        """
        for number, layer in enumerate(self.past.layers):
            k, v = layer.keys, layer.values
            if k.stride(-1) != 1 or v.stride(-1) != 1:
                raise ValueError("channels must lie side by side")
            strides = [(ctypes.c_int64 * 3)(*x.stride()[:3]) for x in (k, v)]
            self._call("bind", number, k.data_ptr(), v.data_ptr(), *strides)
        self._call("compress", 0, share)
        for layer in self.past.layers:
            layer.keys = layer.keys[:, :, : self.longest]
            layer.values = layer.values[:, :, : self.longest]
        self.compressed = True
