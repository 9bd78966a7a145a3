"""The student and the teacher of a run that distils: which layers, of which width, and what they are compared by."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from maskwright.config import Config
from maskwright.errors import InputError
from maskwright.models.encoder import PackedEncoder
from maskwright.models.files.model_folder import resolve_folder
from maskwright.objectives.distillation import (
    RelationStateStudent,
    RelationStudent,
    SoftLabelStudent,
    copy_layers,
    spread_layers,
)
from maskwright.objectives.masked_lm import Build, MaskedLanguageModel, load_masked_lm
from maskwright.objectives.mlm_files import lacks_head
from maskwright.sections.model import ModelChoice
from maskwright.suggestions import name_option

_SIZES = ("hidden_size", "num_attention_heads", "intermediate_size")
"""Of another size than the teacher's, no weight fits."""
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_OF_THE_TEACHER = ("family", "variant", "mlm_head_activation", "rope_ramp_share", "freeze_encoder")


def load_teacher(config: Config) -> MaskedLanguageModel:
    """The teacher of a run; it must fill masks, unless only its attention is looked at."""
    name, objective = str(config.distillation.teacher), config.distillation.objective
    if config.training.parallel == "fsdp":
        raise InputError("training.parallel=fsdp does not go with a teacher, which is whole in every process; use ddp")
    folder = resolve_folder(name)
    is_headless = lacks_head(folder)
    if is_headless and objective == "distilbert":
        raise InputError(
            f"{name} is an encoder without a masked-language-model head, so it predicts nothing to learn from; choose"
            " the objective minilm, or train a head with maskwright adapt"
        )
    teacher = load_masked_lm(folder, may_lack_head=is_headless)
    if type(teacher) is not MaskedLanguageModel:
        raise InputError(f"{name} was trained with training.mode={teacher.mode}; a teacher fills masks (mlm)")
    return teacher


def choose_student(config: Config, teacher: MaskedLanguageModel) -> Build:
    """The class, with its settings, that is built around the student's encoder."""
    settings = config.distillation
    if settings.objective == "minilm":
        weights: tuple[float, ...] = (settings.mlm_weight or 1.0, settings.query_key_weight, settings.value_weight)
        heads = settings.relation_heads
        if settings.hidden_weight is None:
            return partial(RelationStudent, teacher=teacher, relation_heads=heads, part_weights=weights)
        weights = (*weights, settings.hidden_weight)
        return partial(RelationStateStudent, teacher=teacher, relation_heads=heads, part_weights=weights)
    weights = (settings.mlm_weight or 2.0, settings.soft_label_weight, settings.hidden_weight or 1.0)
    return partial(SoftLabelStudent, teacher=teacher, temperature=settings.temperature, part_weights=weights)


def build_student(config: Config, teacher: MaskedLanguageModel, masking: dict[str, Any]) -> MaskedLanguageModel:
    """A new student with the teacher's weights, where its width is the teacher's; `masking` are settings of the run."""
    name = config.distillation.teacher
    if not isinstance(teacher.encoder, PackedEncoder):
        raise InputError(
            f"{name} is a model of transformers, whose layers cannot be taken apart; give a student as model.from"
        )
    encoder = _shape_student(config, teacher.encoder)
    student = choose_student(config, teacher)(
        encoder,
        teacher.vocab_size,
        mask_ratio=config.masking.ratio,
        mask_token_id=teacher.mask_token_id,
        mlm_head_activation=teacher.mlm_head_activation,
        initializer_range=encoder.config.initializer_range,
        mlm_head_dropout=config.model.mlm_head_dropout,
        layer_norm_eps=teacher.layer_norm_eps,
        tie_word_embeddings=teacher.is_tied,
        seed=config.run.seed,
        **masking,
    )
    layers = _choose_layers(config, len(encoder.layers), len(teacher.encoder.layers))
    if all(getattr(encoder.config, size) == getattr(teacher.encoder.config, size) for size in _SIZES):
        copy_layers(student, teacher, layers)
    elif config.distillation.from_layers is not None:
        raise InputError(
            "distillation.from_layers are layers of the teacher's width, and the student's is another; leave it out"
        )
    return student


def _shape_student(config: Config, teacher: PackedEncoder) -> PackedEncoder:
    """The teacher's shape with fewer layers, which may be narrower."""
    name, num_taught = config.distillation.teacher, teacher.config.num_hidden_layers
    if len(teacher.layers) != num_taught:
        raise InputError(
            f"the layers of {name} share their weights, so that fewer of them are as large; give another teacher"
        )
    for setting in _OF_THE_TEACHER:
        if getattr(config.model, setting) != ModelChoice.model_fields[setting].default:
            raise InputError(f"a student is as its teacher {name}; remove model.{setting}")
    given = config.model.shape_overrides()
    for setting in given:
        if setting not in ("num_hidden_layers", *_SIZES, *_DROPOUTS):
            raise InputError(f"a student is as its teacher {name} except for its sizes; remove model.{setting}")
    num_layers = given.get("num_hidden_layers")
    if num_layers is None:
        raise InputError(f"how many layers has the student? give {name_option('layers')} or model.num_hidden_layers")
    if num_layers >= num_taught:
        raise InputError(
            f"the student is to have {num_layers} layers and its teacher {name} has {num_taught}; give it fewer"
        )
    if "hidden_size" in given and "intermediate_size" not in given:
        per_width = teacher.config.intermediate_size / teacher.hidden_size
        given["intermediate_size"] = round(given["hidden_size"] * per_width)
    names = teacher.family.run_settings or {}
    named = {their: value for setting, value in given.items() for their in names.get(setting, (setting,))}
    return type(teacher)(replace(teacher.config, **named))


def _choose_layers(config: Config, num_layers: int, num_taught: int) -> list[int]:
    given = config.distillation.from_layers
    if given is None:
        return spread_layers(num_layers, num_taught)
    if len(given) != num_layers or not all(0 <= layer < num_taught for layer in given):
        raise InputError(
            f"distillation.from_layers is {given}; it must name one layer from 0 to {num_taught - 1} for each of the"
            f" student's {num_layers}"
        )
    return given


def check_distillation(config: Config) -> None:
    """Refuse a teacher beside other objectives, and layers of a teacher for a student that has its own."""
    distillation = config.distillation
    is_other = config.training.mode != "mlm" or config.objective or config.pairs.task is not None
    if distillation.teacher is not None and is_other:
        raise InputError(
            "distillation.teacher is for masked language modelling; set training.mode=mlm, no phases and no pairs.task"
        )
    if config.model.from_ is not None and distillation.from_layers is not None:
        raise InputError(
            f"model.from={config.model.from_} is the student, with layers of its own; remove distillation.from_layers"
        )
