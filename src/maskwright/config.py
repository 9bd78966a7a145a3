"""The typed description of a run: YAML, `a.b=c` on the command line and Python use the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from maskwright.errors import InputError
from maskwright.presets import PRESETS
from maskwright.storage import write_text
from maskwright.suggestions import suggest

BUILTIN_CORPUS = "builtin:python"


class Section(BaseModel):
    """A group of settings; unknown names are errors, and assignments are checked like the constructor's arguments."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, populate_by_name=True, allow_inf_nan=False)


class RunConfig(Section):
    name: str = Field("run", pattern=r"^\w[\w.-]*$", description="The run's folder is OUT/NAME.")
    out: str = Field("runs", description="The folder that holds runs.")
    seed: int = Field(0, ge=0, lt=2**63, description="Decides weights, data order, masks and dropout.")


class ModelConfig(Section):
    """An encoder of a known size; every field after `from` overrides that size's value when it is set."""

    family: Literal["bert", "modernbert"] = Field("bert", description="The architecture.")
    variant: Literal["tiny", "small", "base", "large"] = Field("base", description="The size to start from.")
    mlm_head_activation: str = Field("gelu", description="Activation of the prediction head.")
    mlm_head_dropout: float = Field(0.1, ge=0, lt=1, description="Dropout of the prediction head.")
    from_: str | None = Field(
        None, alias="from", description="Continue from this run, model folder or hub id; its shape counts."
    )
    hidden_size: int | None = Field(None, ge=1, description="Width of the hidden states.")
    num_hidden_layers: int | None = Field(None, ge=1, description="Number of layers.")
    num_attention_heads: int | None = Field(None, ge=1, description="Attention heads; must divide the width.")
    intermediate_size: int | None = Field(None, ge=1, description="Feed-forward width; grows with the width if unset.")
    hidden_act: str | None = Field(None, description="Feed-forward activation.")
    hidden_dropout_prob: float | None = Field(None, ge=0, lt=1, description="Dropout on hidden states.")
    attention_probs_dropout_prob: float | None = Field(None, ge=0, lt=1, description="Dropout on attention weights.")
    max_position_embeddings: int | None = Field(None, ge=1, description="Longest input; data.max_length if unset.")
    initializer_range: float | None = Field(None, gt=0, description="Standard deviation of initial weights.")
    layer_norm_eps: float | None = Field(None, gt=0, description="Added to the variance in norms.")
    residual_init: Literal["normal", "zero"] | None = Field(None, description="zero: branches start as nothing.")
    normalization_type: Literal["layer_norm", "rms_norm"] | None = Field(None, description="bert: kind of norm.")
    use_stochastic_depth: bool | None = Field(None, description="bert: skip residual branches at random in training.")
    stochastic_depth_rate: float | None = Field(None, ge=0, lt=1, description="bert: skip rate of the last layer.")
    norm_bias: bool | None = Field(None, description="modernbert: biases in norms and head.")
    local_attention: int | None = Field(None, ge=2, description="modernbert: tokens a local layer sees.")
    global_attn_every_n_layers: int | None = Field(None, ge=1, description="modernbert: the others are local.")
    global_rope_theta: float | None = Field(None, gt=0, description="modernbert: rotary base of global layers.")
    local_rope_theta: float | None = Field(None, gt=0, description="modernbert: rotary base of local layers.")

    def shape_overrides(self) -> dict[str, Any]:
        """The encoder's settings that were set."""
        own = {"family", "variant", "mlm_head_activation", "mlm_head_dropout", "from_"}
        return self.model_dump(exclude=own, exclude_none=True)


class TokenizerConfig(Section):
    path: str | None = Field(None, description="A tokenizer.json or its folder; unset: train one on data.train.")
    type: Literal["wordpiece", "byte_level_bpe", "unigram", "word_level"] = Field(
        "wordpiece", description="Kind to train."
    )
    vocab_size: int = Field(30522, ge=6, description="Most tokens to learn.")
    lowercase: bool = Field(True, description="Fold case (and accents, for wordpiece).")
    min_frequency: int = Field(2, ge=1, description="Rarer words and pairs are not learnt.")


class SourceConfig(Section):
    """Where documents come from, and how to read them."""

    path: str = Field(
        min_length=1, description="A file, folder, glob, builtin:python, or a dataset as hf:NAME[:CONFIG][@SPLIT]."
    )
    weight: float = Field(
        1.0, gt=0, description="How often an epoch goes through it: 2 is twice, 0.5 another half of it each time."
    )
    column: str | None = Field(None, description="Column or key that holds the text; unset: text.")
    documents: Literal["lines", "paragraphs"] = Field(
        "lines", description=".txt: a document per line, or between blank lines."
    )
    max_bad_share: float = Field(0.01, ge=0, le=1, description="Broken records are skipped up to this share of all.")


