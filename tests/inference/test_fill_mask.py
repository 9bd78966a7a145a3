from __future__ import annotations

import pytest
import torch
from tiny_models import SCORE_ERROR
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from maskwright.errors import InputError
from maskwright.inference.fill_mask import fill_mask, mask_text, predict_masked
from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tolerances import rounding

WORDS = ["the", "cat", "dog", "sat", "on", "mat", "ran", "##s", "##ning", "run", ".", ",", "a", "is", "good"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    backend = Backend(models.WordPiece({word: place for place, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(VOCABULARY[:5])
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return Tokenizer(backend)


@pytest.fixture(scope="module")
def hub_folder(tmp_path_factory, tokenizer):
    """A model as `transformers` writes it, with weights large enough for uneven answers."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("hub")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
        initializer_range=0.5,
    )
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture
def model() -> MaskedLanguageModel:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 12}
    encoder = BERT.from_variant("tiny", vocab_size=len(VOCABULARY), initializer_range=0.5, **shape)
    return MaskedLanguageModel(
        encoder, len(VOCABULARY), mask_token_id=4, special_token_ids=range(5), mlm_head_dropout=0.5
    )


@pytest.mark.parametrize("text", ["The cat [MASK] on the mat.", "[MASK] dogs [MASK] running, the mat", "[MASK]"])
def test_equals_the_pipeline_of_transformers(hub_folder, text):
    transformers = pytest.importorskip("transformers")
    pipeline = transformers.pipeline(
        "fill-mask",
        model=transformers.BertForMaskedLM.from_pretrained(hub_folder),
        tokenizer=transformers.AutoTokenizer.from_pretrained(hub_folder),
        device="cpu",
    )
    expected = pipeline(text, top_k=7)
    expected = [expected] if isinstance(expected[0], dict) else expected
    answers = fill_mask(MaskedLanguageModel.from_pretrained(hub_folder), load_tokenizer(hub_folder), text, top_k=7)
    assert len(answers) == len(expected) == text.count("[MASK]")
    for ours, theirs in zip(answers, expected, strict=True):
        assert [candidate.token for candidate in ours] == [candidate["token"] for candidate in theirs]
        assert [candidate.score for candidate in ours] == pytest.approx([c["score"] for c in theirs], abs=SCORE_ERROR)
        assert [candidate.token_str for candidate in ours] == [candidate["token_str"] for candidate in theirs]


def test_sequences_hold_the_candidate_and_leave_other_masks(model, tokenizer):
    first, second = fill_mask(model, tokenizer, "the [MASK] sat on [MASK] mat .", top_k=len(VOCABULARY))
    cat = next(candidate for candidate in first if candidate.token_str == "cat")
    assert cat.sequence == "the cat sat on [MASK] mat."
    a = next(candidate for candidate in second if candidate.token_str == "a")
    assert a.sequence == "the [MASK] sat on a mat."


def test_scores_fall_and_sum_to_one(model, tokenizer):
    (candidates,) = fill_mask(model, tokenizer, "the [MASK]", top_k=len(VOCABULARY))
    scores = [candidate.score for candidate in candidates]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1.0, abs=rounding(len(VOCABULARY)))
    assert {candidate.token_str for candidate in candidates} == set(VOCABULARY)


def test_predict_masked_takes_the_best_of_every_place(model, tokenizer):
    text = "the [MASK] sat on [MASK] mat"
    first, second = fill_mask(model, tokenizer, text, top_k=1)
    filled = [2, *tokenizer.encode_batch([text])[0], 3]
    filled[2], filled[5] = first[0].token, second[0].token
    assert predict_masked(model, tokenizer, text) == tokenizer.decode(filled[1:-1], skip_special_tokens=False)
    assert "[MASK]" not in predict_masked(model, tokenizer, text)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([2], "the cat [MASK] on the mat"),
        ([0, 5], "[MASK] cat sat on the [MASK]"),
        ([5, 0, 5], "[MASK] cat sat on the [MASK]"),
        ([6, 100], "the cat sat on the mat"),
        ([1, 99], "the [MASK] sat on the mat"),
        ([], "the cat sat on the mat"),
    ],
)
def test_mask_text(positions, expected):
    assert mask_text("the cat  sat on the mat", positions) == expected


def test_mask_text_uses_the_mask_token_given():
    assert mask_text("a b", [1], mask_token="<mask>") == "a <mask>"


def test_mask_text_refuses_negative_positions():
    with pytest.raises(InputError, match="-1 is negative"):
        mask_text("a b", [-1])


@pytest.mark.parametrize("function", [fill_mask, predict_masked])
def test_text_without_mask_is_refused(model, tokenizer, function):
    with pytest.raises(InputError, match=r"no \[MASK\] to fill"):
        function(model, tokenizer, "the cat sat")


@pytest.mark.parametrize("function", [fill_mask, predict_masked])
def test_text_longer_than_the_model_is_refused(model, tokenizer, function):
    function(model, tokenizer, "[MASK]" + " cat" * 9)  # with [CLS] and [SEP] exactly 12
    with pytest.raises(InputError, match="13 tokens, the model takes 12"):
        function(model, tokenizer, "[MASK]" + " cat" * 10)


@pytest.mark.parametrize("top_k", [0, -1, len(VOCABULARY) + 1])
def test_top_k_out_of_range_is_refused(model, tokenizer, top_k):
    with pytest.raises(InputError, match=f"top_k is {top_k}"):
        fill_mask(model, tokenizer, "the [MASK]", top_k=top_k)


def test_tokenizer_of_a_larger_vocabulary_is_refused(tokenizer):
    small = MaskedLanguageModel(
        BERT.from_variant("tiny", vocab_size=10, hidden_size=16, num_hidden_layers=1, num_attention_heads=2),
        10,
        mask_token_id=4,
    )
    with pytest.raises(InputError, match="use the model's tokenizer"):
        fill_mask(small, tokenizer, "[MASK] is good")


def test_prediction_is_without_dropout_and_training_mode_comes_back(model, tokenizer):
    expected = fill_mask(model.eval(), tokenizer, "the [MASK] sat", top_k=20)
    assert not model.training
    model.train()
    assert fill_mask(model, tokenizer, "the [MASK] sat", top_k=20) == expected
    assert model.training
