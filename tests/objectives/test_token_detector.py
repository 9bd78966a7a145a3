"""ELECTRA's discriminator: theirs read by us, ours read by them."""

import pytest
import torch
from transformers import BertConfig, BertModel, ElectraConfig, ElectraForPreTraining

from maskwright.errors import InputError
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.replaced_tokens import ReplacedTokenDetection
from maskwright.objectives.token_detector import TokenDetector
from tolerances import assert_rounded, count_terms

SHAPE = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.randint(5, 60, (3, 11), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(11) < torch.tensor([11, 4, 7])[:, None]).long()
NUM_TERMS = count_terms(num_layers=2, width=32, length=11)


@pytest.mark.parametrize("embedding_size", [16, 32])
@pytest.mark.parametrize("hidden_act", ["gelu", "relu"])
def test_a_published_discriminator_gives_the_same_logits(tmp_path, embedding_size, hidden_act):
    torch.manual_seed(0)
    config = ElectraConfig(**SHAPE, intermediate_size=48, embedding_size=embedding_size, hidden_act=hidden_act)
    theirs = ElectraForPreTraining(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = TokenDetector.from_pretrained(tmp_path)
    expected = theirs(IDS, attention_mask=MASK).logits[MASK.bool()]
    assert_rounded(ours(IDS, MASK).logits[MASK.bool()], expected, NUM_TERMS)


def test_a_trained_detector_is_read_by_transformers_with_the_same_logits(tmp_path):
    torch.manual_seed(0)
    model = ReplacedTokenDetection(BERT.from_variant("tiny", **SHAPE), 60, mask_token_id=4).eval()
    model.save_pretrained(tmp_path / "run")
    detector = TokenDetector.from_pretrained(tmp_path / "run")
    detector.save_pretrained(tmp_path / "exported")
    theirs = ElectraForPreTraining.from_pretrained(tmp_path / "exported").eval()
    expected = model(IDS, MASK).logits[MASK.bool()]
    actual = theirs(IDS, attention_mask=MASK).logits[MASK.bool()]
    assert_rounded(actual, expected, NUM_TERMS)
    again = TokenDetector.from_pretrained(tmp_path / "exported")
    assert torch.equal(again(IDS, MASK).logits, model(IDS, MASK).logits)


def test_what_their_layout_cannot_hold_is_refused(tmp_path):
    modern = ReplacedTokenDetection(ModernBERT.from_variant("tiny", **SHAPE), 60, mask_token_id=4)
    with pytest.raises(InputError, match="no ModernBERT that detects replaced tokens"):
        TokenDetector(modern.encoder, modern.detection_head).save_pretrained(tmp_path)
    rms = BERT.from_variant("tiny", **SHAPE, normalization_type="rms_norm")
    head = ReplacedTokenDetection(rms, 60, mask_token_id=4).detection_head
    with pytest.raises(InputError, match="no RMSNorm"):
        TokenDetector(rms, head).save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_model_without_the_head_is_named(tmp_path):
    BertModel(BertConfig(**SHAPE, intermediate_size=48)).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="holds no detector of replaced tokens"):
        TokenDetector.from_pretrained(tmp_path)