class DataConfig(Section):
    train: str | list[SourceConfig] = Field(
        BUILTIN_CORPUS, description="Texts (a source or several), or a folder made by maskwright prepare."
    )
    validation: str | list[SourceConfig] | None = Field(
        None, description="Held-out texts or prepared folder; unset: a share of the training documents."
    )
    validation_share: float = Field(
        0.05, gt=0, lt=1, description="Share of texts held out when no validation is given."
    )
    max_length: int = Field(128, ge=3, description="Row length in tokens; longer documents are split.")
    packing_window: int = Field(10_000, ge=1, description="Shuffled samples packed into rows together.")

    @field_validator("train", "validation", mode="before")
    @classmethod
    def _read_sources(cls, value: Any) -> Any:
        """A path stays one; mappings and lists are sources."""
        return value if value is None or isinstance(value, str) else build_sources(value)


SourceLike = str | Path | Mapping[str, Any] | SourceConfig


class QualityConfig(Section):
    """Which documents are kept, and how their text is cleaned; every step is off unless it is set."""

    unicode: Literal["nfc", "nfkc"] | None = Field(None, description="Unicode normal form to bring texts into.")
    remove_control: bool = Field(False, description="Remove control characters other than tabs and line ends.")
    min_chars: int | None = Field(None, ge=1, description="Drop shorter documents.")
    max_chars: int | None = Field(None, ge=1, description="Drop longer documents.")
    min_words: int | None = Field(None, ge=1, description="Drop documents of fewer words, as blanks separate them.")
    max_words: int | None = Field(None, ge=1, description="Drop documents of more words.")
    min_letter_share: float | None = Field(None, ge=0, le=1, description="Least share of letters, blanks not counted.")
    max_symbol_share: float | None = Field(None, ge=0, le=1, description="Largest share of digits and symbols.")
    max_repeat_share: float | None = Field(None, ge=0, le=1, description="Largest share of one and the same character.")
    drop_duplicates: bool = Field(False, description="Keep the first of equal documents.")
    drop_near_duplicates: bool = Field(False, description="Keep the first of documents that are nearly equal.")
    near_duplicate_similarity: float = Field(
        0.8, gt=0, le=1, description="Nearly equal: from this Jaccard similarity of 5-word runs on."
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> QualityConfig:
        for unit in ("chars", "words"):
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if least is not None and most is not None and least > most:
                raise ValueError(f"min_{unit} ({least}) exceeds max_{unit} ({most}); nothing would be kept")
        return self


class AugmentationConfig(Section):
    """Random word dropout, on text before it is tokenized."""

    probability: float = Field(0.0, ge=0, le=1, description="Share of texts that lose words; 0: no augmentation.")
    word_dropout: float = Field(0.1, ge=0, lt=1, description="Share of words that such a text loses.")


class MaskingConfig(Section):
    strategy: Literal["token"] = Field("token", description="What is masked as a unit.")
    selection: Literal["exact", "bernoulli"] = Field(
        "exact", description="A fixed share per sample, or a coin per token."
    )
    ratio: float = Field(0.15, gt=0, le=1, description="Share of tokens to mask, at the start of the run.")
    final_ratio: float | None = Field(None, gt=0, le=1, description="The share at the end; unset: the same.")
    ratio_schedule: Literal["constant", "linear", "cosine", "step"] = Field(
        "linear", description="The way from ratio to final_ratio."
    )
    random_token_ratio: float = Field(0.1, ge=0, le=1, description="Of the masked: replaced by a random token.")
    unchanged_ratio: float = Field(0.1, ge=0, le=1, description="Of the masked: left as they are.")

    @model_validator(mode="after")
    def _check_split(self) -> MaskingConfig:
        if self.random_token_ratio + self.unchanged_ratio > 1:
            raise ValueError("random_token_ratio + unchanged_ratio exceeds 1; the rest becomes [MASK]")
        return self


class OptimizerConfig(Section):
    type: Literal["adamw", "muon"] = Field("adamw", description="muon: matrices by Muon, the rest by AdamW.")
    learning_rate: float = Field(5e-5, gt=0, description="Peak learning rate of AdamW.")
    muon_learning_rate: float = Field(0.02, gt=0, description="Peak learning rate of Muon's matrices.")
    weight_decay: float = Field(0.01, ge=0, description="On matrices; never on norms, biases, embeddings.")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's decay of the mean gradient.")
    beta2: float = Field(0.999, ge=0, lt=1, description="AdamW's decay of the mean squared gradient.")
    epsilon: float = Field(1e-8, gt=0, description="AdamW's floor of the step's denominator.")
    gradient_clipping_by_norm: float | None = Field(1.0, gt=0, description="Largest gradient norm; null: no clipping.")


class ScheduleConfig(Section):
    type: Literal["constant", "cosine_decay", "polynomial_decay", "wsd"] = Field(
        "cosine_decay", description="Shape after the warm-up; wsd stays at the peak, then falls in a line."
    )
    warmup_steps: int | None = Field(None, ge=0, description="Steps up to the peak; unset: warmup_share of the run.")
    warmup_share: float = Field(0.1, ge=0, lt=1, description="Share of the run spent rising to the peak.")
    warmup_start_lr: float = Field(1e-8, ge=0, description="Learning rate of the first step.")
    alpha: float = Field(1e-6, ge=0, le=1, description="Last learning rate, as a fraction of the peak.")
    power: float = Field(1.0, gt=0, description="polynomial_decay: 1 is a straight line.")
    decay_share: float = Field(0.2, gt=0, le=1, description="wsd: the share of the run, at its end, spent falling.")


class TrainingConfig(Section):
    mode: Literal["mlm"] = Field("mlm", description="The objective.")
    epochs: int = Field(3, ge=1, description="Passes over the data.")
    max_steps: int | None = Field(None, ge=1, description="Stop after this many steps.")
    max_seconds: float | None = Field(
        None, gt=0, description="Stop after this much training time; schedules follow it."
    )
    batch_tokens: int = Field(8192, ge=1, description="Tokens per optimizer step, padding included.")
    micro_batch_tokens: int | None = Field(
        None, ge=1, description="Tokens at a time in memory; unset: the whole batch."
    )
    log_every_steps: int = Field(10, ge=1, description="Steps between lines of metrics.jsonl.")
    checkpoint_every_steps: int = Field(500, ge=1, description="Steps between checkpoints.")
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints to keep.")
    final_evaluation: bool = Field(True, description="Evaluate the whole validation set at the end.")
    early_stopping_patience: int | None = Field(
        None, ge=1, description="Stop after this many epochs without a better validation loss, and go back to the best."
    )
    tensorboard: bool = Field(False, description="Write TensorBoard events to the run folder.")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")


class Config(Section):
    """Everything that decides a run."""

    preset: str | None = Field(None, description="Values to start from: " + ", ".join(PRESETS) + ".")
    run: RunConfig = Field(default_factory=RunConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    quality: QualityConfig = Field(default_factory=QualityConfig)
    augmentation: AugmentationConfig = Field(default_factory=AugmentationConfig)
    masking: MaskingConfig = Field(default_factory=MaskingConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)

    @classmethod
    def from_preset(cls, name: str, overrides: Mapping[str, Any] | None = None) -> Config:
        """A preset's values, with nested `overrides` on top."""
        return build_config({**(overrides or {}), "preset": name})

    def save(self, path: Path) -> None:
        values = self.model_dump(by_alias=True)
        write_text(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def load_config(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """A YAML file with `section.key=value` overrides on top; without a file, the quickstart."""
    values = _read_yaml(Path(path)) if path is not None else {}
    for override in overrides:
        _apply_override(values, override)
    if path is None:
        values.setdefault("preset", "quickstart")
    return build_config(values)


def build_config(values: Mapping[str, Any]) -> Config:
    """Check nested values, those of a preset underneath them."""
    values = {name: value for name, value in values.items() if value is not None}  # YAML's empty sections
    preset = values.get("preset")
    if preset is not None:
        if str(preset) not in PRESETS:
            raise InputError(f"no preset '{preset}'{suggest(str(preset), PRESETS)}")
        values = _merge(PRESETS[str(preset)], values)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise InputError(_explain(error)) from error


def build_sources(sources: SourceLike | Sequence[SourceLike]) -> list[SourceConfig]:
    """One or several sources, each a path, a mapping of `SourceConfig`'s fields or itself."""
    several = [sources] if isinstance(sources, str | Path | Mapping | SourceConfig) else list(sources)
    if not several:
        raise InputError("no source of text is given; expected at least one file, folder or dataset")
    return [_build_source(source) for source in several]


def _build_source(source: SourceLike) -> SourceConfig:
    if isinstance(source, SourceConfig):
        return source
    if isinstance(source, str) and source.startswith("{"):
        source = _read_value(source)  # a mapping written on the command line
    values = {"path": str(source)} if isinstance(source, str | Path) else source
    try:
        return SourceConfig.model_validate(values)
    except ValidationError as error:
        raise InputError(f"source {values!r}: {_explain(error, SourceConfig)}") from error


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"no configuration file at {path}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(f"{path} holds a {type(values).__name__}; expected sections such as 'data:' and 'training:'")
    return values


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise InputError(f"'{override}' is not an override; write section.key=value, such as training.epochs=5")
    *sections, name = key.split(".")
    target = values
    for section in sections:
        if target.get(section) is None:
            target[section] = {}
        target = target[section]
        if not isinstance(target, dict):
            raise InputError(f"'{override}': {section} is not a section of the configuration")
    target[name] = _read_value(text)


def _read_value(text: str) -> Any:
    """Lists, mappings and null are read as YAML; anything else stays text, since each field knows its own type."""
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text
    return value if value is None or isinstance(value, list | dict) else text


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return merged


def _explain(error: ValidationError, root: type[BaseModel] = Config) -> str:
    """The first problem, a mistyped name before others, with the dotted key, the value found and what would do."""
    problem = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        *sections, name = problem["loc"]
        return f"unknown configuration key '{key}'{suggest(str(name), _known_keys(sections, root))}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"configuration key '{key}' is {problem['input']!r}: {message}" if key else message


def _known_keys(sections: Sequence[int | str], root: type[BaseModel]) -> list[str]:
    section = root
    for name in sections:
        annotation = section.model_fields[str(name)].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        section = annotation
    return [field.alias or name for name, field in section.model_fields.items()]
