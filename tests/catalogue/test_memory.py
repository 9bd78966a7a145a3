"""The memory of weights: the printed table, and counts of real folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from maskwright.catalogue.table import compute_memory, format_bytes, format_parameters, read_table
from maskwright.errors import InputError
from maskwright.models.bert import BERT
from maskwright.models.files.safetensors_file import write_safetensors
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.memory import measure_memory

TENSORS = {
    "bert.embeddings.word_embeddings.weight": torch.zeros(100, 8),
    "bert.embeddings.position_ids": torch.arange(16),
    "cls.predictions.bias": torch.zeros(100, dtype=torch.float16),
    "quantised": torch.zeros(50, dtype=torch.int8),
}
NUM_PARAMETERS = 800 + 100 + 50


def write_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    write_safetensors(folder / "model.safetensors", TENSORS)
    (folder / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("DistilBERT", ["66M", "264 MB", "132 MB", "66 MB"]),
        ("BERT-base", ["110M", "440 MB", "220 MB", "110 MB"]),
        ("BERT-large", ["340M", "1.4 GB", "680 MB", "340 MB"]),
        ("DeBERTa-v3-large", ["435M", "1.7 GB", "870 MB", "435 MB"]),
        ("XLM-R-XL", ["3.5B", "14 GB", "7 GB", "3.5 GB"]),
    ],
)
def test_the_table_of_memory_comes_out_as_it_is_printed(name: str, row: list[str]) -> None:
    memory = compute_memory(read_table().get(name))
    assert [format_parameters(memory.parameters), *map(format_bytes, memory.bytes_by_precision.values())] == row


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (12, "12 bytes"),
        (3_800, "4 kB"),
        (999_400, "999 kB"),
        (999_600, "1 MB"),
        (999_499_999, "999 MB"),
        (999_500_000, "1 GB"),
        (1_040_000_000, "1 GB"),
        (1_360_000_000, "1.4 GB"),
    ],
)
def test_bytes_are_rounded_to_whole_megabytes_and_tenths_of_gigabytes(number: int, text: str) -> None:
    assert format_bytes(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(950, "950"), (950_000, "950,000"), (999_600, "1M"), (12_400_000, "12M"), (10**9, "1B")]
)
def test_parameters_are_rounded_to_millions_and_tenths_of_billions(number: int, text: str) -> None:
    assert format_parameters(number) == text


def test_a_folder_is_counted_from_its_headers_without_its_indices(tmp_path: Path) -> None:
    memory = measure_memory(str(write_folder(tmp_path / "model")))
    assert memory.parameters == NUM_PARAMETERS
    assert list(memory.bytes_by_precision.values()) == [4 * NUM_PARAMETERS, 2 * NUM_PARAMETERS, NUM_PARAMETERS]
    assert memory.counting.startswith("counted in 3 stored tensors")


@pytest.mark.parametrize("place", ["model", "checkpoints/step-5/model"])
def test_a_run_stands_for_its_model(tmp_path: Path, place: str) -> None:
    write_folder(tmp_path / "run" / place)
    assert measure_memory(str(tmp_path / "run")).parameters == NUM_PARAMETERS


def test_tied_weights_count_once(tmp_path: Path) -> None:
    encoder = BERT.from_variant(
        "tiny", vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64
    )
    model = MaskedLanguageModel(encoder, 60, mask_token_id=4)
    model.save_pretrained(tmp_path)
    assert model.is_tied
    assert measure_memory(str(tmp_path)).parameters == sum(parameter.numel() for parameter in model.parameters())


def test_shards_are_counted_together(tmp_path: Path) -> None:
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    for tensor, file in names.items():
        write_safetensors(tmp_path / file, {tensor: torch.zeros(3, 5)})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert measure_memory(str(tmp_path)).parameters == 30


def test_a_folder_comes_before_a_known_model_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "bert")
    assert measure_memory("bert").parameters == NUM_PARAMETERS


def test_a_hub_id_is_looked_up_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--someone--something"
    write_folder(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit, encoding="utf-8")
    assert measure_memory("someone/something").parameters == NUM_PARAMETERS


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("roberta-bse", "did you mean 'roberta-base'?"),
        ("nobody/nothing-like-it", "maskwright models list"),
        ("no/such/folder", "maskwright models list"),
    ],
)
def test_what_is_nowhere_is_refused_without_asking_the_hub(
    name: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: object, **__: object) -> None:
        pytest.fail("the hub was asked")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(InputError, match=f"^'{name}' is no folder") as error:
        measure_memory(name)
    assert advice in str(error.value)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.safetensors is missing"):
        measure_memory(str(tmp_path))
