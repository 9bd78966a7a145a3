"""The `openai` package: embeddings of texts and of tokens, both encodings, fewer dimensions, models and errors."""

import sys

import numpy as np
import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key=sys.argv[2])
texts = ["the cat sees a long road.", "every student likes the green house."]

coded = client.embeddings.create(model="language", input=texts)  # the package asks for base64 and decodes it
plain = client.embeddings.create(model="language", input=texts, encoding_format="float")
vectors = np.float32([one.embedding for one in plain.data])
assert np.array_equal(np.float32([one.embedding for one in coded.data]), vectors)
assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0)
short = client.embeddings.create(model="language", input=texts[0], dimensions=8)
assert len(short.data[0].embedding) == 8
tokens = client.embeddings.create(model="language", input=[[5, 6, 7], [8, 9]])
assert len(tokens.data) == 2
assert tokens.usage.prompt_tokens == 9
names = [model.id for model in client.models.list()]
assert client.models.retrieve(names[0]).id == names[0]
try:
    client.embeddings.create(model="gpt-4", input="a")
except openai.NotFoundError as error:
    assert "there is no model 'gpt-4'" in error.message
else:
    raise AssertionError
try:
    client.embeddings.create(model="language", input="")
except openai.UnprocessableEntityError as error:
    assert "empty" in error.message
else:
    raise AssertionError
try:
    openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="wrong").models.list()
except openai.AuthenticationError:
    pass
else:
    raise AssertionError
print(f"openai {openai.__version__}: vectors {vectors.shape}, models {', '.join(names)}, errors as of its service")
