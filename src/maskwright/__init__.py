"""Maskwright: pre-train, adapt, evaluate and run masked-language-model encoders.

Names are imported when they are first used, so that `import maskwright` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from maskwright.version import __version__

if TYPE_CHECKING:  # the same names for type checkers and editors; a test keeps both lists equal
    from maskwright.batch import PackedBatch as PackedBatch
    from maskwright.catalogue.choose import Choice as Choice
    from maskwright.catalogue.choose import choose_model as choose_model
    from maskwright.catalogue.choose import list_models as list_models
    from maskwright.catalogue.table import KnownModel as KnownModel
    from maskwright.catalogue.table import ModelMemory as ModelMemory
    from maskwright.cluster.launch import launch as launch
    from maskwright.config import Config as Config
    from maskwright.config import load_config as load_config
    from maskwright.data.loader import PackedLoader as PackedLoader
    from maskwright.errors import InputError as InputError
    from maskwright.errors import InputWarning as InputWarning
    from maskwright.errors import RunError as RunError
    from maskwright.evaluation.cloze import AnswerRanks as AnswerRanks
    from maskwright.evaluation.cloze import ClozeItem as ClozeItem
    from maskwright.evaluation.cloze import rank_answers as rank_answers
    from maskwright.evaluation.likelihood import TextScores as TextScores
    from maskwright.evaluation.likelihood import calculate_perplexity as calculate_perplexity
    from maskwright.evaluation.likelihood import score_texts as score_texts
    from maskwright.evaluation.minimal_pairs import MinimalPair as MinimalPair
    from maskwright.evaluation.minimal_pairs import PairVerdicts as PairVerdicts
    from maskwright.evaluation.minimal_pairs import judge_pairs as judge_pairs
    from maskwright.inference.fill_mask import Candidate as Candidate
    from maskwright.inference.fill_mask import fill_mask as fill_mask
    from maskwright.inference.fill_mask import mask_text as mask_text
    from maskwright.inference.fill_mask import predict_masked as predict_masked
    from maskwright.inference.pipeline import Pipeline as Pipeline
    from maskwright.inference.pipeline import pipeline as pipeline
    from maskwright.inference.visualize import PredictionView as PredictionView
    from maskwright.inference.visualize import visualize_mlm_predictions as visualize_mlm_predictions
    from maskwright.models.albert import ALBERT as ALBERT
    from maskwright.models.bert import BERT as BERT
    from maskwright.models.bert import BertConfig as BertConfig
    from maskwright.models.distilbert import DistilBERT as DistilBERT
    from maskwright.models.electra import ELECTRA as ELECTRA
    from maskwright.models.encoder import EncoderOutput as EncoderOutput
    from maskwright.models.encoder import MaskedLMOutput as MaskedLMOutput
    from maskwright.models.encoder import PackedEncoder as PackedEncoder
    from maskwright.models.modernbert import ModernBERT as ModernBERT
    from maskwright.models.modernbert import ModernBertConfig as ModernBertConfig
    from maskwright.models.mpnet import MPNet as MPNet
    from maskwright.models.mpnet import MPNetConfig as MPNetConfig
    from maskwright.models.neobert import NeoBERT as NeoBERT
    from maskwright.models.neobert import NeoBertConfig as NeoBertConfig
    from maskwright.models.roberta import RoBERTa as RoBERTa
    from maskwright.models.roberta import XLMRoBERTa as XLMRoBERTa
    from maskwright.objectives.masked_lm import CausalLanguageModel as CausalLanguageModel
    from maskwright.objectives.masked_lm import HybridLanguageModel as HybridLanguageModel
    from maskwright.objectives.masked_lm import MaskedLanguageModel as MaskedLanguageModel
    from maskwright.objectives.replaced_tokens import ReplacedTokenDetection as ReplacedTokenDetection
    from maskwright.objectives.sentence_pairs import SentencePairModel as SentencePairModel
    from maskwright.objectives.token_detector import TokenDetector as TokenDetector
    from maskwright.runs.adapt import Adapted as Adapted
    from maskwright.runs.collator import MaskingCollator as MaskingCollator
    from maskwright.runs.commands import adapt as adapt
    from maskwright.runs.commands import advise_tokenizer as advise_tokenizer
    from maskwright.runs.commands import doctor as doctor
    from maskwright.runs.commands import export as export
    from maskwright.runs.commands import prepare as prepare
    from maskwright.runs.commands import train as train
    from maskwright.runs.compare import compare as compare
    from maskwright.runs.create import create_mlm_dataset as create_mlm_dataset
    from maskwright.runs.create import create_mlm_training_model as create_mlm_training_model
    from maskwright.runs.distill import distill as distill
    from maskwright.runs.doctor.findings import CheckUp as CheckUp
    from maskwright.runs.estimators import TextClassifier as TextClassifier
    from maskwright.runs.estimators import TextEmbedder as TextEmbedder
    from maskwright.runs.eval.evaluate import evaluate as evaluate
    from maskwright.runs.eval.glue_report import GlueReport as GlueReport
    from maskwright.runs.eval.mteb_model import MtebModel as MtebModel
    from maskwright.runs.eval.mteb_model import open_mteb as open_mteb
    from maskwright.runs.eval.report import Report as Report
    from maskwright.runs.fill import fill as fill
    from maskwright.runs.fill import generate as generate
    from maskwright.runs.finetune.finetune import FinishedTask as FinishedTask
    from maskwright.runs.finetune_command import finetune as finetune
    from maskwright.runs.hub import PushError as PushError
    from maskwright.runs.memory import measure_memory as measure_memory
    from maskwright.runs.predict import predict as predict
    from maskwright.runs.pretrain import FinishedRun as FinishedRun
    from maskwright.runs.pretrain import pretrain as pretrain
    from maskwright.runs.search.index import index as index
    from maskwright.runs.search.mine import mine as mine
    from maskwright.runs.search.search import Hit as Hit
    from maskwright.runs.search.search import Searcher as Searcher
    from maskwright.runs.search.search import search as search
    from maskwright.runs.sweep.sweep import Sweep as Sweep
    from maskwright.runs.sweep.sweep import sweep as sweep
    from maskwright.runs.trainer import Trainer as Trainer
    from maskwright.sections.data import AugmentationConfig as AugmentationConfig
    from maskwright.sections.data import SourceConfig as SourceConfig
    from maskwright.sections.training import OptimizerConfig as OptimizerConfig
    from maskwright.sections.training import ScheduleConfig as ScheduleConfig
    from maskwright.sections.training import TrainingConfig as TrainingConfig
    from maskwright.serving.serve import serve as serve
    from maskwright.serving.watch import board as board
    from maskwright.tasks.config import TaskConfig as TaskConfig
    from maskwright.tasks.model import TaskModel as TaskModel
    from maskwright.tasks.nlp_heads import NLPHead as NLPHead
    from maskwright.tasks.nlp_heads import NLPTaskConfig as NLPTaskConfig
    from maskwright.tasks.nlp_heads import NLPTaskType as NLPTaskType
    from maskwright.tasks.nlp_heads import create_nlp_head as create_nlp_head
    from maskwright.text.tokenizer.extend import VocabularyAdvice as VocabularyAdvice
    from maskwright.text.tokenizer.tokenizer import Tokenizer as Tokenizer
    from maskwright.text.tokenizer.tokenizer import load_tokenizer as load_tokenizer
    from maskwright.text.tokenizer.train import train_tokenizer as train_tokenizer
    from maskwright.text.wiki.preprocess import WikiReport as WikiReport
    from maskwright.text.wiki.preprocess import preprocess_wiki_dump as preprocess_wiki_dump
    from maskwright.training.callbacks import EarlyStopping as EarlyStopping
    from maskwright.training.callbacks import ModelCheckpoint as ModelCheckpoint
    from maskwright.training.callbacks import TensorBoard as TensorBoard
    from maskwright.training.loop import Callback as Callback
    from maskwright.training.optim.builders import BuiltOptimizer as BuiltOptimizer
    from maskwright.training.optim.builders import LearningRateSchedule as LearningRateSchedule
    from maskwright.training.optim.builders import learning_rate_schedule_builder as learning_rate_schedule_builder
    from maskwright.training.optim.builders import optimizer_builder as optimizer_builder
    from maskwright.training.state import History as History
    from maskwright.training.trackers import MLflow as MLflow
    from maskwright.training.trackers import Trackio as Trackio
    from maskwright.training.trackers import WandB as WandB

_HOMES = {
    "ALBERT": "maskwright.models.albert",
    "Adapted": "maskwright.runs.adapt",
    "AnswerRanks": "maskwright.evaluation.cloze",
    "AugmentationConfig": "maskwright.sections.data",
    "BERT": "maskwright.models.bert",
    "BertConfig": "maskwright.models.bert",
    "BuiltOptimizer": "maskwright.training.optim.builders",
    "Callback": "maskwright.training.loop",
    "Candidate": "maskwright.inference.fill_mask",
    "CausalLanguageModel": "maskwright.objectives.masked_lm",
    "CheckUp": "maskwright.runs.doctor.findings",
    "Choice": "maskwright.catalogue.choose",
    "ClozeItem": "maskwright.evaluation.cloze",
    "Config": "maskwright.config",
    "DistilBERT": "maskwright.models.distilbert",
    "ELECTRA": "maskwright.models.electra",
    "EarlyStopping": "maskwright.training.callbacks",
    "EncoderOutput": "maskwright.models.encoder",
    "FinishedRun": "maskwright.runs.pretrain",
    "FinishedTask": "maskwright.runs.finetune.finetune",
    "GlueReport": "maskwright.runs.eval.glue_report",
    "History": "maskwright.training.state",
    "Hit": "maskwright.runs.search.search",
    "HybridLanguageModel": "maskwright.objectives.masked_lm",
    "InputError": "maskwright.errors",
    "InputWarning": "maskwright.errors",
    "KnownModel": "maskwright.catalogue.table",
    "LearningRateSchedule": "maskwright.training.optim.builders",
    "MLflow": "maskwright.training.trackers",
    "MPNet": "maskwright.models.mpnet",
    "MPNetConfig": "maskwright.models.mpnet",
    "MaskingCollator": "maskwright.runs.collator",
    "MaskedLMOutput": "maskwright.models.encoder",
    "MaskedLanguageModel": "maskwright.objectives.masked_lm",
    "MinimalPair": "maskwright.evaluation.minimal_pairs",
    "ModelCheckpoint": "maskwright.training.callbacks",
    "ModelMemory": "maskwright.catalogue.table",
    "ModernBERT": "maskwright.models.modernbert",
    "ModernBertConfig": "maskwright.models.modernbert",
    "MtebModel": "maskwright.runs.eval.mteb_model",
    "NLPHead": "maskwright.tasks.nlp_heads",
    "NLPTaskConfig": "maskwright.tasks.nlp_heads",
    "NLPTaskType": "maskwright.tasks.nlp_heads",
    "NeoBERT": "maskwright.models.neobert",
    "NeoBertConfig": "maskwright.models.neobert",
    "OptimizerConfig": "maskwright.sections.training",
    "PackedBatch": "maskwright.batch",
    "PackedEncoder": "maskwright.models.encoder",
    "PackedLoader": "maskwright.data.loader",
    "PairVerdicts": "maskwright.evaluation.minimal_pairs",
    "Pipeline": "maskwright.inference.pipeline",
    "PredictionView": "maskwright.inference.visualize",
    "PushError": "maskwright.runs.hub",
    "ReplacedTokenDetection": "maskwright.objectives.replaced_tokens",
    "Report": "maskwright.runs.eval.report",
    "RoBERTa": "maskwright.models.roberta",
    "RunError": "maskwright.errors",
    "ScheduleConfig": "maskwright.sections.training",
    "Searcher": "maskwright.runs.search.search",
    "SentencePairModel": "maskwright.objectives.sentence_pairs",
    "SourceConfig": "maskwright.sections.data",
    "TaskConfig": "maskwright.tasks.config",
    "TaskModel": "maskwright.tasks.model",
    "TensorBoard": "maskwright.training.callbacks",
    "TextClassifier": "maskwright.runs.estimators",
    "Sweep": "maskwright.runs.sweep.sweep",
    "TextEmbedder": "maskwright.runs.estimators",
    "TextScores": "maskwright.evaluation.likelihood",
    "TokenDetector": "maskwright.objectives.token_detector",
    "Tokenizer": "maskwright.text.tokenizer.tokenizer",
    "Trackio": "maskwright.training.trackers",
    "Trainer": "maskwright.runs.trainer",
    "TrainingConfig": "maskwright.sections.training",
    "VocabularyAdvice": "maskwright.text.tokenizer.extend",
    "WandB": "maskwright.training.trackers",
    "WikiReport": "maskwright.text.wiki.preprocess",
    "XLMRoBERTa": "maskwright.models.roberta",
    "adapt": "maskwright.runs.commands",
    "advise_tokenizer": "maskwright.runs.commands",
    "board": "maskwright.serving.watch",
    "calculate_perplexity": "maskwright.evaluation.likelihood",
    "choose_model": "maskwright.catalogue.choose",
    "compare": "maskwright.runs.compare",
    "create_mlm_dataset": "maskwright.runs.create",
    "create_mlm_training_model": "maskwright.runs.create",
    "create_nlp_head": "maskwright.tasks.nlp_heads",
    "distill": "maskwright.runs.distill",
    "doctor": "maskwright.runs.commands",
    "evaluate": "maskwright.runs.eval.evaluate",
    "export": "maskwright.runs.commands",
    "fill": "maskwright.runs.fill",
    "fill_mask": "maskwright.inference.fill_mask",
    "finetune": "maskwright.runs.finetune_command",
    "generate": "maskwright.runs.fill",
    "judge_pairs": "maskwright.evaluation.minimal_pairs",
    "launch": "maskwright.cluster.launch",
    "learning_rate_schedule_builder": "maskwright.training.optim.builders",
    "index": "maskwright.runs.search.index",
    "list_models": "maskwright.catalogue.choose",
    "load_config": "maskwright.config",
    "load_tokenizer": "maskwright.text.tokenizer.tokenizer",
    "mask_text": "maskwright.inference.fill_mask",
    "measure_memory": "maskwright.runs.memory",
    "open_mteb": "maskwright.runs.eval.mteb_model",
    "optimizer_builder": "maskwright.training.optim.builders",
    "pipeline": "maskwright.inference.pipeline",
    "mine": "maskwright.runs.search.mine",
    "predict": "maskwright.runs.predict",
    "predict_masked": "maskwright.inference.fill_mask",
    "prepare": "maskwright.runs.commands",
    "preprocess_wiki_dump": "maskwright.text.wiki.preprocess",
    "pretrain": "maskwright.runs.pretrain",
    "rank_answers": "maskwright.evaluation.cloze",
    "score_texts": "maskwright.evaluation.likelihood",
    "search": "maskwright.runs.search.search",
    "serve": "maskwright.serving.serve",
    "sweep": "maskwright.runs.sweep.sweep",
    "train": "maskwright.runs.commands",
    "train_tokenizer": "maskwright.text.tokenizer.train",
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
    "DataCollatorForLanguageModeling": "MaskingCollator; in our Trainer, MaskedLanguageModel masks batches itself",
    "TrainerCallback": "Callback",
    "EarlyStoppingCallback": "EarlyStopping",
    "AdamW": "OptimizerConfig(type='adamw')",
}
"""Names of transformers and Keras, with ours."""

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - the names are strings


def _find(name: str) -> Any:
    if name not in _HOMES:
        from maskwright.suggestions import suggest_near

        hint = f"; use {_INSTEAD[name]}" if name in _INSTEAD else suggest_near(name, _HOMES)
        raise AttributeError(f"module 'maskwright' has no attribute '{name}'{hint}")
    return getattr(import_module(_HOMES[name]), name)


if not TYPE_CHECKING:  # or a type checker would take any name for one of ours
    __getattr__ = _find


def __dir__() -> list[str]:
    return sorted(__all__)
