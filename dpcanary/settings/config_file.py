"""A strict reader of config files: `python -m dpcanary.settings.config_file FILE` checks one.

Where a key is there twice, the usual YAML readers silently keep the last value. Where a file is
not YAML, Snakemake does not say which line is wrong.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dpcanary.errors import InputError
from dpcanary.program import run


def read_config(path: Path) -> dict[str, Any]:
    """A config as a mapping.

    Raises:
        InputError: if the file cannot be read, is not YAML, holds no mapping, or has a key twice;
            names the line where there is one.
    """
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise InputError(f"{path} must hold settings by key")
        _check_keys(path, node)
        content: dict[str, Any] = yaml.safe_load(text)
        return content
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InputError(f"{path}: {line}{error.problem or error}") from None
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as YAML: {error}") from None


def _check_keys(path: Path, node: yaml.Node) -> None:
    """Refuses a mapping that has a key twice, at any depth. Merged keys (`<<`) do not count."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(path, item)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if name in lines:
                raise InputError(
                    f"{path}: line {line}: key {name!r} is already in line {lines[name]}; keep one"
                )
            lines[name] = line
            _check_keys(path, value)


def main(arguments: Sequence[str]) -> None:
    """Checks config files and prints how many audits each makes."""
    from dpcanary.settings.parsing import parse_experiment

    for name in arguments:
        experiment = parse_experiment(read_config(Path(name)))
        print(f"{name}: {len(experiment.audits)} audits")


if __name__ == "__main__":
    run(main)
