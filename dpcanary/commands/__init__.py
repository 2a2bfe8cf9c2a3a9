"""The subcommands of `dpcanary`, one file each.

They import what they need when they run, so that `dpcanary --help` is fast.
"""
