"""What the routes of a server share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from maskwright.serving.hub import ModelHub
from maskwright.serving.metrics import ServerMeter
from maskwright.serving.models import Answered
from maskwright.serving.settings import ServeSettings


@dataclass
class ServerState:
    hub: ModelHub
    settings: ServeSettings
    meter: ServerMeter
    is_stopping: bool = False

    @property
    def is_ready(self) -> bool:
        return self.hub.is_loaded and not self.is_stopping

    async def ask(self, model: str | None, kind: str, inputs: Any, options: dict[str, Any] | None = None) -> Answered:
        served = self.hub.find(model, kind)
        return await served.ask(kind, inputs, options)


class Request(BaseModel):
    """Keys that no route knows are refused, so that a mistyped option is not left aside without a word."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


def to_json(content: Any) -> Response:
    """Arrays as lists, numbers as short as they are exact."""
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")
