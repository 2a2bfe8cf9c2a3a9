"""The keys of a config: its JSON schema for editors, and tables for readers; see `make schema`."""

import json
import sys
from typing import Any

from dpcanary.experiment.config_schema import config_schema

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
_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


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
    words = {"string": "text", "boolean": "`true`, `false`", "object": "a mapping of names"}
    limits = [f"{sign} {declared[key]:g}" for key, sign in _LIMITS.items() if key in declared]
    return f"{words.get(declared['type'], declared['type'])} {' and '.join(limits)}".strip()


def main(arguments: list[str]) -> None:
    """Prints the schema, or with `--tables` the tables."""
    print(key_tables() if "--tables" in arguments else json.dumps(config_schema(), indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
