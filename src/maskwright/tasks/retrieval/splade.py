"""Sparse vectors over the vocabulary: how much each token stands for a text, by the masked-language-model head.

SPLADE (Formal et al. 2021, v2 with the maximum over tokens): log(1 + relu(x)) of the largest logit that a token has
anywhere in a text. A regulariser, the estimated number of products of a search (FLOPS, Paria et al. 2020), makes most
of them zero. B rows, S row length, N documents of a row, R examples, G texts of an example, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.models.any_encoder import encode, find_input_embedding
from maskwright.models.encoder import PackedEncoder
from maskwright.models.files.model_folder import OWN_KEY, OWN_TYPE_PREFIX
from maskwright.models.files.sentence_modules import describe_splade
from maskwright.models.layers import LayerNorm, build_activation, init_weights
from maskwright.models.products import RowLinear
from maskwright.objectives.loss import LossSums
from maskwright.tasks.heads import RETRIEVAL_PART, HeadFiles, TaskHead
from maskwright.tasks.retrieval.dense import DenseRetrieval
from maskwright.tasks.retrieval.examples import RetrievalExample
from maskwright.tasks.retrieval.settings import RetrievalSettings, load_settings
from maskwright.tasks.similarity.contrastive import Groups, gather_groups
from maskwright.tasks.task import Scores

_WARMUP_SHARE = 1 / 3
"""Of the training, in which the regulariser's weights grow; as in sentence-transformers."""
_FITTED_TOKENS = 8_192
"""Of texts that a new head is prepared by."""
_FIRST_TOKENS, _LARGEST_SHARE = 256, 8
"""With a weight in a text, on average, where training begins; and the share of the vocabulary that is too much."""
_FIRST_LOGIT = 4.0
"""The largest of a text, on average, in a head that was fitted."""
_OFFSET, _RIDGE = 3.0, 3e-4
"""In deviations of what is fitted; and as a share of the mean square of hidden states."""
_CPU_TOKENS, _GPU_TOKENS = 512, 8_192
"""Of which logits are held at a time."""
_GRADIENTS = 65_536
"""Of logits, on a CPU at a time."""


