"""The decision tree: every leaf is reached, wishes narrow the table, and what nothing fulfils is refused."""

from __future__ import annotations

import itertools

import pytest

from maskwright.catalogue.choose import Choice, Wishes, choose, parse_parameters
from maskwright.catalogue.table import describe_finetuning, describe_loading, read_table
from maskwright.errors import InputError


def offered(choice: Choice) -> set[str]:
    return {model.family for model in (choice.model, *choice.alternatives)}


@pytest.mark.parametrize(
    ("wishes", "first", "families"),
    [
        (Wishes(language="multi"), "FacebookAI/xlm-roberta-base", {"XLM-RoBERTa"}),
        (Wishes(language="sw"), "FacebookAI/xlm-roberta-base", {"XLM-RoBERTa"}),
        (Wishes(length=513), "answerdotai/ModernBERT-base", {"Longformer", "BigBird", "ModernBERT"}),
        (Wishes(fastest=True), "distilbert/distilbert-base-uncased", {"DistilBERT", "MiniLM"}),
        (Wishes(best_accuracy=True), "microsoft/deberta-v3-large", {"DeBERTa-v3"}),
        (Wishes(), "FacebookAI/roberta-base", {"RoBERTa"}),
        (Wishes(max_parameters=60_000_000), "albert/albert-base-v2", {"ALBERT"}),
        (Wishes(domain="scientific"), "allenai/scibert_scivocab_uncased", {"SciBERT"}),
        (
            Wishes(domain="biomedical"),
            "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract-fulltext",
            {"BioBERT", "BiomedBERT"},
        ),
        (Wishes(domain="legal"), "nlpaueb/legal-bert-base-uncased", {"LegalBERT"}),
        (Wishes(domain="financial"), "yiyanghkust/finbert-pretrain", {"FinBERT"}),
        (Wishes(domain="code"), "microsoft/codebert-base-mlm", {"CodeBERT"}),
    ],
)
def test_every_leaf_of_the_tree_is_reached(wishes: Wishes, first: str, families: set[str]) -> None:
    choice = choose(wishes)
    assert choice.model.id == first
    assert choice.model.family in families
    assert families <= offered(choice)
    assert choice.why == read_table().leaves[choice.leaf].why


def test_the_leaves_of_the_table_are_the_leaves_of_the_tree() -> None:
    reached = [
        Wishes(language="de"),
        Wishes(domain="code"),
        Wishes(length=8192),
        Wishes(fastest=True),
        Wishes(best_accuracy=True),
        Wishes(max_parameters=20_000_000),
        Wishes(),
    ]
    assert [choose(wishes).leaf for wishes in reached] == list(read_table().leaves)


@pytest.mark.parametrize(
    ("wishes", "first"),
    [
        (Wishes(language="multi", fastest=True), "distilbert/distilbert-base-multilingual-cased"),
        (Wishes(language="multi", best_accuracy=True), "facebook/xlm-roberta-xl"),
        (Wishes(language="de", max_parameters=200_000_000), "google-bert/bert-base-multilingual-cased"),
        (Wishes(language="yo"), "google-bert/bert-base-multilingual-cased"),
        (Wishes(length=4096, best_accuracy=True), "answerdotai/ModernBERT-large"),
        (Wishes(length=4096, max_parameters=130_000_000), "google/bigbird-roberta-base"),
        (Wishes(fastest=True, max_parameters=60_000_000), "sentence-transformers/all-MiniLM-L6-v2"),
        (Wishes(best_accuracy=True, max_parameters=300_000_000), "microsoft/deberta-v3-base"),
        (Wishes(max_parameters=400_000_000), "FacebookAI/roberta-base"),
        (Wishes(max_parameters=12_000_000), "albert/albert-base-v2"),
        (Wishes(length=512), "FacebookAI/roberta-base"),
    ],
)
def test_wishes_are_fulfilled_together(wishes: Wishes, first: str) -> None:
    assert choose(wishes).model.id == first


def test_whatever_is_offered_fulfils_the_hard_wishes() -> None:
    languages, lengths, budgets = ("en", "multi", "de"), (None, 512, 4096), (None, 50_000_000, 150_000_000)
    answered = 0
    for language, length, budget, fastest in itertools.product(languages, lengths, budgets, (False, True)):
        try:
            choice = choose(Wishes(language, length=length, max_parameters=budget, fastest=fastest))
        except InputError:
            continue
        answered += 1
        assert len(choice.alternatives) <= 3
        assert choice.model not in choice.alternatives
        for model in (choice.model, *choice.alternatives):
            assert (model.languages == ("en",)) == (language == "en")
            assert language in ("multi", *model.languages)
            assert model.context >= (length or 0)
            assert model.parameters <= (budget or model.parameters)
            assert model.domain == "general"
    assert answered > 20


def test_the_most_accurate_is_the_one_with_the_highest_figure() -> None:
    english = [m for m in read_table().models if m.languages == ("en",) and m.domain == "general"]
    choice = choose(Wishes(best_accuracy=True))
    assert choice.model.accuracy == max(model.accuracy or 0 for model in english)


