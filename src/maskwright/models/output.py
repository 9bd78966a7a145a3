"""What models return: dictionaries (so that any training loop can read them) whose keys are attributes too."""

from __future__ import annotations

from torch import Tensor


class EncoderOutput(dict[str, Tensor]):
    @property
    def last_hidden_state(self) -> Tensor:
        """(B, S, D)"""
        return self["last_hidden_state"]


class MaskedLMOutput(dict[str, Tensor]):
    @property
    def loss(self) -> Tensor | None:
        """Mean cross-entropy over the labelled tokens; None without labels."""
        return self.get("loss")

    @property
    def logits(self) -> Tensor | None:
        """(B, S, V); None in training with labels, where only labelled tokens are projected."""
        return self.get("logits")
