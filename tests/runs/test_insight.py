"""Right answers by frequency and by part of speech, and the map of words, beside plain references."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from maskwright.batch import from_padded
from maskwright.config import load_config
from maskwright.errors import InputError
from maskwright.models.any_encoder import encode
from maskwright.objectives.masked_lm import HybridLanguageModel, MaskedLanguageModel
from maskwright.runs.folder import RunFolder
from maskwright.runs.inputs import count_tokens, load_data
from maskwright.runs.insight import (
    Band,
    compute_bands,
    compute_speech_bands,
    look_into,
    map_words,
    read_insight,
    read_parts_of_speech,
    write_insight,
)
from maskwright.tasks.ner.examples import RawSentence
from maskwright.training.held_out import EVALUATION_RATIO, EVALUATION_SEED


def load(trained_run: Path):
    run = RunFolder(trained_run)
    model = MaskedLanguageModel.from_pretrained(run.model)
    data = load_data(load_config(run.config_file), run.tokenizer, print)
    return run, model, data, torch.from_numpy(count_tokens(data.train, model.vocab_size))


def test_bands_count_every_answer_once_by_the_frequency_of_its_token(trained_run: Path) -> None:
    _, model, data, counts = load(trained_run)
    bands = compute_bands(model, data.validation.epoch(0), counts)
    limits = [float("inf"), 1_000.0, 100.0, 10.0, 0.0]
    expected = [[0, 0] for _ in bands]
    model.eval()
    for batch in data.validation.epoch(0):
        asked = model.corrupt_for_evaluation(batch, EVALUATION_SEED, EVALUATION_RATIO)
        with torch.no_grad():
            best = model.predict(encode(model.encoder, asked.batch, None)).argmax(-1)
        for label, answer in zip(asked.labels.flatten().tolist(), best.flatten().tolist(), strict=True):
            if label >= 0:
                share = 1e6 * float(counts[label]) / float(counts.sum())
                band = next(place for place in range(4) if limits[place] > share >= limits[place + 1])
                expected[band][0] += 1
                expected[band][1] += label == answer
    assert [[band.asked, band.right] for band in bands] == expected
    assert sum(band.asked for band in bands) > 20
    none = compute_bands(model, data.validation.epoch(0), counts, most_tokens=0)
    assert [band.asked for band in none] == [0, 0, 0, 0]


def test_the_map_shows_frequent_words_at_their_principal_components(trained_run: Path) -> None:
    _, model, data, counts = load(trained_run)
    words, explained = map_words(model, counts, data.tokenizer)
    names = [word for word, _, _ in words]
    assert len(set(names)) == len(names) > 10
    assert all(name.isalpha() and len(name) >= 3 for name in names)
    frequencies = [int(counts[data.tokenizer.encode(name)[1]]) for name in names]
    assert frequencies == sorted(frequencies, reverse=True)
    table = model.encoder.get_input_embeddings().weight.detach()
    vectors = table[[data.tokenizer.encode(name)[1] for name in names]].double()
    values = torch.linalg.eigvalsh(torch.cov(vectors.T)).flip(0)
    places = torch.tensor([[x, y] for _, x, y in words], dtype=torch.float64)
    torch.testing.assert_close(places.var(0), values[:2])
    assert abs(explained - float(values[:2].sum() / values.sum())) < 1e-9


def test_what_is_kept_is_read_again_and_damage_leaves_it_out(trained_run: Path, tmp_path: Path) -> None:
    _, model, data, counts = load(trained_run)
    insight = look_into(model, data.validation.epoch(0), counts, data.tokenizer)
    assert read_insight(RunFolder(trained_run)) == insight  # the run itself has written the same
    run = RunFolder(tmp_path)
    assert read_insight(run) is None
    write_insight(run, insight)
    assert read_insight(run) == insight
    run.insight_file.write_text('{"bands": 3}')
    assert read_insight(run) is None
    assert Band("rare", 0, 0).accuracy is None


TAGGED = """# sent_id = 1
# text = Don't return the list.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\t_\t_\t3\taux\t_\tSpaceAfter=No
2\tn't\tnot\tPART\t_\t_\t3\tadvmod\t_\t_
3\treturn\treturn\tVERB\t_\t_\t0\troot\t_\t_
3.1\treturn\treturn\tVERB\t_\t_\t_\t_\t_\t_
4\tthe\tthe\tDET\t_\t_\t5\tdet\t_\t_
5\tlist\tlist\tNOUN\t_\t_\t3\tobj\t_\tSpaceAfter=No
6\t.\t.\tPUNCT\t_\t_\t3\tpunct\t_\t_

