"""Commands to try after a run: they suit the model, its tokenizer and its language, and can be pasted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from maskwright.errors import InputError
from maskwright.inference.visualize import PredictionSample, PredictionView
from maskwright.models.encoder import PackedEncoder
from maskwright.objectives.objective import Objective
from maskwright.tasks.examples import Example, ExampleFile
from maskwright.tasks.kinds import ExampleSource
from maskwright.tasks.ner.examples import TaggedSentence
from maskwright.tasks.qa.examples import Question
from maskwright.tasks.retrieval.examples import RetrievalExample
from maskwright.tasks.retrieval.rerank import RerankFile
from maskwright.tasks.similarity.examples import SimilarityExample
from maskwright.text.sources import read_pairs
from maskwright.text.tokenizer.tokenizer import Tokenizer

_NUM_WORDS = 6
"""Words of the prompt for a causal model."""
_NUM_SEEN = 200
_SHORTEST = 20
"""Characters of a held-out example that is worth showing."""
_SHELL_CHARACTERS = frozenset('"$`\\!')


def suggest_commands(
    model: Objective, tokenizer: Tokenizer, folder: Path, predictions: PredictionView | None, is_builtin: bool
) -> list[str]:
    """After pre-training: a prediction on held-out text, then typical uses of the model."""
    place = shlex.quote(str(folder))
    commands = []
    if predictions is None:
        commands.append(f'maskwright predict similarity {place} "the cat sleeps" "a dog sleeps"')
    elif model.evaluates_causally:
        beginning = "The for statement is" if is_builtin else _find_beginning(predictions.samples)
        commands.append(f"maskwright generate {place} {quote(beginning)}")
    else:
        known = f"The for {tokenizer.mask_token} is used to iterate over a sequence."
        sentence = known if is_builtin else _find_sentence(predictions.samples, tokenizer)
        commands.append(f"maskwright fill {place} {quote(sentence)}")
    if model.mode == "diffusion":
        commands.append(f"maskwright generate {place} --length 20 --temperature 0.7")
    if is_builtin:
        commands.append("maskwright train data.train=your.txt run.name=yours")
    elif isinstance(model.encoder, PackedEncoder):
        commands.append(f"maskwright finetune classification --model {place} --train train.tsv --validation dev.tsv")
    return commands


def suggest_prediction(folder: Path, held_out: ExampleSource, gives_vectors: bool = True) -> str:
    """After fine-tuning: a prediction for a short held-out example; pairs are read from their file.

    Retrievers that give other than one vector to a text are of use in an index.
    """
    place, examples = shlex.quote(str(folder)), held_out.examples
    texts = min((_list_texts(example) for example in examples[:_NUM_SEEN]), key=_judge_length)
    if isinstance(examples[0], Question):
        return f"maskwright predict qa {place} --question {quote(texts[0])} {quote(texts[1])}"
    if isinstance(examples[0], RetrievalExample) and not gives_vectors:
        return f"maskwright index {place} documents.jsonl --out {place}-index"
    if isinstance(examples[0], SimilarityExample | RetrievalExample):
        return f"maskwright predict similarity {place} {quote(texts[0])} {quote(texts[1])}"
    if isinstance(examples[0], TaggedSentence):
        return f"maskwright predict ner {place} {quote(texts[0])}"
    if isinstance(held_out, RerankFile):
        return f"maskwright predict classify {place} pairs.csv --column query --second-column document"
    if isinstance(held_out, ExampleFile) and held_out.columns.second is not None:
        return f"maskwright predict classify {place} {_name_pairs(held_out, held_out.columns.second)}"
    return f"maskwright predict classify {place} {quote(texts[0])}"


def _name_pairs(held_out: ExampleFile, second: str) -> str:
    """The words that make `predict` read the held-out pairs, or a file of the user's where it cannot read these."""
    first = held_out.columns.text
    try:
        next(read_pairs({"path": str(held_out.path), "column": first, "second_column": second}))
    except InputError:  # such as the STS benchmark's file, whose columns have no names
        return "pairs.csv --column first --second-column second"
    return shlex.join([str(held_out.path), "--column", first, "--second-column", second])


def quote(text: str) -> str:
    """Quote for a shell: in double quotes, unless the text has characters that are special in them."""
    text = " ".join(text.split())
    return shlex.quote(text) if _SHELL_CHARACTERS & set(text) else f'"{text}"'


def _find_beginning(samples: Sequence[PredictionSample]) -> str:
    return " ".join("".join(samples[0].original).split()[:_NUM_WORDS])


def _find_sentence(samples: Sequence[PredictionSample], tokenizer: Tokenizer) -> str:
    """A held-out text with one gap: a word that the model has just found, or else another one."""
    unknown = tokenizer.special_tokens["unk"]
    known = [sample for sample in samples if unknown not in "".join(sample.original)] or samples
    gaps = [(_rank_gap(sample, place), sample, place) for sample in known for place in range(len(sample.original))]
    _, sample, place = max(gaps, key=lambda gap: gap[0])
    piece = sample.original[place]
    blank = piece[: len(piece) - len(piece.lstrip())]
    return "".join([*sample.original[:place], blank + tokenizer.mask_token, *sample.original[place + 1 :]])


def _rank_gap(sample: PredictionSample, place: int) -> tuple[bool, ...]:
    pieces = sample.original
    begins = place == 0 or pieces[place][:1].isspace()
    ends = place + 1 == len(pieces) or not pieces[place + 1][:1].isalnum()
    is_word = pieces[place].strip().isalpha()
    return is_word, begins and ends, sample.correct[place], sample.selected[place], place > 0


def _list_texts(example: Example | TaggedSentence | Question | SimilarityExample | RetrievalExample) -> list[str]:
    if isinstance(example, Question):
        return [example.text, example.context]
    if isinstance(example, SimilarityExample | RetrievalExample):
        return list(example.texts[:2])
    if isinstance(example, TaggedSentence):
        return [" ".join(example.words)]
    return [example.text] if example.second is None else [example.text, example.second]


def _judge_length(texts: Sequence[str]) -> tuple[bool, int]:
    """Short, but not so short that there is nothing to see."""
    num_characters = sum(map(len, texts))
    return num_characters < _SHORTEST, num_characters
