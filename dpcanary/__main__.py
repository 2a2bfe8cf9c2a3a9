"""The command, also as a module: `python -m dpcanary`."""

import signal


def main() -> None:
    """Loads the command and runs it; see `cli.main`."""
    # The command takes a second to load. Until then Ctrl-C ends it as by the system, since Python
    # would print a traceback.
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not ignored
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dpcanary import cli

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


if __name__ == "__main__":
    main()
