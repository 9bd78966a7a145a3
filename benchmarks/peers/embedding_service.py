"""sentence-transformers behind plain FastAPI, as tutorials show it: a route that encodes what one request brings.

python benchmarks/peers/embedding_service.py FOLDER PORT [DEVICE DTYPE]
"""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

app = FastAPI()
device, dtype = sys.argv[3:5] if len(sys.argv) > 4 else ("cpu", "float32")
model = SentenceTransformer(sys.argv[1], device=device, model_kwargs={"torch_dtype": dtype})


class Request(BaseModel):
    input: str | list[str]


@app.post("/v1/embeddings")
def embeddings(request: Request) -> dict[str, object]:
    texts = [request.input] if isinstance(request.input, str) else request.input
    vectors = model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    data = [{"object": "embedding", "index": index, "embedding": row.tolist()} for index, row in enumerate(vectors)]
    return {"object": "list", "data": data}


@app.get("/health")
def health() -> dict[str, str]:
    return {}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), access_log=False, log_level="warning")
