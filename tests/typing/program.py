"""What a user writes; read by type checkers, never run."""

from pathlib import Path
from typing import Any, assert_type

import maskwright as mw

tokenizer = assert_type(mw.load_tokenizer("tok"), mw.Tokenizer)
encoder = assert_type(mw.BERT.from_variant("tiny", vocab_size=tokenizer.vocab_size), mw.BERT)
model = mw.MaskedLanguageModel(encoder, vocab_size=tokenizer.vocab_size, mask_token_id=tokenizer.mask_token_id)
dataset = assert_type(mw.create_mlm_dataset("corpus.txt", tokenizer, batch_size=8), mw.PackedLoader)

trainer = mw.Trainer(model, mw.OptimizerConfig(learning_rate=1e-4), training=mw.TrainingConfig(epochs=1), seed=1)
assert_type(trainer.fit(dataset, callbacks=[mw.EarlyStopping(patience=2)]), mw.History)
assert_type(mw.Trainer(mw.Config()).train(), mw.FinishedRun)
mw.Trainer(model, learning_rate=1)  # wrong: it is the optimizer's

run = assert_type(mw.train(None, {"run.name": "mine"}), mw.FinishedRun)
assert_type(run.figures, dict[str, Any])
assert_type(mw.doctor(None), mw.CheckUp)
assert_type(mw.adapt("runs/mine", "notes.txt"), mw.Adapted)
task = mw.finetune("classification", model="runs/mine", train="train.tsv", validation="dev.tsv")
assert_type(task.scores, dict[str, float | None])
assert_type(mw.export("runs/mine", "hf"), Path)
assert_type(mw.fill("runs/mine", "the [MASK]."), list[list[mw.Candidate]])
assert_type(mw.choose_model(language="en"), mw.Choice)

pair = mw.MinimalPair("The cat sleeps.", "The cat sleep.", "agreement", "agreement", "morphology")
assert_type(mw.judge_pairs(model, tokenizer, [pair]), mw.PairVerdicts)
config = mw.TaskConfig(task="classification", model="runs/mine", train="train.tsv", validation="dev.tsv", epochs=2)
config.epochs = "two"  # wrong: a number
nothing = mw.nothing  # wrong: there is no such name
