"""Losses of caption training. All are means over words, so that one scale of learning rates serves any length.

Letters: B images, G captions of an image, T tokens, L decoder layers, H heads, N memory tokens, V vocabulary.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from vitcap.types import PAD, DecoderOutput


def caption_loss(logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> tuple[Tensor, int]:
    """Mean cross-entropy over the words of all captions; PAD does not count.

    logits: (B, G, T, V); targets: (B, G, T). Returns the loss in nats per token and the number of tokens.
    """
    known = targets != PAD
    loss = F.cross_entropy(logits[known].float(), targets[known], label_smoothing=label_smoothing)
    return loss, int(known.sum())


def doubly_stochastic_penalty(attention: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """How unevenly captions look at the places of the memory (Xu et al. 2015, equation 14).

    Sum over places i of (1 - sum over words t of a_ti)^2, summed over captions and divided by the number of words, as
    the cross-entropy is: a weight of 1 in the paper is a weight of 1 here. attention: (B, G, T, L, H, N), averaged over
    layers and heads; targets: (B, G, T), whose PAD does not count; mask: (B, N) of the memory, True = a place.
    """
    known = targets != PAD
    seen = (attention.mean((3, 4)) * known[..., None]).sum(2)  # (B, G, N)
    missed = (1 - seen).square()
    penalty = (missed if mask is None else missed * mask[:, None]).sum(-1) * known.any(-1)
    return penalty.sum() / known.sum().clamp(min=1)


def reinforce_loss(output: DecoderOutput, targets: Tensor, *, baseline: float) -> tuple[Tensor, Tensor, Tensor]:
    """Terms of hard attention beside the cross-entropy (Xu et al. 2015, section 4.1), divided by the number of words.

    The first has the gradient of -(log p(y | s) - b) log p(s): what a caption's drawn places s are worth is the
    log-likelihood of its words y above the baseline b. The second is the negative entropy of the places, summed over
    words. The third is the mean over captions of log p(y | s), in nats, for the moving average that b is.
    targets: (B, G, T).
    """
    assert output.choice_log_prob is not None
    assert output.entropy is not None
    known = targets != PAD
    words = known.sum().clamp(min=1)
    flat = F.cross_entropy(output.logits.flatten(0, 2).float(), targets.flatten(), ignore_index=PAD, reduction="none")
    likelihood = -flat.detach().view_as(targets).sum(-1)  # (B, G); PAD gives 0
    chosen = (output.choice_log_prob * known).sum(-1)
    loss = -((likelihood - baseline) * chosen).sum() / words
    captions = known.any(-1)
    return loss, -(output.entropy * known).sum() / words, likelihood[captions].mean()
