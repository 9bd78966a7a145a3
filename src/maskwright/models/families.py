"""The families of models that are read and written natively."""

from __future__ import annotations

from dataclasses import replace

from maskwright.models.albert import ALBERT
from maskwright.models.bert import BERT
from maskwright.models.distilbert import DistilBERT
from maskwright.models.electra import ELECTRA
from maskwright.models.encoder import PackedEncoder
from maskwright.models.family import Family
from maskwright.models.modernbert import ModernBERT
from maskwright.models.mpnet import MPNet
from maskwright.models.roberta import RoBERTa, XLMRoBERTa

_WORDS_AND_POSITIONS = {
    "embeddings.word": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}

BERT_FAMILY = Family(
    model_type="bert",
    encoder_class=BERT,
    architectures=("BertModel", "BertForMaskedLM"),
    prefix="bert",
    layer_prefix="encoder.layer.{}",
    modules=_WORDS_AND_POSITIONS | {"embeddings.token_type": "embeddings.token_type_embeddings"},
    layer_modules={
        "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.output": ("attention.output.dense",),
        "attention_norm": ("attention.output.LayerNorm",),
        "up": ("intermediate.dense",),
        "down": ("output.dense",),
        "feed_forward_norm": ("output.LayerNorm",),
    },
    head_modules={
        "mlm_dense": "cls.predictions.transform.dense",
        "mlm_norm": "cls.predictions.transform.LayerNorm",
        "mlm_output": "cls.predictions.decoder",
    },
    output_bias="cls.predictions.bias",
    own_settings=("normalization_type", "use_stochastic_depth", "stochastic_depth_rate", "residual_init"),
    fixed_settings={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "pruned_heads": {},
    },
)

ROBERTA_FAMILY = replace(
    BERT_FAMILY,
    model_type="roberta",
    encoder_class=RoBERTa,
    architectures=("RobertaModel", "RobertaForMaskedLM"),
    prefix="roberta",
    head_modules={"mlm_dense": "lm_head.dense", "mlm_norm": "lm_head.layer_norm", "mlm_output": "lm_head.decoder"},
    output_bias="lm_head.bias",
    head_activation="gelu",
)

XLM_ROBERTA_FAMILY = replace(
    ROBERTA_FAMILY,
    model_type="xlm-roberta",
    encoder_class=XLMRoBERTa,
    architectures=("XLMRobertaModel", "XLMRobertaForMaskedLM"),
)

DISTILBERT_FAMILY = replace(
    BERT_FAMILY,
    model_type="distilbert",
    encoder_class=DistilBERT,
    architectures=("DistilBertModel", "DistilBertForMaskedLM"),
    prefix="distilbert",
    layer_prefix="transformer.layer.{}",
    modules=_WORDS_AND_POSITIONS,
    layer_modules={
        "attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "attention.output": ("attention.out_lin",),
        "attention_norm": ("sa_layer_norm",),
        "up": ("ffn.lin1",),
        "down": ("ffn.lin2",),
        "feed_forward_norm": ("output_layer_norm",),
    },
    head_modules={"mlm_dense": "vocab_transform", "mlm_norm": "vocab_layer_norm", "mlm_output": "vocab_projector"},
    output_bias="vocab_projector.bias",
    setting_names={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    unwritten_settings=("type_vocab_size", "layer_norm_eps"),
    unused_settings=("sinusoidal_pos_embds",),
)

ALBERT_FAMILY = replace(
    BERT_FAMILY,
    model_type="albert",
    encoder_class=ALBERT,
    architectures=("AlbertModel", "AlbertForMaskedLM"),
    prefix="albert",
    layer_prefix="encoder.albert_layer_groups.{}.albert_layers.0",
    modules={**BERT_FAMILY.modules, "embedding_projection": "encoder.embedding_hidden_mapping_in"},
    layer_modules={
        "attention.qkv": ("attention.query", "attention.key", "attention.value"),
        "attention.output": ("attention.dense",),
        "attention_norm": ("attention.LayerNorm",),
        "up": ("ffn",),
        "down": ("ffn_output",),
        "feed_forward_norm": ("full_layer_layer_norm",),
    },
    head_modules={
        "mlm_dense": "predictions.dense",
        "mlm_norm": "predictions.LayerNorm",
        "mlm_output": "predictions.decoder",
    },
    output_bias="predictions.bias",
    fixed_settings={**BERT_FAMILY.fixed_settings, "inner_group_num": 1},
    unused_settings=("down_scale_factor", "eos_token_ids", "gap_size", "net_structure_type", "num_memory_blocks"),
)

ELECTRA_FAMILY = replace(
    BERT_FAMILY,
    model_type="electra",
    encoder_class=ELECTRA,
    architectures=("ElectraModel", "ElectraForMaskedLM"),
    prefix="electra",
    modules={**BERT_FAMILY.modules, "embedding_projection": "embeddings_project"},
    head_modules={
        "mlm_dense": "generator_predictions.dense",
        "mlm_norm": "generator_predictions.LayerNorm",
        "mlm_output": "generator_lm_head",
    },
    output_bias="generator_lm_head.bias",
    head_activation="gelu",
)

MPNET_FAMILY = replace(
    ROBERTA_FAMILY,
    model_type="mpnet",
    encoder_class=MPNet,
    architectures=("MPNetModel", "MPNetForMaskedLM"),
    prefix="mpnet",
    modules=_WORDS_AND_POSITIONS | {"distance_bias": "encoder.relative_attention_bias"},
    layer_modules={
        **BERT_FAMILY.layer_modules,
        "attention.qkv": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        "attention.output": ("attention.attn.o",),
        "attention_norm": ("attention.LayerNorm",),
    },
    fixed_settings={**BERT_FAMILY.fixed_settings, "relative_attention_num_buckets": 32},
    unwritten_settings=("type_vocab_size",),
)

MODERNBERT_FAMILY = Family(
    model_type="modernbert",
    encoder_class=ModernBERT,
    architectures=("ModernBertModel", "ModernBertForMaskedLM"),
    prefix="model",
    layer_prefix="layers.{}",
    modules={
        "word": "embeddings.tok_embeddings",
        "embedding_norm": "embeddings.norm",
        "final_norm": "final_norm",
    },
    layer_modules={
        "attention_norm": ("attn_norm",),
        "attention.qkv": ("attn.Wqkv",),
        "attention.output": ("attn.Wo",),
        "feed_forward_norm": ("mlp_norm",),
        "up": ("mlp.Wi",),
        "down": ("mlp.Wo",),
    },
    head_modules={"mlm_dense": "head.dense", "mlm_norm": "head.norm", "mlm_output": "decoder"},
    output_bias="decoder.bias",
    own_settings=("residual_init",),
    fixed_settings={"attention_bias": False, "mlp_bias": False, "decoder_bias": True, "rope_scaling": None},
    unused_settings=(
        "initializer_cutoff_factor",
        "layer_norm_eps",
        "position_embedding_type",
        "repad_logits_with_grad",
    ),
)

FAMILIES = {
    family.model_type: family
    for family in (
        BERT_FAMILY,
        ROBERTA_FAMILY,
        XLM_ROBERTA_FAMILY,
        DISTILBERT_FAMILY,
        ALBERT_FAMILY,
        ELECTRA_FAMILY,
        MPNET_FAMILY,
        MODERNBERT_FAMILY,
    )
}


def family_of(encoder: PackedEncoder) -> Family:
    """The family of an encoder's class, or of the nearest it derives from."""
    families = {family.encoder_class: family for family in FAMILIES.values()}
    return next(families[base] for base in type(encoder).__mro__ if base in families)
