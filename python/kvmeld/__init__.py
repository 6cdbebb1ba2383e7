"""kvmeld shrinks the KV caches of LLM engines in place, by merging entries instead of only evicting them.

Cache works on tensors of NumPy and of any library with DLPack. kvmeld.hf has a cache for Hugging Face transformers,
kvmeld.kvpress a press for NVIDIA's kvpress, kvmeld.plots pictures by matplotlib. kvmeld itself does not import
these three modules, so it needs none of these libraries.
"""

from kvmeld._core import __version__, cuda
from kvmeld.cache import Cache, cache_bytes, policies
from kvmeld.compact import compact

#: Whether this build has caches on CUDA devices.
cuda: bool

__all__ = ["Cache", "__version__", "cache_bytes", "compact", "cuda", "policies"]
