"""`prometheus_client`'s parser reads the figures."""

import sys
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

request = urllib.request.Request(f"{sys.argv[1]}/metrics", headers={"Authorization": f"Bearer {sys.argv[2]}"})
with urllib.request.urlopen(request) as response:
    families = {family.name: family for family in text_string_to_metric_families(response.read().decode())}
assert families["maskwright_requests"].type == "counter"
assert families["maskwright_request_seconds"].type == "histogram"
assert {sample.labels["model"] for sample in families["maskwright_model_ready"].samples} >= {"language"}
print(f"prometheus_client: {len(families)} families, {sum(len(one.samples) for one in families.values())} samples")
