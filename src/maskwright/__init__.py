"""Maskwright: pre-train, adapt, evaluate and run masked-language-model encoders.

Names are imported when they are first used, so that `import maskwright` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "ALBERT": "maskwright.models.albert",
    "BERT": "maskwright.models.bert",
    "BertConfig": "maskwright.models.bert",
    "Callback": "maskwright.training.callbacks",
    "CausalLanguageModel": "maskwright.objectives.causal_lm",
    "Config": "maskwright.config",
    "DistilBERT": "maskwright.models.distilbert",
    "ELECTRA": "maskwright.models.electra",
    "EarlyStopping": "maskwright.training.callbacks",
    "History": "maskwright.training.history",
    "HybridLanguageModel": "maskwright.objectives.hybrid_lm",
    "InputError": "maskwright.errors",
    "InputWarning": "maskwright.errors",
    "MLflow": "maskwright.training.trackers",
    "MPNet": "maskwright.models.mpnet",
    "MaskedLanguageModel": "maskwright.objectives.masked_lm",
    "ModelCheckpoint": "maskwright.training.callbacks",
    "ModernBERT": "maskwright.models.modernbert",
    "ModernBertConfig": "maskwright.models.modernbert",
    "NLPTaskConfig": "maskwright.tasks.nlp_heads",
    "NLPTaskType": "maskwright.tasks.nlp_heads",
    "OptimizerConfig": "maskwright.sections.training",
    "PackedBatch": "maskwright.batch",
    "PackedEncoder": "maskwright.models.encoder",
    "RoBERTa": "maskwright.models.roberta",
    "ReplacedTokenDetection": "maskwright.objectives.replaced_tokens",
    "RunError": "maskwright.errors",
    "ScheduleConfig": "maskwright.sections.training",
    "SentencePairModel": "maskwright.objectives.sentence_pairs",
    "TaskModel": "maskwright.tasks.model",
    "TensorBoard": "maskwright.training.callbacks",
    "TokenDetector": "maskwright.objectives.token_detector",
    "Tokenizer": "maskwright.text.tokenizer",
    "Trackio": "maskwright.training.trackers",
    "Trainer": "maskwright.runs.trainer",
    "TrainingConfig": "maskwright.sections.training",
    "WandB": "maskwright.training.trackers",
    "XLMRoBERTa": "maskwright.models.roberta",
    "adapt": "maskwright.runs.commands",
    "advise_tokenizer": "maskwright.runs.commands",
    "calculate_perplexity": "maskwright.evaluation.perplexity",
    "choose_model": "maskwright.catalogue.choose",
    "create_mlm_dataset": "maskwright.runs.quick",
    "create_mlm_training_model": "maskwright.runs.quick",
    "create_nlp_head": "maskwright.tasks.nlp_heads",
    "doctor": "maskwright.runs.commands",
    "evaluate": "maskwright.runs.evaluate",
    "export": "maskwright.runs.commands",
    "fill": "maskwright.runs.commands",
    "fill_mask": "maskwright.inference.fill_mask",
    "finetune": "maskwright.runs.commands",
    "generate": "maskwright.runs.commands",
    "judge_pairs": "maskwright.evaluation.minimal_pairs",
    "learning_rate_schedule_builder": "maskwright.training.builders",
    "list_models": "maskwright.catalogue.choose",
    "load_config": "maskwright.config",
    "load_tokenizer": "maskwright.text.tokenizer",
    "mask_text": "maskwright.inference.fill_mask",
    "measure_memory": "maskwright.runs.memory",
    "optimizer_builder": "maskwright.training.builders",
    "pipeline": "maskwright.inference.pipeline",
    "predict": "maskwright.runs.predict",
    "predict_masked": "maskwright.inference.fill_mask",
    "prepare": "maskwright.runs.commands",
    "preprocess_wiki_dump": "maskwright.text.wiki.preprocess",
    "pretrain": "maskwright.runs.pretrain",
    "rank_answers": "maskwright.evaluation.cloze",
    "score_texts": "maskwright.evaluation.likelihood",
    "train": "maskwright.runs.commands",
    "train_tokenizer": "maskwright.text.training",
    "visualize_mlm_predictions": "maskwright.inference.visualize",
}

_INSTEAD = {
    **dict.fromkeys(("AutoTokenizer", "BertTokenizer", "BertTokenizerFast"), "load_tokenizer"),
    **dict.fromkeys(("AutoModelForMaskedLM", "BertForMaskedLM"), "MaskedLanguageModel.from_pretrained"),
    **dict.fromkeys(("AutoModel", "BertModel"), "BERT.from_pretrained, or that of another family"),
    **dict.fromkeys(
        (
            "AutoModelForSequenceClassification",
            "AutoModelForTokenClassification",
            "AutoModelForQuestionAnswering",
        ),
        "TaskModel.from_pretrained",
    ),
    "AutoConfig": "BertConfig, or BERT.from_pretrained(...).config",
    "TrainingArguments": "TrainingConfig, OptimizerConfig and ScheduleConfig",
    "DataCollatorForLanguageModeling": "create_mlm_dataset; MaskedLanguageModel masks its batches itself",
    "TrainerCallback": "Callback",
    "EarlyStoppingCallback": "EarlyStopping",
    "AdamW": "OptimizerConfig(type='adamw')",
}
"""Names of transformers and Keras, with ours."""

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - the names are strings


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        from maskwright.suggestions import suggest_near

        hint = f"; use {_INSTEAD[name]}" if name in _INSTEAD else suggest_near(name, _HOMES)
        raise AttributeError(f"module 'maskwright' has no attribute '{name}'{hint}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
