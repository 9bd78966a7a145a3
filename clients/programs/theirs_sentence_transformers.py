"""sentence-transformers on the folders of models for similarity, of rerankers and of retrievers."""

import sentence_transformers
from asking import answer_all

KINDS = {
    "embed": "SentenceTransformer",
    "rerank": "CrossEncoder",
    "splade": "SparseEncoder",
    "colbert": "MultiVectorEncoder",
}


def ask(model):
    kind, questions = model["kind"], model["questions"]
    if kind not in KINDS:
        return None
    opened = getattr(sentence_transformers, KINDS[kind])(model["hf"], device="cpu")
    if kind == "rerank":
        return [[None, score] for score in opened.predict(questions).tolist()]
    if kind == "splade":
        return opened.encode_document(questions, convert_to_sparse_tensor=False).tolist()
    if kind == "colbert":
        return [vectors.ravel().tolist() for vectors in opened.encode_document(questions)]
    return opened.encode(questions).tolist()


answer_all(ask, sentence_transformers.__version__)
