"""The prediction head of a masked language model of `transformers`, apart from its encoder.

Their classes have no common name for it and no common way to call it, so the head is the class's own `forward` in which
the encoder's answer is given. D width, V vocabulary.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn


class TransformersHead(nn.Module):
    """All of a model but its encoder, as a function from hidden states to logits."""

    def __init__(self, model: Any) -> None:
        """`model` is a masked language model of transformers; its modules are shared, not copied."""
        super().__init__()
        encoder = model.base_model
        rest = copy.copy(model)
        rest._modules = {name: module for name, module in model._modules.items() if module is not encoder}
        # Not as a module, so that the encoder's weights stay the encoder's alone.
        rest.__dict__[model.base_model_prefix] = _AnsweredEncoder(encoder)
        self.rest = rest
        self.encoder_name: str = model.base_model_prefix
        """The encoder's name in the whole model, and so in its files."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) of hidden states (..., D)."""
        as_one_row = hidden.reshape(1, -1, hidden.shape[-1])  # some heads read rows only
        logits: Tensor = self.rest(inputs_embeds=as_one_row).logits
        return logits.view(*hidden.shape[:-1], -1)

    @property
    def ties(self) -> dict[str, str]:
        """Weights of the whole model that are another's own, by name; files hold the other alone."""
        return dict(self.rest.all_tied_weights_keys)

    def output_tables(self, vocab_size: int) -> list[nn.Parameter]:
        """The head's parameters with a row for each token: its output matrix, tied or not, and biases."""
        return [parameter for parameter in self.rest.parameters() if parameter.shape[:1] == (vocab_size,)]


class _AnsweredEncoder:
    """Stands where the encoder stood: called, it answers with the hidden states it is given."""

    def __init__(self, encoder: nn.Module) -> None:
        self._encoder = encoder

    def __call__(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Answer:
        return _Answer(inputs_embeds)

    def __getattr__(self, name: str) -> Any:
        """Some heads read the encoder's embedding table."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._encoder, name)


class _Answer:
    """An encoder's output that has the last hidden state and nothing else."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None
