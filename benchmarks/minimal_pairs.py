"""Minimal pairs judged per second by full pseudo-log-likelihood, one masked copy for each token of both sentences.

The peer is transformers' BertForMaskedLM with the same weights on the same copies: --peer sorted pads them in batches
of 64 sorted by length, --peer usual is the usual loop, a sentence at a time with a masked copy for each token. Both
sides are timed by turns, after a whole run each that is not counted. Sentences are random words in the lengths of
BLiMP's under bert-base-uncased (mean 9.8 tokens).

    python benchmarks/minimal_pairs.py --pairs 400
    python benchmarks/minimal_pairs.py --device cuda --variant base --precision bf16 --peer usual
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import BertForMaskedLM

from maskwright.evaluation.likelihood import score_texts
from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PEER_BATCH = 64
Score = Callable[[list[str]], np.ndarray]


def build_tokenizer(vocab_size: int) -> Tokenizer:
    words = [*SPECIAL, *(f"w{index}" for index in range(len(SPECIAL), vocab_size))]
    backend = Backend(WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.add_special_tokens(SPECIAL)
    return Tokenizer(backend)


def make_sentences(num_pairs: int, vocab_size: int) -> list[str]:
    """A good and a bad sentence by turns, which differ in one word."""
    generator = random.Random(0)
    sentences = []
    for _ in range(num_pairs):
        length = min(max(round(generator.gauss(9.8, 2.8)), 4), 30)
        words = [generator.randrange(len(SPECIAL), vocab_size) for _ in range(length)]
        changed = list(words)
        changed[generator.randrange(length)] = generator.randrange(len(SPECIAL), vocab_size)
        sentences += [" ".join(f"w{word}" for word in sentence) for sentence in (words, changed)]
    return sentences


def score_with_peer(peer: BertForMaskedLM, tokenizer: Tokenizer, sentences: list[str], device: str) -> np.ndarray:
    encoded = [tokenizer.encode(sentence) for sentence in sentences]
    copies = [(number, place) for number, ids in enumerate(encoded) for place in range(1, len(ids) - 1)]
    copies.sort(key=lambda copy: len(encoded[copy[0]]))
    scores = np.zeros(len(sentences))
    for start in range(0, len(copies), PEER_BATCH):
        batch = copies[start : start + PEER_BATCH]
        width = max(len(encoded[number]) for number, _ in batch)
        input_ids = torch.full((len(batch), width), tokenizer.pad_token_id)
        for row, (number, _) in enumerate(batch):
            input_ids[row, : len(encoded[number])] = torch.tensor(encoded[number])
        attention_mask = (input_ids != tokenizer.pad_token_id).long()
        rows, places = torch.arange(len(batch)), torch.tensor([place for _, place in batch])
        labels = input_ids[rows, places]
        input_ids[rows, places] = tokenizer.mask_token_id
        logits = peer(input_ids=input_ids.to(device), attention_mask=attention_mask.to(device)).logits
        answers = logits[rows, places].float().log_softmax(dim=-1).cpu()[rows, labels]
        np.add.at(scores, [number for number, _ in batch], answers.double().numpy())
    return scores


def score_as_usual(peer: BertForMaskedLM, tokenizer: Tokenizer, sentences: list[str], device: str) -> np.ndarray:
    scores = []
    for sentence in sentences:
        ids = torch.tensor(tokenizer.encode(sentence), device=device)
        places = torch.arange(1, len(ids) - 1, device=device)
        rows = torch.arange(len(places), device=device)
        input_ids = ids.repeat(len(places), 1)
        input_ids[rows, places] = tokenizer.mask_token_id
        logits = peer(input_ids=input_ids, attention_mask=torch.ones_like(input_ids)).logits
        scores.append(logits[rows, places].float().log_softmax(dim=-1)[rows, ids[places]].sum().item())
    return np.asarray(scores)


def measure(sides: dict[str, Score], sentences: list[str], repeats: int) -> dict[str, tuple[float, np.ndarray]]:
    """The best of several times, by turns as others use the machine, and the scores."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    scores = {name: score(sentences) for name, score in sides.items()}
    for _ in range(repeats):
        for name, score in sides.items():
            begin = time.perf_counter()
            scores[name] = score(sentences)
            times[name].append(time.perf_counter() - begin)
    return {name: (len(sentences) / 2 / min(times[name]), scores[name]) for name in sides}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--variant", default="tiny", choices=list(BERT.variants), help="tiny is 4x256")
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--peer", default="sorted", choices=["sorted", "usual"])
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = build_tokenizer(arguments.vocab_size)
    encoder = BERT.from_variant(arguments.variant, vocab_size=arguments.vocab_size)
    model = MaskedLanguageModel(
        encoder,
        arguments.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, tokenizer)
        peer = BertForMaskedLM.from_pretrained(folder, attn_implementation="sdpa").eval()
    exact = copy.deepcopy(model).eval().to(arguments.device)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[arguments.precision]
    peer.to(arguments.device, dtype)
    model.eval().to(arguments.device, dtype)
    sentences = make_sentences(arguments.pairs, arguments.vocab_size)
    ask_peer = score_with_peer if arguments.peer == "sorted" else score_as_usual
    sides: dict[str, Score] = {
        "transformers": lambda given: ask_peer(peer, tokenizer, given, arguments.device),
        "maskwright": lambda given: score_texts(model, tokenizer, given).log_likelihoods,
    }
    measured = measure(sides, sentences, arguments.repeats)
    (theirs, their_scores), (ours, our_scores) = measured["transformers"], measured["maskwright"]
    expected = score_texts(exact, tokenizer, sentences).log_likelihoods
    difference = float(np.abs(our_scores - their_scores).max())
    place = f"{arguments.device}, {arguments.precision}, {torch.get_num_threads()} threads"
    print(f"BERT {arguments.variant}, {arguments.pairs} pairs, {place}, the peer's copies {arguments.peer}")
    for name, (speed, scores) in measured.items():
        print(f"{name:<14} {speed:10,.1f} pairs/s; from fp32 by up to {np.abs(scores - expected).max():.1e}")
    print(f"largest difference of a sentence's score {difference:.1e}")
    ratio = ours / theirs
    if arguments.json:
        figures = {"transformers": theirs, "maskwright": ours, "largest_difference": difference, "ratio": ratio}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"ratio {ratio:.2f}x")


if __name__ == "__main__":
    main()
