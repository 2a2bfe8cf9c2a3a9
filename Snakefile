"""Audits of DP-SGD under substitute adjacency; see README.md and docs/stages.md."""

import sys
from pathlib import Path

from snakemake.utils import min_version

min_version("9.10")


report: "report/workflow.rst"


from dpcanary.experiment.results_lock import BY_COMMAND, hold_lock
from dpcanary.experiment.unplanned_looks import record_looks, record_looks_at_targets
from dpcanary.workflow.endings import end_with_command, print_failure, print_success

if workflow.is_main_process:
    end_with_command()

FOLDER = Path(workflow.current_basedir.get_path_or_uri(secret_free=True))
# As a `module` of another workflow, the config comes from there: docs/configs.md.
IS_MAIN = FOLDER == Path(workflow.basedir)

# Without --configfile, the demo. (A plain `configfile:` would be merged into the user's own.)
if IS_MAIN and not workflow.overwrite_configfiles:
    if workflow.is_main_process:
        print("No --configfile is given: this is the demo.", file=sys.stderr)

    configfile: f"{FOLDER}/config/demo.yaml"


include: "rules/common.smk"
include: "rules/data.smk"
include: "rules/canaries.smk"
include: "rules/accounting.smk"
include: "rules/training.smk"
include: "rules/estimation.smk"
include: "rules/figures.smk"
include: "rules/housekeeping.smk"


if RELEASED:  # in place of what trains

    include: "rules/released.smk"


onstart:
    if IS_MAIN:
        try:
            if BY_COMMAND not in os.environ:  # else the command holds it
                hold_lock(Path(RESULTS))
            # Before results of other numbers of runs take the place of these.
            record_looks(Path(RESULTS), EXPERIMENT)
        except InputError as error:
            raise WorkflowError(str(error)) from None
    if SERVER:
        SERVER.start()


onsuccess:
    if IS_MAIN:
        record_looks_at_targets(Path(RESULTS), EXPERIMENT)
    print_success(Path(RESULTS), workflow.dag_settings.targets)


onerror:
    if IS_MAIN:
        record_looks_at_targets(Path(RESULTS), EXPERIMENT)
    print_failure(Path(LOGS), Path("resources/logs"))


rule all:
    input:
        f"{RESULTS}/summary.tsv",
        expand(
            f"{RESULTS}/figures/{{figure}}.{{format}}",
            figure=EXPERIMENT.settings.figures,
            format=["pdf", "png", "tsv"],
        ),
