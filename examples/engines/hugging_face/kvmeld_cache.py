"""kvmeld on a Hugging Face DynamicCache: K and V are merged in the model's own tensors.

    melded = MeldedCache(model, "chelsea", capacity=2048)
    with torch.inference_mode(), melded.attached():
        logits = melded.read(prompt)        # any number of tokens, as often as you like
        melded.compress(0.2)                # down to a fifth of the tokens seen
        logits = melded.read(next_token)    # attention adds the log degrees, positions go on counting tokens

Host memory, one sequence without padding. The library is found by LIBKVMELD, by the system, or given as `library`.
"""

import contextlib
import ctypes

import torch
from libkvmeld import ELEMENTS, NONE, PER_HEAD, SCOPES, SHARED, Budget, Cache, Library, Options, Tensor
from transformers import DynamicCache


class MeldedCache:
    """A DynamicCache and kvmeld's ledger beside it.

    `method` is a policy as kvmeld_options has it. scope "head" lets every KV head merge by itself; its log degrees
    differ from layer to layer, and a hook hands each attention module its own mask. scope "all_layers" makes one plan
    for all heads of all layers: then the mask is the same everywhere and goes through the model's own
    `attention_mask`.
    """

    def __init__(self, model, method="chelsea", capacity=2048, scope="head", ignore_degree=False, library=None):
        c = model.config
        heads = c.num_key_value_heads
        dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        self.model, self.scope, self.capacity = model, scope, capacity
        self.layers, self.kv_heads, self.query_heads = c.num_hidden_layers, heads, c.num_attention_heads
        self.dim, self.past, self.compressed, self._masks = dim, DynamicCache(config=c), False, {}
        self.lib, self.handle = Library(library), None
        self.options = o = Options()
        self.lib.options_init(o, ctypes.sizeof(o))
        o.policy = method.encode()
        o.layers, o.sequences, o.kv_heads = self.layers, 1, heads
        o.queries_per_kv_head = c.num_attention_heads // heads
        o.key_dim = o.value_dim = dim
        o.capacity, o.element, o.scope = capacity, ELEMENTS[str(model.dtype)], SCOPES[scope]
        o.ignore_degree = int(ignore_degree)
        o.bias = NONE if ignore_degree else PER_HEAD if scope == "head" else SHARED
        self._bind()  # refuses a method that does not exist before anything is read

    def __del__(self):
        if getattr(self, "handle", None):
            self.lib.destroy(self.handle)

    def _bind(self):
        """Tells kvmeld where the model's tensors lie now. Before the first token there are none.

        Of the calls below only `compress` reads or writes them, so that they may move in between.
        """
        layers = [(layer.keys, layer.values) for layer in self.past.layers if layer.keys is not None]
        if not layers:
            nothing = torch.empty(1, self.kv_heads, 2, self.dim, dtype=self.model.dtype)
            layers = [(nothing.clone(), nothing.clone()) for _ in range(self.layers)]
        arrays = []
        for which in range(2):
            array = (Tensor * self.layers)()
            for at, pair in zip(array, layers):
                sequence, head, token, channel = pair[which].stride()
                at.data, at.sequence_stride, at.head_stride = pair[which].data_ptr(), sequence, head
                at.token_stride, at.channel_stride = token, channel
            arrays.append(array)
        if self.handle is None:
            made = Cache()
            self.lib.create(self.options, *arrays, self.layers, made)
            self.handle = made
            self.lib.open(self.handle, 0, 0, 0)
        else:
            self.lib.rebind(self.handle, *arrays, self.layers)

    def _number(self, call):
        out = ctypes.c_uint32()
        call(self.handle, 0, out)
        return out.value

    @property
    def tokens(self):
        return self._number(self.lib.tokens)

    @property
    def longest(self):
        return self._number(self.lib.longest)

    @property
    def needs_attention(self):
        when = ctypes.c_int32()
        self.lib.needs(self.handle, when, None, None)
        return when.value != 0

    def log_degree(self, layer):
        """[query_heads, entries held], float32."""
        out = torch.empty(self.query_heads, self.longest)
        self.lib.log_degrees(self.handle, layer, 0, out.data_ptr(), out.stride(0), out.shape[1])
        return out

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
        sequence, count = ctypes.c_uint32(0), ctypes.c_uint32(n)
        self.lib.append(self.handle, sequence, count, 1)
        keywords = {"output_attentions": True} if observe else {}
        self._masks = {}
        if self.compressed and self.scope == "head":
            self._masks = {layer: self._mask(layer, n) for layer in range(self.layers)}
        if self.compressed and self.scope == "all_layers":
            keywords["attention_mask"] = self._mask(0, n)
        out = self.model(ids, past_key_values=self.past, use_cache=True,
                         position_ids=torch.arange(first, first + n)[None], **keywords)
        self.lib.commit(self.handle, sequence, count, 1)
        if observe:
            for layer, seen in enumerate(out.attentions):
                seen = seen[0].float().contiguous()
                self.lib.observe_rows(self.handle, layer, 0, n, seen.data_ptr(), seen.stride(0), seen.stride(1))
        return out.logits[0]

    def compress(self, share):
        """Merges down to a share of the tokens seen, then cuts the tensors to what is left.

        Heads keep equal lengths, since the next torch.cat appends behind all of them alike.
        """
        self._bind()
        self.lib.compress(self.handle, ctypes.c_uint32(0), 1, Budget(0, share, 0, 0.0, 0))
        for layer in self.past.layers:
            layer.keys = layer.keys[:, :, : self.longest]
            layer.values = layer.values[:, :, : self.longest]
        self.compressed = True
