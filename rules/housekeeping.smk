"""What looks at an experiment without computing anything."""

import json

from dpcanary.core.files import write_text
from dpcanary.core.printing import print_unless_closed
from dpcanary.experiment.experiment_config import table_of_audits


localrules:
    resolve_config,
    resolve_planned_config,
    list_audits,
    estimate_cost,


rule resolve_config:
    output:
        RESOLVED_CONFIG,
    log:
        f"{LOGS}/resolve_config.log",
    params:
        experiment=lambda wildcards: EXPERIMENT.to_json(),  # a note may hold braces
    message:
        "Writing the resolved config"
    run:
        write_text(Path(output[0]), json.dumps(json.loads(params.experiment), indent=2))


# What looks at a config alone must not touch the one that the results were made with.
use rule resolve_config as resolve_planned_config with:
    output:
        PLANNED_CONFIG,
    log:
        f"{LOGS}/resolve_planned_config.log",


rule list_audits:
    log:
        f"{LOGS}/list_audits.log",
    message:
        "Listing the audits"
    run:
        print_unless_closed(table_of_audits(EXPERIMENT))


rule estimate_cost:
    input:
        program=program("estimate_cost"),
        experiment=PLANNED_CONFIG,
    log:
        f"{LOGS}/estimate_cost.log",
    conda:
        "../envs/costs.yaml"
    resources:
        mem_mb=4000,
        gpu=gpus_of(EXPERIMENT.settings.device),
    params:
        folder=option("data-folder", FILES.data_folder),
        cores=lambda wildcards: workflow.cores,
    message:
        "Estimating what the experiment will cost"
    shell:
        "python {input.program:q} --experiment {input.experiment}"
        " {params.folder} --cores {params.cores} 2> >(tee {log} >&2)"
