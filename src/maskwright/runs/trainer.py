"""`maskwright.Trainer`: trains a model, or runs a whole configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console

from maskwright.config import Config
from maskwright.errors import InputError
from maskwright.objectives.objective import Objective
from maskwright.runs.pretrain import FinishedRun, pretrain
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.suggestions import explains_arguments
from maskwright.training import trainer
from maskwright.training.arguments import TRAINER_INSTEAD
from maskwright.training.optim.builders import BuiltOptimizer

_INSTEAD = {
    "predict": "pipeline(kind, trainer.model, tokenizer) answers texts",
    "save_model": "use trainer.model.save_pretrained(folder, tokenizer)",
    "push_to_hub": "use trainer.model.save_pretrained(folder, tokenizer), and upload the folder with huggingface_hub",
    "compile": "give Trainer(model, optimizer, schedule, training) the settings",
}
"""Methods of the trainers of other frameworks, and what to use here."""


class Trainer(trainer.Trainer):
    """Trains a model with `fit(batches)`, or runs a whole configuration with `Trainer(config).train()`.

    A trainer of a configuration has no model, data or history until `train` has built them.
    """

    @explains_arguments(TRAINER_INSTEAD)
    def __init__(
        self,
        model: Objective | Config,
        optimizer: OptimizerConfig | BuiltOptimizer | None = None,
        schedule: ScheduleConfig | None = None,
        training: TrainingConfig | None = None,
        *,
        mask_ratio: Callable[[float], float] | None = None,
        seed: int = 0,
    ) -> None:
        """The arguments after the model are those of `TrainingLoop`; a Config is given alone."""
        self.run_config = model if isinstance(model, Config) else None
        if not isinstance(model, Config):
            super().__init__(model, optimizer, schedule, training, mask_ratio=mask_ratio, seed=seed)
        elif optimizer or schedule or training or mask_ratio or seed:
            raise InputError(
                "Trainer got a Config and more; a Config holds everything, so set config.optimizer, config.schedule,"
                " config.training, config.masking and config.run.seed instead"
            )

    def train(self, overwrite: bool = False, console: Console | None = None) -> FinishedRun:
        """Run the configuration from its texts to the saved model, or resume it where it stopped.

        `overwrite` replaces a run of the same name. Afterwards `model`, `history`, `fit` and the rest of this trainer
        are those of the run.
        """
        if self.run_config is None:
            raise InputError("train() needs a configuration, Trainer(config); a Trainer of a model has fit(batches)")
        finished = pretrain(self.run_config, overwrite, console)
        vars(self).update(vars(finished.trainer))
        return finished

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            """Called for missing attributes only: a configuration has all of them missing until `train` builds them."""
            if "model" in vars(self):
                advice = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
                raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'{advice}")
            raise _NotYetBuiltError(
                "a Trainer of a configuration has no model, data or history before train(), which builds them; call"
                " train() first"
            )


class _NotYetBuiltError(InputError, AttributeError):
    """An AttributeError too, so that `hasattr` returns False."""
