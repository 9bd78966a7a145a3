"""spacy-curated-transformers: weights and word pieces of a BERT, read by its own loaders.

It gives hidden states of the pieces between [CLS] and [SEP]; their mean is compared.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import spacy
from asking import answer_all
from spacy_curated_transformers.models.hf_loader import build_hf_transformer_encoder_loader_v1
from spacy_curated_transformers.tokenization.hf_loader import build_hf_piece_encoder_loader_v1

SHAPE = {
    "hidden_size": "hidden_width",
    "intermediate_size": "intermediate_width",
    "num_attention_heads": "num_attention_heads",
    "num_hidden_layers": "num_hidden_layers",
    "vocab_size": "vocab_size",
    "layer_norm_eps": "layer_norm_eps",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_act": "hidden_act",
}
"""Their names of the settings of config.json."""


def ask(model: dict[str, Any]) -> list[Any] | None:
    config = json.loads((Path(model["hf"]) / "config.json").read_text(encoding="utf-8"))
    if model["kind"] != "embed" or config["model_type"] != "bert":
        return None
    language = spacy.blank("en")
    language.add_pipe(
        "curated_transformer",
        config={
            "model": {
                "@architectures": "spacy-curated-transformers.BertTransformer.v1",
                "piece_encoder": {"@architectures": "spacy-curated-transformers.BertWordpieceEncoder.v1"},
                "with_spans": {
                    "@architectures": "spacy-curated-transformers.WithStridedSpans.v1",
                    "stride": 40,
                    "window": 60,
                },
                "model_max_length": config["max_position_embeddings"],
                **{theirs: config[ours] for ours, theirs in SHAPE.items()},
            }
        },
    )
    pipe = language.get_pipe("curated_transformer")
    pipe.model.get_ref("transformer").init = build_hf_transformer_encoder_loader_v1(name=model["hf"])
    pipe.model.get_ref("piece_encoder").init = build_hf_piece_encoder_loader_v1(name=model["hf"])
    language.initialize()
    docs = [language(text) for text in model["questions"][:-1]]
    return [doc._.trf_data.last_hidden_layer_state.dataXd.mean(0).tolist() for doc in docs]


answer_all(ask, version("spacy-curated-transformers"), of="inner")
