"""Encoders by scikit-learn's conventions: texts to vectors, and a classifier that is fine-tuned by `fit`.

Both are built with settings alone, so that `get_params`, `clone`, pipelines and searches over a setting work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from maskwright.config import list_settings
from maskwright.errors import InputError
from maskwright.inference.pipeline import Pipeline, pipeline
from maskwright.models.any_encoder import find_hidden_size
from maskwright.runs.finetune.inputs import GivenInputs, load_task_inputs
from maskwright.runs.finetune.settings import build_run_config
from maskwright.runs.given import GivenModel, name_model
from maskwright.tasks.config import DEFAULT_RANK, build_task_config
from maskwright.tasks.new_model import choose_learning_rate, measure_weights
from maskwright.tasks.tables import MEMORY, as_table
from maskwright.text.in_memory import iterate_rows
from maskwright.training.trainer import Trainer

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise InputError("the estimators need scikit-learn; run: pip install 'maskwright[eval]'") from error


class TextEmbedder(TransformerMixin, BaseEstimator):  # type: ignore[misc,unused-ignore]
    """Texts to vectors (N, D) by an encoder that is left as it is: the first step of a scikit-learn `Pipeline`.

    `model` is a run, a model folder or a hub id, or a model in memory with its `tokenizer`. `pooling`, `normalize` and
    `max_length` are those of `pipeline("embed")`. There is nothing to fit.
    """

    def __init__(
        self,
        model: GivenModel,
        *,
        tokenizer: Any = None,
        pooling: str | None = None,
        normalize: bool = False,
        max_length: int | None = None,
        device: str | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.normalize = normalize
        self.max_length = max_length
        self.device = device

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803 (the name of all estimators)
        """Open the model."""
        self._open()
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:  # noqa: N803
        """The vectors of texts."""
        texts, opened = list_texts(X), self._open()
        return np.stack(opened(texts)) if texts else np.zeros((0, find_hidden_size(opened.kind.encoder)), np.float32)

    def set_params(self, **params: Any) -> Self:
        self.__dict__.pop("_pipeline", None)
        super().set_params(**params)
        return self

    def _open(self) -> Pipeline[Any, Any]:
        if "_pipeline" not in self.__dict__:
            given = {"pooling": self.pooling, "max_length": self.max_length}
            options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
            self._pipeline = pipeline(
                "embed", self.model, self.tokenizer, device=self.device, normalize=self.normalize, **options
            )
        return self._pipeline

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Without the opened model, which a copy opens again."""
        return {name: value for name, value in super().__getstate__().items() if name != "_pipeline"}


class TextClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc,unused-ignore]
    """Fine-tunes an encoder on texts and their classes with `fit`, and answers with `predict` and `predict_proba`.

    The settings are those of `maskwright.finetune`; `settings` are words such as "training.device=cpu" or a dictionary.
    Nothing is held out and nothing is written: `save` writes the model. `classes_`, `model_` and `tokenizer_` are
    there after `fit`.
    """

    def __init__(
        self,
        model: GivenModel,
        *,
        tokenizer: Any = None,
        epochs: int = 3,
        learning_rate: float | None = None,
        batch_size: int = 32,
        max_length: int | None = None,
        lora: int | bool | None = None,
        freeze_layers: int | None = None,
        layer_decay: float = 1.0,
        class_weights: str | None = None,
        label_smoothing: float = 0.0,
        seed: int = 0,
        settings: Any = (),
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_length = max_length
        self.lora = lora
        self.freeze_layers = freeze_layers
        self.layer_decay = layer_decay
        self.class_weights = class_weights
        self.label_smoothing = label_smoothing
        self.seed = seed
        self.settings = settings
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Fine-tune a new copy of the encoder."""
        texts, labels = list_texts(X), np.asarray(y)
        if labels.shape != (len(texts),):
            raise InputError(f"there are {len(texts)} texts and labels of shape {labels.shape}; give one to each text")
        try:
            self.classes_, numbers = np.unique(labels, return_inverse=True)
        except TypeError as error:
            raise InputError(f"the labels are of several types ({error}); give all of one type") from error
        names = [str(one) for one in self.classes_.tolist()]
        pairs = zip(texts, (names[number] for number in numbers), strict=True)
        table = as_table([{"text": text, "label": name} for text, name in pairs], f"{MEMORY}X")
        with name_model(self.model, self.tokenizer) as named:
            config = build_task_config({**self._list_task_settings(), "model": named.place})
            inputs = load_task_inputs(config, lambda line: None, GivenInputs(train=table, validation=table))
            model = inputs.build_model(self.seed)
        run = build_run_config(config, Path("runs/estimator"), self.seed, list_settings(self.settings))
        if self.learning_rate is None:
            width, size = find_hidden_size(inputs.encoder), measure_weights(inputs.encoder)
            rate = choose_learning_rate(width, size, config.lora is not None)
            run.optimizer.learning_rate = rate
        trainer = Trainer(model, run.optimizer, run.schedule, run.training, seed=self.seed)
        trainer.fit(inputs.train.with_seed(self.seed), epochs=config.epochs, verbose=self.verbose)
        if config.lora is not None:
            model.merge_adapters()
        self.model_, self.tokenizer_ = model, inputs.tokenizer
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float32]:  # noqa: N803
        """(N, C) probabilities, in the order of `classes_`."""
        check_is_fitted(self, "model_")
        places = {str(one): place for place, one in enumerate(self.classes_.tolist())}
        answers = pipeline("classify", self.model_, self.tokenizer_, top_k=None)(list_texts(X))
        scores = np.zeros((len(answers), len(places)), np.float32)
        for row, classes in enumerate(answers):
            for one in classes:
                scores[row, places[one["label"]]] = one["score"]
        return scores

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each text."""
        check_is_fitted(self, "model_")
        chosen: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return chosen

    def save(self, folder: str | Path) -> None:
        """Write the fine-tuned model as a folder, which everything else here reads, and transformers."""
        check_is_fitted(self, "model_")
        self.model_.save_pretrained(folder, self.tokenizer_)

    def _list_task_settings(self) -> Mapping[str, Any]:
        names = ("epochs", "learning_rate", "batch_size", "max_length", "freeze_layers", "layer_decay")
        given = {name: getattr(self, name) for name in (*names, "class_weights", "label_smoothing")}
        rank = (DEFAULT_RANK if self.lora else None) if isinstance(self.lora, bool) else self.lora
        return {**given, "lora": rank, "task": "classification", "train": f"{MEMORY}X", "text_column": "text"}


def list_texts(given: Any) -> list[str]:
    """A list of strings: of a list, an array, or a column or data frame of one column."""
    if hasattr(given, "columns"):
        columns = list(given.columns)
        if len(columns) != 1:
            shown = ", ".join(map(str, columns))
            raise InputError(f"X has the columns {shown}; give the one of texts, such as X['{columns[0]}']")
        given = [row[columns[0]] for row in iterate_rows(given, "X")]
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"X is a {type(given).__name__}; expected a list, an array or a column of texts")
    texts = given.ravel().tolist() if isinstance(given, np.ndarray) and given.shape[1:] in ((), (1,)) else list(given)
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise InputError(f"X:{number} is a {type(text).__name__}; expected a text")
    return texts
