"""Pausing a run at a share of its budget: it is measured and saved, and the same command goes on exactly."""

from __future__ import annotations

from maskwright.runs.folder import RunFolder
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.batches import Batches
from maskwright.training.checkpoints import Retention
from maskwright.training.loop import Callback, Metrics


class RunPaused(Exception):  # noqa: N818 (no error)
    """The run reached its pause; it has a checkpoint of this step."""

    def __init__(self, run: RunFolder, metrics: Metrics, step: int, tokens: int, seconds: float) -> None:
        super().__init__(f"{run.path} is paused at step {step}")
        self.metrics, self.step, self.tokens, self.seconds = metrics, step, tokens, seconds


class PauseAt(Callback):
    """Raises `RunPaused` after the step that reaches a share of the budget, with the metrics of held-out text."""

    on_every_rank = True

    def __init__(
        self, share: float, run: RunFolder, tokenizer: Tokenizer, validation: Batches, retention: Retention
    ) -> None:
        self._share = share
        self._run, self._tokenizer, self._validation, self._retention = run, tokenizer, validation, retention

    def on_train_begin(self) -> None:
        if self._is_due():  # saved there before, and not recorded
            self._pause()

    def on_step_end(self, step: int) -> None:
        if self._is_due() and not self.trainer.stop_training and not self.trainer.agreed_signal:
            self.trainer.save_checkpoint(self._run.checkpoints, self._tokenizer, self._retention)
            self.trainer.finish_writing()
            self._pause()

    def _is_due(self) -> bool:
        return self.trainer.progress >= self._share

    def _pause(self) -> None:
        state = self.trainer.state
        metrics = self.trainer.evaluate(self._validation)
        raise RunPaused(self._run, metrics, state.step, state.num_tokens, state.elapsed_s)
