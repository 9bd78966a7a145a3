"""LangChain's HuggingFaceEmbeddings on the folder of a similarity model."""

from importlib.metadata import version

from asking import answer_all
from langchain_huggingface import HuggingFaceEmbeddings


def ask(model):
    if model["kind"] != "embed":
        return None
    return HuggingFaceEmbeddings(model_name=model["hf"]).embed_documents(model["questions"])


answer_all(ask, version("langchain-huggingface"))
