"""Our routes: a kind of prediction each, answered as `pipeline(kind, model)` answers; and what the page asks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from maskwright.machine import read_process_memory
from maskwright.runs.search.search import reorder
from maskwright.serving.metrics import write_prometheus
from maskwright.serving.models import EMBEDDING, RERANK, SPARSE
from maskwright.serving.refusals import Refusal
from maskwright.serving.state import Request, ServerState, to_json
from maskwright.version import __version__

ModelName = Annotated[str | None, Field(description="A model's id; unset: the first that can answer.")]
_MOST_HITS = 1_000
_MOST_DOCUMENTS = 20_000
"""Of a request for several queries: each is read from the disk, and is in the answer."""
Texts = Annotated[str | list[str], Field(description="A text, or a list of texts.")]


class KindRequest(Request):
    model: ModelName = None
    parameters: dict[str, Any] = Field(
        default_factory=dict, description="Options, under our names or those of transformers."
    )

    @property
    def options(self) -> dict[str, Any]:
        """Those that the request has; one that is null is as if it were not there, but for top_k, where null is all."""
        given = self.model_dump(exclude={"model", "parameters", "inputs"}, exclude_unset=True)
        options = {**self.parameters, **given}
        return {name: value for name, value in options.items() if value is not None or name == "top_k"}


class FillMaskRequest(KindRequest):
    inputs: Texts
    top_k: int = 5
    targets: str | list[str] | None = Field(None, description="Rank only these words.")
    max_length: int | None = None


class NerRequest(KindRequest):
    inputs: Texts
    aggregation: str | None = Field(None, description="first, average, max, simple or none.")
    max_length: int | None = None


class ClassifyRequest(KindRequest):
    inputs: str | list[str | tuple[str, str]]
    top_k: int | None = Field(None, description="So many classes as a list, null: all; unset: the best one alone.")
    max_length: int | None = None


class Question(Request):
    question: str
    context: str


class QaRequest(KindRequest):
    inputs: Question | list[Question]
    top_k: int = 1
    handle_impossible_answer: bool = Field(False, description='Whether the answer may be "".')
    max_answer_length: int | None = None
    max_question_length: int | None = None
    doc_stride: int | None = None
    max_length: int | None = None


class ZeroShotRequest(KindRequest):
    inputs: Texts
    labels: str | list[str] | None = None
    hypothesis: str | None = Field(None, description="A sentence with {} for the label.")
    multi_label: bool = False
    max_length: int | None = None


class SimilarityRequest(KindRequest):
    inputs: list[tuple[str, str]]
    pooling: str | None = None
    max_length: int | None = None


class EmbedRequest(KindRequest):
    inputs: Texts
    pooling: str | None = Field(None, description="mean, cls, or none for a vector to each token.")
    normalize: bool | None = None
    max_length: int | None = None


class RetrievalRequest(KindRequest):
    inputs: Texts
    role: str | None = Field(None, description="query or document; unset: document.")


class SearchRequest(Request):
    query: str | list[str] = Field(description="What to look for: a text, or a list of texts.")
    index: str | None = Field(None, description="An index's id; unset: the first one.")
    top_k: int = Field(10, ge=1, le=_MOST_HITS, description="Number of documents for each query.")
    rerank: str | None = Field(None, description="The id of a model that puts what is found in another order.")
    rerank_depth: int = Field(100, ge=1, le=_MOST_HITS, description="Documents of a query that it reads.")


class TokenizeRequest(Request):
    inputs: str
    model: ModelName = None


def build_own_routes(state: ServerState) -> APIRouter:
    router = APIRouter()
    _add_kinds(router, state)
    _add_embeddings(router, state)
    _add_search(router, state)
    _add_figures(router, state)
    return router


def _add_kinds(router: APIRouter, state: ServerState) -> None:
    async def ask(kind: str, request: Any, inputs: Any) -> Response:
        return to_json((await state.ask(request.model, kind, inputs, request.options)).shaped)

    @router.post("/fill-mask", tags=["kinds"])
    async def fill_mask(request: FillMaskRequest) -> Response:
        """Candidates for a text's mask; of several masks a list each."""
        return await ask("fill-mask", request, request.inputs)

    @router.post("/ner", tags=["kinds"])
    async def ner(request: NerRequest) -> Response:
        """Entities with their places in the text."""
        return await ask("ner", request, request.inputs)

    @router.post("/classify", tags=["kinds"])
    async def classify(request: ClassifyRequest) -> Response:
        """Classes of texts or pairs of texts."""
        return await ask("classify", request, request.inputs)

    @router.post("/qa", tags=["kinds"])
    async def qa(request: QaRequest) -> Response:
        """The part of a context that answers a question."""
        single = isinstance(request.inputs, Question)
        inputs = request.inputs.model_dump() if single else [one.model_dump() for one in request.inputs]  # type: ignore[union-attr]
        return await ask("qa", request, inputs)

    @router.post("/zero-shot", tags=["kinds"])
    async def zero_shot(request: ZeroShotRequest) -> Response:
        """Which of some labels a text has."""
        return await ask("zero-shot", request, request.inputs)

    @router.post("/api/similarity", tags=["kinds"])
    async def similarity(request: SimilarityRequest) -> Response:
        """The cosine between the vectors of two texts."""
        return await ask("similarity", request, request.inputs)


