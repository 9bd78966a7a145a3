"""Every row of a source has its line in the answers of every kind, also where nothing can be answered."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from rich.console import Console
from sequence_lab import save_classifier
from tiny_models import MAX_LENGTH, SHAPE, save

from maskwright.errors import InputError, InputWarning
from maskwright.inference.kinds import KINDS
from maskwright.inference.pipeline import pipeline
from maskwright.runs.predict import predict
from maskwright.text.tokenizer.tokenizer import Tokenizer

QUIET = Console(quiet=True)
FULL = {"text": "the cat [MASK]", "sentence1": "a", "sentence2": "b", "question": "who?", "context": "the cat sees"}
EMPTY = [dict.fromkeys(FULL, ""), dict.fromkeys(FULL), {}, dict.fromkeys(FULL, " \t"), FULL | dict.fromkeys(FULL, None)]
ANSWERS = {
    "fill-mask": {"candidates"},
    "embed": {"embedding"},
    "similarity": {"score"},
    "classify": {"label", "score"},
    "ner": {"entities"},
    "zero-shot": {"labels", "scores"},
    "qa": {"score", "start", "end", "answer"},
}
OPTIONS: dict[str, dict[str, Any]] = {"zero-shot": {"label": ["rain", "the cat"]}}


@pytest.fixture(scope="module")
def models(bert_folder: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    transformers = pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("kinds")
    config = transformers.BertConfig(vocab_size=tokenizer.vocab_size, max_position_embeddings=MAX_LENGTH, **SHAPE)
    torch.manual_seed(0)
    heads = {"ner": transformers.BertForTokenClassification, "qa": transformers.BertForQuestionAnswering}
    found = {kind: save(head(config), tokenizer, place / kind) for kind, head in heads.items()}
    classifier = save_classifier(place / "nli", tokenizer, ["contradiction", "neutral", "entailment"])
    return {**dict.fromkeys(KINDS, bert_folder), **found, "classify": classifier, "zero-shot": classifier}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_text_have_a_null_answer_in_their_place(
    kind: str, suffix: str, models: dict[str, Path], tmp_path: Path
) -> None:
    rows = [FULL, *EMPTY, FULL]
    source, out = tmp_path / "rows.jsonl", tmp_path / f"out{suffix}"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.warns(InputWarning, match=r"rows\.jsonl: 5 of 7 \w+ have no text.*; their answer is null$"):
        predict(kind, models[kind], source, out=out, console=QUIET, device="cpu", **OPTIONS.get(kind, {}))
    found = (
        pyarrow.parquet.read_table(out).to_pylist()
        if suffix == ".parquet"
        else [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    )
    assert [record["row"] for record in found] == list(range(7))
    assert len({tuple(record) for record in found}) == 1, "every record has the same columns"
    for number, record in enumerate(found):
        answers = {name: value for name, value in record.items() if name in ANSWERS[kind]}
        assert answers.keys() == ANSWERS[kind]
        assert all((value is None) == (0 < number < 6) for value in answers.values()), record
    assert [path.name for path in sorted(tmp_path.iterdir())] == sorted([out.name, "rows.jsonl"])


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_parquet_do_not_depend_on_the_answers(kind: str, models: dict[str, Path], tmp_path: Path) -> None:
    """A block of a thousand rows without any answer, and then one with an answer."""
    schemas = []
    for number, rows in enumerate(([{}] * 1_100 + [FULL], [FULL])):
        source, out = tmp_path / f"rows{number}.jsonl", tmp_path / f"out{number}.parquet"
        source.write_text(
            "".join(json.dumps({"text": None, **FULL, **row} if row else dict.fromkeys(FULL)) + "\n" for row in rows)
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *_, **__: None)
            predict(kind, models[kind], source, out=out, console=QUIET, device="cpu", **OPTIONS.get(kind, {}))
        table = pyarrow.parquet.read_table(out)
        assert table.num_rows == len(rows)
        schemas.append(table.schema)
    assert schemas[0] == schemas[1]


@pytest.mark.parametrize("kind", ["embed", "classify", "ner", "zero-shot"])
def test_a_list_in_python_has_none_in_the_place_of_an_empty_text(kind: str, models: dict[str, Path]) -> None:
    texts = ["the cat", "", None, " ", "a bird"]
    options = {"labels": ["rain", "the cat"]} if kind == "zero-shot" else {}
    with pytest.warns(InputWarning, match="^3 of 5 texts have no text; their answer is None$") as seen:
        answers = pipeline(kind, models[kind], device="cpu", **options)(texts)
    assert [answer is None for answer in answers] == [False, True, True, True, False]
    assert len(seen) == 1
    with pytest.warns(InputWarning, match="^3 of 5 texts have no text; their answer is None$") as seen:
        answers = predict(kind, models[kind], texts, device="cpu", **OPTIONS.get(kind, {}))
    assert answers is not None
    assert [answer is None for answer in answers] == [False, True, True, True, False]
    assert len(seen) == 1


def test_vectors_that_are_missing_are_nan_and_marked(models: dict[str, Path], tmp_path: Path) -> None:
    import numpy as np

    for pooling, lengths in (("mean", None), ("none", [4, 0, 4])):
        out = tmp_path / f"{pooling}.npz"
        with pytest.warns(InputWarning, match="1 of 3 texts"):
            predict("embed", models["embed"], ["the cat", "", "a bird"], pooling=pooling, out=out, device="cpu")
        with np.load(out, allow_pickle=False) as arrays:
            assert arrays["missing"].tolist() == [False, True, False]
            if lengths is None:
                assert np.isnan(arrays["embeddings"]).all(axis=1).tolist() == [False, True, False]
            else:
                assert arrays["lengths"].tolist() == lengths
                assert arrays["embeddings"].shape == (8, 32)


@pytest.mark.parametrize("is_on", [True, False])
def test_garbage_is_collected_between_answers_if_it_was_before(bert_folder: Path, is_on: bool) -> None:
    embed = pipeline("embed", bert_folder, device="cpu")
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        seen = [gc.isenabled() for _ in embed.stream(["the cat", "a dog"])]
        with pytest.raises(InputError, match="empty"):
            embed("")
        assert [*seen, gc.isenabled()] == [is_on] * 3
    finally:
        (gc.enable if was_on else gc.disable)()
