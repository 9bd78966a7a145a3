"""The whole of masked language modelling in one file: seven sentences, a tokenizer, an encoder, training, answers.

Run it with `python examples/minimal_mlm.py`; it takes a few seconds on a laptop.
"""

import maskwright as mw
from maskwright.batch import from_padded
from maskwright.data.loader import PackedLoader
from maskwright.data.store import TokenStore
from maskwright.training.evaluate import evaluate

CORPUS = [
    "the cat sat on the mat",
    "the mat was warm",
    "dogs love to play",
    "they run in the park",
    "birds can fly",
    "some birds migrate",
    "they travel long distances",
]


def main() -> float:
    # 1. Text to ids: one id per whitespace word, and the five special tokens.
    tokenizer = mw.train_tokenizer(CORPUS, type="word_level", min_frequency=1)
    store = TokenStore.from_documents(tokenizer.encode_batch(CORPUS), tokenizer.vocab_size)

    # 2. Ids to batches: sentences packed into rows, each attending only to itself.
    loader = PackedLoader(
        store,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
        row_length=32,
        rows_per_batch=4,
    )

    # 3. An encoder turns ids into vectors; the head around it predicts the masked ones.
    encoder = mw.BERT.from_variant(
        "tiny",
        vocab_size=tokenizer.vocab_size,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = mw.MaskedLanguageModel(
        encoder,
        vocab_size=tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
    )

    # 4. Training: every epoch hides other words, and the loss counts those alone.
    trainer = mw.Trainer(model, mw.OptimizerConfig(learning_rate=2e-3), mw.ScheduleConfig(warmup_share=0.05))
    history = trainer.fit(loader, epochs=400)
    for epoch in range(0, 400, 100):
        print(f"epoch {epoch:3}  loss {history.history['loss'][epoch]:.3f}")

    # 5. Answers: hide one word of each sentence in turn and let the model fill it.
    accuracy = evaluate(model, [from_padded(batch.input_ids, batch.document_ids) for batch in loader]).accuracy
    print(f"masked accuracy {accuracy:.1%}")
    masked = mw.mask_text("the cat sat on the mat", [2])
    print(masked, "->", mw.predict_masked(model, tokenizer, masked))
    return accuracy


if __name__ == "__main__":
    main()
