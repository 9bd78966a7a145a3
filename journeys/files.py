"""The files that the documentation names (corpus.txt, train.tsv, blimp/, ...), small, made of real data.

`read_shared` takes them from a folder of published data, `read_builtin` makes up the like from the documentation that
Python carries; `write_files` gives either the names of the documentation.
"""

from __future__ import annotations

import bz2
import csv
import html
import io
import itertools
import json
import random
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from maskwright.text.sentences import split_sentences
from maskwright.text.sources import read_python_documentation
from maskwright.text.tokenizer.train import train_tokenizer

REPOSITORY = Path(__file__).resolve().parents[1]
TOKENIZERS = ("bert-base-uncased", "roberta-base")
MODERN_TOKENIZER = "roberta-base"
"""Byte-level BPE with about as many tokens as ModernBERT's, in whose place it stands."""
NAMES = ["lambda", "list", "tuple", "dict", "dictionary", "string", "integer", "float", "bytes", "set", "None", "True"]
MUSEUM = "The museum opened in 1901. It shows maps and clocks, and moved to its new house beside the river in 1978."
VOCABULARIES = "vocabularies"

STAND_IN = """\
run: {name: stand-in}
model:
  {family: bert, variant: tiny, hidden_size: 128, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 512,
   max_position_embeddings: 512}
tokenizer: {path: vocabularies/bert-base-uncased}
data: {max_length: 128}
optimizer: {type: muon, learning_rate: 5.0e-3}
schedule: {type: wsd, warmup_steps: 20, decay_share: 0.5, alpha: 0.0}
training: {batch_tokens: 2048, epochs: 1000}
"""
"""Of the small BERT in the place of bert-base-uncased."""


