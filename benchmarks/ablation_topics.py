"""What `ablations.py` can change: topics of variants, each the words that come on top of a recipe."""

from __future__ import annotations

RECIPE = "the recipe"
OTHER_QUESTIONS = {"next tokens alone"}
OTHER_VOCABULARIES = {f"vocabulary {size:,}": size for size in (2048, 4096, 8192, 16384, 32768)}
"""Losses of neither compare."""
TOPICS: dict[str, dict[str, list[str]]] = {
    "optimizer": {
        "AdamW 1e-3": ["optimizer.type=adamw", "optimizer.learning_rate=1e-3"],
        "AdamW 3e-3": ["optimizer.type=adamw", "optimizer.learning_rate=3e-3"],
        "Muon 0.01": ["optimizer.muon_learning_rate=0.01"],
        "Muon 0.04": ["optimizer.muon_learning_rate=0.04"],
        "weight decay 0.03": ["optimizer.weight_decay=0.03"],
        "weight decay 0.1": ["optimizer.weight_decay=0.1"],
        "linear fall from the start": ["schedule.type=linear"],
    },
    "masking": {
        "ratio 0.15": ["masking.ratio=0.15", "masking.final_ratio=null"],
        "ratio 0.20": ["masking.ratio=0.20", "masking.final_ratio=null"],
        "ratio 0.30": ["masking.ratio=0.30", "masking.final_ratio=null"],
        "ratio 0.40": ["masking.ratio=0.40", "masking.final_ratio=null"],
        "ratio 0.50": ["masking.ratio=0.50", "masking.final_ratio=null"],
        "ratio 0.30 falling to 0.15": [
            "masking.ratio=0.30",
            "masking.final_ratio=0.15",
            "masking.ratio_schedule=linear",
        ],
        "all masked become [MASK]": ["masking.random_token_ratio=0", "masking.unchanged_ratio=0"],
        "a coin per token": ["masking.selection=bernoulli"],
        "whole words": ["masking.strategy=whole_word"],
        "spans": ["masking.strategy=span"],
        "rare tokens more often": ["masking.strategy=frequency"],
        "rare tokens a little more often": ["masking.strategy=frequency", "masking.exponent=0.25"],
        "hard tokens more often": ["masking.strategy=adaptive", "masking.update_every_steps=20"],
    },
    "objective": {
        "hybrid, 25% causal": ["training.mode=hybrid", "training.causal_share=0.25"],
        "hybrid, 50% causal": ["training.mode=hybrid", "training.causal_share=0.5"],
        **{
            f"next tokens until {until:.0%}": [f"objective=[{{mode: clm, until: {until}}}, {{mode: mlm}}]"]
            for until in (0.15, 0.25, 0.4)
        },
        "next sentence too": ["pairs.task=nsp"],
        "sentence order too": ["pairs.task=sop"],
        "replaced tokens (the generator)": ["training.mode=rtd"],
        "next tokens alone": ["training.mode=clm"],
    },
    "batch": {
        "1,024 tokens": ["training.batch_tokens=1024"],
        "4,096 tokens": ["training.batch_tokens=4096"],
        "8,192 tokens": ["training.batch_tokens=8192"],
        "16,384 tokens": ["training.batch_tokens=16384"],
        "32,768 tokens": ["training.batch_tokens=32768"],
        "65,536 tokens": ["training.batch_tokens=65536"],
        "1,024 growing to 4,096": ["training.batch_tokens_start=1024", "training.batch_tokens=4096"],
        "8,192 growing to 32,768": ["training.batch_tokens_start=8192", "training.batch_tokens=32768"],
    },
    "length": {
        "rows of 64": ["data.max_length=64"],
        "rows of 256": ["data.max_length=256"],
    },
    "architecture": {
        "BERT's block": ["model.family=bert", *(f"model.{name}=null" for name in ("norm_bias", "hidden_act"))]
        + [f"model.{name}=null" for name in ("global_attn_every_n_layers", "global_rope_theta", "residual_init")],
        "norms without biases": ["model.norm_bias=false"],
        "SiLU gates": ["model.hidden_act=silu"],
        "GELU gates": ["model.hidden_act=gelu"],
        "branches that start at random": ["model.residual_init=normal"],
        "local attention in two of three layers": ["model.global_attn_every_n_layers=3", "model.local_attention=64"],
        "rotary base 160,000": ["model.global_rope_theta=160000"],
    },
    "longer rows": {
        "the base stays": ["model.global_rope_theta=10000"],
        "the base grows over a tenth": ["model.rope_ramp_share=0.1"],
        "the base grows over a half": ["model.rope_ramp_share=0.5"],
    },
    "vocabulary": {
        name: ["tokenizer.path=null", f"tokenizer.vocab_size={size}"] for name, size in OTHER_VOCABULARIES.items()
    },
    "dropout": {
        "dropout 0.1": ["model.hidden_dropout_prob=0.1"],
        "dropout 0.2": ["model.hidden_dropout_prob=0.2"],
        "dropout 0.1, in attention too": ["model.hidden_dropout_prob=0.1", "model.attention_probs_dropout_prob=0.1"],
        "dropout 0.1 in the head": ["model.mlm_head_dropout=0.1"],
    },
    "averaging": {
        "average 0.99": ["training.average_decay=0.99"],
        "average 0.999": ["training.average_decay=0.999"],
    },
}
