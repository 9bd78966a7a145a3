"""The routes of text-embeddings-inference, for its clients; `POST /` is what `huggingface_hub` asks of a plain URL."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import ConfigDict, Field
from starlette.responses import Response

from maskwright.inference.sparse import SparseVector
from maskwright.models.any_encoder import find_max_length
from maskwright.serving.models import RERANK, SPARSE, TOKENS, Answered, ServedModel
from maskwright.serving.openai import as_token_rows, check_ids, cut_vector
from maskwright.serving.own import ModelName, list_tokens
from maskwright.serving.refusals import Refusal
from maskwright.serving.state import Request, ServerState, to_json
from maskwright.version import __version__

_Ids = list[int] | list[list[int]]
_PREDICTING = ("classify", RERANK)


class TeiRequest(Request):
    """Long texts are read in windows, so whether to truncate them makes no difference."""

    truncate: bool | None = Field(None, description="Taken and not needed: long texts are read in windows.")
    truncation_direction: str | None = Field(None, description="Taken and not needed.")
    model: ModelName = None


class EmbeddingRequest(TeiRequest):
    inputs: str | list[str] | _Ids
    prompt_name: Literal["query", "document"] | None = Field(
        None, description="What the texts are, for models with a prompt for each; unset: the prompt of the folder."
    )

    def with_role(self, **options: Any) -> dict[str, Any]:
        return options if self.prompt_name is None else {**options, "role": self.prompt_name}


class EmbedRequest(EmbeddingRequest):
    normalize: bool = True
    dimensions: int | None = Field(None, ge=1, description="Keep so many of a vector's numbers, at length 1 again.")


class PredictRequest(TeiRequest):
    prompt_name: None = None
    inputs: str | tuple[str, str] | list[list[str]] = Field(
        description="A text, a pair of texts, or a list in which each is a list of one or two texts."
    )
    raw_scores: bool = Field(False, description="Only false is answered: scores are probabilities.")


class RerankRequest(TeiRequest):
    prompt_name: None = None
    query: str
    texts: list[str]
    raw_scores: bool = Field(
        False, description="Only false is answered: scores are those of /classify, or sums of best matches."
    )
    return_text: bool = False


class SimilarityInputs(Request):
    source_sentence: str
    sentences: list[str]


class SimilarityRequest(Request):
    inputs: SimilarityInputs
    parameters: dict[str, Any] | None = None


class TokenizeRequest(Request):
    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: None = None


class HubRequest(Request):
    """What `huggingface_hub.InferenceClient` sends to the address of an endpoint."""

    model_config = ConfigDict(extra="ignore")

    inputs: Any
    parameters: dict[str, Any] | None = None
    normalize: bool = True


def build_tei_routes(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["text-embeddings-inference"])
    _add_embeddings(router, state)
    _add_predictions(router, state)
    _add_rest(router, state)
    return router


def _add_embeddings(router: APIRouter, state: ServerState) -> None:
    @router.post("/embed")
    async def embed(request: EmbedRequest) -> Response:
        """A vector for each text, of length 1 unless `normalize` is false."""
        model = state.hub.find(request.model, "embed")
        answered = await _embed(model, request.inputs, request.with_role(normalize=request.normalize))
        return to_json([cut_vector(vector, request.dimensions) for vector in answered.answers])

    @router.post("/embed_all")
    async def embed_all(request: EmbeddingRequest) -> Response:
        """A vector for each token of each text, those around it included; of late interaction those that count."""
        model = state.hub.find(request.model, TOKENS, "embed")
        if TOKENS in model.kinds:
            texts = _as_texts(request.inputs, model)
            return to_json((await model.ask(TOKENS, texts, request.with_role())).answers)
        options = request.with_role(pooling="none", normalize=False)
        return to_json((await _embed(model, request.inputs, options)).answers)

    @router.post("/embed_sparse")
    async def embed_sparse(request: EmbeddingRequest) -> Response:
        """The tokens of the vocabulary that stand for each text, with their weights."""
        model = state.hub.find(request.model, SPARSE)
        answered = await model.ask(SPARSE, _as_texts(request.inputs, model), request.with_role())
        return to_json([list_weights(vector) for vector in answered.answers])

    @router.post("/similarity")
    async def similarity(request: SimilarityRequest) -> Response:
        """The cosine between a sentence and each of the others."""
        return to_json(await _compare(state, request.inputs))


def list_weights(vector: SparseVector) -> list[dict[str, Any]]:
    return [
        {"index": index, "value": value} for index, value in zip(vector.tokens.tolist(), vector.weights, strict=True)
    ]


def _as_texts(inputs: Any, model: ServedModel) -> list[str]:
    if as_token_rows(inputs) is not None:
        raise Refusal(422, f"inputs are token ids, and '{model.id}' puts tokens of its own around texts: send texts")
    return [inputs] if isinstance(inputs, str) else inputs


async def _embed(model: ServedModel, inputs: Any, options: dict[str, Any]) -> Answered:
    rows = as_token_rows(inputs)
    if rows is None:
        return await model.ask("embed", [inputs] if isinstance(inputs, str) else inputs, options)
    check_ids(rows, model)
    return await model.embed_ids(rows, options)


async def _compare(state: ServerState, inputs: SimilarityInputs) -> list[float]:
    """The first sentence has its vector computed once, with those of the others."""
    texts = [inputs.source_sentence, *inputs.sentences]
    answered = await _embed(state.hub.find(None, "embed"), texts, {"normalize": True})
    first, *others = answered.answers
    return [float(first @ other) for other in others]


def _add_predictions(router: APIRouter, state: ServerState) -> None:
    @router.post("/predict")
    async def predict(request: PredictRequest) -> Response:
        """All classes with their probabilities, the best first."""
        _refuse_raw(request.raw_scores)
        is_batch = isinstance(request.inputs, list)
        given = request.inputs if isinstance(request.inputs, list) else [request.inputs]
        answered = await state.ask(request.model, "classify", [_as_classified(one) for one in given], {"top_k": None})
        return to_json(answered.answers if is_batch else answered.answers[0])

    @router.post("/rerank")
    async def rerank(request: RerankRequest) -> Response:
        """How well each text goes with the query, the best first."""
        _refuse_raw(request.raw_scores)
        model = state.hub.find(request.model, RERANK)
        scores = await model.rank([(request.query, text) for text in request.texts])
        ranked = [
            {"index": number, "score": score, **({"text": text} if request.return_text else {})}
            for number, (score, text) in enumerate(zip(scores, request.texts, strict=True))
        ]
        return to_json(sorted(ranked, key=lambda one: -one["score"]))

    @router.post("/")
    async def ask_default(request: HubRequest) -> Response:
        """What `InferenceClient(model=URL)` asks, of the kind that the inputs and the first model call for."""
        return to_json(await _answer_hub(state, request))


def _refuse_raw(raw_scores: bool) -> None:
    if raw_scores:
        raise Refusal(422, "raw_scores is true, and scores are given as probabilities; leave it out")


def _as_classified(given: Any) -> Any:
    """A text as it is or alone in a list, or a pair."""
    if isinstance(given, str):
        return given
    if len(given) not in (1, 2):
        raise Refusal(422, f"an input is a list of {len(given)} texts; expected one text, or two of a pair")
    return given[0] if len(given) == 1 else tuple(given)


async def _answer_hub(state: ServerState, request: HubRequest) -> Any:
    inputs, options = request.inputs, request.parameters or {}
    keys = set(inputs) if isinstance(inputs, dict) else set()
    if keys == {"source_sentence", "sentences"}:
        return await _compare(state, _read_similarity(inputs))
    kind = "qa" if keys else "zero-shot" if "candidate_labels" in options else _find_first(state).kinds[0]
    if kind == "embed":
        return (await _embed(_find_first(state), inputs, {"normalize": request.normalize})).answers
    if kind == SPARSE:
        return [list_weights(one) for one in (await state.ask(None, kind, _as_list(inputs))).answers]
    if kind == "classify":
        return (await state.ask(None, kind, _as_list(inputs), {"top_k": None, **options})).answers
    answered = await state.ask(None, kind, inputs, options)
    if kind == "zero-shot" and answered.is_single:
        rows = zip(answered.answers[0]["labels"], answered.answers[0]["scores"], strict=True)
        return [{"label": label, "score": score} for label, score in rows]
    return answered.shaped


def _as_list(inputs: Any) -> Any:
    return [inputs] if isinstance(inputs, str) else inputs


def _read_similarity(inputs: dict[str, Any]) -> SimilarityInputs:
    try:
        return SimilarityInputs.model_validate(inputs)
    except ValueError:
        raise Refusal(422, "inputs must have a source_sentence, a text, and sentences, a list of texts") from None


def _find_first(state: ServerState) -> ServedModel:
    models = list(state.hub.models.values())
    if not models:
        raise Refusal(503, "no model is loaded", 1)
    return models[0]


def _add_rest(router: APIRouter, state: ServerState) -> None:
    @router.post("/tokenize")
    async def tokenize(request: TokenizeRequest) -> Response:
        texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
        if len(texts) > state.settings.max_texts:
            raise Refusal(422, f"the request has {len(texts):,} texts, and {state.settings.max_texts:,} are allowed")
        return to_json([list_tokens(state, None, text, request.add_special_tokens) for text in texts])

    @router.get("/info")
    async def info() -> Response:
        """What text-embeddings-inference says of its model, of the first one here."""
        return to_json(_describe(state))

    @router.get("/health")
    async def health() -> Response:
        """200 as long as the process answers; `/ready` says whether its models do."""
        return Response()


def _describe(state: ServerState) -> dict[str, Any]:
    model, settings = _find_first(state), state.settings
    described = model.describe()
    first, labels = model.kinds[0], described["labels"]
    if first == "classify":
        numbered = {str(number): name for number, name in enumerate(labels or ())}
        model_type: dict[str, Any] = {
            "classifier": {"id2label": numbered, "label2id": {v: int(k) for k, v in numbered.items()}}
        }
        model_type = {"reranker": model_type["classifier"]} if RERANK in model.kinds else model_type
    else:
        pooling = {SPARSE: "splade", TOKENS: "none"}.get(first, model.loaded.encoder.settings.pooling)
        model_type = {"embedding": {"pooling": pooling}}
    return {
        "model_id": model.id,
        "model_sha": None,
        "model_dtype": described["dtype"],
        "model_type": model_type,
        "max_concurrent_requests": settings.max_concurrent,
        "max_input_length": find_max_length(model.loaded.encoder.encoder),
        "max_batch_tokens": settings.max_request_tokens,
        "max_client_batch_size": settings.max_texts,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "version": __version__,
    }
