"""The JSON schema of a config, for editors: `python -m dpcanary.settings.schema` prints it."""

import json
from copy import copy
from typing import Any

from pydantic import create_model

from dpcanary.fields import ClosedModel, Name
from dpcanary.settings.audit import Audit
from dpcanary.settings.experiment import Settings


def config_schema() -> dict[str, Any]:
    """The schema, in which each key of a sweep takes a value or a list of values."""
    fields: dict[str, Any] = {}
    for key, field in Audit.model_fields.items():
        value = field.rebuild_annotation()  # with its limits, which hold for each value
        own = copy(field)
        own.metadata = []
        fields[key] = (value | list[value], own)  # type: ignore[valid-type]
    sweep = create_model("Sweep", __base__=ClosedModel, **fields)
    config = create_model("Config", __base__=Settings, audits=(dict[Name, sweep], ...))  # type: ignore[valid-type]
    return config.model_json_schema()


if __name__ == "__main__":
    print(json.dumps(config_schema(), indent=2))
