"""Flair's document embeddings: the mean of a text's tokens, [CLS] and [SEP] included."""

import flair
from asking import answer_all
from flair.data import Sentence
from flair.embeddings import TransformerDocumentEmbeddings

flair.device = "cpu"


def ask(model):
    if model["kind"] != "embed":
        return None
    if model["model"].startswith("modern"):
        return None  # it puts a space before a text, which byte-level tokenizers take for another first word
    embed = TransformerDocumentEmbeddings(model["hf"], layers="-1", cls_pooling="mean", fine_tune=False)
    sentences = [Sentence(text, use_tokenizer=False) for text in model["questions"]]
    embed.embed(sentences)
    return [sentence.embedding.tolist() for sentence in sentences]


answer_all(ask, flair.__version__)
