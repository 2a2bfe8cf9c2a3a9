"""The subcommands of `dpcanary`.

They import what they need when they run, so that `dpcanary --help` is fast.
"""
