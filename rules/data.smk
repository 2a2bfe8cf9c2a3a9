"""Datasets: downloaded, encoded, and split into private, auxiliary and test records."""

from dpcanary.data.dataset_settings import DatasetStage
from dpcanary.data.encoder_settings import FeaturesStage
from dpcanary.experiment.data_files import DOWNLOADS
from dpcanary.workflow.record_files import ENCODERS, FEATURES, LOCK


# The nodes of a cluster often have no network.
localrules:
    download_file,
    download_encoder,
    prepare_dataset,  # seconds


rule download_file:
    input:
        program=program("download_file"),
    output:
        f"{DOWNLOADS}/{{file}}",
    log:
        "resources/logs/download_file/{file}.log",
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=500,
    params:
        code=code("download_file"),
        source=lambda wildcards: SOURCES.source_of_file[wildcards.file],
        entry=lambda wildcards: SOURCES.entry(wildcards.file).to_json(),
        catalogue=str(CATALOGUE_PATH),
        folder=option("data-folder", FILES.data_folder),
        lock=LOCK,
    message:
        "Downloading {wildcards.file}"
    shell:
        "python {input.program:q} --catalogue {params.catalogue:q} --source {params.source}"
        " {params.folder} --lock {params.lock} --output {output:q} > {log:q} 2>&1"


rule download_encoder:
    input:
        program=program("download_encoder"),
    output:
        f"{ENCODERS}/{{encoder}}.json",
    log:
        "resources/logs/download_encoder/{encoder}.log",
    conda:
        "../envs/encoding.yaml"
    resources:
        mem_mb=1000,
    params:
        code=code("download_encoder"),
        name=lambda wildcards: SOURCES.on_the_hub[wildcards.encoder].encoder,
        revision=lambda wildcards: option(
            "revision", SOURCES.on_the_hub[wildcards.encoder].encoder_revision
        ),
        lock=LOCK,
    message:
        "Downloading encoder {params.name}"
    shell:
        "python {input.program:q} --encoder {params.name:q} {params.revision}"
        " --lock {params.lock} --output {output:q} > {log:q} 2>&1"


rule extract_features:
    input:
        program=program("extract_features"),
        # Hours of work, on files that do not change.
        files=lambda wildcards: ancient(FILES.of(encoded(wildcards))),
        downloaded=lambda wildcards: SOURCES.downloaded_encoder(encoded(wildcards)),
    output:
        f"{FEATURES}/{{features}}.npz",
    log:
        "resources/logs/extract_features/{features}.log",
    priority: 1  # all else waits for it
    conda:
        "../envs/encoding.yaml"
    threads: 8
    resources:
        **on_device(mem_mb=4000, runtime=240),
    params:
        code=code("extract_features"),
        files=files_in(),
        options=options_of(
            lambda wildcards: PRODUCTS.features(encoded(wildcards))[0].job.to_json(),
            settings=lambda wildcards: EXPERIMENT.dataset_stage(
                FeaturesStage, dataset=encoded(wildcards)
            ).to_json(),
            encoder=lambda wildcards: SOURCES.local_encoder(encoded(wildcards)),
            device=EXPERIMENT.settings.device,
        ),
    message:
        "Encoding the records of {wildcards.features}"
    shell:
        f"{COMMAND} --threads {{threads}}"


rule prepare_dataset:
    input:
        program=program("prepare_dataset"),
        files=lambda wildcards: ancient(SOURCES.raw_files(wildcards.dataset)),
        features=lambda wildcards: SOURCES.encoded_files(wildcards.dataset),
    output:
        f"{RESULTS}/data/{{dataset}}.npz",
    log:
        f"{LOGS}/prepare_dataset/{{dataset}}.log",
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=by_attempt(3000),
        runtime=by_attempt(30),
    params:
        code=code("prepare_dataset"),
        files=files_in(),
        options=options_of(
            lambda wildcards: PRODUCTS.data(wildcards.dataset).job.to_json(),
            settings=lambda wildcards: EXPERIMENT.dataset_stage(
                DatasetStage, dataset=wildcards.dataset
            ).to_json(),
        ),
    message:
        "Splitting dataset {wildcards.dataset} into private, auxiliary and test records"
    shell:
        COMMAND
