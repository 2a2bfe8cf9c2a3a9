"""Datasets: read, checked, and cut into private, auxiliary and test records."""


def source_files(wildcards):
    """The user's own file, where the dataset is one."""
    source = EXPERIMENT.settings.datasets[wildcards.dataset].source
    return [] if source == "digits" else source


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
    params:
        settings=lambda wildcards: EXPERIMENT.dataset_stage(wildcards.dataset).to_json(),
    threads: 1
    resources:
        mem_mb=1000,
    shell:
        "python {input.program} --settings {params.settings:q} --output {output} 2> {log}"