1\tNames\tname\tNOUN\t_\t_\t2\tnsubj\t_\t_
2\tdifferentiate\tdifferentiate\tVERB\t_\t_\t0\troot\t_\t_
"""


def test_parts_of_speech_are_read_from_conllu_and_from_the_second_column(tmp_path: Path) -> None:
    file = tmp_path / "dev.conllu"
    file.write_text(TAGGED)
    first, second = read_parts_of_speech(str(file))
    assert first.words == ["Do", "n't", "return", "the", "list", "."]
    assert first.tags == ["AUX", "PART", "VERB", "DET", "NOUN", "PUNCT"]
    assert (second.words, second.tags) == (["Names", "differentiate"], ["NOUN", "VERB"])
    file.write_text("EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n")
    (only,) = read_parts_of_speech(str(file))
    assert (only.words, only.tags) == (["EU", "rejects"], ["NNP", "VBZ"])
    file.write_text("# nothing\n")
    with pytest.raises(InputError, match="has no sentence"):
        read_parts_of_speech(str(file))
    assert read_parts_of_speech(None) == []


@pytest.mark.parametrize("shifts", [False, True], ids=["in place", "shifted"])
def test_right_answers_are_counted_by_the_part_of_speech_of_their_words(trained_run: Path, shifts: bool) -> None:
    """Beside a count over words alone: each is tokenized by itself, which WordPiece does alike."""
    _, model, data, _ = load(trained_run)
    if shifts:
        model = HybridLanguageModel(model.encoder, tokenizer=data.tokenizer, causal_share=0.5, shifts_masks=True)
    texts = ["return the name of the function", "a differentiated list is the value", "if the file is empty"]
    rows = [
        [(word, "NOUN" if len(word) > 3 else f"T{number % 3}") for number, word in enumerate(text.split())]
        for text in texts * 20
    ]
    sentences = [RawSentence([word for word, _ in row], [tag for _, tag in row]) for row in rows]
    expected: dict[str, list[int]] = {}
    for row in rows:
        pieces = [(data.tokenizer.encode(word, add_special_tokens=False), tag) for word, tag in row]
        ids = [data.tokenizer.cls_token_id, *(one for piece, _ in pieces for one in piece), data.tokenizer.sep_token_id]
        tags = [None, *(tag for piece, tag in pieces for _ in piece), None]
        asked = model.corrupt_for_evaluation(from_padded(torch.tensor([ids])), EVALUATION_SEED, EVALUATION_RATIO)
        model.eval()
        with torch.no_grad():
            best = model.predict(encode(model.encoder, asked.batch, None)).argmax(-1)[0].tolist()
        for place, (label, answer) in enumerate(zip(asked.labels[0].tolist(), best, strict=True)):
            if label >= 0:
                counts = expected.setdefault(tags[place + shifts], [0, 0])
                counts[0] += 1
                counts[1] += label == answer
    found = compute_speech_bands(model, sentences, data.tokenizer)
    assert {band.label: [band.asked, band.right] for band in found if band.asked} == expected
    assert found[0].label == "NOUN"
    assert sum(band.asked for band in found) > 20
    assert compute_speech_bands(model, [], data.tokenizer) == []


def test_the_rarest_of_many_tags_are_counted_together(trained_run: Path) -> None:
    _, model, data, _ = load(trained_run)
    sentences = [RawSentence(["list"] * 30, [f"T{number}" for number in range(30)]) for _ in range(3)]
    bands = compute_speech_bands(model, sentences, data.tokenizer)
    assert [band.label for band in bands][-1] == "others"
    assert len(bands) == 18
