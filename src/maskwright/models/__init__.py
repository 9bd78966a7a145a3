"""The encoder families. Each is described in its own file, including its names in Hugging Face's files; all are listed
here.
"""

from __future__ import annotations

from maskwright.models.albert import ALBERT
from maskwright.models.bert import BERT
from maskwright.models.distilbert import DistilBERT
from maskwright.models.electra import ELECTRA
from maskwright.models.encoder import FAMILIES
from maskwright.models.modernbert import ModernBERT
from maskwright.models.mpnet import MPNet
from maskwright.models.neobert import NeoBERT
from maskwright.models.roberta import RoBERTa, XLMRoBERTa

__all__ = ["FAMILIES"]

FAMILIES.update(
    (encoder_class.family.model_type, encoder_class)
    for encoder_class in (BERT, RoBERTa, XLMRoBERTa, DistilBERT, ALBERT, ELECTRA, MPNet, ModernBERT, NeoBERT)
)
