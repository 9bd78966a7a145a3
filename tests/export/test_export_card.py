"""The model card: what is known and nothing else, whatever the values look like."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from maskwright.config import build_config
from maskwright.errors import InputError
from maskwright.export.card import CardOptions, Origin, build_card, build_table, escape
from maskwright.export.comparison import Comparison
from maskwright.export.huggingface import export_huggingface
from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer

COMPARISON = Comparison("transformers 5.0", 2.5e-6, 8, 1234)
FIGURES = {
    "loss": 3.25,
    "accuracy": 0.4567,
    "perplexity": 25.79,
    "unigram_loss": 6.5,
    "num_masked": 4321,
    "tokens": 1_234_567,
    "steps": 89,
}
HOSTILE = "a\n---\nlicense: mit\n---\n# b\n```\n<script>|x|</script>[l](http://e.vil)\u202e'\"\\"


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> MaskedLanguageModel:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 48}
    encoder = BERT.from_variant("tiny", vocab_size=tokenizer.vocab_size, **shape)
    tokens = {"mask_token_id": tokenizer.mask_token_id, "special_token_ids": tokenizer.all_special_ids}
    return MaskedLanguageModel(encoder, tokenizer.vocab_size, **tokens).eval()


def make_origin(train: Any = "corpus.txt", **figures: Any) -> Origin:
    return Origin(build_config({"data": {"train": train}, "masking": {"ratio": 0.27}}), FIGURES | figures)


def make_card(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    name: str = "mine-hf",
    origin: Origin | None = None,
    options: CardOptions | None = None,
    for_sentences: bool = False,
) -> str:
    return build_card(
        name, model, tokenizer, origin or Origin(), COMPARISON, options or CardOptions(), for_sentences=for_sentences
    )


def split_card(card: str) -> tuple[dict[str, Any], str]:
    """The front matter as a reader of YAML sees it, and the text."""
    _, front, text = card.split("---\n", 2)
    return yaml.safe_load(front), text


def test_front_matter_has_library_task_and_tags_and_nothing_unknown(
    model: MaskedLanguageModel, tokenizer: Tokenizer
) -> None:
    front, _ = split_card(make_card(model, tokenizer))
    assert front == {
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["maskwright", "bert", "fill-mask"],
    }


def test_language_and_license_are_those_given(model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
    front, _ = split_card(make_card(model, tokenizer, options=CardOptions("no", "apache-2.0")))
    assert (front["language"], front["license"]) == ("no", "apache-2.0")


@pytest.mark.parametrize("options", [{"language": "en\nlicense: mit"}, {"license": ""}, {"license": "- x"}])
def test_a_language_or_license_that_is_no_identifier_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(InputError, match=f"^--{next(iter(options))} is "):
        CardOptions(**options)


def test_figures_and_data_of_the_run_are_in_the_card(model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
    _, text = split_card(make_card(model, tokenizer, origin=make_origin(train_documents=7007)))
    for row in (
        "| source 1 | corpus.txt |",
        "| training documents | 7,007 |",
        "| tokens seen in training | 1,234,567 |",
        "| steps | 89 |",
        "| masking.ratio | 0.27 |",
        r"| hidden\_size | 32 |",
        "| loss | 3.2500 |",
        "| accuracy | 0.4567 |",
        "| perplexity | 25.7900 |",
        "| unigram loss | 6.5000 |",
        "| masked tokens | 4,321 |",
    ):
        assert row in text
    assert "15% of single tokens are masked" in text
    assert "(training_config.yaml)" in text
    assert "transformers 5.0: logits of 8 texts (1,234 tokens) differ by at most 2.5e-06" in text


def test_every_source_is_named_with_its_weight(model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
    origin = make_origin([{"path": "a.txt"}, {"path": "b.txt", "weight": 0.5}])
    card = make_card(model, tokenizer, origin=origin)
    assert "| source 1 | a.txt (weight 1) |" in card
    assert "| source 2 | b.txt (weight 0.5) |" in card


def test_a_model_without_a_run_gets_no_invented_figures(model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
    _, text = split_card(make_card(model, tokenizer))
    assert "was not at hand" in text
    assert "No figures on held-out text are known" in text
    for word in ("perplexity", "optimizer", "training_config", "tokens seen", "nan"):
        assert word not in text


def test_figures_that_are_no_numbers_are_left_out(model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
    origin = make_origin(accuracy=float("nan"), perplexity="many", tokens=None)
    _, text = split_card(make_card(model, tokenizer, origin=origin))
    assert "| loss | 3.2500 |" in text
    for row in ("| accuracy |", "| perplexity |", "tokens seen"):
        assert row not in text


def test_hostile_values_neither_break_the_card_nor_add_to_it(model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
    plain = make_card(model, tokenizer, origin=make_origin())
    card = make_card(model, tokenizer, name=HOSTILE, origin=make_origin(HOSTILE))
    assert split_card(card)[0] == split_card(plain)[0]
    assert card.count("\n") == plain.count("\n")
    prefixes = ("#", "```", "---", "|")
    for prefix in prefixes:
        count = sum(line.startswith(prefix) for line in card.splitlines())
        assert count == sum(line.startswith(prefix) for line in plain.splitlines()), prefix
    prose = re.sub(r"^```python$.*?^```$", "", card, flags=re.DOTALL | re.MULTILINE)
    assert "<script>" not in prose
    assert "[l](" not in prose
    assert "\u202e" not in card


def test_escaped_text_is_one_visible_line() -> None:
    assert (
        escape("a\n b\t|c| *d* <e> & \x1b\udc80")
        == r"a b \|c\| \*d\* &lt;e&gt; &amp; " + "\N{REPLACEMENT CHARACTER}" * 2
    )


def test_a_table_has_two_cells_to_a_row_whatever_the_values() -> None:
    table = build_table({"a|b": "c\nd|e", "f": None}, ("g", "h"))
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()] == [3, 3, 3, 3]


@pytest.mark.parametrize("name", ["mine-hf", 'it\'s "mine" ```'])
def test_the_lines_of_how_to_use_run(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    sentences: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    export_huggingface(model, tokenizer, tmp_path / name, texts=sentences, say=lambda line: None)
    snippets = re.findall(r"^```python\n(.*?)\n```$", make_card(model, tokenizer, name), re.DOTALL | re.MULTILINE)
    assert len(snippets) == 2
    monkeypatch.chdir(tmp_path)
    answers = []
    for snippet in snippets:
        (tmp_path / "snippet.py").write_text(snippet, encoding="utf-8")
        capsys.readouterr()
        runpy.run_path("snippet.py")
        answers.append([line.rsplit(" ", 1)[0] for line in capsys.readouterr().out.splitlines()])
    assert answers[0] == answers[1]
    assert len(answers[0]) == 5


def test_the_card_of_a_sentence_encoder_says_what_it_was_not_trained_for(
    model: MaskedLanguageModel, tokenizer: Tokenizer
) -> None:
    front, text = split_card(make_card(model, tokenizer, for_sentences=True))
    assert (front["library_name"], front["pipeline_tag"]) == ("sentence-transformers", "sentence-similarity")
    assert "SentenceTransformer('mine-hf')" in text
    assert "not to compare sentences" in text