class SpladeHead(TaskHead):
    """Weights (B, N, V) of the tokens of the vocabulary for whole documents, by the family's head for masked tokens."""

    output = None
    is_recordable = False

    def __init__(self, encoder: PackedEncoder, activation: str, is_tied: bool, files: HeadFiles) -> None:
        super().__init__()
        self.files = files
        self.family = encoder.family
        self.is_tied = is_tied
        width, head_size = encoder.hidden_size, encoder.embedding_size
        has_transform = encoder.has_mlm_transform
        self.mlm_dense: Any = nn.Identity()
        self.mlm_activation: nn.Module = nn.Identity()
        self.mlm_norm: Any = nn.Identity()
        if has_transform:
            self.mlm_dense = RowLinear(width, head_size, bias=encoder.mlm_head_bias)
            self.mlm_activation = build_activation(activation)
            self.mlm_norm = LayerNorm(head_size, eps=encoder.norm_eps, bias=encoder.mlm_norm_bias)
        self.mlm_output = RowLinear(head_size, encoder.vocab_size)
        init_weights(self, encoder.config.initializer_range)
        # What `prepare` makes where there is no head needs a place for an offset.
        self.needs_pretrained = not (has_transform and encoder.mlm_head_bias)
        embedding = find_input_embedding(encoder)
        if is_tied and embedding is not None:
            self.mlm_output.weight = embedding.weight

    def name_weights(self) -> dict[str, str]:
        modules = self.family.head_modules
        names = {
            f"{ours}.{name}": f"{theirs}.{name}"
            for ours, theirs in modules.items()
            for name, _ in self.get_submodule(ours).named_parameters()
        }
        if self.is_tied:
            del names["mlm_output.weight"]
            names["mlm_output.bias"] = self.family.output_bias
        return names

    def list_adopted(self) -> set[str]:
        return set(self.name_weights())

    @torch.no_grad()
    def prepare(self, encoder: nn.Module, batches: Iterable[PackedBatch]) -> str | None:
        """Begin with few tokens a text: with a head that was fitted, or with a bias that is lower than the given one.

        A softmax does not see a bias that all tokens share, so pre-training leaves it anywhere, but it decides
        which weights are above zero.
        """
        first = _read_first(encoder, batches)
        if not self.has_adopted:
            self._fit(encoder, first)
        maxima = self._find_maxima(self._transform(first.hidden), first.bounds)
        num_tokens, most = float((maxima > 0).sum(1).double().mean()), maxima.shape[1] // _LARGEST_SHARE
        wanted = min(_FIRST_TOKENS, most)
        cut = maxima.flatten().kthvalue(maxima.numel() - wanted * len(maxima)).values
        if not self.has_adopted:
            scale = _FIRST_LOGIT / (maxima.amax(1).mean() - cut)
            self.mlm_norm.weight.mul_(scale)
            self.mlm_output.bias.sub_(cut * scale)
            return (
                "the model has no masked-language-model head: each token begins as itself and those of like embeddings,"
                f" {wanted} of a text"
            )
        if num_tokens <= most:
            return None
        self.mlm_output.bias.sub_(cut)
        return (
            f"the head gives {num_tokens:,.0f} tokens of a text a weight: all are lowered by {float(cut):.1f}, which"
            f" leaves {wanted}"
        )

    def _fit(self, encoder: nn.Module, first: _FirstTexts) -> None:
        """Least squares from hidden states to the embeddings of their tokens; an offset, which the norm takes away
        again, keeps them where the activation is nearly linear.
        """
        embedding = find_input_embedding(encoder)
        assert embedding is not None
        scale = embedding.weight.double().square().mean().sqrt()
        hidden = F.pad(first.hidden.double(), (0, 1), value=1.0)
        targets = embedding.weight[first.ids].double() / scale
        products = hidden.T @ hidden
        products += _RIDGE * products.diagonal().mean() * torch.eye(len(products), dtype=torch.float64)
        fitted = torch.linalg.solve(products, hidden.T @ targets)
        self.mlm_dense.weight.copy_(fitted[:-1].T)
        self.mlm_dense.bias.copy_(fitted[-1] + _OFFSET)
        self.mlm_output.weight.copy_(embedding.weight)  # the same one, where they are tied
        self.mlm_output.bias.zero_()

    def _transform(self, hidden: Tensor) -> Tensor:
        features: Tensor = self.mlm_norm(self.mlm_activation(self.mlm_dense(hidden)))
        return features

    def forward(self, hidden: Tensor, batch: PackedBatch, num_documents: int) -> Tensor:
        features = self._transform(hidden)
        if torch.compiler.is_compiling():  # an export must not look at the values of a batch
            logits = self.mlm_output(features).masked_fill(batch.is_padding[..., None], 0.0)
            return torch.log1p(F.relu(logits.amax(1, keepdim=True)))
        features = features.flatten(0, 1)
        is_first = ((batch.positions == 0) & ~batch.is_padding).flatten()
        starts = is_first.nonzero()[:, 0]
        document_ids = batch.document_ids.flatten()
        places = starts // hidden.shape[1] * num_documents + document_ids[starts] - 1
        maxima = self._find_maxima(features, _list_bounds(starts, batch))
        weights = torch.log1p(F.relu(maxima.to(torch.promote_types(maxima.dtype, torch.float32))))
        pooled = weights.new_zeros(hidden.shape[0] * num_documents, weights.shape[-1])
        return pooled.index_copy(0, places, weights).unflatten(0, (-1, num_documents))

    def _find_maxima(self, features: Tensor, bounds: Sequence[tuple[int, int]]) -> Tensor:
        """(documents, V) the largest logit of each token of the vocabulary."""
        parts = _cut_parts(bounds, _CPU_TOKENS if features.device.type == "cpu" else _GPU_TOKENS)
        if not torch.is_grad_enabled():
            found = []
            for part in parts:
                logits = self.mlm_output(features[part[0][0] : part[-1][1]])
                found += [logits[start - part[0][0] : stop - part[0][0]].amax(0) for start, stop in part]
            return torch.stack(found)
        kind = features.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features.dtype
        output = self.mlm_output
        maxima: Tensor = _MaximaOfDocuments.apply(  # type: ignore[no-untyped-call]
            features.to(dtype), output.weight.to(dtype), output.bias.to(dtype), parts
        )
        return maxima


Bounds = list[tuple[int, int]]


@dataclass(frozen=True)
class _FirstTexts:
    """Some texts of training."""

    hidden: Tensor
    """(T, D)"""
    ids: Tensor
    """(T,)"""
    bounds: Bounds


