"""Larger vocabularies for models of `transformers`: whatever has a row for each token gets more of them."""

from __future__ import annotations

from torch import Tensor, nn

from maskwright.models.encoding import find_input_embedding
from maskwright.models.resizing import grow_rows, resize_embedding
from maskwright.models.transformers_head import TransformersHead


def resize_transformers_model(
    encoder: nn.Module, mlm_head: TransformersHead, new_size: int, mean_init: bool = True, noise: float = 0.0
) -> None:
    """Give the embedding and every table of the head `new_size` rows, in place; what was tied stays tied."""
    config = mlm_head.rest.config
    embedding = find_input_embedding(encoder)
    old_tables: list[Tensor] = [] if embedding is None else [embedding.weight]
    outputs = mlm_head.output_tables(config.vocab_size)
    grown = dict.fromkeys(old_tables, resize_embedding(encoder, new_size, mean_init, noise))
    for table in outputs:
        if table not in grown:  # biases start as the mean, as those of our own heads do
            rows = grow_rows(table, new_size, mean_init, noise) if table.ndim > 1 else grow_rows(table, new_size)
            grown[table] = nn.Parameter(rows, requires_grad=table.requires_grad)
    for module in mlm_head.rest.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter in grown:
                setattr(module, name, grown[parameter])
        if isinstance(module, nn.Linear):
            module.out_features = len(module.weight)
    config.vocab_size = new_size
    encoder.config = config  # one object, since all parts of the model hold it
