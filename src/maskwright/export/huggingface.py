"""A model as a folder that Hugging Face's libraries load without flags, or the reason why that is impossible.

`AutoModelFor...` of its task loads it in transformers. In sentence-transformers the vector of a text is the mean of
its tokens. B texts, S length, D width.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.export.card import (
    CardOptions,
    Origin,
    build_table,
    describe_data,
    describe_limits,
    describe_settings,
    escape,
    format_figure,
    is_number,
    show_code,
)
from maskwright.export.comparison import (
    OWN_READER,
    Comparison,
    Sample,
    check_equal,
    check_tokenizer,
    choose_sample,
    compare,
    find_reader,
    split_rows,
)
from maskwright.models.any_encoder import find_max_length, has_segments
from maskwright.models.encoder import PackedEncoder, describe_encoder
from maskwright.models.files.model_folder import CONFIG_FILE, OWN_TYPE_PREFIX, write_small_files
from maskwright.models.files.sentence_modules import describe_pooling
from maskwright.models.transformers_encoder import TransformersEncoder
from maskwright.models.transformers_model import quiet_transformers
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.token_detector import TokenDetector
from maskwright.storage import read_json, write_text
from maskwright.tasks.foreign import has_own_head
from maskwright.tasks.model import TaskModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute.device import evaluation_mode

_NEEDS_TRANSFORMERS = "pip install 'maskwright[hf]' to compare with transformers as well"


def export_huggingface(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    texts: Sequence[str],
    say: Callable[[str], None],
) -> Comparison:
    """Write the folder, read it back and compare logits on the texts.

    A model that the layout cannot represent is an `InputError`, a difference in the logits a `RunError`.
    """
    refuse("Hugging Face's layout", find_obstacles(model))
    layout = TheirLayout("AutoModelForMaskedLM", MaskedLanguageModel.from_pretrained, split_rows)
    return write_compared(model, tokenizer, folder, layout, texts=texts, say=say)


@dataclass(frozen=True)
class TheirLayout:
    """How an exported model is loaded, by transformers and by Maskwright."""

    architecture: str
    """The class in transformers."""
    read: Callable[[Path], nn.Module]
    split: Callable[[Tensor, Sample], list[Tensor]]
    """One tensor to a text from the logits, without padding."""


def write_compared(
    model: Any,
    tokenizer: Tokenizer,
    folder: Path,
    layout: TheirLayout,
    *,
    texts: Sequence[str],
    say: Callable[[str], None],
) -> Comparison:
    """Write a model that has `save_pretrained`, read it back, and compare its logits with those of their class."""
    refuse("Hugging Face's layout", find_padding_obstacles(model.encoder, tokenizer))
    sample = choose_sample(texts, tokenizer, model.encoder)
    model.save_pretrained(folder, tokenizer)
    _check_type(folder)
    complete_settings(folder, model.encoder, tokenizer)
    read_back = layout.read(folder)
    say(f"{OWN_READER}: {check_equal(model, read_back, folder)} tensors are bit-equal")
    reader = find_reader("transformers")
    if reader is None:
        found, reader = _compute_logits(read_back, sample), OWN_READER
        say(f"transformers is not installed, so the comparison is with {OWN_READER} only; {_NEEDS_TRANSFORMERS}")
    else:
        pads_left = isinstance(model.encoder, TransformersEncoder) and model.encoder.pads_left
        found = _compute_their_logits(layout.architecture, folder, sample, pads_left)
    expected = layout.split(_compute_logits(model, sample), sample)
    comparison = compare(reader, expected, layout.split(found, sample), sample)
    say(comparison.describe("logits"))
    return comparison


def refuse(layout: str, obstacles: Sequence[str]) -> None:
    if obstacles:
        raise InputError(f"{layout} cannot hold this model: {'; '.join(obstacles)}")


def _check_type(folder: Path) -> None:
    """Refuse a model that was saved under a type of our own."""
    model_type = str(read_json(folder / CONFIG_FILE)["model_type"])
    if model_type.startswith(OWN_TYPE_PREFIX):
        raise InputError(f"Hugging Face's layout cannot hold this model: it can only be saved as our own {model_type}")


def complete_settings(folder: Path, encoder: nn.Module, tokenizer: Tokenizer) -> None:
    """Add settings that their loaders read: dtype and special tokens."""
    config = read_json(folder / CONFIG_FILE)
    config["dtype"] = str(next(encoder.parameters()).dtype).removeprefix("torch.")
    if isinstance(encoder, PackedEncoder):
        cls_id, sep_id = tokenizer.cls_token_id, tokenizer.sep_token_id
        config |= {"cls_token_id": cls_id, "sep_token_id": sep_id, "bos_token_id": cls_id, "eos_token_id": sep_id}
    write_text(folder / CONFIG_FILE, json.dumps(config, indent=2) + "\n")


@torch.no_grad()
def _compute_logits(model: nn.Module, sample: Sample) -> Tensor:
    device = next(model.parameters()).device
    with evaluation_mode(model):
        logits: Tensor = model(**{name: tensor.to(device) for name, tensor in sample.pad().items()}).logits
    return logits


@torch.no_grad()
def _compute_their_logits(architecture: str, folder: Path, sample: Sample, pads_left: bool) -> Tensor:
    with quiet_transformers() as transformers:
        check_tokenizer(sample, folder)
        theirs = getattr(transformers, architecture).from_pretrained(str(folder)).eval()
        output: Any = theirs(**sample.pad(pads_left))
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    logits: Tensor = output.logits
    return logits


_NUM_AXES_OF_TOKENS = 3


def export_task_huggingface(
    model: TaskModel, tokenizer: Tokenizer, folder: Path, *, texts: Sequence[str], say: Callable[[str], None]
) -> Comparison:
    """Write the folder, read it back and compare logits on the texts, as `export_huggingface` does."""
    obstacles = find_encoder_obstacles(model.encoder)
    if has_own_head(model.task_head):
        name = model.task_head.files.architecture.removeprefix(OWN_TYPE_PREFIX)
        obstacles.append(f"transformers has no {name}, so its head is Maskwright's own; use the folder as it is")
    refuse("Hugging Face's layout", obstacles)
    layout = TheirLayout(model.task_head.files.architecture, TaskModel.from_pretrained, _split)
    return write_compared(model, tokenizer, folder, layout, texts=texts, say=say)


def _split(logits: Tensor, sample: Sample) -> list[Tensor]:
    """One tensor to a text, without padding."""
    return split_rows(logits, sample) if logits.ndim == _NUM_AXES_OF_TOKENS else list(logits.cpu())


_IS_CAUSAL = "it continues text (training.mode=clm), where a token sees what comes before it; theirs sees both sides"


def find_obstacles(model: MaskedLanguageModel) -> list[str]:
    """Reasons why other libraries cannot load the whole model; empty if they can."""
    if model.mlm_head is not None:
        return []
    obstacles = find_pooling_obstacles(model)
    encoder = model.encoder
    if not isinstance(encoder, PackedEncoder):
        return obstacles
    if model.predicts_next and model.mode != "clm":
        obstacles.append(
            f"it answers a masked token one place before it (training.mode={model.mode}), theirs in its own place"
        )
    return [*obstacles, *_find_head_obstacles(model, encoder)]


def find_pooling_obstacles(model: MaskedLanguageModel) -> list[str]:
    """Reasons why other libraries cannot load the encoder alone, whatever its prediction head."""
    if model.mlm_head is not None:
        return [
            f"{type(model.encoder).__name__} is read through transformers; export it with --to hf, and"
            " sentence-transformers adds mean pooling to that folder by itself"
        ]
    return [*find_encoder_obstacles(model.encoder), *([_IS_CAUSAL] if model.mode == "clm" else [])]


def find_encoder_obstacles(encoder: nn.Module) -> list[str]:
    """Reasons why other libraries cannot load the encoder, whatever its head."""
    if isinstance(encoder, TransformersEncoder):
        return []
    if not isinstance(encoder, PackedEncoder):
        return [f"{type(encoder).__name__} is an encoder of your own, they have no architecture for it"]
    if not encoder.family.is_in_transformers:
        return [
            f"transformers has no {type(encoder).__name__}; a run's own folder has the names of the published models"
        ]
    theirs = f"Hugging Face's {type(encoder).__name__}"
    obstacles = []
    if getattr(encoder.config, "normalization_type", "layer_norm") != "layer_norm":
        obstacles.append(f"its norms are {encoder.config.normalization_type}, {theirs} has layer_norm only")
    elif describe_encoder(encoder, with_head=False)["model_type"].startswith(OWN_TYPE_PREFIX):
        obstacles.append(f"its configuration sets what is the same in every {theirs}")
    if getattr(encoder.config, "use_stochastic_depth", False):
        obstacles.append(
            f"its training skips layers at random (use_stochastic_depth), {theirs} would train without; to export it"
            " for use alone, set that to false in its config.json"
        )
    return obstacles


def find_padding_obstacles(encoder: nn.Module, tokenizer: Tokenizer) -> list[str]:
    """In families that count positions behind padding's, theirs gives the token `pad_token_id` no position."""
    if not isinstance(encoder, PackedEncoder) or not getattr(encoder, "first_position", 0):
        return []
    skipped, padding = encoder.config.pad_token_id, tokenizer.pad_token_id
    if skipped == padding or skipped >= tokenizer.vocab_size:
        return []
    return [
        f"its pad_token_id is {skipped}, which is '{tokenizer.token(skipped)}' to the tokenizer, whose padding is"
        f" {padding}; theirs counts no position for that token and would read texts with it differently: build"
        f" and train the encoder with pad_token_id={padding}"
    ]


