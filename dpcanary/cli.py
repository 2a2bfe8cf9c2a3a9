"""The command `dpcanary`."""

import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

import typer

from dpcanary.commands.account import account
from dpcanary.commands.audit import audit
from dpcanary.commands.calibrate import calibrate
from dpcanary.commands.check import check
from dpcanary.commands.estimate import estimate
from dpcanary.commands.plan import plan
from dpcanary.commands.results import crate, release, report, results, verify
from dpcanary.commands.run import init, run
from dpcanary.commands.secrets import secrets
from dpcanary.commands.statement import statement
from dpcanary.core.errors_in_words import explained
from dpcanary.core.installation import published_names
from dpcanary.core.printing import wrapped

app = typer.Typer(
    name="dpcanary",
    help="What does the epsilon of a differentially private training protect?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Every subcommand has --help with examples, and --json for programs.",
)
for command in (
    account,
    calibrate,
    statement,
    estimate,
    plan,
    check,
    audit,
    crate,
    init,
    release,
    report,
    results,
    verify,
):
    app.command(no_args_is_help=True)(command)
app.add_typer(secrets, name="secrets")
# What it does not know are options of Snakemake.
app.command(
    no_args_is_help=True,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog=f"Published audits (docs/papers.md): {', '.join(published_names())}.",
)(run)


def _version(is_wanted: bool) -> None:
    if is_wanted:
        from dpcanary.version import VERSION

        print(f"dpcanary {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def with_options(text: str, arguments: Sequence[str]) -> str:
    """A message in which arguments of the library have the names of the options that were typed."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    if not arguments or arguments[0] not in commands:
        return text
    typed = {argument.partition("=")[0] for argument in arguments}
    for parameter in commands[arguments[0]].params:
        for option in typed.intersection(parameter.opts):
            if option.startswith("--"):
                # The subject of a message: not a part of a word, a path or a quotation.
                name = rf"(?<![\w.'\"`/-]){parameter.name}(?=:| is | must )"
                text = re.sub(name, option, text)
    return text


_INTERRUPTED = 130  # the exit status after Ctrl-C
_PATIENCE = 2.0  # seconds after a first Ctrl-C in which the command may still end by itself


class _Interruption:
    """Takes Ctrl-C: the first one as Python does, and a much later one ends this process at once.

    Where the first one is being handled, another exception would leave a traceback.

    Attributes:
        first: when the first one came; None if none has.
    """

    first: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = now
            raise KeyboardInterrupt
        if now > self.first + _PATIENCE:
            os._exit(_INTERRUPTED)


def main() -> None:
    """Runs the command line.

    The exit status is 0 if all went well, 1 if a file or a value is wrong, a package is not
    installed or an accountant gives no number, with one message on stderr, 2 if the command line
    itself is wrong, 3 if `check` has found an error, and 130 after Ctrl-C.
    """
    interruption = _Interruption()
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not ignored
    if is_heard:
        signal.signal(signal.SIGINT, interruption)
    try:
        app()
    except Exception as error:
        if (text := explained(error)) is None:
            raise
        if not isinstance(error, MemoryError):  # looking for options needs some
            text = with_options(text, sys.argv[1:])
        message = f"error: {text}"
        # In a log, a message is one line, which a search finds.
        sys.exit(wrapped(message) if sys.stderr.isatty() else message)
    finally:
        if interruption.first is not None:  # Python would end by the signal, not by the exit status
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        elif is_heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
