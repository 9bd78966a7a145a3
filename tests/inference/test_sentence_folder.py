"""The small files of sentence-transformers: what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maskwright.errors import InputError
from maskwright.inference.loading import read_sentence_settings

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}


def write(folder: Path, pooling: Any, modules: Any = (TRANSFORMER, POOLING), **files: Any) -> Path:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "modules.json").write_text(json.dumps(modules))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_a_plain_model_has_none(tmp_path: Path) -> None:
    assert read_sentence_settings(tmp_path) is None


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "include_prompt": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "cls", "embedding_dimension": 8}, "cls"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"word_embedding_dimension": 8}, "mean"),
    ],
    ids=str,
)
def test_the_mode_of_pooling_is_read_in_both_spellings(tmp_path: Path, pooling: dict[str, Any], mode: str) -> None:
    settings = read_sentence_settings(write(tmp_path, pooling))
    assert settings is not None
    assert (settings.pooling, settings.normalize) == (mode, False)


def test_everything_that_changes_a_vector_is_read(tmp_path: Path) -> None:
    modules = [TRANSFORMER, POOLING, NORMALIZE]
    transformer = {"max_seq_length": 256, "do_lower_case": True}
    model = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    settings = read_sentence_settings(
        write(tmp_path, {}, modules, sentence_bert_config=transformer, config_sentence_transformers=model)
    )
    assert settings is not None
    assert (settings.normalize, settings.max_length, settings.lowercases) == (True, 256, True)
    assert settings.prompt == "query: "


@pytest.mark.parametrize(
    ("pooling", "reason"),
    [
        ({"pooling_mode_max_tokens": True}, "pools by max_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "pools by cls, mean"),
        ({"pooling_mode": "lasttoken"}, "pools by lasttoken"),
        ({"pooling_mode": 3}, "pools by 3"),
        ({"include_prompt": False}, "leaves the prompt out"),
    ],
    ids=str,
)
def test_other_pooling_is_refused(tmp_path: Path, pooling: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=f"{reason}.* use sentence-transformers for this model"):
        read_sentence_settings(write(tmp_path, pooling))


@pytest.mark.parametrize(
    "modules",
    [[TRANSFORMER, POOLING, DENSE], [TRANSFORMER], [], {}, "text", [3]],
    ids=lambda modules: str(modules)[:40],
)
def test_other_modules_are_refused(tmp_path: Path, modules: Any) -> None:
    with pytest.raises(InputError, match=r"modules\.json lists the modules"):
        read_sentence_settings(write(tmp_path, {}, modules))


@pytest.mark.parametrize("path", ["../elsewhere", "/etc", "0_Transformer"])
def test_modules_in_other_folders_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError, match="keeps its modules in other folders"):
        read_sentence_settings(write(tmp_path, {}, [{**TRANSFORMER, "path": path}, POOLING]))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path, {}, sentence_bert_config={"max_seq_length": "long"})
    with pytest.raises(InputError, match=r"sentence_bert_config\.json has max_seq_length 'long'"):
        read_sentence_settings(folder)
    (folder / "modules.json").write_text("[{")
    with pytest.raises(InputError, match=r"modules\.json is not valid JSON"):
        read_sentence_settings(folder)


def test_a_missing_pooling_and_a_missing_prompt_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path, {}, config_sentence_transformers={"default_prompt_name": "query", "prompts": {}})
    with pytest.raises(InputError, match="names the prompt 'query' and does not hold it"):
        read_sentence_settings(folder)
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(InputError, match="is missing; it says how the model's vectors are pooled"):
        read_sentence_settings(folder)
