"""The page that `export --to web` writes answers in a browser what the same graph answers in onnxruntime."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from looking import PHONE, Page

from maskwright.errors import InputError
from maskwright.export.web import open_library
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.export import export_model
from maskwright.runs.export_options import ExportOptions
from maskwright.tasks.heads import build_sequence_head, build_span_head, build_token_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.tasks.sequence.classification import Classification
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tiny_bert import build_tiny_bert

onnxruntime = pytest.importorskip("onnxruntime")
LIBRARY = Path(__file__).parents[3] / ".clients/environments/node"
TEXT = "the cat sees a long road"
HALF_A_DIGIT = 0.0006
"""Of a probability that is shown in tenths of a percent."""


@pytest.fixture(scope="module")
def library() -> Path:
    try:
        with open_library(LIBRARY, lambda line: None):
            return LIBRARY
    except InputError:
        pytest.skip("Transformers.js is not here: make clients CLIENTS='--only Transformers.js' gets it")


def build(kind: str, tokenizer: Tokenizer) -> Any:
    encoder = build_tiny_bert(tokenizer, max_position_embeddings=40, initializer_range=0.3).eval()
    if kind in ("fill-mask", "embed"):
        return MaskedLanguageModel(encoder, tokenizer=tokenizer)
    task, head = {
        "classify": (Classification(["good", "bad", "neither"]), build_sequence_head),
        "ner": (TokenClassification(["O", "B-PER", "I-PER"]), build_token_head),
        "qa": (QuestionAnswering(), build_span_head),
    }[kind]
    return TaskModel(encoder, head(encoder, task.num_outputs, task.describe()), task).eval()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def open_page(
    driver: Any, library: Path, tokenizer: Tokenizer, corpus_file: Path, tmp_path: Path
) -> Iterator[Callable[[str], tuple[Page, Path]]]:
    """A page of a kind that says that it is ready, and its folder."""
    servers: list[ThreadingHTTPServer] = []

    def open_kind(kind: str) -> tuple[Page, Path]:
        build(kind, tokenizer).save_pretrained(tmp_path / "source", tokenizer)
        purpose = "embed" if kind == "embed" else None
        options = ExportOptions(
            "web", tmp_path / "out", purpose=purpose, texts=[str(corpus_file)], transformers_js=library
        )
        folder = export_model(str(tmp_path / "source"), options, lambda line: None)
        server = ThreadingHTTPServer(("localhost", 0), partial(Quiet, directory=str(folder)))
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        driver.get_log("browser")
        page = Page(driver, f"http://localhost:{server.server_port}")
        page.open("/")
        page.wait("document.querySelector('#status').textContent !== 'The model is loading.'")
        assert page.text("#status") == "The model is ready."
        return page, folder

    yield open_kind
    driver.get("about:blank")
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(page: Page, **fields: str) -> list[list[str]]:
    """The rows of the table that answers."""
    for field, text in fields.items():
        page.write(f"#{field}", text)
    page.click("#run")
    page.wait("document.querySelector('#answers table') || document.querySelector('#status.failed')")
    assert page.find_all("#status.failed") == []
    return list(
        page.run("return [...document.querySelectorAll('tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))")
    )


def run_graph(folder: Path, *texts: str) -> list[np.ndarray]:
    """Outputs of the graph that the page has."""
    session = onnxruntime.InferenceSession(str(folder / "model/onnx/model_quantized.onnx"))
    inputs = load_tokenizer(folder / "model")(*([text] for text in texts), return_tensors="np")
    return [np.asarray(one[0]) for one in session.run(None, dict(inputs))]


def softmax(logits: np.ndarray) -> np.ndarray:
    exps = np.exp(logits - logits.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def read_share(shown: str) -> float:
    return float(shown.removesuffix("%")) / 100


def test_masks_are_filled_and_nothing_comes_from_another_host(open_page: Any) -> None:
    page, folder = open_page("fill-mask")
    rows = ask(page, text="the [MASK] sees a long road")
    tokenizer = load_tokenizer(folder / "model")
    (logits,) = run_graph(folder, "the [MASK] sees a long road")
    shares = softmax(logits[2])
    best = [int(one) for one in np.argsort(-shares)[:5]]
    assert [row[0] for row in rows] == [tokenizer.token(token_id) for token_id in best]
    assert [read_share(row[2]) for row in rows] == pytest.approx([float(shares[one]) for one in best], abs=HALF_A_DIGIT)
    loaded = page.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert [name for name in loaded if not name.startswith(page.url)] == []
    assert any(name.endswith(".wasm") for name in loaded)
    page.check_nothing_failed()
    page.resize(PHONE)
    page.check_fits()


def test_a_text_without_a_mask_is_refused_in_a_sentence(open_page: Any) -> None:
    page, _ = open_page("fill-mask")
    page.write("#text", "the cat")
    page.click("#run")
    page.wait("document.querySelector('#status.failed')")
    assert page.text("#status") == "The text needs one [MASK]."
    assert ask(page, text="the [MASK]")


def test_texts_and_pairs_are_classified(open_page: Any) -> None:
    page, folder = open_page("classify")
    for texts in ((TEXT,), (TEXT, "a quiet house")):
        rows = ask(page, text=texts[0], second="".join(texts[1:]))
        shares = sorted(
            zip(softmax(run_graph(folder, *texts)[0]), ("good", "bad", "neither"), strict=True), reverse=True
        )
        assert [row[0] for row in rows] == [label for _, label in shares]
        assert [read_share(row[1]) for row in rows] == pytest.approx(
            [float(one) for one, _ in shares], abs=HALF_A_DIGIT
        )
        page.run("document.querySelector('#answers').replaceChildren()")


def test_entities_are_found(open_page: Any) -> None:
    page, folder = open_page("ner")
    rows = ask(page, text=TEXT)
    classes = run_graph(folder, TEXT)[0][1:-1].argmax(-1)
    starts = [
        one for place, one in enumerate(classes) if one == 1 or (one == 2 and (not place or not classes[place - 1]))
    ]
    assert len(rows) == len(starts) > 0
    assert {row[1] for row in rows} == {"PER"}
    assert all(row[0] in TEXT for row in rows)


def test_questions_are_answered_with_both_texts_told_apart(open_page: Any) -> None:
    page, folder = open_page("qa")
    ((answer, share),) = ask(page, question="the cat", text="sees a long green road")
    start, end = run_graph(folder, "the cat", "sees a long green road")
    inputs = load_tokenizer(folder / "model")("the cat", "sees a long green road")
    is_context = np.array(inputs["token_type_ids"]) == 1
    is_context[[0, -1]] = True, False
    shares = [softmax(np.where(is_context, one, -np.inf)) for one in (start, end)]
    scores = np.triu(np.outer(*shares))
    scores[0] = 0
    first, last = np.unravel_index(scores.argmax(), scores.shape)
    tokenizer = load_tokenizer(folder / "model")
    assert answer == tokenizer.decode(inputs["input_ids"][first : last + 1])
    assert read_share(share) == pytest.approx(float(scores.max()), abs=HALF_A_DIGIT)


def test_texts_are_ranked_by_their_cosine(open_page: Any) -> None:
    page, folder = open_page("embed")
    others = ["a long road", "every student likes the quiet river"]
    rows = ask(page, text=TEXT, others="\n".join(others))
    first, *vectors = (run_graph(folder, text)[1] for text in (TEXT, *others))
    cosines = [float(first @ one / np.linalg.norm(first) / np.linalg.norm(one)) for one in vectors]
    ranked = sorted(zip(cosines, others, strict=True), reverse=True)
    assert [row[0] for row in rows] == [text for _, text in ranked]
    assert [float(row[1]) for row in rows] == pytest.approx([cosine for cosine, _ in ranked], abs=HALF_A_DIGIT)