def _find_head_obstacles(model: MaskedLanguageModel, encoder: PackedEncoder) -> list[str]:
    obstacles = []
    if model.vocab_size != encoder.vocab_size:
        obstacles.append(
            f"it predicts {model.vocab_size} tokens and embeds {encoder.vocab_size}, theirs has one vocab_size for both"
        )
    if not encoder.has_mlm_transform:
        return obstacles
    if model.layer_norm_eps != encoder.norm_eps:
        obstacles.append(
            f"the norm of its prediction head has eps {model.layer_norm_eps:g} and its encoder's {encoder.norm_eps:g},"
            " theirs has one for both"
        )
    activation = encoder.head_activation
    if model.mlm_head_activation != activation and encoder.family.head_activation_setting is None:
        obstacles.append(
            f"the activation of its prediction head is {model.mlm_head_activation}, theirs would be {activation}"
        )
    return obstacles


_FIGURES = {"replaced_accuracy": "right answers", "replaced_auc": "area under the ROC curve"}


def export_detector(
    detector: TokenDetector, tokenizer: Tokenizer, folder: Path, *, texts: Sequence[str], say: Callable[[str], None]
) -> Comparison:
    """Write the folder, read it back and compare logits on the texts, as `export_huggingface` does."""
    refuse("Hugging Face's layout", find_encoder_obstacles(detector.encoder))
    layout = TheirLayout("ElectraForPreTraining", TokenDetector.from_pretrained, split_rows)
    return write_compared(detector, tokenizer, folder, layout, texts=texts, say=say)


