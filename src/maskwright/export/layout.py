"""What each format promises: the files that the programs that read it look for, and the names in them."""

from __future__ import annotations

from pathlib import Path

from maskwright.errors import RunError
from maskwright.export.card import CARD_FILE
from maskwright.models.files.model_folder import CONFIG_FILE, MODULES_FILE
from maskwright.storage import read_json
from maskwright.text.tokenizer.files import FAST_FILE, NAMES_FILE, SETTINGS_FILE

_MODEL = (CONFIG_FILE, FAST_FILE, SETTINGS_FILE, NAMES_FILE)
_SENTENCES = (MODULES_FILE, "sentence_bert_config.json", "config_sentence_transformers.json")
_POOLINGS = ("1_Pooling/config.json", "1_SpladePooling/config.json", "1_Dense/config.json")
"""One of these: of vectors, of sparse ones, or of vectors of tokens."""
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_GRAPHS = {
    "model.onnx": "onnx/model.onnx",
    "model_int8.onnx": "onnx/model_quantized.onnx",
    "model_fp16.onnx": "onnx/model_fp16.onnx",
}
_PAGE = ("index.html", "page.js", "page.css", "settings.json", "vendor/transformers.min.js")
_LENGTH = "model_max_length"


def check_layout(folder: Path, target: str) -> None:
    """Refuse a folder that lacks a file or a name that its readers look for."""
    model = folder / "model" if target == "web" else folder
    names = ["model.gguf"] if target == "gguf" else _list_files(model, target)
    missing = [name for name in names if not (model / name).is_file()]
    missing += [name for name in (CARD_FILE, *(_PAGE if target == "web" else ())) if not (folder / name).is_file()]
    if target in ("hf", "sentence-transformers") and not any((model / name).is_file() for name in _WEIGHTS):
        missing.append(_WEIGHTS[0])
    missing += [] if missing or target == "gguf" else _list_missing_names(model)
    if missing:
        raise RunError(f"the export lacks {', '.join(missing)}, which programs look for; nothing was written")


def _list_files(model: Path, target: str) -> list[str]:
    names = [*_MODEL]
    if target == "sentence-transformers" or (model / MODULES_FILE).exists():
        names += [*_SENTENCES, next((name for name in _POOLINGS if (model / name).is_file()), _POOLINGS[0])]
    if target == "onnx":
        names += ["model.onnx", *(other for name, other in _GRAPHS.items() if (model / name).exists())]
    if target == "web":
        names.append(_GRAPHS["model_int8.onnx"])
    return names


def _list_missing_names(model: Path) -> list[str]:
    config, settings = read_json(model / CONFIG_FILE), read_json(model / SETTINGS_FILE)
    missing = [f"'{name}' in {CONFIG_FILE}" for name in ("model_type", "architectures") if not config.get(name)]
    wanted = ["tokenizer_class", "model_input_names", *([_LENGTH] if "max_position_embeddings" in config else [])]
    return missing + [f"'{name}' in {SETTINGS_FILE}" for name in wanted if not settings.get(name)]
