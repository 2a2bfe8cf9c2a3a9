"""The command as a module: `python -m dpcanary`."""

from dpcanary.cli import main

if __name__ == "__main__":
    main()
