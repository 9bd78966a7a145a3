"""What Hugging Face's layout cannot hold is refused with the reason; the rest is exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import maskwright as mw
from maskwright.errors import InputError
from maskwright.export.huggingface import export_huggingface, export_sentence_transformers, find_obstacles
from maskwright.models.modernbert import ModernBERT
from maskwright.models.mpnet import MPNet
from maskwright.models.roberta import RoBERTa
from maskwright.objectives.masked_lm import CausalLanguageModel, HybridLanguageModel, MaskedLanguageModel
from maskwright.tasks.heads import build_embedding_head, build_sequence_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.sequence.classification import Classification
from maskwright.tasks.similarity.text_similarity import ContrastiveSimilarity
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tolerances import count_terms, rounding

Build = Callable[..., MaskedLanguageModel]


def ignore(line: str) -> None:
    """What an export says, where a test does not look at it."""


REFUSED = {
    "rms norm": ({"encoder_options": {"normalization_type": "rms_norm"}}, "norms are rms_norm"),
    "stochastic depth": ({"encoder_options": {"use_stochastic_depth": True}}, "skips layers at random"),
    "head activation": ({"mlm_head_activation": "relu"}, "is relu, theirs would be gelu"),
    "head eps": ({"layer_norm_eps": 1e-6}, "eps 1e-06 and its encoder's 1e-12"),
    "vocabulary": ({"vocab_size": 60}, "predicts 60 tokens and embeds"),
    "causal": ({"kind": CausalLanguageModel}, r"training\.mode=clm"),
    "hybrid": ({"kind": HybridLanguageModel}, "one place before it"),
}


@pytest.mark.parametrize(("options", "reason"), REFUSED.values(), ids=list(REFUSED))
def test_what_their_layout_cannot_hold_is_refused_with_the_reason(
    build_tiny: Build, tokenizer: Tokenizer, sentences: list[str], tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    model = build_tiny(**options)
    assert len(find_obstacles(model)) == 1
    with pytest.raises(InputError, match=rf"^Hugging Face's layout cannot hold this model: .*{reason}"):
        export_huggingface(model, tokenizer, tmp_path, texts=sentences, say=ignore)
    assert list(tmp_path.iterdir()) == []


def test_all_reasons_are_given_at_once(build_tiny: Build) -> None:
    model = build_tiny(
        encoder_options={"normalization_type": "rms_norm"}, mlm_head_activation="relu", layer_norm_eps=1e-6
    )
    assert len(find_obstacles(model)) == 3


@pytest.mark.parametrize("encoder_class", [RoBERTa, MPNet])
def test_positions_that_skip_another_token_than_padding_are_refused(
    tokenizer: Tokenizer, sentences: list[str], tmp_path: Path, encoder_class: type
) -> None:
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    for pad_token_id in (tokenizer.unk_token_id, tokenizer.pad_token_id):
        encoder = encoder_class.from_variant(
            "tiny", vocab_size=tokenizer.vocab_size, pad_token_id=pad_token_id, max_position_embeddings=50, **shape
        )
        model = MaskedLanguageModel(encoder, tokenizer=tokenizer, layer_norm_eps=encoder.norm_eps)
        if pad_token_id == tokenizer.unk_token_id:
            for export in (export_huggingface, export_sentence_transformers):
                with pytest.raises(InputError, match=rf"pad_token_id is {pad_token_id}, which is '\[UNK\]'"):
                    export(model, tokenizer, tmp_path / "refused", texts=sentences, say=ignore)
                assert not (tmp_path / "refused").exists()
        else:
            export_huggingface(model, tokenizer, tmp_path, texts=sentences, say=ignore)


@pytest.mark.parametrize("target", ["sentence-transformers", "hf"])
def test_a_fine_tuned_model_whose_positions_skip_another_token_is_refused(
    tokenizer: Tokenizer, sentences: list[str], tmp_path: Path, target: str
) -> None:
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    skipped = tokenizer.unk_token_id
    encoder = RoBERTa.from_variant(
        "tiny", vocab_size=tokenizer.vocab_size, pad_token_id=skipped, max_position_embeddings=50, **shape
    )
    if target == "hf":
        classes = Classification(["good", "bad"])
        model = TaskModel(encoder, build_sequence_head(encoder, classes.num_outputs, {}), classes)
    else:
        task = ContrastiveSimilarity("mean", 0.05, max_length=24)
        model = TaskModel(encoder, build_embedding_head(encoder, 1, task.describe()), task)
    model.save_pretrained(tmp_path / "model", tokenizer)
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    with pytest.raises(InputError, match=rf"pad_token_id is {skipped}, which is '\[UNK\]'"):
        mw.export(tmp_path / "model", target, out=tmp_path / "out", text=tmp_path / "texts.txt")
    assert not (tmp_path / "out").exists()


def test_an_encoder_of_ones_own_is_refused(tokenizer: Tokenizer) -> None:
    class Bag(nn.Module):
        hidden_size = 8

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(tokenizer.vocab_size, 8)

        def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"last_hidden_state": self.words(input_ids)}

    model = MaskedLanguageModel(Bag(), tokenizer.vocab_size, mask_token_id=tokenizer.mask_token_id)
    assert find_obstacles(model) == ["Bag is an encoder of your own, they have no architecture for it"]


ACCEPTED = {
    "untied": {"tie_word_embeddings": False},
    "hybrid in place": {"kind": HybridLanguageModel, "shifts_masks": False},
    "other activation throughout": {"encoder_options": {"hidden_act": "relu"}, "mlm_head_activation": "relu"},
    "other head of ModernBERT": {"encoder_class": ModernBERT, "mlm_head_activation": "silu"},
    "biases in norms": {"encoder_class": ModernBERT, "encoder_options": {"norm_bias": True}},
}


@pytest.mark.parametrize("options", ACCEPTED.values(), ids=list(ACCEPTED))
def test_what_their_layout_can_hold_is_exported(
    build_tiny: Build, tokenizer: Tokenizer, sentences: list[str], tmp_path: Path, options: dict[str, Any]
) -> None:
    model = build_tiny(**options)
    assert find_obstacles(model) == []
    comparison = export_huggingface(model, tokenizer, tmp_path, texts=sentences, say=ignore)
    # Logits are less than 4: 32 terms of weights near 0.1.
    assert comparison.largest_difference <= rounding(count_terms(num_layers=2, width=32, length=48), magnitude=4.0)
    loaded = MaskedLanguageModel.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())
