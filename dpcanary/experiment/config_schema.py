"""The keys of a config as a JSON schema, for editors."""

from copy import copy
from typing import Any

from pydantic import Field, create_model

from dpcanary.core.setting_fields import ClosedModel, Name
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.experiment_config import Settings

_AUDITS = Field(description="by name; each is a sweep over all combinations of its lists")


def config_schema(*, with_sweeps: bool = True) -> dict[str, Any]:
    """The schema; if `with_sweeps`, each key of a sweep takes a value or a list of values."""
    fields: dict[str, Any] = {}
    for key, field in Audit.model_fields.items():
        value: Any = field.rebuild_annotation()  # with its limits, which hold for each value
        declared = copy(field)
        declared.metadata = []
        fields[key] = (value | list[value] if with_sweeps else value, declared)
    sweep: Any = create_model("Sweep", __base__=ClosedModel, **fields)
    config = create_model("Config", __base__=Settings, audits=(dict[Name, sweep], _AUDITS))
    return config.model_json_schema()
