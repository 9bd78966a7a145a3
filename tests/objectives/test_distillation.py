"""Students: their losses equal plain formulas, packed and padded, and they begin as layers of the teacher."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from maskwright.batch import IGNORED_LABEL, PackedBatch, from_padded
from maskwright.data.loader import PackedLoader
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.masking.tokens import CorruptedBatch
from maskwright.models.bert import BERT
from maskwright.models.encoder import PackedEncoder
from maskwright.models.modernbert import ModernBERT
from maskwright.models.mpnet import MPNet
from maskwright.models.neobert import NeoBERT
from maskwright.objectives.distillation import (
    RelationStateStudent,
    RelationStudent,
    SoftLabelStudent,
    Student,
    copy_layers,
    spread_layers,
)
from maskwright.objectives.masked_lm import MaskedLanguageModel

V, ROW = 60, 32
PAD, CLS, SEP, MASK = 0, 2, 3, 4
FAMILIES = {"bert": BERT, "modernbert": ModernBERT, "mpnet": MPNet, "neobert": NeoBERT}
T = 2.0


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def build_encoder(family: str = "bert", layers: int = 2, width: int = 16, heads: int = 2) -> PackedEncoder:
    shape: dict[str, Any] = {
        "vocab_size": V,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": ROW + 2,
        "initializer_range": 0.3,
    }
    if family in ("bert", "mpnet"):
        shape |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return FAMILIES[family].from_variant("tiny", **shape)


SETTINGS: dict[str, Any] = {"mask_token_id": MASK, "special_token_ids": range(5), "mlm_head_dropout": 0.0}


def build_teacher(family: str = "bert", layers: int = 4, width: int = 16) -> MaskedLanguageModel:
    return MaskedLanguageModel(build_encoder(family, layers, width), V, **SETTINGS)


def build_student(kind: type[Student], family: str = "bert", width: int = 16, **settings: Any) -> Student:
    teacher = settings.pop("teacher", None) or build_teacher(family)
    return kind(build_encoder(family, 2, width), V, teacher=teacher, **SETTINGS, **settings)


def pack(num_documents: int = 12) -> PackedBatch:
    random = np.random.default_rng(0)
    documents = [random.integers(5, V, int(random.integers(3, 9))).tolist() for _ in range(num_documents)]
    store = TokenStore.from_documents(documents, V)
    ids = {"cls_token_id": CLS, "sep_token_id": SEP, "pad_token_id": PAD}
    return next(iter(PackedLoader(store, row_length=ROW, rows_per_batch=8, shuffle=False, **ids).epoch(0)))


def corrupt(student: Student, batch: PackedBatch) -> CorruptedBatch:
    return student.corrupt(batch, seed=3, epoch=0, ratio=0.4)


def list_documents(batch: PackedBatch) -> list[tuple[int, slice]]:
    found = []
    for row, numbers in enumerate(batch.document_ids.tolist()):
        for number in sorted(set(numbers) - {0}):
            found.append((row, slice(numbers.index(number), numbers.index(number) + numbers.count(number))))
    return found


def unpack(corrupted: CorruptedBatch) -> tuple[PackedBatch, Tensor]:
    """The same masked documents, one to a padded row, with their labels."""
    places = list_documents(corrupted.batch)
    ids = torch.full((len(places), ROW), PAD)
    labels = torch.full((len(places), ROW), IGNORED_LABEL)
    for index, (row, place) in enumerate(places):
        length = place.stop - place.start
        ids[index, :length] = corrupted.batch.input_ids[row, place]
        labels[index, :length] = corrupted.labels[row, place]
    return from_padded(ids, (ids != PAD).long()), labels


def test_soft_labels_and_hidden_states_equal_the_formulas() -> None:
    student = build_student(SoftLabelStudent, temperature=T).double().train()
    corrupted = corrupt(student, pack())
    sums = student.loss_sums(corrupted)
    losses = sums.losses.tolist()
    divergence, distance, num_masked, num_tokens = 0.0, 0.0, 0, 0
    for row, place in list_documents(corrupted.batch):
        ids = corrupted.batch.input_ids[row, place][None]
        states = [model.encoder(ids).last_hidden_state[0] for model in (student, student.teacher)]
        dot, norms = (states[0] * states[1]).sum(-1), [state.norm(dim=-1) for state in states]
        distance += float((1 - dot / (norms[0] * norms[1])).detach().sum())
        num_tokens += ids.numel()
        is_masked = corrupted.labels[row, place] != IGNORED_LABEL
        own, taught = ((model(ids).logits[0, is_masked] / T).softmax(-1) for model in (student, student.teacher))
        divergence += float((taught * (taught.log() - own.log())).detach().sum()) * T**2
        num_masked += int(is_masked.sum())
    assert num_masked > 10
    assert sums.counts.tolist() == corrupted.counts.tolist() == [num_masked, num_masked, num_tokens]
    # The sums are taken in fp32, whose rounding error grows with their size
    assert losses[1] == pytest.approx(divergence, rel=V * torch.finfo(torch.float32).eps)
    assert losses[2] == pytest.approx(distance, rel=ROW * torch.finfo(torch.float32).eps)
    metrics = student.compute_metrics(torch.cat([sums.losses, sums.counts, sums.figures]).tolist())
    parts = (metrics["mlm_loss"], metrics["soft_label_loss"], metrics["hidden_loss"])
    assert metrics["loss"] == pytest.approx(2 * parts[0] + 5 * parts[1] + parts[2])


@pytest.mark.parametrize(("family", "width"), [("bert", 16), ("bert", 8), ("mpnet", 16)])
def test_relations_equal_the_formulas(family: str, width: int) -> None:
    student = build_student(RelationStudent, family, width).double().train()
    corrupted = corrupt(student, pack())
    sums = student.loss_sums(corrupted)
    expected, num_tokens = [0.0, 0.0], 0
    for row, place in list_documents(corrupted.batch):
        ids = corrupted.batch.input_ids[row, place][None]
        projected = []
        for encoder in (student.teacher.encoder, student.encoder):
            layer = encoder.layers[-1]
            caught: list[Tensor] = []
            hook = layer.attention.qkv.register_forward_hook(lambda *call, into=caught: into.append(call[2]))
            encoder(ids)
            hook.remove()
            projected.append(caught[0][0].unflatten(-1, (3, 2, -1)).permute(1, 2, 0, 3))  # 3, heads, tokens, size
        for part, (left, right) in enumerate(((0, 1), (2, 2))):
            taught, own = ((one[left] @ one[right].mT / one.shape[-1] ** 0.5).softmax(-1) for one in projected)
            expected[part] += float((taught * (taught.log() - own.log())).detach().sum()) / 2
        num_tokens += ids.numel()
    assert sums.counts.tolist() == [int(corrupted.selected.sum()), num_tokens, num_tokens]
    eps = torch.finfo(torch.float32).eps
    assert sums.losses[1:].tolist() == pytest.approx(expected, rel=ROW * eps, abs=num_tokens * eps)
    assert min(expected) > 0.01


def test_hidden_states_are_a_part_beside_relations() -> None:
    teacher = build_teacher()
    student = build_student(RelationStateStudent, teacher=teacher)
    relations = RelationStudent(student.encoder, V, teacher=teacher, **SETTINGS)
    states = SoftLabelStudent(student.encoder, V, teacher=teacher, **SETTINGS)
    for other in (relations, states):
        other.load_state_dict(student.state_dict())
    sums, expected, alike = (one.loss_sums(corrupt(one, pack())) for one in (student, relations, states))
    assert torch.equal(sums.losses, torch.cat([expected.losses, alike.losses[2:]]))
    assert torch.equal(sums.counts, torch.cat([expected.counts, alike.counts[2:]]))
    metrics = student.compute_metrics(torch.cat([sums.losses, sums.counts, sums.figures]).tolist())
    assert metrics["hidden_loss"] == pytest.approx(float((alike.losses[2] / alike.counts[2]).detach()))
    with pytest.raises(InputError, match=r"16 wide, the teacher 8.*without distillation\.hidden_weight"):
        build_student(RelationStateStudent, teacher=build_teacher(width=8))


@pytest.mark.parametrize("kind", [SoftLabelStudent, RelationStudent])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_equals_padded(kind: type[Student], family: str) -> None:
    student = build_student(kind, family).train()
    corrupted = corrupt(student, pack())
    batch, labels = unpack(corrupted)
    padded = replace(corrupted, batch=batch, labels=labels, num_slots=labels.numel())
    packed_sums, padded_sums = student.loss_sums(corrupted), student.loss_sums(padded)
    assert packed_sums.counts.tolist() == padded_sums.counts.tolist()
    num_added = 10 * ROW  # of products in two layers, of losses over the tokens
    torch.testing.assert_close(
        packed_sums.losses, padded_sums.losses, rtol=num_added * torch.finfo(torch.float32).eps, atol=0.0
    )


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        pytest.param(family, kind, marks=[] if (place + number) % 4 == 0 else [pytest.mark.slow])
        for place, family in enumerate(FAMILIES)
        for number, kind in enumerate((SoftLabelStudent, RelationStudent))
    ],
)
def test_the_student_learns_and_the_teacher_does_not_change(kind: type[Student], family: str) -> None:
    student = build_student(kind, family)
    before = {name: tensor.clone() for name, tensor in student.teacher.state_dict().items()}
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    corrupted = corrupt(student, pack())
    losses = []
    for _ in range(30):
        sums = student.loss_sums(corrupted)
        means = sums.losses / sums.counts
        optimizer.zero_grad()
        means[1:].sum().backward()
        optimizer.step()
        losses.append(means.detach())
    assert all(losses[-1][1:] < 0.7 * losses[0][1:])
    assert not any(name.startswith("teacher") for name in student.state_dict())
    assert not student.train().teacher.training
    for name, tensor in student.teacher.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_teacher_moves_with_the_student() -> None:
    student = build_student(SoftLabelStudent).to(torch.float64)
    assert {one.dtype for one in student.teacher.parameters()} == {torch.float64}


def test_layers_are_spread_from_the_first_to_the_last() -> None:
    assert spread_layers(6, 12) == [0, 2, 4, 7, 9, 11]
    assert spread_layers(3, 12) == [0, 6, 11]  # 5.5 is rounded to even
    assert spread_layers(1, 4) == [0]
    assert spread_layers(4, 6) == [0, 2, 3, 5]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_student_begins_as_the_layers_that_are_named(family: str) -> None:
    teacher = build_teacher(family)
    student = build_student(SoftLabelStudent, family, teacher=teacher)
    copy_layers(student, teacher, [1, 3])
    own, theirs = student.state_dict(), teacher.state_dict()
    for name, tensor in own.items():
        source = (
            name.replace("layers.1.", "layers.3.") if "layers.1." in name else name.replace("layers.0.", "layers.1.")
        )
        assert torch.equal(tensor, theirs[source]), name


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"16 wide, the teacher 8.*minilm"):
        build_student(SoftLabelStudent, teacher=build_teacher(width=8))
    with pytest.raises(InputError, match="student is 16 wide, which 3 relation heads do not divide"):
        build_student(RelationStudent, relation_heads=3)
    with pytest.raises(InputError, match="vocab_size is 60, the teacher's 70"):
        build_student(SoftLabelStudent, teacher=MaskedLanguageModel(_wider_vocabulary(), 70, **SETTINGS))
    with pytest.raises(InputError, match="temperature is 0"):
        build_student(SoftLabelStudent, temperature=0.0)


def _wider_vocabulary() -> PackedEncoder:
    return BERT.from_variant("tiny", vocab_size=70, hidden_size=16, num_hidden_layers=3, num_attention_heads=2)
