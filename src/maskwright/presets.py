"""Named starting points for a configuration. A preset is plain values; anything can be overridden on top of it."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # Minutes on two CPU cores, from the documentation every Python carries. Small steps, many of them: at this size
    # the number of optimizer steps counts for more than the tokens in each (docs/experiments.md).
    "quickstart": {
        "run": {"name": "quickstart"},
        "model": {
            "family": "modernbert",
            "variant": "tiny",
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 344,
            "hidden_act": "silu",
            "norm_bias": True,
            "global_attn_every_n_layers": 1,
            "global_rope_theta": 10_000.0,
            "residual_init": "zero",
            "initializer_range": 0.05,
            "mlm_head_dropout": 0.0,
        },
        "tokenizer": {"type": "wordpiece", "vocab_size": 4096},
        "data": {"train": "builtin:python", "validation_share": 0.08, "max_length": 64},
        "masking": {"ratio": 0.30},
        "optimizer": {
            "type": "muon",
            "learning_rate": 5e-3,
            "muon_learning_rate": 0.02,
            "weight_decay": 0.0,
            "beta2": 0.95,
        },
        "schedule": {"type": "wsd", "warmup_steps": 20, "decay_share": 0.5, "alpha": 0.0},
        "training": {"epochs": 12, "max_seconds": 220, "batch_tokens": 2048, "checkpoint_every_steps": 500},
    },
    # BERT's own masking and head (Devlin et al. 2018).
    "bert_standard": {
        "model": {"mlm_head_activation": "gelu", "initializer_range": 0.02, "mlm_head_dropout": 0.1},
        "masking": {"ratio": 0.15, "random_token_ratio": 0.1, "unchanged_ratio": 0.1},
    },
    # Little text: more to predict from each sentence, and more regularisation.
    "low_resource": {
        "model": {"variant": "small", "mlm_head_dropout": 0.15},
        "masking": {"ratio": 0.20, "random_token_ratio": 0.05, "unchanged_ratio": 0.05},
    },
    # A trained encoder meets a new domain: gentle masking, little dropout, small steps.
    "domain_adaptation": {
        "model": {"mlm_head_dropout": 0.05},
        "masking": {"ratio": 0.10, "random_token_ratio": 0.05, "unchanged_ratio": 0.05},
        "optimizer": {"learning_rate": 1e-5, "weight_decay": 0.001},
        "training": {"epochs": 2},
    },
}
