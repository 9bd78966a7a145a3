"""A training step of a tiny model, to learn whether a kind of device can do what ours take.

Apple GPUs lack operations that depend on the versions of torch and of macOS.
"""

from __future__ import annotations

from functools import cache

import torch

from maskwright.batch import from_padded
from maskwright.errors import describe_briefly
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.sections.training import OptimizerConfig
from maskwright.training.optim.optimizers import build_optimizers

_VOCABULARY, _LENGTH = 32, 16
_TOLERANCE = 1e-3
"""Far above rounding in fp32, far below what a wrong operation changes."""


@cache
def find_trouble(device: torch.device) -> str | None:
    """Why a step on the device does not work, or gives another loss than on the CPU; None: it does."""
    try:
        with torch.random.fork_rng(devices=[]):
            for encoder_class in (BERT, ModernBERT):
                expected, found = (_take_step(encoder_class, one) for one in (torch.device("cpu"), device))
                if not torch.allclose(found, expected, rtol=_TOLERANCE):
                    return f"its losses are {found.tolist()}, those of the CPU {expected.tolist()}"
    except (RuntimeError, TypeError) as error:  # what is not implemented is a RuntimeError
        return describe_briefly(error)
    return None


def _take_step(encoder_class: type[BERT | ModernBERT], device: torch.device) -> torch.Tensor:
    """The losses before and after a step."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": _LENGTH}
    encoder = encoder_class.from_variant("tiny", vocab_size=_VOCABULARY, **shape)
    model = MaskedLanguageModel(encoder, _VOCABULARY, mask_token_id=4, special_token_ids=(0, 1, 2, 3), strategy="span")
    model.to(device)
    ids = torch.arange(4 * _LENGTH).view(4, _LENGTH) % (_VOCABULARY - 5) + 5
    is_real = torch.arange(_LENGTH) < torch.tensor([[_LENGTH], [12], [9], [5]])
    word_starts = torch.arange(_LENGTH).expand_as(ids) % 2 == 0
    batch = from_padded(ids, is_real.long(), word_starts=word_starts).to(device)
    model.eval()  # dropout draws other numbers on other devices
    optimizers = build_optimizers(model, OptimizerConfig(learning_rate=1e-2))
    losses = []
    for step in range(2):
        sums = model.loss_sums(model.ask(batch, seed=0, epoch=0, ratio=0.5))
        loss = sums.loss_sum / sums.num_labelled
        losses.append(loss.detach().cpu())
        if step == 0:
            loss.backward()
            optimizers.step(torch.zeros((), device=device))
    return torch.stack(losses)
