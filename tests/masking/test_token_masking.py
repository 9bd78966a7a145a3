"""Masking: which tokens are chosen, what becomes of them, and what they depend on."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.batch import IGNORED_LABEL, PackedBatch, from_padded
from maskwright.errors import InputError
from maskwright.masking.tokens import TokenMasker, compute_num_slots

VOCAB_SIZE, MASK, SPECIALS = 100, 4, (0, 1, 2, 3, 4, 57)


def build_masker(**options) -> TokenMasker:
    return TokenMasker(VOCAB_SIZE, MASK, SPECIALS, **options)


def make_batch(num_rows: int, length: int, seed: int = 0) -> PackedBatch:
    """Rows of ordinary and special tokens, each a sample with some padding behind it."""
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(0, VOCAB_SIZE, (num_rows, length), generator=generator)
    num_real = torch.randint(1, length + 1, (num_rows, 1), generator=generator)
    is_real = torch.arange(length) < num_real
    return from_padded(input_ids * is_real, is_real.long(), sample_ids=torch.arange(num_rows) + 1000 * seed)


def is_special(ids: torch.Tensor) -> torch.Tensor:
    return torch.isin(ids, torch.tensor(SPECIALS))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 8),
    length=st.integers(1, 40),
    data_seed=st.integers(0, 1000),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 10**6),
    ratio=st.floats(0.01, 1.0),
    selection=st.sampled_from(["exact", "bernoulli"]),
    random_ratio=st.floats(0, 0.5),
    unchanged_ratio=st.floats(0, 0.5),
)
def test_only_ordinary_real_tokens_change_and_labels_remember_them(
    rows, length, data_seed, seed, epoch, ratio, selection, random_ratio, unchanged_ratio
):
    batch = make_batch(rows, length, data_seed)
    masker = build_masker(selection=selection, random_token_ratio=random_ratio, unchanged_ratio=unchanged_ratio)
    corrupted = masker.corrupt(batch, ratio, seed, epoch)
    selected, ids = corrupted.selected, corrupted.batch.input_ids
    assert not (selected & (is_special(batch.input_ids) | batch.is_padding)).any()
    assert torch.equal(corrupted.labels[selected], batch.input_ids[selected])
    assert (corrupted.labels[~selected] == IGNORED_LABEL).all()
    assert torch.equal(ids[~selected], batch.input_ids[~selected])
    drawn = selected & (ids != MASK)
    assert not is_special(ids[drawn]).any()
    assert int(selected.sum()) <= corrupted.num_slots


@pytest.mark.parametrize("selection", ["exact", "bernoulli"])
@pytest.mark.parametrize("ratio", [0.15, 0.4])
def test_rates_are_those_asked_for(selection, ratio):
    batch = from_padded(torch.randint(5, 57, (400, 100), generator=torch.Generator().manual_seed(1)))
    corrupted = build_masker(selection=selection).corrupt(batch, ratio, seed=3, epoch=0)
    selected, ids = corrupted.selected, corrupted.batch.input_ids
    num_chosen = int(selected.sum())
    assert num_chosen / 40_000 == pytest.approx(ratio, abs=5 * math.sqrt(ratio * (1 - ratio) / 40_000))

    def share(flags: torch.Tensor) -> float:
        return float(flags[selected].float().mean())

    sigma = math.sqrt(0.8 * 0.2 / num_chosen)
    assert share(ids == MASK) == pytest.approx(0.8, abs=5 * sigma)
    # One in 52 random draws gives the original back.
    assert share(ids == batch.input_ids) == pytest.approx(0.1 + 0.1 / 94, abs=5 * sigma)


def test_random_replacements_cover_all_ordinary_tokens_evenly():
    batch = from_padded(torch.randint(5, 57, (600, 100), generator=torch.Generator().manual_seed(2)))
    masker = build_masker(random_token_ratio=1.0, unchanged_ratio=0.0)
    corrupted = masker.corrupt(batch, 1.0, seed=0, epoch=0)
    counts = torch.bincount(corrupted.batch.input_ids.flatten(), minlength=VOCAB_SIZE).double()
    ordinary = ~is_special(torch.arange(VOCAB_SIZE))
    expected = 60_000 / int(ordinary.sum())
    assert (counts[~ordinary] == 0).all()
    assert ((counts[ordinary] - expected).abs() < 6 * math.sqrt(expected)).all()


@pytest.mark.parametrize("length", [1, 2, 7, 20, 63])
def test_exact_selection_takes_the_ratio_of_each_sample_rounded_either_way(length):
    batch = from_padded(torch.full((2000, length), 9), sample_ids=torch.arange(2000))
    chosen = build_masker().corrupt(batch, 0.15, seed=0, epoch=0).selected.sum(dim=1)
    exact = 0.15 * length
    assert set(chosen.tolist()) <= {math.floor(exact), math.ceil(exact)}
    assert chosen.float().mean().item() == pytest.approx(exact, abs=0.06)


def test_every_place_is_chosen_equally_often():
    batch = from_padded(torch.full((4000, 20), 9), sample_ids=torch.arange(4000))
    by_place = build_masker().corrupt(batch, 0.25, seed=0, epoch=0).selected.float().mean(dim=0)
    assert (by_place - 0.25).abs().max() < 0.035


@pytest.mark.parametrize("selection", ["exact", "bernoulli"])
def test_a_mask_depends_on_the_sample_alone_not_on_its_batch(selection):
    masker = build_masker(selection=selection)
    batch = make_batch(16, 24)
    whole = masker.corrupt(batch, 0.3, seed=5, epoch=2)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    shuffled = masker.corrupt(PackedBatch(*(field[order] for field in layout(batch))), 0.3, seed=5, epoch=2)
    assert torch.equal(shuffled.labels, whole.labels[order])
    assert torch.equal(shuffled.batch.input_ids, whole.batch.input_ids[order])
    for row in range(16):
        alone = masker.corrupt(batch.rows(row, row + 1), 0.3, seed=5, epoch=2)
        assert torch.equal(alone.labels[0], whole.labels[row])
        assert torch.equal(alone.batch.input_ids[0], whole.batch.input_ids[row])


@pytest.mark.parametrize("selection", ["exact", "bernoulli"])
def test_a_mask_is_the_same_packed_and_padded(selection):
    masker = build_masker(selection=selection)
    padded = from_padded(torch.randint(5, 57, (3, 10)), sample_ids=torch.tensor([7, 8, 9]))
    row = [field.reshape(1, -1) for field in layout(padded)]
    row[1] = torch.tensor([1, 2, 3]).repeat_interleave(10)[None]
    packed = masker.corrupt(PackedBatch(*row), 0.3, seed=5, epoch=2)
    apart = masker.corrupt(padded, 0.3, seed=5, epoch=2)
    assert torch.equal(packed.labels.view(3, 10), apart.labels)
    assert torch.equal(packed.batch.input_ids.view(3, 10), apart.batch.input_ids)


def test_another_epoch_or_seed_gives_another_mask_and_the_same_gives_the_same():
    masker, batch = build_masker(), make_batch(32, 64)
    first = masker.corrupt(batch, 0.15, seed=1, epoch=0).labels
    assert torch.equal(first, masker.corrupt(batch, 0.15, seed=1, epoch=0).labels)
    assert torch.equal(first, build_masker().corrupt(batch, 0.15, seed=1, epoch=0).labels)
    for seed, epoch in ((1, 1), (2, 0)):
        other = masker.corrupt(batch, 0.15, seed=seed, epoch=epoch).labels
        chosen_in_both = ((first != IGNORED_LABEL) & (other != IGNORED_LABEL)).sum()
        assert chosen_in_both < 0.5 * (first != IGNORED_LABEL).sum()


def test_nothing_to_mask_chooses_nothing():
    batch = from_padded(torch.tensor([[2, 3, 0, 0], [2, 57, 3, 0]]), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]]))
    corrupted = build_masker().corrupt(batch, 1.0, seed=0, epoch=0)
    assert not corrupted.selected.any()
    assert torch.equal(corrupted.batch.input_ids, batch.input_ids)


def test_ratio_one_takes_every_ordinary_token():
    batch = make_batch(6, 30)
    corrupted = build_masker(random_token_ratio=0.0, unchanged_ratio=0.0).corrupt(batch, 1.0, seed=0, epoch=0)
    ordinary = ~(is_special(batch.input_ids) | batch.is_padding)
    assert torch.equal(corrupted.selected, ordinary)
    assert (corrupted.batch.input_ids[ordinary] == MASK).all()


def test_known_masks_never_change():
    """Frozen: a run must be repeatable by later versions."""
    batch = from_padded(torch.arange(5, 37)[None], sample_ids=torch.tensor([12345]))
    corrupted = build_masker().corrupt(batch, 0.25, seed=42, epoch=3)
    assert corrupted.selected[0].nonzero().flatten().tolist() == KNOWN_PLACES
    assert corrupted.batch.input_ids[corrupted.selected].tolist() == KNOWN_IDS


KNOWN_PLACES = [4, 5, 11, 15, 24, 26, 28, 30]
KNOWN_IDS = [4, 10, 4, 4, 4, 4, 4, 4]


def test_a_vocabulary_of_nothing_but_specials_is_refused():
    with pytest.raises(InputError, match="all 3 ids"):
        TokenMasker(3, 2, (0, 1, 2))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5000), st.floats(0.01, 1.0))
def test_slots_never_exceed_the_tokens_and_hold_the_expected_number(num_tokens, ratio):
    assert min(num_tokens, num_tokens * ratio) <= compute_num_slots(num_tokens, ratio) <= num_tokens


@pytest.mark.gpu
def test_masks_are_the_same_on_cpu_and_gpu():
    batch = make_batch(64, 128)
    for selection in ("exact", "bernoulli"):
        on_cpu = build_masker(selection=selection).corrupt(batch, 0.2, seed=9, epoch=1)
        on_gpu = build_masker(selection=selection).corrupt(batch.to("cuda"), 0.2, seed=9, epoch=1)
        assert torch.equal(on_gpu.labels.cpu(), on_cpu.labels)
        assert torch.equal(on_gpu.batch.input_ids.cpu(), on_cpu.batch.input_ids)


def layout(batch: PackedBatch) -> list[torch.Tensor]:
    return [batch.input_ids, batch.document_ids, batch.positions, batch.sample_ids]
