"""A model of `transformers` in the place of an encoder: its hidden states, or the answers of its own head.

The head of a task differs from family to family, and some look at the token ids again: Longformer's lets the first
token see all others, BigBird's leaves the question out. So a class with a head is called as a whole, and what it
answers takes the place of hidden states. B texts, S length, C outputs.
"""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.errors import InputError, InputWarning
from maskwright.models.any_encoder import find_hidden_size, find_max_length, has_segments
from maskwright.models.encoder import PackedEncoder
from maskwright.models.transformers_model import first_line

_UNSTATED_LENGTH = 512
"""Tokens of the longest input of an encoder that has no limit of its own, unless more are asked for."""
_PROBE_LENGTH, _PROBE_PADDING = 8, 3


class TransformersEncoder(nn.Module):
    """Padded rows to `last_hidden_state` (B, S, C): of a class with a head, each token's logits or its text's."""

    def __init__(self, model: Any, folder: Path) -> None:
        """`model` is of any class that reads token ids; a few are sent through it to learn how it takes padding."""
        super().__init__()
        self.model = model
        self._parameters_taken = set(inspect.signature(model.forward).parameters)
        self.pads_left = False
        """Whether padding stands before a text, as where the last token speaks for the whole."""
        self.pads_left = _find_padding(self, folder)

    @property
    def base_model(self) -> Any:
        """The encoder itself, without a head."""
        return self.model.base_model

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def hidden_size(self) -> int:
        return find_hidden_size(self.base_model)

    @property
    def vocab_size(self) -> int:
        return int(getattr(self.config, "vocab_size", 0))

    @property
    def max_length(self) -> int:
        """Tokens in the longest input, or a usual number where there is no limit."""
        return find_max_length(self) or _UNSTATED_LENGTH

    def get_input_embeddings(self) -> Any:
        return self.base_model.get_input_embeddings()

    def gradient_checkpointing_enable(self) -> None:
        self.model.gradient_checkpointing_enable()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        """Texts stand at the beginning of their rows, whatever the model's own side of padding."""
        is_real = attention_mask != 0
        pad_token_id = self.config.pad_token_id
        if isinstance(pad_token_id, int) and pad_token_id >= 0:  # some count positions or find the last token by it
            input_ids = torch.where(is_real, input_ids, pad_token_id)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None and has_segments(self.base_model):
            inputs["token_type_ids"] = token_type_ids
        shift = (~is_real).sum(1, keepdim=True)
        if self.pads_left:
            inputs = {name: _roll(tensor, shift) for name, tensor in inputs.items()}
        if "global_attention_mask" in self._parameters_taken and "start_positions" in self._parameters_taken:
            inputs["global_attention_mask"] = self._find_question(inputs["input_ids"])
        answer = _read_answer(
            self.model(**{name: tensor for name, tensor in inputs.items() if name in self._parameters_taken})
        )
        if answer.ndim == 2:
            answer = answer[:, None].expand(-1, input_ids.shape[1], -1)
        elif self.pads_left:
            answer = _roll(answer, -shift)
        return {"last_hidden_state": answer}

    def _find_question(self, input_ids: Tensor) -> Tensor:
        """The tokens before the first separator; Longformer finds the same ones, but only among exactly three."""
        is_separator = (input_ids == self.config.sep_token_id).long()
        return (is_separator.cumsum(1) == 0).long()


def _read_answer(output: Any) -> Tensor:
    if "start_logits" in output:
        return torch.stack([output["start_logits"], output["end_logits"]], dim=-1)
    answer: Tensor = output["logits"] if "logits" in output else output["last_hidden_state"]
    return answer


def _roll(rows: Tensor, shift: Tensor) -> Tensor:
    """Each row (B, S, ...) moved to the right by its own number of places (B, 1); what falls out comes in again."""
    length = rows.shape[1]
    places = (torch.arange(length, device=rows.device) - shift) % length
    return rows.gather(1, places.view(*places.shape, *[1] * (rows.ndim - 2)).expand_as(rows))


@torch.no_grad()
def _find_padding(encoder: TransformersEncoder, folder: Path) -> bool:
    """Whether the model needs its padding on the left; one that it changes on either side is warned of."""
    model, was_training = encoder.model, encoder.model.training
    model.eval()
    if encoder.vocab_size < _PROBE_LENGTH or encoder.max_length < _PROBE_LENGTH + _PROBE_PADDING:
        raise InputError(
            f"{folder}: {type(model).__name__} has a vocabulary of {encoder.vocab_size} tokens and reads"
            f" {encoder.max_length}, too few to be fine-tuned"
        )
    ids = torch.arange(_PROBE_LENGTH)[None]
    separator = getattr(encoder.config, "sep_token_id", None)
    if isinstance(separator, int):
        ids[:, [2, -1]] = separator % encoder.vocab_size  # a question's class looks for it
    more = nn.functional.pad(ids, (0, _PROBE_PADDING)), nn.functional.pad(torch.ones_like(ids), (0, _PROBE_PADDING))
    try:
        with torch.random.fork_rng(devices=[]):
            alone = encoder(ids, torch.ones_like(ids))["last_hidden_state"]
            for pads_left in (False, True):
                encoder.pads_left = pads_left
                padded = encoder(*more)["last_hidden_state"][:, : ids.shape[1]]
                if torch.allclose(padded, alone, rtol=1e-4, atol=1e-5):
                    return pads_left
    except Exception as error:  # what a class needs beside token ids shows in many ways
        name = type(model).__name__
        raise InputError(f"{folder}: {name} cannot be run on token ids alone ({first_line(error)})") from error
    finally:
        model.train(was_training)
    warnings.warn(
        f"padding changes the answers of {type(model).__name__}, so that they depend a little on the other texts of a"
        " batch; take a model of another family where that matters",
        InputWarning,
        stacklevel=2,
    )
    return False


TunedEncoder = PackedEncoder | TransformersEncoder
"""What may stand under a task."""
