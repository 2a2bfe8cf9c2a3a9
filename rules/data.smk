"""Datasets: downloaded, encoded, and cut into private, auxiliary and test records."""


# The nodes of a cluster often have no way out.
localrules:
    download_file,
    download_encoder,
    prepare_dataset,  # seconds


rule download_file:
    input:
        program=program("download_file"),
        library=library("download_file"),
    output:
        f"{DOWNLOADS}/{{file}}",
    log:
        "resources/logs/download_file/{file}.log",
    conda:
        "../envs/data.yaml"
    threads: 1
    resources:
        mem_mb=500,
    params:
        source=lambda wildcards: SOURCE_OF_FILE[wildcards.file],
        entry=lambda wildcards: CATALOGUE[SOURCE_OF_FILE[wildcards.file]].to_json(),
        catalogue=str(CATALOGUE_PATH),
        folder=f"--data-folder {shlex.quote(DATA_FOLDER)}" if DATA_FOLDER else "",
        lock=LOCK,
    message:
        "Downloading {wildcards.file}"
    shell:
        "python {input.program:q} --catalogue {params.catalogue:q} --source {params.source}"
        " {params.folder} --lock {params.lock} --output {output} 2> {log}"


rule download_encoder:
    input:
        program=program("download_encoder"),
        library=library("download_encoder"),
    output:
        f"{ENCODERS}/{{encoder}}.json",
    log:
        "resources/logs/download_encoder/{encoder}.log",
    conda:
        "../envs/encoding.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        name=lambda wildcards: ON_THE_HUB[wildcards.encoder].encoder,
        revision=lambda wildcards: revision_of(wildcards.encoder),
        lock=LOCK,
    message:
        "Downloading encoder {params.name}"
    shell:
        "python {input.program:q} --encoder {params.name:q} {params.revision}"
        " --lock {params.lock} --output {output} 2> {log}"


rule extract_features:
    input:
        program=program("extract_features"),
        library=library("extract_features"),
        # Hours of work, on files that do not change.
        files=lambda wildcards: ancient(source_files(ENCODED[wildcards.features])),
        encoder=lambda wildcards: downloaded_encoder(ENCODED[wildcards.features]),
    output:
        f"{FEATURES}/{{features}}.npz",
    log:
        "resources/logs/extract_features/{features}.log",
    priority: 1  # all else waits for it
    conda:
        "../envs/encoding.yaml"
    threads: 8
    resources:
        mem_mb=lambda wildcards, attempt: 4000 * attempt,
        runtime=lambda wildcards, attempt: 240 * attempt,
        gpu=gpus_of(EXPERIMENT.settings.device),
    params:
        settings=lambda wildcards: features_stage(ENCODED[wildcards.features]).to_json(),
        encoder=lambda wildcards, input: (
            f"--downloaded {input.encoder}"
            if input.encoder
            else f"--encoder {shlex.quote(local_encoder(ENCODED[wildcards.features]))}"
        ),
        device=EXPERIMENT.settings.device,
    message:
        "Encoding the records of {wildcards.features}"
    shell:
        "python {input.program:q} --settings {params.settings:q} --files {input.files:q}"
        " {params.encoder} --device {params.device} --threads {threads}"
        " --output {output} 2> {log}"


rule prepare_dataset:
    input:
        program=program("prepare_dataset"),
        library=library("prepare_dataset"),
        files=lambda wildcards: raw_files(wildcards.dataset),
        features=lambda wildcards: encoded_files(wildcards.dataset),
    output:
        f"{RESULTS}/data/{{dataset}}.npz",
    log:
        f"{LOGS}/prepare_dataset/{{dataset}}.log",
    conda:
        "../envs/data.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 3000 * attempt,
        runtime=lambda wildcards, attempt: 30 * attempt,
    params:
        settings=lambda wildcards: EXPERIMENT.dataset_stage(
            stages.DatasetStage, dataset=wildcards.dataset
        ).to_json(),
        files=lambda wildcards, input: " ".join(
            [
                *(f"--features {path}" for path in input.features),
                *(["--files", *map(shlex.quote, input.files)] if input.files else []),
            ]
        ),
    message:
        "Cutting dataset {wildcards.dataset} into private, auxiliary and test records"
    shell:
        "python {input.program:q} --settings {params.settings:q} {params.files}"
        " --output {output} 2> {log}"
