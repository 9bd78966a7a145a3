"""LangChain's embedding clients, of OpenAI's route and of text-embeddings-inference's."""

import sys

import langchain_huggingface
import langchain_openai
import numpy as np

url, key = sys.argv[1:3]
texts = ["the cat sees a long road.", "every student likes the green house."]
openai = langchain_openai.OpenAIEmbeddings(
    model="language", base_url=f"{url}/v1", api_key=key, check_embedding_ctx_length=False
)
hub = langchain_huggingface.HuggingFaceEndpointEmbeddings(model=f"{url}/embed", huggingfacehub_api_token=key)
first, second = np.float32(openai.embed_documents(texts)), np.float32(hub.embed_documents(texts))
assert np.array_equal(first, second)
query = np.float32(openai.embed_query(texts[0]))
assert np.allclose(query, first[0], atol=1e-6)
print(f"langchain: OpenAIEmbeddings and HuggingFaceEndpointEmbeddings give the same {first.shape}")
