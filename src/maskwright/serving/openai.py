"""OpenAI's routes: `/v1/embeddings` and `/v1/models`."""

from __future__ import annotations

import base64
import time
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from starlette.responses import Response

from maskwright.serving.models import ServedModel
from maskwright.serving.refusals import Refusal
from maskwright.serving.state import Request, ServerState, to_json

TokenId = int
_SMALLEST_NORM = 1e-12


class EmbeddingsRequest(Request):
    model_config = ConfigDict(extra="ignore")  # clients send keys of their own service with every request

    input: str | list[str] | list[TokenId] | list[list[TokenId]] = Field(
        description="A text, a list of texts, or token ids of the model's vocabulary."
    )
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, description="Keep so many of a vector's numbers, at length 1 again.")


def build_openai_routes(state: ServerState) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["OpenAI"])
    created = int(time.time())

    @router.post("/embeddings")
    async def embeddings(request: EmbeddingsRequest) -> Response:
        """Vectors of length 1."""
        model = state.hub.find(request.model, "embed")
        rows = as_token_rows(request.input)
        options = {"normalize": True}
        if rows is None:
            texts = [request.input] if isinstance(request.input, str) else request.input
            answered = await model.ask("embed", texts, options)
        else:
            check_ids(rows, model)
            answered = await model.embed_ids(rows, options)
        vectors = [cut_vector(vector, request.dimensions) for vector in answered.answers]
        data = [
            {"object": "embedding", "index": number, "embedding": _write(vector, request.encoding_format)}
            for number, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": answered.num_tokens, "total_tokens": answered.num_tokens}
        return to_json({"object": "list", "data": data, "model": model.id, "usage": usage})

    @router.get("/models")
    async def models() -> Response:
        return to_json({"object": "list", "data": [_describe(name, created) for name in state.hub.models]})

    @router.get("/models/{model_id:path}")
    async def model(model_id: str) -> Response:
        if model_id not in state.hub.models:
            raise Refusal(404, f"there is no model '{model_id:.80}'; there are {', '.join(state.hub.models)}")
        return to_json(_describe(model_id, created))

    return router


def as_token_rows(given: Any) -> list[list[int]] | None:
    """Token ids as one row each; None for texts."""
    if isinstance(given, str) or not given or isinstance(given[0], str):
        return None
    return [given] if isinstance(given[0], int) else given


def check_ids(rows: list[list[int]], model: ServedModel) -> None:
    size = model.tokenizer.vocab_size
    for number, row in enumerate(rows, start=1):
        if not row:
            raise Refusal(422, f"input {number} has no token; give it some, or leave it out")
        if min(row) < 0 or max(row) >= size:
            wrong = next(one for one in row if not 0 <= one < size)
            raise Refusal(
                422,
                f"input {number} has token id {wrong}; '{model.id}' has ids from 0 to {size - 1}: send texts instead",
            )


def cut_vector(vector: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
    if dimensions is None:
        return vector
    if dimensions > len(vector):
        raise Refusal(422, f"dimensions is {dimensions}; the model's vectors have {len(vector)}")
    part = vector[:dimensions]
    return np.asarray(part / max(float(np.linalg.norm(part)), _SMALLEST_NORM), dtype=np.float32)


def _write(vector: NDArray[np.float32], encoding: str) -> Any:
    """As numbers, or the bytes of 32-bit floats, the lowest first."""
    return vector if encoding == "float" else base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def _describe(model_id: str, created: int) -> dict[str, Any]:
    return {"id": model_id, "object": "model", "created": created, "owned_by": "maskwright"}