def build_detector_card(
    name: str, detector: TokenDetector, origin: Origin, comparison: Comparison, options: CardOptions
) -> str:
    """`name` is the folder's."""
    num_parameters = sum(param.numel() for param in detector.parameters())
    values = {key: value for key, value in asdict(options).items() if value is not None}
    values |= {"library_name": "transformers", "tags": ["maskwright", "electra"]}
    figures = {label: origin.figures[key] for key, label in _FIGURES.items() if is_number(origin.figures.get(key))}
    rows = {label: format_figure(value) for label, value in figures.items()}
    measured = build_table(rows, ("replaced tokens of held-out text", "value")) if rows else "No figures are known."
    usage = show_code(
        "from transformers import AutoTokenizer, ElectraForPreTraining\n\n"
        f"tokenizer, model = AutoTokenizer.from_pretrained({name!r}), ElectraForPreTraining.from_pretrained({name!r})\n"
        'print(model(**tokenizer("This is a text.", return_tensors="pt")).logits > 0)'
    )
    sections = [
        f"---\n{yaml.safe_dump(values, sort_keys=False)}---",
        f"# {escape(name)}",
        f"An encoder of {num_parameters:,} parameters that tells which tokens of a text were replaced (ELECTRA's"
        " discriminator), to be fine-tuned. Made with Maskwright, exported in Hugging Face's layout.",
        f"## How to use\n\nFrom the folder that holds this one:\n\n{usage}",
        f"## Training data\n\n{describe_data(origin)}",
        f"## Configuration\n\n{describe_settings(detector.encoder, origin)}",
        f"## Figures\n\n{measured}\n\nAt export, {comparison.describe('logits')}.",
        f"## Limits\n\n{describe_limits(detector.encoder, for_sentences=False)}",
    ]
    return "\n\n".join(sections) + "\n"


NEEDS_THEIRS = "pip install 'maskwright[hf]' to compare with it"
"""Where sentence-transformers is not installed."""


def export_sentence_transformers(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    texts: Sequence[str],
    say: Callable[[str], None],
) -> Comparison:
    """Write the encoder without its prediction head, read it back and compare vectors of the texts."""
    encoder = model.encoder
    obstacles = find_pooling_obstacles(model) or find_padding_obstacles(encoder, tokenizer)
    refuse("a sentence-transformers folder", obstacles)
    assert isinstance(encoder, PackedEncoder)
    sample = choose_sample(texts, tokenizer, encoder)
    encoder.save_pretrained(folder)
    tokenizer.save(folder, has_segments(encoder), max_length=encoder.max_length)
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
    """Vectors from sentence-transformers if it is installed, else from transformers, else from Maskwright."""
    if (reader := find_reader("sentence_transformers")) is not None:
        return reader, embed_by_theirs(folder, sample)
    if (reader := find_reader("transformers")) is not None:
        say(f"sentence-transformers is not installed, so the comparison is with transformers; {NEEDS_THEIRS}")
        with quiet_transformers() as transformers:
            check_tokenizer(sample, folder)
            return reader, embed_by_mean(transformers.AutoModel.from_pretrained(str(folder)), sample)
    say(f"sentence-transformers is not installed, so the comparison is with {OWN_READER} only; {NEEDS_THEIRS}")
    return OWN_READER, embed_by_mean(read_back, sample)


def embed_by_theirs(folder: Path, sample: Sample) -> Tensor:
    with quiet_transformers():
        check_tokenizer(sample, folder)
        theirs = import_module("sentence_transformers").SentenceTransformer(str(folder), device="cpu")
        theirs.max_seq_length = sample.max_length
        return theirs.encode(sample.texts, convert_to_tensor=True, show_progress_bar=False)
