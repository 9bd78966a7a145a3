"""An encoder as a sentence-transformers folder: a text's vector is the mean of its tokens.

B texts, S length, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from maskwright.export.comparison import (
    OWN_READER,
    Comparison,
    Sample,
    check_equal,
    check_tokenizer,
    choose_sample,
    compare,
    find_reader,
)
from maskwright.export.huggingface import complete_settings, find_pooling_obstacles, refuse
from maskwright.models.any_encoder import find_max_length, has_segments
from maskwright.models.encoder import PackedEncoder
from maskwright.models.files.model_folder import describe_pooling, write_small_files
from maskwright.models.transformers_model import quiet_transformers
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute.device import evaluation_mode

_NEEDS_THEIRS = "pip install 'maskwright[hf]' to compare with it"


def export_sentence_transformers(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    texts: Sequence[str],
    say: Callable[[str], None],
) -> Comparison:
    """Write the encoder without its prediction head, read it back and compare vectors of the texts."""
    refuse("a sentence-transformers folder", find_pooling_obstacles(model))
    encoder = model.encoder
    assert isinstance(encoder, PackedEncoder)
    sample = choose_sample(texts, tokenizer, encoder)
    encoder.save_pretrained(folder)
    tokenizer.save(folder, has_segments(encoder))
    complete_settings(folder, encoder, tokenizer)
    write_small_files(folder, describe_pooling(encoder.hidden_size, "mean", find_max_length(encoder)))
    read_back = type(encoder).from_pretrained(folder)
    say(f"{OWN_READER}: {check_equal(encoder, read_back, folder)} tensors are bit-equal")
    expected = embed_by_mean(encoder, sample)
    reader, found = _choose_reader(folder, sample, read_back, say)
    comparison = compare(reader, list(expected), list(found), sample)
    say(comparison.describe("vectors"))
    return comparison


@torch.no_grad()
def embed_by_mean(encoder: nn.Module, sample: Sample) -> Tensor:
    """The mean (B, D) of the hidden states of a text's tokens, those around it included."""
    padded = {name: tensor.to(next(encoder.parameters()).device) for name, tensor in sample.pad().items()}
    with evaluation_mode(encoder):
        hidden = encoder(**padded).last_hidden_state
    weights = padded["attention_mask"][..., None].to(hidden.dtype)
    return ((hidden * weights).sum(dim=1) / weights.sum(dim=1)).cpu()


def _choose_reader(
    folder: Path, sample: Sample, read_back: PackedEncoder, say: Callable[[str], None]
) -> tuple[str, Tensor]:
    """The vectors by the library itself where it is installed, else by the nearest to it that is."""
    if (reader := find_reader("sentence_transformers")) is not None:
        return reader, _embed_by_theirs(folder, sample)
    if (reader := find_reader("transformers")) is not None:
        say(f"sentence-transformers is not installed, so the comparison is with transformers; {_NEEDS_THEIRS}")
        with quiet_transformers() as transformers:
            check_tokenizer(sample, folder)
            return reader, embed_by_mean(transformers.AutoModel.from_pretrained(str(folder)), sample)
    say(f"sentence-transformers is not installed, so the comparison is with {OWN_READER} only; {_NEEDS_THEIRS}")
    return OWN_READER, embed_by_mean(read_back, sample)


def _embed_by_theirs(folder: Path, sample: Sample) -> Tensor:
    with quiet_transformers():
        check_tokenizer(sample, folder)
        theirs = import_module("sentence_transformers").SentenceTransformer(str(folder), device="cpu")
        theirs.max_seq_length = sample.max_length
        return theirs.encode(sample.texts, convert_to_tensor=True, show_progress_bar=False)