def _read_first(encoder: nn.Module, batches: Iterable[PackedBatch]) -> _FirstTexts:
    was_training = encoder.training
    encoder.eval()
    hidden, ids, lengths, num_tokens = [], [], [], 0
    for batch in batches:
        is_token = ~batch.is_padding
        hidden.append(encode(encoder, batch)[is_token].float())
        ids.append(batch.input_ids[is_token])
        starts = (batch.positions[is_token] == 0).nonzero()[:, 0]
        lengths.append(torch.diff(starts, append=torch.tensor([len(ids[-1])])))
        num_tokens += len(ids[-1])
        if num_tokens >= _FITTED_TOKENS:
            break
    encoder.train(was_training)
    ends = torch.cat(lengths).cumsum(0).tolist()
    return _FirstTexts(torch.cat(hidden), torch.cat(ids), list(pairwise([0, *ends])))


def _list_bounds(starts: Tensor, batch: PackedBatch) -> Bounds:
    """The first token of each document, and that behind its last."""
    lengths = torch.zeros_like(starts)
    is_token = ~batch.is_padding.flatten()
    numbers = torch.bucketize(is_token.nonzero()[:, 0], starts, right=True) - 1
    lengths.index_add_(0, numbers, torch.ones_like(numbers))
    return list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))


def _cut_parts(bounds: Sequence[tuple[int, int]], most_tokens: int) -> list[Bounds]:
    """Documents that follow each other, as many as fit."""
    parts: list[Bounds] = []
    for start, stop in bounds:
        if not parts or stop - parts[-1][0][0] > most_tokens:
            parts.append([])
        parts[-1].append((start, stop))
    return parts


class _MaximaOfDocuments(torch.autograd.Function):
    """The largest of the logits `features @ weight.T + bias` over the tokens of each document, without all logits in
    memory: only the places of the largest are kept, to which the gradients go.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, parts: list[Bounds]) -> Tensor:
        found: list[tuple[Tensor, Tensor]] = []
        for part in parts:
            first = part[0][0]
            logits = F.linear(features[first : part[-1][1]], weight, bias)
            found += [tuple(logits[start - first : stop - first].max(0)) for start, stop in part]  # type: ignore[misc]
        ctx.parts = parts
        ctx.save_for_backward(features, weight, torch.stack([places.to(torch.int32) for _, places in found]))
        return torch.stack([maxima for maxima, _ in found])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        features, weight, places = ctx.saved_tensors
        spread = _spread_few if features.device.type == "cpu" else _spread_all
        features_grad, weight_grad = spread(gradient, features, weight, places, ctx.parts)
        return features_grad.to(features.dtype), weight_grad.to(weight.dtype), gradient.sum(0), None


Gradients = tuple[Tensor, Tensor]
"""Of features (T, D) and weights (V, D)."""


def _spread_all(gradient: Tensor, features: Tensor, weight: Tensor, places: Tensor, parts: list[Bounds]) -> Gradients:
    """By products with the gradients of all logits, most of which are zero."""
    features_grad = torch.zeros_like(features)
    weight_grad = weight.new_zeros(weight.shape, dtype=torch.promote_types(weight.dtype, torch.float32))
    number = 0
    for part in parts:
        first, last = part[0][0], part[-1][1]
        logits_grad = gradient.new_zeros(last - first, len(weight))
        for start, _ in part:
            logits_grad.scatter_(0, places[number][None].long() + (start - first), gradient[number][None])
            number += 1
        features_grad[first:last] = logits_grad @ weight
        weight_grad += logits_grad.T @ features[first:last]
    return features_grad, weight_grad


def _spread_few(gradient: Tensor, features: Tensor, weight: Tensor, places: Tensor, parts: list[Bounds]) -> Gradients:
    """One after another, of the logits that have one: those of tokens with a weight."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    features_grad, weight_grad = (torch.zeros(one.shape, dtype=dtype) for one in (features, weight))
    starts = torch.tensor([start for part in parts for start, _ in part])
    documents, tokens = gradient.nonzero(as_tuple=True)
    for chosen in torch.arange(len(tokens)).split(_GRADIENTS):
        document, token = documents[chosen], tokens[chosen]
        values = gradient[document, token].to(dtype)[:, None]
        rows = starts[document] + places[document, token]
        features_grad.index_add_(0, rows, values * weight[token])
        weight_grad.index_add_(0, token, values * features[rows])
    return features_grad, weight_grad


