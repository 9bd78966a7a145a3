"""The whole of masked language modelling in one file: seven sentences, a tokenizer, an encoder, training, answers.

Run it with `python examples/minimal_mlm.py`; it takes a few seconds on a laptop.
"""

import torch

import maskwright as mw

CORPUS = [
    "the cat sat on the mat",
    "the mat was warm",
    "dogs love to play",
    "they run in the park",
    "birds can fly",
    "some birds migrate",
    "they travel long distances",
]


EPOCHS = 300


def main() -> float:
    # 1. Text to ids: one id per whitespace word, and the five special tokens.
    tokenizer = mw.train_tokenizer(CORPUS, type="word_level", min_frequency=1)

    # 2. Ids to batches: sentences packed into rows, each attending only to itself.
    dataset = mw.create_mlm_dataset(CORPUS, tokenizer, batch_size=4, max_length=32)

    # 3. An encoder turns ids into vectors; the head around it predicts the masked ones.
    torch.manual_seed(0)
    encoder = mw.BERT.from_variant(
        "tiny",
        vocab_size=tokenizer.vocab_size,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = mw.MaskedLanguageModel(encoder, tokenizer=tokenizer, mask_ratio=0.3)

    # 4. Training: every epoch hides other words, and the loss counts those alone.
    trainer = mw.Trainer(model, mw.OptimizerConfig(learning_rate=2e-3), mw.ScheduleConfig(warmup_share=0.05))
    history = trainer.fit(dataset, epochs=EPOCHS, verbose=False)
    for epoch in range(0, EPOCHS, 75):
        print(f"epoch {epoch:3}  loss {history.history['loss'][epoch]:.3f}")

    # 5. Answers: hide each word of each sentence in turn and let the model fill it.
    questions = [(sentence, place) for sentence in CORPUS for place in range(len(sentence.split()))]
    answers = [mw.predict_masked(model, tokenizer, mw.mask_text(question[0], [question[1]])) for question in questions]
    hits = [answer == sentence for answer, (sentence, _) in zip(answers, questions, strict=True)]
    accuracy = sum(hits) / len(hits)
    masked = mw.mask_text("the cat sat on the mat", [2])
    print(f"{masked} -> {mw.predict_masked(model, tokenizer, masked)}")
    print(f"masked accuracy {accuracy:.1%} of {len(hits)} words")
    return accuracy


if __name__ == "__main__":
    main()
