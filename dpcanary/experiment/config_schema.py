"""The keys of a config: a JSON schema for editors, tables for readers; see `make schema`."""

import json
from collections.abc import Sequence
from copy import copy
from typing import Any

from pydantic import Field, create_model

from dpcanary.core.program_messages import run
from dpcanary.core.setting_fields import ClosedModel, Name
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.experiment_config import Settings

# What is a mapping of its own has a table of its own: its title, and its name in the schema.
_TABLES = {
    "The config": "",
    "An audit": "Sweep",
    "A dataset": "Dataset",
    "A figure": "Figure",
    "`pretraining` of an audit": "PretrainingSettings",
    "`metagradient` of an audit": "MetagradientSettings",
}
_INTRODUCTION = """# Keys of a config

Made by `make schema` from the declarations of the settings. [configs.md](configs.md) shows how they
are used. In a sweep, each key of an audit takes a value, or a list of values to be swept.
"""
_AUDITS = Field(description="by name; each is a sweep over all combinations of its lists")
_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


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


def key_tables() -> str:
    """Markdown: for each kind of mapping in a config a table of its keys."""
    schema = config_schema(with_sweeps=False)
    lines = [_INTRODUCTION]
    for title, name in _TABLES.items():
        model = schema["$defs"][name] if name else schema
        required = model.get("required", ())
        lines += [f"## {title}\n", "| Key | Value | Default | Meaning |", "|---|---|---|---|"]
        for key, declared in model["properties"].items():
            default = "required" if key in required else _in_words(declared.get("default"))
            value = _values(declared, schema["$defs"]).replace("|", "\\|")
            meaning = declared.get("description", "").replace("<", "\\<")
            lines.append(f"| `{key}` | {value} | {default} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def _in_words(default: object) -> str:
    if default is None:
        return ""
    return (
        f"`{json.dumps(default)}`" if isinstance(default, list | dict) else f"`{default}`".lower()
    )


def _values(declared: dict[str, Any], definitions: dict[str, Any]) -> str:
    """The values that a key takes, in words."""
    if "$ref" in declared:
        name = declared["$ref"].rpartition("/")[2]
        is_table = name in _TABLES.values()
        return "a mapping, see below" if is_table else _values(definitions[name], definitions)
    if choices := declared.get("anyOf"):
        filled = [choice for choice in choices if choice.get("type") != "null"]
        return " or ".join(dict.fromkeys(_values(choice, definitions) for choice in filled))
    if names := declared.get("enum", [declared["const"]] if "const" in declared else []):
        return ", ".join(f"`{name}`" for name in names)
    if declared["type"] == "array":
        return (
            f"a list of {_values(declared['items'], definitions)}"
            if "items" in declared
            else "a list"
        )
    words = {"string": "text", "boolean": "`true`, `false`", "object": "mappings by name"}
    limits = [f"{sign} {declared[key]:g}" for key, sign in _LIMITS.items() if key in declared]
    return f"{words.get(declared['type'], declared['type'])} {' and '.join(limits)}".strip()


def main(arguments: Sequence[str]) -> None:
    """Prints the schema, or with `--tables` the tables."""
    print(key_tables() if "--tables" in arguments else json.dumps(config_schema(), indent=2))


if __name__ == "__main__":
    run(main)
