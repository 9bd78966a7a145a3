"""Classes of texts and pairs, as transformers' text-classification gives them, and texts longer than the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sequence_lab import MAX_LENGTH, save_classifier
from tiny_models import SCORE_ERROR

from maskwright.batch import PackedBatch, from_padded
from maskwright.errors import InputError, InputWarning
from maskwright.inference.pipeline import pipeline
from maskwright.inference.texts import find_windows
from maskwright.tasks.heads import TaskHead, pool
from maskwright.tasks.model import TaskModel
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from maskwright.text.tokenizer.train import train_tokenizer

TEXTS = ["the cat sees the green house.", "a road", "my old teacher likes a long road before it rains.", "dog"]
PAIRS = [("the cat", "a small dog"), ("every student sees", "a long road in the morning."), ("one", "one")]
NAMES = {"single_label_classification": ["good", "bad", "neither"], "multi_label_classification": ["a", "b", "c", "d"]}
Build = Callable[..., Path]


@pytest.fixture
def build_folder(tokenizer: Tokenizer, sentences: list[str], tmp_path: Path) -> Build:
    """A folder that transformers wrote, of a model for a kind of problem."""

    def build(problem: str = "single_label_classification", family: str = "Bert", **settings: Any) -> Path:
        own = tokenizer
        if family == "Roberta":  # its words carry the space before them, and its positions begin behind padding's
            own = train_tokenizer(sentences, type="byte_level_bpe", vocab_size=320)
            settings |= {"type_vocab_size": 1, "max_position_embeddings": MAX_LENGTH + own.pad_token_id + 1}
        names = NAMES.get(problem, ["LABEL_0"])
        return save_classifier(tmp_path / family, own, names, family, problem_type=problem, **settings)

    return build


def ask_transformers(folder: Path, inputs: list[Any], **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.pipeline("text-classification", str(folder), device="cpu", **options)
    return theirs(inputs)


def assert_alike(ours: Any, theirs: Any) -> None:
    """The same keys, labels in the same order, and scores."""
    if isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_alike(one, other)
    else:
        assert list(ours) == list(theirs)
        assert ours["label"] == theirs["label"]
        assert ours["score"] == pytest.approx(theirs["score"], abs=SCORE_ERROR)


@pytest.mark.parametrize("options", [{}, {"top_k": 1}, {"top_k": 2}, {"top_k": None}, {"top_k": 99}], ids=str)
@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification", "regression"])
def test_answers_are_those_of_transformers(build_folder: Build, problem: str, options: dict[str, Any]) -> None:
    folder = build_folder(problem)
    ours = pipeline("classify", folder, device="cpu", **options)
    assert_alike(ours(TEXTS), ask_transformers(folder, TEXTS, **options))


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_pairs_are_answered_as_by_transformers(build_folder: Build, family: str) -> None:
    folder = build_folder(family=family)
    theirs = ask_transformers(folder, [{"text": first, "text_pair": second} for first, second in PAIRS], top_k=None)
    ours = pipeline("classify", folder, device="cpu", top_k=None)
    assert_alike(ours(PAIRS), theirs)
    assert_alike(ours({"text": PAIRS[1][0], "text_pair": PAIRS[1][1]}), theirs[1])
    assert_alike(ours(PAIRS[2]), theirs[2])


def test_a_head_on_the_mean_is_answered_as_by_transformers(build_folder: Build) -> None:
    folder = build_folder(family="ModernBert", classifier_pooling="mean", cls_token_id=0, sep_token_id=1)
    ours = pipeline("classify", folder, device="cpu", top_k=None)
    assert_alike(ours(TEXTS), ask_transformers(folder, TEXTS, top_k=None))


def test_one_text_has_one_answer_and_a_list_of_one_a_list(build_folder: Build) -> None:
    ours = pipeline("classify", build_folder(), device="cpu")
    assert set(ours(TEXTS[0])) == {"label", "score"}
    assert ours([TEXTS[0]]) == [ours(TEXTS[0])]


def test_windows_of_a_long_text_are_averaged_by_their_tokens(build_folder: Build) -> None:
    folder = build_folder("regression")
    model, tokenizer = TaskModel.from_pretrained(folder), load_tokenizer(folder)
    text = "the cat sees the green house. every student likes a long road. " * 3
    (ids,) = tokenizer.encode_batch([text])
    windows = find_windows(len(ids), MAX_LENGTH - 2)
    rows = [[tokenizer.cls_token_id, *ids[start:stop], tokenizer.sep_token_id] for start, stop in windows]
    with torch.no_grad():
        values = [float(model.predict(from_padded(torch.tensor([row])))[0, 0, 0]) for row in rows]
    expected = np.average(values, weights=[len(row) for row in rows])
    assert len(rows) > 2
    assert max(values) - min(values) > 1e-3
    assert pipeline("classify", folder, device="cpu")(text)["score"] == pytest.approx(expected, abs=SCORE_ERROR)


@pytest.mark.parametrize(
    ("first", "second"),
    [("one " * 60, "a dog"), ("a dog", "one " * 60), ("one " * 60, "bird " * 90), ("bird " * 90, "one " * 60)],
)
def test_every_token_of_a_long_pair_is_read(build_folder: Build, first: str, second: str) -> None:
    folder = build_folder()
    ours = pipeline("classify", folder, device="cpu")
    tokenizer = load_tokenizer(folder)
    (prepared,) = ours.kind.prepare([(first, second)], str)
    counts = []
    for kind_of_segment, text in enumerate((first, second)):
        marks = [
            token
            for sample in prepared.samples
            for token, segment in zip(sample.ids, sample.token_type_ids, strict=True)
            if segment == kind_of_segment and token not in (tokenizer.cls_token_id, tokenizer.sep_token_id)
        ]
        (ids,) = tokenizer.encode_batch([text])
        assert set(marks) == set(ids)
        counts.append((len(marks), len(ids)))
    assert all(found >= wanted for found, wanted in counts)
    assert max(len(sample.ids) for sample in prepared.samples) <= MAX_LENGTH
    assert len(prepared.samples) < 30
    assert ours((first, second))["label"] in NAMES["single_label_classification"]


def test_an_empty_text_of_several_is_none_and_one_alone_is_named(build_folder: Build) -> None:
    ours = pipeline("classify", build_folder(), device="cpu")
    with pytest.warns(InputWarning, match="^3 of 5 texts have no text; their answer is None$"):
        answers = ours(["the cat", ("a", " "), "", None, ("a", "b")])
    assert [answer is None for answer in answers] == [False, True, True, True, False]
    with pytest.raises(InputError, match=r"^the second text of text 1 is empty"):
        ours(("a", " "))
    with pytest.raises(InputError, match=r"^text 1 is empty"):
        ours("")


@pytest.mark.parametrize("inputs", [3, [3], [("a",)], [("a", 3)], {"text": "a"}, [["a", "b", "c"]]], ids=str)
def test_what_is_no_text_is_refused(build_folder: Build, inputs: Any) -> None:
    with pytest.raises(InputError, match="expected a text"):
        pipeline("classify", build_folder(), device="cpu")(inputs)


def test_a_model_of_another_task_or_none_is_refused(bert_folder: Path) -> None:
    with pytest.raises(InputError, match="holds BertForMaskedLM; expected a model fine-tuned for a task"):
        pipeline("classify", bert_folder)


def test_a_model_in_hand_needs_its_tokenizer(build_folder: Build) -> None:
    folder = build_folder()
    model = TaskModel.from_pretrained(folder)
    with pytest.raises(InputError, match="give it as tokenizer="):
        pipeline("classify", model)
    with pytest.raises(InputError, match="is no model to classify texts; give a TaskModel or a name"):
        pipeline("classify", model.encoder, load_tokenizer(folder))
    assert pipeline("classify", model, load_tokenizer(folder))(TEXTS) == pipeline("classify", folder)(TEXTS)


def test_a_model_that_trains_answers_as_in_evaluation_and_goes_on_training(build_folder: Build) -> None:
    folder = build_folder(hidden_dropout_prob=0.5, classifier_dropout=0.5)
    model = TaskModel.from_pretrained(folder).train()
    ours = pipeline("classify", model, load_tokenizer(folder))
    assert ours(TEXTS) == ours(TEXTS)
    assert model.training
    assert model.task_head.training


def test_no_class_is_too_few(build_folder: Build) -> None:
    with pytest.raises(InputError, match="top_k is 0"):
        pipeline("classify", build_folder(), top_k=0)


class MeanAndFirst(TaskHead):
    """A head of nobody's family: two layers, one of them on the mean, the other on the first token."""

    def __init__(self, width: int, num_outputs: int) -> None:
        super().__init__()
        self.of_mean, self.of_first = (torch.nn.Linear(width, num_outputs) for _ in range(2))

    @property
    def output(self) -> torch.nn.Linear:
        return self.of_first

    def forward(self, hidden: torch.Tensor, batch: PackedBatch, num_documents: int) -> torch.Tensor:
        mean, first = (pool(hidden, batch, num_documents, how) for how in ("mean", "cls"))
        return self.of_mean(mean) + self.of_first(first)


def test_a_head_of_ones_own_gives_its_own_answers(build_folder: Build, tokenizer: Tokenizer) -> None:
    loaded = TaskModel.from_pretrained(build_folder())
    torch.manual_seed(1)
    model = TaskModel(loaded.encoder, MeanAndFirst(32, 3), loaded.task)
    found = pipeline("classify", model, tokenizer, top_k=None)(TEXTS)
    for text, answer in zip(TEXTS, found, strict=True):
        logits = model.eval()(input_ids=torch.tensor([tokenizer.encode(text)])).logits[0]
        scores = dict(zip(loaded.task.classes, logits.softmax(-1).tolist(), strict=True))
        assert {one["label"]: one["score"] for one in answer} == pytest.approx(scores, abs=SCORE_ERROR)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_model_in_bf16_pools_and_answers(build_folder: Build, pooling: str) -> None:
    folder = build_folder(family="ModernBert", classifier_pooling=pooling)
    model, tokenizer = TaskModel.from_pretrained(folder).to(torch.bfloat16), load_tokenizer(folder)
    for answer in pipeline("classify", model, tokenizer, top_k=None)(TEXTS):
        assert sum(one["score"] for one in answer) == pytest.approx(1.0, abs=SCORE_ERROR)