@dataclass
class Material:
    """What the files are made of; the first part of each list is for training, the rest is held out."""

    documents: list[str]
    domain: list[str]
    """Texts of a field, for adaptation."""
    questions: list[tuple[str, str]]
    """(text, class)"""
    nli: list[tuple[str, str, str]]
    """(premise, hypothesis, entailment or neutral or contradiction)"""
    sts: list[tuple[str, str, float]]
    """(text, text, 0 to 5)"""
    entities: list[list[tuple[str, str]]]
    """Sentences of (word, tag)."""
    articles: list[dict[str, Any]]
    """SQuAD 2.0's."""
    minimal_pairs: list[tuple[str, str]]
    """(good, bad)"""
    cloze: list[dict[str, Any]]
    """LAMA's records."""
    dump: bytes
    """Of a MediaWiki, compressed with bz2."""
    tokenizers: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files of a tokenizer by its name; missing ones are trained on the documents."""


# ---------------------------------------------------------------------------------------------------------------------
# Published data
# ---------------------------------------------------------------------------------------------------------------------


def read_shared(folder: Path) -> Material:
    """Small parts of published data: text/*/*.jsonl.zst, tasks.tar.xz, mlm_eval.tar.xz and tokenizers.tar.xz."""
    with tarfile.open(folder / "tasks.tar.xz") as tar:
        tasks = Archive(tar)
        trec = [line.split(" ", 1) for line in tasks.lines("sentence_cls/TREC.train", "latin-1")[:1600]]
        snli = [json.loads(line) for line in tasks.lines("nli/snli/dev.jsonl")[:1500]]
        sts = [line.split("\t")[:7] for line in tasks.lines("stsbenchmark/sts-dev.csv")]
        entities = read_conll(tasks.text("ner/ncbi_disease/train.conll"))[:1500]
        articles = json.loads(tasks.text("qa/squad/dev-v2.0.part.json"))["data"]
    with tarfile.open(folder / "mlm_eval.tar.xz") as tar:
        probes = Archive(tar)
        names = ["passive_1", "anaphor_number_agreement", "determiner_noun_agreement_1"]
        pairs = [json.loads(line) for name in names for line in probes.lines(f"blimp/{name}.jsonl")[:40]]
        cloze = [json.loads(line) for name in ("P178", "P27") for line in probes.lines(f"lama/TREx/{name}.jsonl")[:60]]
    with tarfile.open(folder / "tokenizers.tar.xz") as tar:
        tokenizers = {name: Archive(tar).folder(name) for name in TOKENIZERS}
    return Material(
        documents=take_characters(read_texts(folder / "text/simplewiki/train.jsonl.zst"), 4_000_000),
        domain=take_characters(read_texts(folder / "text/biomed/train.jsonl.zst"), 400_000),
        questions=[(text, label.partition(":")[0]) for label, text in trec],
        nli=[(one["premise"], one["hypothesis"], one["label"]) for one in snli],
        sts=[(row[5], row[6], float(row[4])) for row in sts],
        entities=entities,
        articles=[shorten_article(article) for article in articles],
        minimal_pairs=[(one["sentence_good"], one["sentence_bad"]) for one in pairs],
        cloze=cloze,
        dump=(folder / "text/dumps/smallwiki-latest-pages-articles.xml.bz2").read_bytes(),
        tokenizers=tokenizers,
    )


class Archive:
    """Members of a tar file by their path, with or without a leading `./`."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self.tar = tar
        self.members = {member.name.removeprefix("./"): member for member in tar.getmembers() if member.isfile()}

    def bytes(self, path: str) -> bytes:
        file = self.tar.extractfile(self.members[path])
        assert file is not None, path
        return file.read()

    def text(self, path: str, encoding: str = "utf-8") -> str:
        return self.bytes(path).decode(encoding)

    def lines(self, path: str, encoding: str = "utf-8") -> list[str]:
        return self.text(path, encoding).splitlines()

    def folder(self, name: str) -> dict[str, bytes]:
        return {path.rpartition("/")[2]: self.bytes(path) for path in self.members if path.startswith(f"{name}/")}


def read_texts(path: Path) -> Iterator[str]:
    with pa.input_stream(path, compression="zstd") as stream:
        for line in io.TextIOWrapper(stream, encoding="utf-8"):
            yield json.loads(line)["text"]


def take_characters(texts: Iterable[str], most: int) -> list[str]:
    taken, size = [], 0
    for text in texts:
        if size > most:
            break
        taken.append(text)
        size += len(text)
    return taken


def read_conll(text: str) -> list[list[tuple[str, str]]]:
    blocks = (block.splitlines() for block in re.split(r"\n\s*\n", text) if block.strip())
    return [[(line.split()[0], line.split()[-1]) for line in block] for block in blocks]


def shorten_article(article: dict[str, Any], paragraphs: int = 4, questions: int = 4) -> dict[str, Any]:
    kept = [{**one, "qas": one["qas"][:questions]} for one in article["paragraphs"][:paragraphs]]
    return {**article, "paragraphs": kept}


# ---------------------------------------------------------------------------------------------------------------------
# The built-in corpus
# ---------------------------------------------------------------------------------------------------------------------


def read_builtin() -> Material:
    """The like of published data, out of the documentation that Python carries: what it asks can be learnt from it."""
    documents = read_python_documentation()
    rng = random.Random(0)
    sentences = [one for document in documents for one in split_sentences(document) if 5 <= len(one.split()) <= 40]
    rng.shuffle(sentences)
    neighbors = list(itertools.pairwise(sentences[:1500]))
    shortened = [(one, shorten(one, number % 6), float(number % 6)) for number, one in enumerate(sentences[:1500])]
    asked = [one for one in sentences if any(name in one.split() for name in NAMES)]
    return Material(
        documents=documents,
        domain=[one for one in documents if "file" in one][:400],
        questions=[(one, "returns" if "return" in one.lower() else "other") for one in sentences[:1600]],
        nli=[make_inference(*pair, number) for number, pair in enumerate(neighbors)],
        sts=shortened,
        entities=[[(word, "B-NAME" if word in NAMES else "O") for word in one.split()] for one in asked[:1500]],
        articles=[make_article(asked[start : start + 8], start) for start in range(0, min(320, len(asked)), 8)],
        minimal_pairs=[(one, shuffle_words(one, rng)) for one in sentences[:120]],
        cloze=[make_cloze(one) for one in asked[:120]],
        dump=make_dump(documents[:60]),
    )


def make_inference(premise: str, other: str, number: int) -> tuple[str, str, str]:
    """A sentence's own beginning follows from it, another sentence does not."""
    if number % 2:
        return premise, other, "neutral"
    return premise, " ".join(premise.split()[:6]), "entailment"


def shorten(sentence: str, fifths: int) -> str:
    words = sentence.split()
    return " ".join(words[: max(2, len(words) * fifths // 5)])


def shuffle_words(sentence: str, rng: random.Random) -> str:
    words = sentence.split()
    rng.shuffle(words)
    return " ".join(words)


def make_cloze(sentence: str) -> dict[str, Any]:
    name = next(word for word in sentence.split() if word in NAMES)
    return {"obj_label": name, "masked_sentences": [sentence.replace(name, "[MASK]", 1)]}


def make_article(sentences: Sequence[str], number: int) -> dict[str, Any]:
    """A paragraph in which a name is asked for; every fourth question has no answer there."""
    context = " ".join(sentences)
    questions = []
    for place, sentence in enumerate(sentences):
        name = next(word for word in sentence.split() if word in NAMES)
        start = context.index(sentence) + sentence.index(name)
        is_impossible = place % 4 == 3
        answers = [] if is_impossible else [{"text": name, "answer_start": start}]
        place_of_name = "no sentence" if is_impossible else f"the sentence that begins {' '.join(sentence.split()[:4])}"
        question = f"Which name is in {place_of_name}?"
        questions.append(
            {"id": f"{number}-{place}", "question": question, "answers": answers, "is_impossible": is_impossible}
        )
    return {"title": str(number), "paragraphs": [{"context": context, "qas": questions}]}


def make_dump(documents: Sequence[str]) -> bytes:
    pages = "".join(
        f"<page><title>Page {number}</title><ns>0</ns><id>{number}</id><revision><id>{number}</id>"
        f'<text xml:space="preserve">{html.escape(text)}</text></revision></page>\n'
        for number, text in enumerate(documents, 1)
    )
    xml = f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10">\n{pages}</mediawiki>\n'
    return bz2.compress(xml.encode())


# ---------------------------------------------------------------------------------------------------------------------
# Writing
# ---------------------------------------------------------------------------------------------------------------------


def write_files(material: Material, folder: Path) -> None:
    """Everything under the names that the documentation uses."""
    folder.mkdir(parents=True, exist_ok=True)
    write_corpora(material, folder)
    write_tasks(material, folder)
    write_collection(material, folder / "collection")
    write_probes(material, folder)
    write_tokenizers(material, folder)
    write_settings(folder)
    (folder / "enwiki-latest-pages-articles.xml.bz2").write_bytes(material.dump)


def write_corpora(material: Material, folder: Path) -> None:
    held_out = take_characters(reversed(material.documents), 60_000)
    train = material.documents[: -len(held_out)]
    paragraphs = [line for document in train for line in document.splitlines() if len(line.split()) > 3]
    sentences = [one for text in held_out for one in split_sentences(text) if len(one.split()) > 3]
    small = take_characters(train, 400_000)
    write_lines(folder / "corpus.txt", take_characters(paragraphs, 300_000))
    write_records(folder / "corpus.jsonl", [{"text": text} for text in small])
    for name in ("corpus.jsonl.zst", "train.jsonl.zst", "enwiki10m/train.jsonl.zst"):
        write_records(folder / name, [{"text": text} for text in train])
    for start, name in enumerate(("corpus/part-0.jsonl.zst", "corpus/part-1.jsonl.zst")):
        write_records(folder / name, [{"text": text} for text in train[start::2]])
    for name in ("valid.jsonl.zst", "enwiki10m/valid.jsonl.zst", "simplewiki.jsonl.zst", "wiki.jsonl"):
        write_records(folder / name, [{"text": text} for text in take_characters(held_out, 20_000)])
    write_lines(folder / "held-out.txt", [text.replace("\n", " ") for text in held_out[:40]])
    write_lines(folder / "sentences.txt", sentences[:60])
    write_lines(folder / "lines.txt", sentences[:60])
    write_records(folder / "articles.jsonl", [{"body": text} for text in held_out[:30]])
    write_lines(folder / "manual.txt", "\n".join(f"{text}\n" for text in small[:30]).splitlines())

    domain = [text.replace("\n", " ") for text in material.domain]
    write_lines(folder / "notes.txt", domain)
    write_lines(folder / "texts.txt", domain)
    write_table(folder / "notes.csv", ["body"], [(text,) for text in domain])
    for name in ("notes.jsonl", "biomed.jsonl.zst", "data/biomed.jsonl"):
        write_records(folder / name, [{"text": text} for text in domain])
    (folder / "museum.txt").write_text(MUSEUM + "\n", encoding="utf-8")
    sequences = [f">made-up-{number}\n{'MKVLAAGITWHECDFNPQRSY' * (2 + number % 3)}" for number in range(60)]
    write_lines(folder / "proteins.fasta", sequences)
    write_lines(folder / "molecules.txt", ["CC(=O)Oc1ccccc1C(=O)O", "C[C@@H](N)C(=O)O", "[Na+].[Cl-]"] * 20)


def write_tasks(material: Material, folder: Path) -> None:
    for name, rows in split(material.questions, "train.tsv", "dev.tsv"):
        write_table(folder / name, ["sentence", "label"], rows, "\t")
    texts = [text for text, _ in material.questions[-200:]]
    write_table(
        folder / "reviews.csv", ["review_id", "review"], [(f"r{number}", text) for number, text in enumerate(texts)]
    )
    write_lines(folder / "reviews.txt", texts)
    write_table(folder / "banking77.csv", ["text", "category"], material.questions[-200:])
    for name, rows in split(material.nli, "snli_train.jsonl", "snli_dev.jsonl"):
        write_records(folder / name, [dict(zip(("premise", "hypothesis", "label"), row, strict=True)) for row in rows])
    shutil.copyfile(folder / "snli_train.jsonl", folder / "nli.jsonl")
    pairs = [(premise, hypothesis) for premise, hypothesis, _ in material.nli[-60:]]
    write_records(folder / "pairs.jsonl", [{"premise": one, "hypothesis": other} for one, other in pairs])
    write_table(folder / "pairs.csv", ["question", "answer"], pairs)
    for name, rows in split(material.sts, "sts-train.csv", "sts-dev.csv"):
        write_table(folder / name, ["sentence1", "sentence2", "score"], rows)
    for name, rows in split(material.entities, "train.conll", "dev.conll"):
        blocks = ("".join(f"{word}\t{tag}\n" for word, tag in sentence) for sentence in rows)
        (folder / name).write_text("\n".join(blocks), encoding="utf-8")
    for name, articles in split(material.articles, "train-v2.0.json", "dev-v2.0.json"):
        write_json(folder / name, {"version": "v2.0", "data": articles})


def write_collection(material: Material, folder: Path) -> None:
    """Paragraphs and the questions that they answer, in BEIR's layout."""
    paragraphs = [one for article in material.articles for one in article["paragraphs"]]
    asked = [
        (one["question"], number)
        for number, paragraph in enumerate(paragraphs)
        for one in paragraph["qas"]
        if not one["is_impossible"]
    ]
    write_records(
        folder / "corpus.jsonl",
        [{"_id": f"d{number}", "title": "", "text": one["context"]} for number, one in enumerate(paragraphs)],
    )
    write_records(
        folder / "queries.jsonl", [{"_id": f"q{number}", "text": text} for number, (text, _) in enumerate(asked)]
    )
    judged = [(f"q{number}", f"d{place}", 1) for number, (_, place) in enumerate(asked)]
    for name, rows in split(judged, "train.tsv", "test.tsv"):
        write_table(folder / "qrels" / name, ["query-id", "corpus-id", "score"], rows, "\t")


def write_probes(material: Material, folder: Path) -> None:
    half = len(material.minimal_pairs) // 2
    for name, pairs in (("first", material.minimal_pairs[:half]), ("second", material.minimal_pairs[half:])):
        records = [{"sentence_good": good, "sentence_bad": bad, "UID": name} for good, bad in pairs]
        write_records(folder / f"blimp/{name}.jsonl", records)
    write_records(folder / "lama/TREx/relation.jsonl", material.cloze)
    judged = [row for good, bad in material.minimal_pairs for row in (("x", 1, "", good), ("x", 0, "", bad))]
    for name, rows in split(judged, "train.tsv", "dev.tsv"):
        write_table(folder / "glue_data/CoLA" / name, None, rows, "\t")
    follows = [
        (number, premise, hypothesis, "entailment" if label == "entailment" else "not_entailment")
        for number, (premise, hypothesis, label) in enumerate(material.nli[:300])
    ]
    for name, rows in split(follows, "train.tsv", "dev.tsv"):
        write_table(folder / "glue_data/RTE" / name, ["index", "sentence1", "sentence2", "label"], rows, "\t")


def write_tokenizers(material: Material, folder: Path) -> None:
    """The vocabularies of published encoders; where they are not at hand, vocabularies of the same kind."""
    for name, kind in zip(TOKENIZERS, ("wordpiece", "byte_level_bpe"), strict=True):
        target = folder / VOCABULARIES / name
        target.mkdir(parents=True, exist_ok=True)
        for file, content in material.tokenizers.get(name, {}).items():
            (target / file).write_bytes(content)
        if name not in material.tokenizers:
            train_tokenizer(material.documents, kind, vocab_size=8000).save(target)
    for size in ("base", "large"):
        target = folder / f"answerdotai/ModernBERT-{size}"
        shutil.copytree(folder / VOCABULARIES / MODERN_TOKENIZER, target, dirs_exist_ok=True)
    tokenizer = folder / VOCABULARIES / "bert-base-uncased/tokenizer.json"
    shutil.copyfile(tokenizer, folder / "tokenizer.json")


def write_settings(folder: Path) -> None:
    """A copied recipe, as the documentation advises: the quickstart's, on corpus.txt."""
    recipe = (REPOSITORY / "recipes/quickstart.yaml").read_text(encoding="utf-8")
    own = recipe.replace("train: builtin:python", "train: corpus.txt").replace("name: quickstart", "name: mine")
    (folder / "config.yaml").write_text(own, encoding="utf-8")
    (folder / "yours.yaml").write_text(own, encoding="utf-8")
    (folder / "stand-in.yaml").write_text(STAND_IN, encoding="utf-8")


def split(rows: Sequence[Any], train: str, held_out: str) -> list[tuple[str, Sequence[Any]]]:
    """A fifth is held out."""
    cut = len(rows) * 4 // 5
    return [(train, rows[:cut]), (held_out, rows[cut:])]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records).encode()
    with pa.output_stream(path, compression="zstd" if path.suffix == ".zst" else None) as stream:
        stream.write(content)


def write_table(path: Path, header: Sequence[str] | None, rows: Iterable[Sequence[Any]], delimiter: str = ",") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    quoting = csv.QUOTE_MINIMAL if delimiter == "," else csv.QUOTE_NONE
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, quoting=quoting, quotechar='"' if delimiter == "," else None)
        writer.writerows([*([header] if header else []), *rows])
