"""What people of Keras and transformers give to a Trainer: taken, or answered with what to use instead."""

from __future__ import annotations

import pytest
import torch

import maskwright as mw
from maskwright.errors import InputError


@pytest.fixture
def trainer(build_model):
    return mw.Trainer(build_model(), training=mw.TrainingConfig(device="cpu"))


def test_validation_data_is_the_validation_set(build_model, padded_batches):
    figures = []
    for name in ("validation", "validation_data"):
        trainer = mw.Trainer(build_model(), training=mw.TrainingConfig(device="cpu"))
        figures.append(trainer.fit(padded_batches, epochs=1, verbose=0, **{name: padded_batches[:2]}).history)
    assert "val_loss" in figures[0]
    assert figures[0] == figures[1]


def test_one_callback_or_none_needs_no_list(trainer, padded_batches):
    class Count(mw.Callback):
        num_epochs = 0

        def on_epoch_end(self, epoch, metrics):
            self.num_epochs += 1

    count = Count()
    trainer.fit(padded_batches, epochs=2, callbacks=count, verbose=0)
    trainer.fit(padded_batches, epochs=1, callbacks=None, verbose=0)
    assert count.num_epochs == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"validation": [], "validation_data": []}, "validation and validation_data are both given"),
        ({"steps_per_epoch": 5}, r"fit has no argument 'steps_per_epoch': use training=TrainingConfig\(max_steps"),
        ({"batch_size": 5}, "fit has no argument 'batch_size': create_mlm_dataset"),
        ({"validation_split": 0.1}, "no argument 'validation_split': split the texts"),
        ({"resume_from_checkpoint": "x"}, r"call load_checkpoint\(folder\) before fit"),
        ({"epoch": 3}, "fit has no argument 'epoch'; did you mean 'epochs'"),
        ({"epochs": "3"}, "epochs is '3'; expected a whole number"),
        ({"epochs": 2.0}, r"epochs is 2\.0; expected a whole number"),
        ({"callbacks": [mw.EarlyStopping]}, r"a callback is the class EarlyStopping; make one of it: EarlyStopping\("),
        ({"callbacks": [torch.nn.Linear(1, 1)]}, "a callback is a Linear of torch; expected ModelCheckpoint"),
        ({"callbacks": 5}, "a callback is 5; expected"),
        ({"validation": "dev.txt"}, r"validation is 'dev.txt'; fit takes batches, and create_mlm_dataset\('dev.txt'"),
        ({"validation": 5}, "validation is 5; expected batches"),
    ],
)
def test_fit_says_what_to_use_instead(trainer, padded_batches, arguments, reason):
    with pytest.raises(InputError, match=reason):
        trainer.fit(padded_batches, verbose=0, **arguments)


@pytest.mark.parametrize("train", ["corpus.txt", 5, None])
def test_fit_refuses_what_are_no_batches(trainer, train):
    with pytest.raises(InputError, match=rf"train is '?{train}'?; .*create_mlm_dataset"):
        trainer.fit(train, verbose=0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"args": object()}, r"Trainer has no argument 'args': TrainingArguments are training=TrainingConfig\("),
        ({"train_dataset": [1]}, r"no argument 'train_dataset': give the batches to fit"),
        ({"optimzer": 1}, "no argument 'optimzer'; did you mean 'optimizer'"),
        ({"optimizer": "adamw"}, r"optimizer is 'adamw'; expected OptimizerConfig\(type='adamw'"),
        ({"optimizer": {"type": "adamw"}}, "optimizer is a dict; expected OptimizerConfig.* or what optimizer_builder"),
        ({"schedule": "cosine"}, r"schedule is 'cosine'; expected ScheduleConfig\("),
        ({"training": mw.OptimizerConfig()}, r"training is an OptimizerConfig; expected TrainingConfig\("),
    ],
)
def test_a_trainer_says_what_to_use_instead(build_model, arguments, reason):
    with pytest.raises(InputError, match=reason):
        mw.Trainer(build_model(), **arguments)


def test_a_trainer_of_an_encoder_says_what_is_missing(build_model):
    with pytest.raises(
        InputError, match=r"the model is a BERT, which has no objective to train; give a MaskedLanguage"
    ):
        mw.Trainer(build_model().encoder)
    with pytest.raises(InputError, match=r"the model is a Linear of torch"):
        mw.Trainer(torch.nn.Linear(1, 1))
    with pytest.raises(InputError, match=r"the model is 'bert-base-uncased'"):
        mw.Trainer("bert-base-uncased")
