"""What a language model predicts at chosen places of sequences. L sequence length, V vocabulary."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from maskwright.batch import from_padded
from maskwright.errors import RunError
from maskwright.evaluation.rows import Ids
from maskwright.models.any_encoder import encode
from maskwright.objectives.masked_lm import MaskedLanguageModel


def predict_places(model: MaskedLanguageModel, sequences: Ids, rows: Ids, places: Ids) -> Tensor:
    """Logits (questions, V) for the token at each of the `places` in its row of (sequences, L); no other is projected.

    Some models answer one place earlier; a causal one sees what comes before the place, any other the whole sequence.
    """
    device = next(model.parameters()).device
    batch = from_padded(torch.from_numpy(sequences).to(device))
    is_causal = torch.ones_like(batch.input_ids, dtype=torch.bool) if model.evaluates_causally else None
    answers_early = model.predicts_next or model.evaluates_causally
    hidden = encode(model.encoder, batch, is_causal)
    slots = hidden[torch.from_numpy(rows).to(device), torch.from_numpy(places - int(answers_early)).to(device)]
    logits: Tensor = model.predict(slots).float()
    return logits


def check_finite(values: NDArray[np.float64]) -> None:
    """A model whose weights broke down answers NaN, which no table should hide."""
    if not np.isfinite(values).all():
        raise RunError("the model gives scores that are not finite, so its weights are damaged; use another checkpoint")
