"""The base class of all settings."""

import json

from pydantic import BaseModel, ConfigDict


class ClosedModel(BaseModel):
    """A frozen pydantic model that refuses unknown keys and does not convert types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def to_json(self) -> str:
        """Compact JSON with sorted keys: the same settings always give the same text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
