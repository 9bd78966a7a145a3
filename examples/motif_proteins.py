"""Made-up proteins whose best possible loss is known: a FASTA file to try a protein model on.

Every sequence is a row of motifs, chosen at random from a few fixed ones; now and then a letter of a motif is replaced
by a random one. A model that knows all of this reads the motif off its visible letters, and misses only replaced ones.

    python examples/motif_proteins.py proteins.fasta --sequences 4000
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

import numpy as np

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
NUM_MOTIFS, MOTIF_LENGTH, REPLACED_SHARE = 16, 12, 0.1
MOTIFS_PER_SEQUENCE = (4, 12)
MASKED, RANDOM, KEPT = 0.15 * 0.8, 0.15 * 0.1, 0.15 * 0.1
"""How often a letter is hidden, replaced or left as it is in an evaluation, and asked for each time."""


def draw_motifs(generator: np.random.Generator) -> np.ndarray:
    return generator.integers(0, len(LETTERS), (NUM_MOTIFS, MOTIF_LENGTH))


def draw_sequence(generator: np.random.Generator, motifs: np.ndarray) -> np.ndarray:
    letters = motifs[generator.integers(0, NUM_MOTIFS, generator.integers(*MOTIFS_PER_SEQUENCE))].flatten()
    is_replaced = generator.random(len(letters)) < REPLACED_SHARE
    return np.where(is_replaced, generator.integers(0, len(LETTERS), len(letters)), letters)


def measure_best_loss(generator: np.random.Generator, motifs: np.ndarray, num_copies: int) -> tuple[float, float]:
    """The mean loss, and its standard error, of a model that knows the motifs and where they begin.

    L letters, K motifs, P places in a motif. What it says of an asked letter is its posterior, given what is shown at
    all places of the motif: the letter itself, a random one, or the mask.
    """
    num_letters, mask = len(LETTERS), len(LETTERS)
    of_motif = np.full((NUM_MOTIFS, MOTIF_LENGTH, num_letters), REPLACED_SHARE / num_letters)  # (K, P, L)
    of_motif[np.arange(NUM_MOTIFS)[:, None], np.arange(MOTIF_LENGTH), motifs] += 1 - REPLACED_SHARE
    asked_shown = np.zeros((num_letters, num_letters + 1))  # (L, shown) given that the letter is asked for
    asked_shown[:, :num_letters] = RANDOM / num_letters + KEPT * np.eye(num_letters)
    asked_shown[:, mask] = MASKED
    any_shown = asked_shown + np.eye(num_letters, num_letters + 1) * (1 - MASKED - RANDOM - KEPT)
    losses = []
    for _ in range(num_copies):
        letters = np.array([generator.choice(num_letters, p=p) for p in of_motif[generator.integers(NUM_MOTIFS)]])
        fates = generator.random(MOTIF_LENGTH)
        shown = np.where(fates < MASKED, mask, letters)
        is_random = (fates >= MASKED) & (fates < MASKED + RANDOM)
        shown = np.where(is_random, generator.integers(0, num_letters, MOTIF_LENGTH), shown)
        evidence = np.log((of_motif @ any_shown)[:, np.arange(MOTIF_LENGTH), shown])  # (K, P)
        for place in np.flatnonzero(fates < MASKED + RANDOM + KEPT):
            others = evidence.sum(1) - evidence[:, place]
            motif = np.exp(others - others.max())
            posterior = (motif @ of_motif[:, place]) * asked_shown[:, shown[place]]
            losses.append(-np.log(posterior[letters[place]] / posterior.sum()))
    return float(np.mean(losses)), float(np.std(losses) / np.sqrt(len(losses)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the FASTA file to write")
    parser.add_argument("--sequences", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--copies", type=int, default=4000, help="copies of motifs that the best loss is measured on")
    arguments = parser.parse_args()
    generator = np.random.default_rng(arguments.seed)
    motifs = draw_motifs(generator)
    with arguments.out.open("w", encoding="utf-8") as file:
        for number in range(arguments.sequences):
            letters = "".join(LETTERS[letter] for letter in draw_sequence(generator, motifs))
            file.write(f">motif-{number}\n" + "\n".join(textwrap.wrap(letters, 60)) + "\n")
    best, error = measure_best_loss(generator, motifs, arguments.copies)
    print(
        f"{arguments.out}: {arguments.sequences:,} sequences; the best possible loss is {best:.3f} ± {error:.3f} nats"
    )


if __name__ == "__main__":
    main()
