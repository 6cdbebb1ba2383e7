"""Formats of fewer bits, as far as answers go: rows are rounded to numbers that a format holds, and stay what they are."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Callable, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = ["BLOCK", "FORMATS", "Format"]

BLOCK = 32  # channels that share a scale


class Format(NamedTuple):
    """bits: of a number, its part of the scales included. rounded: from rows [..., channels] of float32, which stay, to
    the nearest that the format holds. blocks: whether rows are whole blocks. turned: whether they are turned before."""

    bits: float
    rounded: Callable[[torch.Tensor], torch.Tensor]
    blocks: bool = True
    turned: bool = False

    def check(self, *channels: int) -> None:
        """Raises ValueError for rows that the format does not hold."""
        for number in channels:
            if self.blocks and number % BLOCK:
                raise ValueError(f"rows have {number} channels; their number must be a multiple of {BLOCK}, which share a scale")
            if self.turned and number & (number - 1):
                raise ValueError(f"rows have {number} channels; their number must be a power of 2, to be turned")


def _half(x: torch.Tensor) -> torch.Tensor:
    return x.half().float()


def _q8_0(x: torch.Tensor) -> torch.Tensor:
    """ggml's: a block has a scale, and codes from -127 to 127."""
    x = x.unflatten(-1, (-1, BLOCK))
    scale = x.abs().amax(-1, keepdim=True) / 127
    codes = x / scale.masked_fill(scale == 0, 1)
    return ((codes.abs() + 0.5).floor() * codes.sign() * _half(scale)).flatten(-2)


def _q4_0(x: torch.Tensor) -> torch.Tensor:
    """ggml's: a block has a scale, with which its largest number becomes -8, whatever its sign, and codes from -8 to 7."""
    x = x.unflatten(-1, (-1, BLOCK))
    scale = x.gather(-1, x.abs().argmax(-1, keepdim=True)) / -8
    codes = (x / scale.masked_fill(scale == 0, 1) + 8.5).floor().clamp(0, 15) - 8
    return (codes * _half(scale)).flatten(-2)


def _zero_points(bits: int, x: torch.Tensor) -> torch.Tensor:
    """kvmeld::zero_point_rows: a block has a scale and a zero. Its smallest number becomes code 0, its largest the last."""
    x, most = x.unflatten(-1, (-1, BLOCK)), 2**bits - 1
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = _half(((high - low) / most).maximum(low.abs() * (1.01 / 65504)))  # so that the zero is a number of 16 bits, too
    scale = scale.masked_fill(scale == 0, 1)
    zero = _half(-low / scale)
    return (((x / scale + zero + 0.5).floor().clamp(0, most) - zero) * scale).flatten(-2)


def _turned(x: torch.Tensor) -> torch.Tensor:
    """Rows times the Walsh-Hadamard matrix, which is its own inverse: what one channel has goes to all of them."""
    half = 1
    while half < x.shape[-1]:
        pairs = x.unflatten(-1, (-1, 2, half))
        x = pairs.flip(-2)  # [b, a] of [a, b]
        x[..., 0, :] += pairs[..., 0, :]
        x[..., 1, :] -= pairs[..., 1, :]
        x = x.flatten(-3)
        half *= 2
    return x * x.shape[-1] ** -0.5


def _hadamard(of: Format) -> Format:
    """A format whose rows are stored turned, as QuaRot and llama.cpp do it: queries turn with keys, outputs turn back."""
    return of._replace(rounded=lambda x: _turned(of.rounded(_turned(x))), turned=True)


_PLAIN = {
    "f16": Format(16, _half, blocks=False),
    "q8_0": Format(8 + 16 / BLOCK, _q8_0),
    "q4_0": Format(4 + 16 / BLOCK, _q4_0),
    **{f"int{bits}": Format(bits + 32 / BLOCK, functools.partial(_zero_points, bits)) for bits in (4, 3, 2)},
}
#: By the names that --rows takes. kvmeld has layouts in C++ for those of 4 bits and more, and they hold turned rows as any others.
FORMATS = {**_PLAIN, **{f"{name}_hadamard": _hadamard(_PLAIN[name]) for name in ("q4_0", "int4", "int3")}}
