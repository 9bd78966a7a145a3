"""How a known model is loaded and fine-tuned: the words to type."""

from __future__ import annotations

from maskwright.catalogue.table import KnownModel

_FILES = {"ner": ("train.conll", "dev.conll"), "qa": ("train-v2.0.json", "dev-v2.0.json")}
_USUAL_TASK, _USUAL_FILES = "classification", ("train.csv", "dev.csv")
_CONVERT = (
    "import sys; from transformers import AutoModel as M, AutoTokenizer as T;"
    " [one.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2]) for one in (M, T)]"
)


def describe_loading(model: KnownModel) -> dict[str, str]:
    """Lines by what they are for."""
    if model.loads == "hf":
        kind = "AutoModelForMaskedLM" if model.has_mlm_head else "AutoModel"
        return {
            "install": "pip install 'maskwright[hf]'",
            "Python": f'transformers.{kind}.from_pretrained("{model.id}")',
        }
    adapt = f"maskwright adapt {model.id} --text corpus.txt"
    if model.has_mlm_head:
        return {"adapt": adapt, "Python": f'maskwright.MaskedLanguageModel.from_pretrained("{model.id}")'}
    return {
        "adapt": f"{adapt}  (it has no masked-language-model head yet)",
        "Python": f'maskwright.PackedEncoder.from_pretrained("{model.id}")',
    }


def describe_finetuning(model: KnownModel, task: str | None = None) -> dict[str, str]:
    """The command that goes on with a model, and what comes before it, by what they are for."""
    train, validation = _FILES.get(task or _USUAL_TASK, _USUAL_FILES)
    name = model.id.rpartition("/")[2] if model.needs_conversion else model.id
    command = f"maskwright finetune {task or _USUAL_TASK} --model {name} --train {train} --validation {validation}"
    if not model.needs_conversion:
        return {"finetune": command}
    convert = f'pip install sentencepiece protobuf && python -c "{_CONVERT}" {model.id} {name}'
    return {"convert": convert, "finetune": command}