@pytest.mark.parametrize(
    ("wishes", "wish", "nearest"),
    [
        (Wishes(length=100_000), "--length 100000 leaves no model", "8192 tokens (answerdotai/ModernBERT-base)"),
        (Wishes(max_parameters=10**6), "--max-parameters 1000000 leaves no model", "12M (albert/albert-base-v2)"),
        (Wishes(language="de", length=1000), "--length 1000 leaves no model: with --language de", "512 tokens"),
        (Wishes(language="de", domain="legal"), "--domain legal leaves no model: with --language de", "general"),
        (
            Wishes(domain="legal", length=512, max_parameters=50_000_000),
            "--max-parameters 50000000 leaves no model: with --domain legal --length 512",
            "110M (nlpaueb/legal-bert-base-uncased)",
        ),
        (Wishes(language="german"), "--language german leaves no model", "such as de"),
        (Wishes(domain="law"), "unknown --domain 'law'", "did you mean 'legal'?"),
        (Wishes(task="entities"), "unknown --task 'entities'", "known are classification, multi-label, ner"),
        (Wishes(fastest=True, best_accuracy=True), "--fastest and --best-accuracy", "give one"),
    ],
)
def test_wishes_that_nothing_fulfils_name_the_wish_and_the_nearest(wishes: Wishes, wish: str, nearest: str) -> None:
    with pytest.raises(InputError) as error:
        choose(wishes)
    assert str(error.value).startswith(wish)
    assert nearest in str(error.value)


@pytest.mark.parametrize(
    ("text", "count"), [("60M", 60_000_000), ("1.5b", 1_500_000_000), ("800k", 800_000), (" 12 ", 12)]
)
def test_a_budget_is_read_as_people_write_it(text: str, count: int) -> None:
    assert parse_parameters(text) == count


@pytest.mark.parametrize("text", ["", "many", "-5M", "0", "1e6", "60MB"])
def test_a_budget_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="such as 60M"):
        parse_parameters(text)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "roberta-base",
            {
                "adapt": "maskwright adapt FacebookAI/roberta-base --text corpus.txt",
                "Python": 'maskwright.MaskedLanguageModel.from_pretrained("FacebookAI/roberta-base")',
            },
        ),
        (
            "deberta-v3-base",
            {
                "install": "pip install 'maskwright[hf]'",
                "Python": 'transformers.AutoModel.from_pretrained("microsoft/deberta-v3-base")',
            },
        ),
        (
            "longformer",
            {
                "install": "pip install 'maskwright[hf]'",
                "Python": 'transformers.AutoModelForMaskedLM.from_pretrained("allenai/longformer-base-4096")',
            },
        ),
    ],
)
def test_how_to_load_it_depends_on_who_can(name: str, lines: dict[str, str]) -> None:
    assert describe_loading(read_table().get(name)) == lines


@pytest.mark.parametrize(
    ("task", "most", "first"),
    [
        ("qa", None, "microsoft/deberta-v3-large"),
        ("qa", 120_000_000, "albert/albert-xlarge-v2"),
        ("pairs", 120_000_000, "google/electra-base-discriminator"),
        ("classification", 100_000_000, "albert/albert-xlarge-v2"),
        ("similarity", 100_000_000, "google/electra-small-discriminator"),
        (None, 120_000_000, "google/electra-base-discriminator"),
    ],
)
def test_the_best_accuracy_is_that_of_the_task(task: str | None, most: int | None, first: str) -> None:
    choice = choose(Wishes(task=task, max_parameters=most, best_accuracy=True))
    fitting = [
        score
        for model in read_table().models
        if model.languages == ("en",) and model.domain == "general" and model.parameters <= (most or 10**10)
        if (score := model.find_score(choice.score)) is not None
    ]
    assert choice.model.id == first
    assert choice.model.find_score(choice.score) == max(fitting)


@pytest.mark.parametrize(
    ("name", "task", "lines"),
    [
        (
            "roberta-base",
            "ner",
            {
                "finetune": "maskwright finetune ner --model FacebookAI/roberta-base --train train.conll"
                " --validation dev.conll"
            },
        ),
        (
            "longformer",
            None,
            {
                "finetune": "maskwright finetune classification --model allenai/longformer-base-4096 --train train.csv"
                " --validation dev.csv"
            },
        ),
    ],
)
def test_the_command_to_go_on_with_is_that_of_the_task(name: str, task: str | None, lines: dict[str, str]) -> None:
    assert describe_finetuning(read_table().get(name), task) == lines


def test_a_model_whose_files_are_not_read_is_converted_first() -> None:
    lines = describe_finetuning(read_table().get("deberta-v3-large"), "qa")
    assert list(lines) == ["convert", "finetune"]
    assert lines["convert"].endswith("microsoft/deberta-v3-large deberta-v3-large")
    assert "--model deberta-v3-large " in lines["finetune"]


def test_a_model_without_a_head_is_not_offered_as_one_with_a_head() -> None:
    lines = describe_loading(read_table().get("electra-small"))
    assert "no masked-language-model head" in lines["adapt"]
    assert lines["Python"] == 'maskwright.PackedEncoder.from_pretrained("google/electra-small-discriminator")'
