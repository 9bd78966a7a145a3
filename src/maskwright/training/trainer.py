"""The trainer that people call: `Trainer(model, ...).fit(batches)`, around the loop of `training/loop.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from maskwright.errors import InputError
from maskwright.suggestions import refuse_arguments
from maskwright.training.arguments import AS_ROWS, describe
from maskwright.training.batches import Batches
from maskwright.training.loop import Callback, TrainingLoop
from maskwright.training.progress import ProgressDisplay
from maskwright.training.state import History

_FIT_INSTEAD = {
    "x": "give the batches as the first argument",
    "y": "batches hold their labels, or the model makes them by masking",
    "batch_size": AS_ROWS,
    "steps_per_epoch": "use training=TrainingConfig(max_steps=...) of the Trainer",
    "validation_split": "split the texts, and give the smaller part as validation=",
    "validation_batch_size": AS_ROWS,
    "validation_steps": "use training=TrainingConfig(evaluate_max_batches=...) of the Trainer",
    "validation_freq": "use training=TrainingConfig(evaluate_every_steps=...) of the Trainer",
    "shuffle": "loaders of create_mlm_dataset shuffle anew in each epoch; leave it out",
    "class_weight": "fine-tuning has class weights: maskwright finetune --class-weights",
    "sample_weight": "texts can have weights: data.train=[{path: ..., weight: 2}]",
    "resume_from_checkpoint": "call load_checkpoint(folder) before fit",
    "train_dataset": "give the batches as the first argument",
    "eval_dataset": "give them as validation=",
}
"""Arguments of other frameworks' `fit`, and what to use here."""


class Trainer(TrainingLoop):
    """Trains a model on packed or padded batches, in this process or in all that `torchrun` started."""

    def fit(
        self,
        train: Batches,
        validation: Batches | None = None,
        epochs: int | None = None,
        callbacks: Sequence[Callback] | Callback | None = (),
        initial_epoch: int | None = None,
        verbose: bool | int | str = True,
        *,
        validation_data: Batches | None = None,
        **others: Any,
    ) -> History:
        """Train until `epochs` or the budget of the configuration is reached.

        `validation_data` is another name of `validation`.

        Each call is a new run with its own schedule and history, from the current weights and optimizer state; after
        `load_checkpoint` it resumes the saved run instead. `verbose` shows live progress. The model is left in
        evaluation mode, with the averaged weights where an average is kept.
        """
        refuse_arguments(self.fit, others, _FIT_INSTEAD)
        validation = _choose_validation(validation, validation_data)
        callbacks = _list_callbacks(callbacks)
        if verbose and not any(isinstance(callback, ProgressDisplay) for callback in callbacks):
            callbacks = [ProgressDisplay(), *callbacks]
        return self.run(train, validation, callbacks, epochs, initial_epoch)


def _choose_validation(validation: Batches | None, validation_data: Batches | None) -> Batches | None:
    if validation is not None and validation_data is not None:
        raise InputError("validation and validation_data are both given; they are one argument, keep one of them")
    return validation_data if validation is None else validation


def _list_callbacks(callbacks: Any) -> list[Callback]:
    """One callback, several or none, as a list; callbacks of other frameworks are refused."""
    several = [callbacks] if isinstance(callbacks, Callback) else callbacks or []
    several = list(several) if isinstance(several, Iterable) else [several]
    for callback in several:
        if isinstance(callback, type):
            raise InputError(f"a callback is the class {callback.__name__}; make one of it: {callback.__name__}(...)")
        if not isinstance(callback, Callback):
            raise InputError(
                f"a callback is {describe(callback)}; expected ModelCheckpoint, EarlyStopping, TensorBoard or another"
                " subclass of maskwright.Callback"
            )
    return several
