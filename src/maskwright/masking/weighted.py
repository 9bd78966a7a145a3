"""Masks that know what is hard: tokens are chosen by weight, of their frequency or of the model's own loss on them.

V vocabulary, B rows, S row length. A sample's share of masked tokens stays exactly the ratio; within it tokens with the
smallest draw / weight are chosen (sequential Poisson sampling, Ohlsson 1998), so the chance of a token is proportional
to its weight while that is far from certain. Draws and weights are integers: the same choice on every device.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from maskwright.batch import IGNORED_LABEL
from maskwright.errors import InputError
from maskwright.masking.tokens import Selection, TokenMasker

DEFAULT_EXPONENT = 0.5
"""That of the inverse frequencies of XLM (Lample & Conneau 2019)."""
DEFAULT_UPDATE_EVERY_STEPS = 200
"""As often as AMLM (Edman & Fraser 2025) adapts its probabilities."""
DEFAULT_LOSS_DECAY = 0.5
_DIVISOR_BITS = 24
_LOSS_UNIT = 1 << 20
"""Losses are added up as integers, whose sum does not depend on its order, nor on the number of processes."""
_LARGEST_LOSS = 1000.0
_SMALLEST_LOSS = 0.05
"""A token that is always known keeps this loss, in nats, and so a chance to be asked for again."""


class WeightedMasker(TokenMasker):
    """Chooses single tokens by weights that a table of the vocabulary holds."""

    def __init__(
        self,
        vocab_size: int,
        mask_token_id: int,
        special_token_ids: Sequence[int],
        random_token_ratio: float = 0.1,
        unchanged_ratio: float = 0.1,
        selection: Selection = "exact",
        *,
        exponent: float = DEFAULT_EXPONENT,
    ) -> None:
        super().__init__(vocab_size, mask_token_id, special_token_ids, random_token_ratio, unchanged_ratio, selection)
        if selection != "exact":
            raise InputError(
                f"masking by {self.strategy} shares out an exact number of tokens; set selection=exact, or mask by"
                " token, whole_word or span"
            )
        if not exponent > 0:
            raise InputError(f"the exponent of masking by {self.strategy} is {exponent}; it must be positive")
        self.exponent = exponent
        self._divisors: Tensor | None = None

    def settings(self) -> dict[str, Any]:
        """Those of masking by token: the table is the run's, so a saved model masks without it."""
        return {**super().settings(), "strategy": "token"}

    @abstractmethod
    def tables(self, add_up: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """What a checkpoint keeps beside the settings; `add_up` sums over all processes, which call this together."""

    @abstractmethod
    def load_tables(self, tables: Mapping[str, Tensor], is_main: bool) -> None:
        """Go on from what `tables` returned."""

    def _set_weights(self, weights: Tensor) -> None:
        """(V,) float64 on the CPU; the draws of the lightest token keep their size, those of others shrink."""
        lightest = weights[~self._is_special.cpu()].min()
        divisors = (lightest / weights * (1 << _DIVISOR_BITS)).round().long().clamp(1, 1 << _DIVISOR_BITS)
        self._divisors = divisors.to(self._is_special.device)

    def _weigh(self, draws: Tensor, input_ids: Tensor) -> Tensor:
        if self._divisors is None:
            raise InputError(
                "masking by frequency needs to know how often tokens occur; call model.set_token_counts(counts) with"
                " the count of each id in the training text"
            )
        return (draws * self._divisors[input_ids]) >> _DIVISOR_BITS

    def _move_tables(self, device: torch.device) -> None:
        super()._move_tables(device)
        if self._divisors is not None and self._divisors.device != device:
            self._divisors = self._divisors.to(device)

    def _read_table(self, tables: Mapping[str, Tensor], name: str, dtype: torch.dtype) -> Tensor:
        table = tables.get(name)
        if table is None or table.shape != self._is_special.shape or table.dtype != dtype:
            raise InputError(
                f"the checkpoint was made with another masking.strategy than {self.strategy}, or another vocabulary;"
                " go on with the settings the run was begun with"
            )
        return table.clone()


class FrequencyMasker(WeightedMasker):
    """The weight of a token is (its count in the training text + 1) to the power of -exponent."""

    strategy = "frequency"
    _counts: Tensor | None = None

    def set_counts(self, counts: Tensor) -> None:
        """How often each id, (V,), occurs in the training text."""
        if counts.shape != self._is_special.shape or counts.is_floating_point() or bool((counts < 0).any()):
            raise InputError(
                f"the counts of tokens have shape {tuple(counts.shape)} and dtype {counts.dtype}; expected an integer"
                f" of at least 0 for each of the {len(self._is_special)} ids"
            )
        self._counts = counts.long().cpu()
        self._set_weights((self._counts.double() + 1) ** -self.exponent)

    def tables(self, add_up: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        return {} if self._counts is None else {"counts": self._counts}

    def load_tables(self, tables: Mapping[str, Tensor], is_main: bool) -> None:
        self.set_counts(self._read_table(tables, "counts", torch.int64))


class AdaptiveMasker(WeightedMasker):
    """The weight of a token is the model's running loss on it, to the power of the exponent.

    Losses of masked tokens are added up by id. Every so many steps the running loss of those that were asked for moves
    towards their mean, in the same way in all processes. Before that every token is as hard as guessing.
    """

    strategy = "adaptive"

    def __init__(
        self,
        vocab_size: int,
        mask_token_id: int,
        special_token_ids: Sequence[int],
        random_token_ratio: float = 0.1,
        unchanged_ratio: float = 0.1,
        selection: Selection = "exact",
        *,
        exponent: float = DEFAULT_EXPONENT,
        update_every_steps: int = DEFAULT_UPDATE_EVERY_STEPS,
        loss_decay: float = DEFAULT_LOSS_DECAY,
    ) -> None:
        super().__init__(
            vocab_size,
            mask_token_id,
            special_token_ids,
            random_token_ratio,
            unchanged_ratio,
            selection,
            exponent=exponent,
        )
        self.update_every_steps, self.loss_decay = update_every_steps, loss_decay
        self.losses = torch.full((vocab_size,), float(vocab_size), dtype=torch.float64).log()
        """(V,) the running loss of each id, on the CPU."""
        self._sums = torch.zeros(2, vocab_size, dtype=torch.long)
        """(2, V) losses and counts since the last update, in this process."""
        self._step_sums = torch.zeros_like(self._sums)
        """Those of the step that is under way."""
        self._set_weights(self.losses)

    def __deepcopy__(self, memo: dict[int, Any]) -> AdaptiveMasker:
        """The masker itself: FSDP trains a copy of the model, whose losses belong into the same table."""
        return self

    def begin_step(self) -> None:
        """Forget what was recorded since the last step ended: its gradients are computed anew."""
        self._step_sums.zero_()

    @torch.no_grad()
    def record(self, labels: Tensor, losses: Tensor) -> None:
        """The losses of (M,) labels, of which some may be ignored ones."""
        if self._step_sums.device != labels.device:
            self._step_sums, self._sums = self._step_sums.to(labels.device), self._sums.to(labels.device)
        is_asked = labels != IGNORED_LABEL
        known = labels.clamp(min=0)
        units = (losses.double().nan_to_num(_LARGEST_LOSS).clamp(0.0, _LARGEST_LOSS) * _LOSS_UNIT).round().long()
        self._step_sums[0].scatter_add_(0, known, units * is_asked)
        self._step_sums[1].scatter_add_(0, known, is_asked.long())

    def end_step(self, step: int, skip: Tensor, add_up: Callable[[Tensor], Tensor]) -> None:
        """Learn from what was recorded, unless the step was skipped; all processes call this together."""
        self._sums += self._step_sums * (1 - skip.to(self._step_sums.device)).long()
        if (step + 1) % self.update_every_steps == 0:
            units, counts = add_up(self._sums.clone()).cpu()
            means = units.double() / (counts.clamp(min=1) * _LOSS_UNIT)
            moved = self.loss_decay * self.losses + (1 - self.loss_decay) * means
            self.losses = torch.where(counts > 0, moved, self.losses)
            self._set_weights(self.losses.clamp(min=_SMALLEST_LOSS) ** self.exponent)
            self._sums.zero_()

    def tables(self, add_up: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        units, counts = add_up(self._sums.clone()).cpu()
        return {"losses": self.losses.clone(), "loss_sums": units.clone(), "loss_counts": counts.clone()}

    def load_tables(self, tables: Mapping[str, Tensor], is_main: bool) -> None:
        losses = self._read_table(tables, "losses", torch.float64)
        sums = [self._read_table(tables, name, torch.int64) for name in ("loss_sums", "loss_counts")]
        self.losses = losses
        self._sums = torch.stack(sums).to(self._sums.device) * int(is_main)  # one process goes on with those of all
        self._set_weights(self.losses.clamp(min=_SMALLEST_LOSS) ** self.exponent)
