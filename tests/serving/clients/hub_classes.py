"""`huggingface_hub.InferenceClient.text_classification` of a server with a classifier alone."""

import sys

from huggingface_hub import InferenceClient

classes = InferenceClient(model=sys.argv[1], api_key=sys.argv[2]).text_classification(
    "the cat sees a long road.", top_k=2
)
assert [one.label for one in classes]
assert len(classes) == 2
assert classes[0].score >= classes[1].score
print(f"text_classification: {classes[0].label} {classes[0].score:.3f}, {classes[1].label} {classes[1].score:.3f}")
