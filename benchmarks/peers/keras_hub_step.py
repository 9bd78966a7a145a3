"""keras-hub's training step on JAX, in an environment that need not have anything of ours.

`keras_side.py` starts this with a folder that holds `settings.json` and `rows.npz`, the padded token ids of every
batch, and reads the JSON on the last line. `BertMaskedLM` is trained as keras-hub does it: its own mask generator
ahead of time, its head on the masked slots alone, the step compiled by XLA, no metric but the loss.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import keras
import keras_hub
import numpy as np


def build_model(settings: dict[str, Any]) -> keras.Model:
    model = keras_hub.models.BertMaskedLM(keras_hub.models.BertBackbone(**settings["backbone"]))
    model.compile(
        optimizer=keras.optimizers.AdamW(settings["learning_rate"], weight_decay=0.0, global_clipnorm=1.0),
        # the mean over masked tokens, as the other sides have it; the default divides by empty slots too
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight"),
        weighted_metrics=None,
        jit_compile=True,
    )
    return model


def make_batches(rows: np.ndarray, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Masked ahead of time, with as many slots in a row as the ratio asks for in a full one."""
    mask = keras_hub.layers.MaskedLMMaskGenerator(
        vocabulary_size=settings["backbone"]["vocabulary_size"],
        mask_selection_rate=settings["mask_ratio"],
        mask_token_id=settings["mask_token_id"],
        mask_selection_length=math.ceil(settings["mask_ratio"] * rows.shape[-1]),
        unselectable_token_ids=settings["special_token_ids"],
    )
    batches = []
    for token_ids in rows:
        masked = mask(token_ids)
        inputs = {
            "token_ids": masked["token_ids"],
            "mask_positions": masked["mask_positions"],
            "padding_mask": (token_ids != settings["pad_token_id"]).astype(np.int32),
            "segment_ids": np.zeros_like(token_ids),
        }
        batches.append({"x": inputs, "y": masked["mask_ids"], "sample_weight": masked["mask_weights"]})
    return batches


def measure(rows: np.ndarray, settings: dict[str, Any]) -> dict[str, float]:
    keras.utils.set_random_seed(0)
    model = build_model(settings)
    batches = make_batches(rows, settings)
    num_warm_up = settings["num_warm_up"]
    begun = time.perf_counter()
    first_loss = float(model.train_on_batch(**batches[0], return_dict=True)["loss"])
    first_s = time.perf_counter() - begun
    for batch in batches[1:num_warm_up]:
        model.train_on_batch(**batch)
    begun = time.perf_counter()
    for batch in batches[num_warm_up:]:
        model.train_on_batch(**batch)  # waits for the loss, hence for the step
    seconds = time.perf_counter() - begun
    timed = rows[num_warm_up:]
    return {
        "tokens_per_s": timed.size / seconds,
        "real_tokens_per_s": int((timed != settings["pad_token_id"]).sum()) / seconds,
        "step_ms": 1e3 * seconds / len(timed),
        "first_step_s": first_s,
        "first_loss": first_loss,
        "num_parameters": model.count_params() - model.backbone.pooled_dense.count_params(),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    settings = json.loads((folder / "settings.json").read_text())
    with np.load(folder / "rows.npz", allow_pickle=False) as arrays:
        rows = arrays["token_ids"]
    print(json.dumps(measure(rows, settings)))


if __name__ == "__main__":
    main()
