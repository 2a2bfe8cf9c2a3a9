"""The base of all settings: pydantic models that refuse what they do not know."""

import json

from pydantic import BaseModel, ConfigDict


class ClosedModel(BaseModel):
    """A frozen model that refuses unknown keys and silent conversions of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def to_json(self) -> str:
        """Compact JSON with sorted keys: the same settings always give the same text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
