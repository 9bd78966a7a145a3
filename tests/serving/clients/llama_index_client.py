"""LlamaIndex's embedding clients, of OpenAI's route and of text-embeddings-inference's."""

import sys

import numpy as np
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

url, key = sys.argv[1:3]
texts = ["the cat sees a long road.", "every student likes the green house."]
openai = OpenAILikeEmbedding(model_name="language", api_base=f"{url}/v1", api_key=key)
tei = TextEmbeddingsInference(base_url=url, model_name="language", auth_token=key)
first, second = np.float32(openai.get_text_embedding_batch(texts)), np.float32(tei.get_text_embedding_batch(texts))
assert np.array_equal(first, second)
print(f"llama-index: OpenAILikeEmbedding and TextEmbeddingsInference give the same {first.shape}")
