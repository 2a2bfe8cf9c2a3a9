"""Error messages and progress bars of the workflow's programs."""

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tqdm import TqdmWarning, tqdm

from dpcanary.core.errors_in_words import explained
from dpcanary.core.provenance import Job
from dpcanary.core.setting_fields import ClosedModel

# What the log of an interrupted job ends with.
INTERRUPTED = "interrupted"
OWN_CODE = "DPCANARY_OWN_CODE"


def run(main: Callable[[Sequence[str]], None]) -> None:
    """Runs a program's `main` on the arguments of the command line.

    An error that a user can mend is printed without a traceback; the exit status is 1. An
    interrupted program says so in one line.

    Modules of the user's own are looked up in the folder that the environment variable
    DPCANARY_OWN_CODE names, after all others.
    """
    if folder := os.environ.get(OWN_CODE):
        sys.path.append(folder)
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if (text := explained(error)) is None:
            raise
        sys.exit(f"error: {text}")


def stage_parser(
    description: str | None,
    settings: type[ClosedModel],
    *,
    inputs: Sequence[str] = (),
    optional: Sequence[str] = (),
    outputs: Sequence[str] = (),
    device: bool = False,
) -> argparse.ArgumentParser:
    """The options that programs have in common: settings, inputs by role, and the output.

    `outputs` names the files of `--output` where there are several.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--settings", type=settings.model_validate_json, required=True)
    for role in [*inputs, *optional]:
        parser.add_argument(f"--{role}", type=Path, required=role in inputs)
    if device:
        parser.add_argument("--device", default="cpu", help="cpu, cuda or auto")
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        nargs=len(outputs) or None,
        metavar=tuple(outputs) or None,
    )
    return parser


def parsed(
    parser: argparse.ArgumentParser, argv: Sequence[str], *, read_later: Sequence[str] = ()
) -> argparse.Namespace:
    """The arguments of a program, after its inputs have been found to be those of its job.

    Option `--job`, which is added, says which file each input must be: by role, which is the name
    of the input's option. The program itself checks those that are `read_later`.
    """
    parser.add_argument(
        "--job",
        type=Job.model_validate_json,
        default=Job(inputs={}),
        help="what is made, and what the inputs must be; without it, no input is checked",
    )
    args = parser.parse_args(argv)
    for role in {*args.job.inputs} - {*read_later}:
        args.job.check(role, getattr(args, role))
    return args


@contextmanager
def progress(total: int | None, unit: str) -> "Iterator[tqdm[NoReturn]]":
    """A progress bar on stderr, with the time left, updated at most every five seconds.

    A total that is not known yet is None; `reset` gives it later.

    Messages that the library logs appear above it.
    """
    with warnings.catch_warnings():  # in a notebook without ipywidgets, which it does not use here
        warnings.simplefilter("ignore", TqdmWarning)
        from tqdm.contrib.logging import logging_redirect_tqdm
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    bar = tqdm(total=total, unit=unit, unit_scale=True, mininterval=5.0, file=sys.stderr)
    with bar, logging_redirect_tqdm(tqdm_class=type(bar)):
        yield bar
