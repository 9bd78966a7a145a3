"""Late interaction: a vector of each token, and the best match in a document for each token of a query (MaxSim).

ColBERT (Khattab & Zaharia 2020): vectors are projected and get length 1; a query is filled up with mask tokens, which
stand for words that it does not have; punctuation of documents does not count. B rows, S row length, N documents of a
row, R examples, G texts of an example, L tokens of the longest text, C numbers of a vector, of which there is one more
in training: whether the token counts.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from maskwright.batch import PackedBatch
from maskwright.data.assembly import NUM_SPECIALS
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.models.encoder import PackedEncoder
from maskwright.models.files.model_folder import OWN_KEY
from maskwright.models.files.sentence_modules import describe_late
from maskwright.models.layers import init_weights
from maskwright.models.products import RowLinear
from maskwright.tasks.heads import RETRIEVAL_PART, HeadFiles, TaskHead
from maskwright.tasks.loader import TaskBatch
from maskwright.tasks.retrieval.dense import DenseRetrieval
from maskwright.tasks.retrieval.examples import RetrievalExample
from maskwright.tasks.retrieval.settings import RetrievalSettings, load_settings
from maskwright.tasks.similarity.examples import GroupFeatures, GroupLoader, featurize_groups
from maskwright.tasks.task import Scores
from maskwright.text.tokenizer.tokenizer import Tokenizer

_WEIGHTS_FILE = "1_Dense/model.safetensors"
_WEIGHT = "linear.weight"


class LateHead(TaskHead):
    """Vectors (B, S, C) of tokens, of length 1."""

    output = None
    is_per_token = True
    is_recordable = False

    def __init__(self, encoder: PackedEncoder, width: int, files: HeadFiles) -> None:
        super().__init__()
        self.files = files
        self.projection = RowLinear(encoder.hidden_size, width, bias=False)
        init_weights(self, encoder.config.initializer_range)

    def name_weights(self) -> dict[str, str]:
        return {"projection.weight": _WEIGHT}

    def forward(self, hidden: Tensor, batch: PackedBatch, num_documents: int) -> Tensor:
        return F.normalize(self.projection(hidden).float(), dim=-1)


class LateRetrieval(DenseRetrieval):
    """As dense retrieval, with the sum over a query's tokens of their best matches for cosines."""

    def __init__(self, settings: RetrievalSettings) -> None:
        super().__init__("mean", settings, settings.max_length)

    def read_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Find the punctuation that its vocabulary has as tokens."""
        found = (tokenizer.backend.token_to_id(one) for one in string.punctuation)
        skipped = tuple(sorted(one for one in found if one is not None))
        self.settings = replace(self.settings, skipped_tokens=skipped)

    def arrange(self, logits: Tensor, batch: PackedBatch, targets: Tensor) -> Tensor:
        """(B, N, L, C + 1) the tokens of each document; the last number is 1 for those that count, else 0."""
        num_rows, num_documents = targets.shape[:2]
        size = self._count_texts(targets)
        is_token = ~batch.is_padding
        skipped = torch.tensor(self.settings.skipped_tokens, device=logits.device)
        is_query = (batch.document_ids - 1) % size == 0
        counts = is_token & (is_query | ~torch.isin(batch.input_ids, skipped))
        rows = torch.arange(num_rows, device=logits.device)[:, None].expand_as(batch.document_ids)
        slots = (rows * num_documents + batch.document_ids - 1)[is_token]
        values = torch.cat([logits, counts[..., None].to(logits.dtype)], dim=-1)[is_token]
        longest = int(batch.positions.max()) + 1
        padded = values.new_zeros(num_rows * num_documents, longest, values.shape[-1])
        return padded.index_put((slots, batch.positions[is_token]), values).unflatten(0, (num_rows, num_documents))

    def _list_examples(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        size = self._count_texts(targets)
        if not self.settings.learns_scores:  # documents of other processes are candidates
            logits = self._fill_up(logits)
        return logits.unflatten(1, (-1, size)).flatten(0, 1), targets[:, ::size].flatten(0, 1)

    def _fill_up(self, logits: Tensor) -> Tensor:
        """As many places for tokens in every process."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return logits
        longest = torch.tensor(logits.shape[2], device=logits.device)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        return F.pad(logits, (0, 0, 0, int(longest) - logits.shape[2]))

    def score(self, queries: Tensor, documents: Tensor) -> Tensor:
        return score_late(queries, documents)

    def score_own(self, vectors: Tensor) -> Tensor:
        return torch.stack([score_late(one[:1], one[1:])[0] for one in vectors])

    def condense(self, logits: Tensor) -> Tensor:
        """(B, N, 0): vectors of all tokens are not kept for final scores."""
        return logits[..., :0, 0]

    def score_answers(self, answers: Tensor, targets: Tensor, examples: Sequence[RetrievalExample]) -> Scores:
        return {}

    def describe(self) -> dict[str, Any]:
        return {OWN_KEY: {RETRIEVAL_PART: self.settings.describe()}}


