"""A press for NVIDIA's kvpress that runs kvmeld's policies, so that its pipelines and evaluations can use them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from kvpress import BasePress
from kvpress.utils import compute_n_kept, get_prerope_query_states
from transformers.models.llama.modeling_llama import rotate_half

import kvmeld
from kvmeld import _core, _model
from kvmeld.cache import _text

__all__ = ["MeldPress"]


def _refusal(argument: str, value: Any, condition: str) -> ValueError:
    return ValueError(f"MeldPress: {argument} is {value}; it must be {condition}")


@dataclass
class MeldPress(BasePress):
    """Compresses each layer's cache after the prompt has been read, with a policy of kvmeld.

    policy: a name of kvmeld.policies(), or parts (kvmeld.Cache). Policies that need a second reading of the prompt are
        refused.
    compression_ratio: the share of entries that go, 0 to below 1; as many stay as with the presses of kvpress.

    kvpress's attention adds nothing to logits, so every entry counts as one token, whatever its degree. Policies that
    merge do better with kvmeld.hf, where attention adds log degrees. Tensors have to be in host memory or (if kvmeld was
    built with CUDA) on a CUDA device, as float32, float16 or bfloat16; others raise ValueError. Prompts must have no
    padding. The press does not check it.
    """

    policy: str
    compression_ratio: float = 0.0
    _facts: Optional[_model.Facts] = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.compression_ratio < 1:
            raise ValueError(f"compression_ratio is {self.compression_ratio}; it must be 0 to below 1")
        _core.asks(_text(self.policy, "policy"))  # refuses what is no policy

    def post_init_from_model(self, model: torch.nn.Module) -> None:
        """Lets the model read one token, twice, to learn how it rotates keys."""
        super().post_init_from_model(model)
        self._facts = _model.facts_of(model, _refusal)

    def _options(self) -> dict[str, Any]:
        """How keys lie rotated, where that is known."""
        if self._facts is None or self._facts.rotation is None:
            return {}
        pairing, frequencies = self._facts.rotation
        return {"rope": pairing, "frequencies": frequencies if pairing != "none" else None}

    def _turned(self, queries: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, first: int) -> torch.Tensor:
        """Queries [batch, heads, n, head_dim] of positions from `first` on, rotated as the model rotates them. cos, sin:
        [batch, 1, n, rotary channels]."""
        if self._facts is None or self._facts.rotation is None or cos.shape[-1] == queries.shape[-1]:
            if self._facts is None or self._facts.rotation is None or self._facts.rotation[0] == "half_split":
                return queries * cos + rotate_half(queries) * sin
        pairing, frequencies = self._facts.rotation
        turned = _model.turned(queries.float(), pairing, torch.tensor(frequencies, device=queries.device),
                               torch.arange(first, first + queries.shape[2], device=queries.device)[:, None])
        factor = (cos[..., :1] ** 2 + sin[..., :1] ** 2).sqrt()  # of models that scale cosines and sines (YaRN)
        return (turned * factor).to(queries.dtype)

    def compress(
        self,
        module: torch.nn.Module,
        hidden_states: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attentions: Any,
        kwargs: dict,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Shrinks keys and values [batch, kv_heads, tokens, head_dim] in place; returns copies of the entries left."""
        if self.compression_ratio == 0:
            return keys, values
        group = module.config.num_attention_heads // keys.shape[1]
        options = {"queries_per_kv_head": group, "ignore_degree": True, "bias": "none", **self._options()}
        kept = compute_n_kept(keys.shape[2], self.compression_ratio)
        with kvmeld.Cache([keys], [values], self.policy, **options) as cache:
            needs = cache.needs()
            if needs.when == "replay":
                raise ValueError(
                    f"policy is {self.policy!r}; it must be one that does not read the prompt a second time"
                )
            if needs.when != "nothing":
                last = needs.rows if needs.when == "last_queries" and needs.rows else hidden_states.shape[1]
                queries = get_prerope_query_states(module, hidden_states[:, -last:])
                cos, sin = (x[:, -last:, :].unsqueeze(1) for x in kwargs["position_embeddings"])
                queries = self._turned(queries, cos, sin, keys.shape[2] - queries.shape[2]).contiguous()
            for sequence in range(cache.sequences):
                cache.open(sequence, keys.shape[2])
                if needs.when != "nothing":
                    cache.observe(0, sequence, queries[sequence], scale=getattr(module, "scaling", None))
            cache.compress(range(cache.sequences), kept)
            for sequence in range(cache.sequences):
                if (cache.lengths(sequence) != kept).any():
                    raise ValueError(
                        f"policy is {self.policy!r}; it must be one that leaves {kept} entries of each head"
                    )
        return keys[:, :, :kept].clone(), values[:, :, :kept].clone()  # frees the memory of the others
