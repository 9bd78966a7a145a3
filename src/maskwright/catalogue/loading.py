"""How a known model is loaded: the words to type."""

from __future__ import annotations

from maskwright.catalogue.table import KnownModel


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
        "Python": f'maskwright.models.pretrained.load_encoder("{model.id}")',
    }