def score_late(queries: Tensor, documents: Tensor) -> Tensor:
    """(Q, N) sums over the tokens of queries (Q, L, C + 1) of their best matches in documents (N, L, C + 1).

    Query by query, so that of all products only the places of the largest are kept.
    """
    is_counted = documents[..., -1] > 0
    tokens, is_left_out = documents[..., :-1], ~is_counted[..., None]
    rows = []
    for query in queries:
        own = query[query[:, -1] > 0][:, :-1]
        if not len(own):  # there is no example in this place
            rows.append(documents.new_zeros(len(documents)))
            continue
        products = (tokens @ own.T).masked_fill(is_left_out, float("-inf"))
        best = products.max(dim=1).values
        rows.append(best.masked_fill(~is_counted.any(1)[:, None], 0.0).sum(-1))
    return torch.stack(rows)


def fill_query(ids: Sequence[int], settings: RetrievalSettings, tokenizer: Tokenizer) -> list[int]:
    """All tokens of a query with these: cut to the length of queries, and filled up with mask tokens behind its end."""
    length = settings.query_length
    if not length:
        return [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]
    whole = [tokenizer.cls_token_id, *ids[: length - NUM_SPECIALS], tokenizer.sep_token_id]
    return whole + [tokenizer.mask_token_id] * (length - len(whole))


def featurize_late(
    examples: Sequence[RetrievalExample], tokenizer: Tokenizer, max_length: int, settings: RetrievalSettings
) -> GroupFeatures:
    """As those of dense retrieval, with queries that are cut and filled up."""
    length = settings.query_length or 0
    if length > max_length:
        raise InputError(f"--query-length is {length}, texts have at most {max_length} tokens; lower it")
    if 0 < length <= NUM_SPECIALS:
        raise InputError(f"--query-length is {length}, which leaves a query no token of its own; raise it, or give 0")

    prompts = settings.query_prompt, settings.document_prompt
    found = featurize_groups(examples, tokenizer, max_length, not settings.learns_scores, prompts)
    store = found.store
    texts = [store.ids[start:stop].tolist() for start, stop in pairwise(store.offsets)]
    num_cut = sum(len(ids) + NUM_SPECIALS > length for ids in texts[:: found.group_size]) if length else 0
    queries = [fill_query(ids, settings, tokenizer) for ids in texts[:: found.group_size]]
    # A batch puts special tokens around every text; the last of a query is replaced there.
    texts[:: found.group_size] = [ids[1:-1] for ids in queries]
    values = {one.name: getattr(found, one.name) for one in fields(found)}
    if num_cut:
        values["notes"] = (f"{num_cut:,} queries have more than {length} tokens and lose their end",)
    values["store"] = TokenStore.from_documents(texts, tokenizer.vocab_size)
    return LateFeatures(**values, query_ends=np.asarray([ids[-1] for ids in queries]))


@dataclass(frozen=True)
class LateFeatures(GroupFeatures):
    query_ends: NDArray[np.int64] = field(kw_only=True)
    """The last token of each query, a mask token where it was filled up."""


class LateLoader(GroupLoader):
    """With the ends that queries of late interaction have."""

    def build_batch(self, examples: NDArray[np.int64]) -> TaskBatch:
        batch = super().build_batch(examples)
        if not isinstance(self.features, LateFeatures):
            return batch
        document_ids = batch.document_ids
        is_query = ((document_ids - 1) % self.features.group_size == 0) & ~batch.is_padding
        is_last = document_ids != F.pad(document_ids[:, 1:], (0, 1))
        ends = torch.from_numpy(self.features.query_ends)[batch.sample_ids]
        return batch.with_input_ids(torch.where(is_query & is_last, ends, batch.input_ids))


def build_late_head(encoder: nn.Module, config: Mapping[str, Any]) -> LateHead:
    """The head for a config.json of the task."""
    if not isinstance(encoder, PackedEncoder):
        raise InputError(
            f"--kind colbert needs an encoder of ours, such as BERT and ModernBERT; a {type(encoder).__name__} is read"
            " through transformers: choose another model, or --kind dense"
        )
    settings = load_settings(config)
    assert settings.width is not None
    max_length = min(settings.max_length or encoder.max_length, encoder.max_length)
    described = describe_late(
        encoder.hidden_size,
        settings.width,
        max_length,
        settings.query_length or None,
        string.punctuation,
        settings.prompts,
    )
    files = HeadFiles(encoder.family.architectures[0], {}, {}, described, _WEIGHTS_FILE)
    return LateHead(encoder, settings.width, files)
