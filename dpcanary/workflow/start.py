"""`python -m dpcanary.workflow.start`: Snakemake, with no traceback if it is interrupted.

Snakemake itself takes an interruption in silence only while jobs run, not while it is loaded, reads
the workflow, or plans it, which is seconds.
"""

import runpy
import sys

if __name__ == "__main__":
    try:
        runpy.run_module("snakemake", run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        sys.exit(1)
