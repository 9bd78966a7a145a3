"""Right answers by frequency, and the map of words, beside plain references."""

from __future__ import annotations

from pathlib import Path

import torch

from maskwright.config import load_config
from maskwright.models.any_encoder import encode
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.folder import RunFolder
from maskwright.runs.inputs import count_tokens, load_data
from maskwright.runs.insight import Band, compute_bands, look_into, map_words, read_insight, write_insight
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
