"""A config file, read more strictly: `python -m dpcanary.settings.config_file FILE` checks one.

Of a key that is there twice, YAML's usual readers keep the last value without a word; and of a
file that is no YAML, Snakemake does not say which line is wrong.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from dpcanary.errors import InputError


def read_config(path: Path) -> dict[str, Any]:
    """A config as a mapping.

    Raises:
        InputError: if the file is missing, is no YAML, holds no mapping, or has a key twice; names
            the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise InputError(f"{path} must hold settings by key")
        _check_keys(path, node)
        content: dict[str, Any] = yaml.safe_load(text)
        return content
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InputError(f"{path}: {line}{error.problem or error}") from None
    except InputError:
        raise
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as YAML: {error}") from None


def _check_keys(path: Path, node: yaml.Node) -> None:
    """Refuses a mapping with a key twice, at any depth. Merges (`<<`) do not count."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(path, item)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        line, name = key.start_mark.line + 1, str(key.value)
        if name in lines:
            raise InputError(
                f"{path}: line {line}: key {name!r} is there already, in line {lines[name]};"
                " keep one of them"
            )
        lines[name] = line
        _check_keys(path, value)


def main(arguments: list[str]) -> None:
    """Checks config files, and says how many audits they make."""
    from dpcanary.settings.parsing import parse_experiment

    for name in arguments:
        experiment = parse_experiment(read_config(Path(name)))
        print(f"{name}: {len(experiment.audits)} audits")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        sys.exit(f"error: {error}")