def _add_embeddings(router: APIRouter, state: ServerState) -> None:
    @router.post("/api/embed", tags=["kinds"])
    async def embed(request: EmbedRequest) -> Response:
        """Vectors of texts, as the model's folder says that they are made."""
        inputs = [request.inputs] if isinstance(request.inputs, str) else request.inputs
        answered = await state.ask(request.model, "embed", inputs, request.options)
        return to_json({"embeddings": answered.answers, "tokens": answered.num_tokens})

    @router.post("/api/embed-sparse", tags=["kinds"])
    async def embed_sparse(request: RetrievalRequest) -> Response:
        """The tokens that stand for a text, with their weights, the largest first."""
        model = state.hub.find(request.model, SPARSE)
        answered = await model.ask(SPARSE, request.inputs, request.options)
        described = [model.embedding[1].kind.describe_answer(one) for one in answered.answers]
        return to_json(described[0] if answered.is_single else described)

    @router.post("/api/tokenize", tags=["kinds"])
    async def tokenize(request: TokenizeRequest) -> Response:
        """The tokens of a text with their places."""
        return to_json({"tokens": list_tokens(state, request.model, request.inputs)})


def _add_search(router: APIRouter, state: ServerState) -> None:
    @router.post("/search", tags=["search"])
    async def search(request: SearchRequest) -> Response:
        """The documents of an index that answer a query best, as `maskwright search` finds them."""
        index = state.hub.find_index(request.index)
        is_single = isinstance(request.query, str)
        queries = [request.query] if isinstance(request.query, str) else request.query
        reranker = None if request.rerank is None else state.hub.find(request.rerank, RERANK)
        depth = request.top_k if reranker is None else max(request.top_k, request.rerank_depth)
        if len(queries) * depth > _MOST_DOCUMENTS:
            raise Refusal(
                422, f"the request asks for {len(queries) * depth:,} documents, and {_MOST_DOCUMENTS:,} are allowed"
            )
        found = await index.search(queries, depth)
        if reranker is not None:
            pairs = [(query, hit.text) for query, hits in zip(queries, found, strict=True) for hit in hits]
            scores = iter(await reranker.rank(pairs))
            found = reorder(found, [[next(scores) for _ in hits] for hits in found], request.top_k)
        answers = [
            {"query": query, "hits": [asdict(hit) for hit in hits]} for query, hits in zip(queries, found, strict=True)
        ]
        return to_json(answers[0] if is_single else answers)


def list_tokens(state: ServerState, model: str | None, text: str, with_specials: bool = True) -> list[dict[str, Any]]:
    tokenizer = state.hub.find(model, *EMBEDDING).tokenizer
    (encoding,) = tokenizer.encode_spans([text])
    rows = zip(encoding.ids, encoding.offsets, strict=True)
    tokens = [
        {"id": token_id, "text": tokenizer.token(token_id), "start": start, "stop": stop, "special": False}
        for token_id, (start, stop) in rows
    ]
    if not with_specials:
        return tokens
    ends = [
        {"id": token_id, "text": tokenizer.token(token_id), "start": None, "stop": None, "special": True}
        for token_id in (tokenizer.cls_token_id, tokenizer.sep_token_id)
    ]
    return [ends[0], *tokens, ends[1]]


def _add_figures(router: APIRouter, state: ServerState) -> None:
    hub = state.hub

    @router.get("/api/models", tags=["server"])
    async def models() -> Response:
        """The models and what each can do."""
        needs_key = state.settings.api_key is not None
        described = {"models": hub.describe(), "indexes": hub.describe_indexes()}
        return to_json({**described, "version": __version__, "needs_key": needs_key})

    @router.get("/api/stats", tags=["server"])
    async def stats() -> Response:
        """Figures of the server and of each model: rates of the last seconds, percentiles of the last minutes."""
        figures = state.meter.describe()
        models = {
            name: {**model.meter.describe(), "queue_texts": model.num_waiting, "memory_bytes": model.memory_bytes}
            for name, model in hub.models.items()
        }
        queue = {"queue_texts": hub.waiting[0], "memory_bytes": read_process_memory()}
        return to_json({**figures, **queue, "models": models})

    @router.get("/metrics", tags=["server"])
    async def metrics() -> PlainTextResponse:
        """For Prometheus."""
        meters = {name: model.meter for name, model in hub.models.items()}
        ready = {name: name in meters for name in hub.entries}
        text = write_prometheus(state.meter, meters, ready, hub.waiting)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    @router.get("/ready", tags=["server"])
    async def ready() -> Response:
        """200 when every model is loaded or has failed, and one at least answers; 503 before, and while stopping."""
        response = to_json({"ready": state.is_ready, "models": list(hub.models), "failed": hub.errors})
        response.status_code = 200 if state.is_ready else 503
        return response