class SpladeRetrieval(DenseRetrieval):
    """As dense retrieval, with products of sparse vectors for cosines."""

    num_figures = 3
    """Queries whose document comes first; then the numbers of tokens with a weight, of queries and of documents."""

    def __init__(self, settings: RetrievalSettings) -> None:
        super().__init__("mean", settings, settings.max_length)
        self.progress = 0.0

    def follow(self, progress: float) -> None:
        self.progress = progress

    def arrange(self, logits: Tensor, batch: PackedBatch, targets: Tensor) -> Tensor:
        """(B, N, V), as they are: to repeat vectors of this size would cost more than their loss."""
        return logits

    def _list_examples(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        size = self._count_texts(targets)
        return logits.unflatten(1, (-1, size)).flatten(0, 1), targets[:, ::size].flatten(0, 1)

    def loss_sums(self, logits: Tensor, targets: Tensor) -> LossSums:
        vectors, targets = self._list_examples(logits, targets)
        is_asked = ~targets[:, 0].isnan()
        with torch.autocast(logits.device.type, enabled=False):
            losses, hits = self._compute_losses(vectors, targets, is_asked)
            loss = torch.where(is_asked, losses, 0.0).sum()
            if self.training:
                loss = loss + is_asked.sum() * self._regularise(vectors, targets, is_asked)
        with torch.no_grad():
            counts = (vectors > 0).sum(-1).double() * is_asked[:, None]
            figures = torch.stack([(hits & is_asked).sum().double(), counts[:, 0].sum(), counts[:, 1:].mean(1).sum()])
        return self._weigh(loss, is_asked.sum(), figures, vectors.shape[1])

    def _regularise(self, vectors: Tensor, targets: Tensor, is_asked: Tensor) -> Tensor:
        """The weighted FLOPS of the whole batch; weights grow with the square of progress, for a third of training."""
        growth = min(1.0, self.progress / _WARMUP_SHARE) ** 2
        whole, _ = gather_groups(Groups(vectors, targets[:, 1 : 1 + vectors.shape[1]], is_asked))
        asked = whole.vectors * whole.is_asked[:, None, None]
        num_examples = whole.is_asked.sum().clamp(min=1)
        queries, documents = asked[:, 0].sum(0) / num_examples, asked[:, 1:].mean(1).sum(0) / num_examples
        query_weight, document_weight = self.settings.query_flops or 0.0, self.settings.document_flops or 0.0
        return growth * (query_weight * queries.square().sum() + document_weight * documents.square().sum())

    def condense(self, logits: Tensor) -> Tensor:
        """(B, N, 0): vectors of this size are not kept for final scores."""
        return logits[..., :0]

    def compute_metrics(self, sums: Sequence[float]) -> Scores:
        loss_sum, count, num_hits, num_of_queries, num_of_documents = sums
        num_asked = count or math.nan
        return {
            **super().compute_metrics([loss_sum, count, num_hits]),
            "query_tokens": num_of_queries / num_asked,
            "document_tokens": num_of_documents / num_asked,
        }

    def score_answers(self, answers: Tensor, targets: Tensor, examples: Sequence[RetrievalExample]) -> Scores:
        return {}

    def describe(self) -> dict[str, Any]:
        return {OWN_KEY: {RETRIEVAL_PART: self.settings.describe()}}


def build_splade_head(encoder: nn.Module, config: Mapping[str, Any]) -> SpladeHead:
    """The head for masked tokens of the encoder's family, for a config.json of the task."""
    if not isinstance(encoder, PackedEncoder):
        raise InputError(
            f"--kind splade needs the masked-language-model head of an encoder of ours, such as BERT and ModernBERT; a"
            f" {type(encoder).__name__} is read through transformers: choose another model, or --kind dense"
        )
    if str(config.get("model_type")).startswith(OWN_TYPE_PREFIX):
        raise InputError(
            "--kind splade is for models that Hugging Face's layout can hold, and this one is saved as our own"
            f" {config.get('model_type')}; choose another model, or --kind dense"
        )
    family, settings = encoder.family, load_settings(config)
    activation_setting = family.head_activation_setting
    activation = str(config.get(activation_setting or "", encoder.head_activation))
    is_tied = config.get("tie_word_embeddings", family.ties_output) is not False
    described: dict[str, Any] = {"tie_word_embeddings": is_tied}
    if activation_setting is not None:
        described[activation_setting] = activation
    max_length = min(settings.max_length or encoder.max_length, encoder.max_length)
    files = HeadFiles(
        family.architectures[1], {}, described, describe_splade(encoder.vocab_size, max_length, settings.prompts)
    )
    return SpladeHead(encoder, activation, is_tied, files)
