"""Datasets: read, checked, and cut into private, auxiliary and test records."""


rule prepare_dataset:
    input:
        program=program("prepare_dataset"),
        library=library("prepare_dataset"),
        source=source_files,
    output:
        f"{RESULTS}/data/{{dataset}}.npz",
    log:
        f"{LOGS}/prepare_dataset/{{dataset}}.log",
    conda:
        "../envs/data.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        settings=lambda wildcards: EXPERIMENT.dataset_stage(wildcards.dataset).to_json(),
    message:
        "Cutting dataset {wildcards.dataset} into private, auxiliary and test records"
    shell:
        "python {input.program:q} --settings {params.settings:q} --output {output} 2> {log}"
