"""Attention masks of a pass, as a cache can heed them: causal, with padding. All others are refused."""

from __future__ import annotations

from typing import Any, Optional

import torch

__all__ = ["check", "real_tokens", "tokens_shown"]

_HIDDEN = -1e4  # an additive mask of at most this hides an entry


def real_tokens(real: Optional[torch.Tensor], batch: int, seen: int) -> torch.Tensor:
    """[batch, seen]: which of the first tokens that were read are no padding. real: the same of at least as many, or
    None, if none is padding."""
    return torch.ones(batch, seen, dtype=torch.bool) if real is None else real[:, :seen]


def tokens_shown(
    mask: Optional[torch.Tensor], real: Optional[torch.Tensor], batch: int, seen: int, n: int, refusal: Any
) -> torch.Tensor:
    """[batch, n]: which new tokens of a pass are no padding, in host memory. Refuses a mask that a cache would not heed.

    mask: 4-D [batch or 1, heads or 1, n, tokens] (bool: what is seen; else what is added to logits), 2-D [batch,
        tokens], or None. real: as in real_tokens. seen: tokens that were read before.
    refusal(argument, value, condition) makes the exception.
    """
    if mask is None:
        return torch.ones(batch, n, dtype=torch.bool)
    tokens = seen + n
    if mask.dim() == 4:
        mask = mask[..., :tokens]  # that of transformers 4.50 is one longer
    if mask.shape[-1] != tokens or (mask.dim() == 4 and mask.shape[2] != n):
        raise refusal("attention_mask", f"of {mask.shape[-1]} tokens", f"of {tokens}, the tokens read")
    if mask.dim() == 4:
        shown = _shown(mask, refusal)
        valid = shown[:, 0, -1, seen:].expand(batch, n).cpu()  # the last query sees all but padding
        check(shown, valid, real, seen, refusal)
    else:
        shown = (mask != 0).expand(batch, tokens).cpu()
        if not torch.equal(shown[:, :seen], real_tokens(real, batch, seen)):
            raise refusal("attention_mask", "one that hides tokens that the cache holds, or shows padding",
                          "as before for tokens that were read")
        valid = shown[:, seen:]
    if not bool(valid.any()):
        raise refusal("attention_mask", "one that hides all tokens of the pass", "one that shows some of them")
    return valid


def check(mask: torch.Tensor, valid: torch.Tensor, real: Optional[torch.Tensor], seen: int, refusal: Any) -> None:
    """Refuses 4-D masks [batch or 1, heads or 1, n, seen + n] that do not show each new token all tokens before it and
    itself, but for padding. valid: which new tokens are no padding. Rows of padding, which nobody reads, see themselves
    in no mask, unless they see all."""
    (batch, n), where = valid.shape, mask.device
    expected = torch.cat([real_tokens(real, batch, seen), valid], dim=1).to(where)
    valid, tokens = valid.to(where), seen + n
    causal = torch.arange(tokens, device=where) <= seen + torch.arange(n, device=where)[:, None]
    shown = _shown(mask, refusal)
    if shown.shape[1] > 1 and not bool((shown == shown[:, :1]).all()):
        raise refusal("attention_mask", "one that differs between heads", "one for all heads")
    shown = shown[:, 0].expand(batch, n, tokens)
    differs = (shown != (expected[:, None] & causal)) & valid[..., None]
    itself = shown[..., seen:].diagonal(dim1=1, dim2=2)
    if bool((differs & shown).any()):
        text = "one that shows tokens to earlier ones, or padding"
    elif bool(differs[..., :seen].any()):
        text = "one that hides tokens that the cache holds"
    elif bool(differs.any()) or bool((~valid & itself & ~shown.all(dim=2)).any()):
        text = "one that hides tokens from later ones"
    else:
        return
    raise refusal("attention_mask", text, "causal, apart from padding")


def _shown(mask: torch.Tensor, refusal: Any) -> torch.Tensor:
    """What a 4-D mask shows; refuses one that adds anything else to logits than 0, or a number that hides."""
    if mask.dtype == torch.bool:
        return mask
    shown = mask == 0
    if not bool((shown | (mask <= _HIDDEN)).all()):
        raise refusal("attention_mask", "one that adds numbers to logits", "one that shows tokens (0) or hides them")
    return shown
