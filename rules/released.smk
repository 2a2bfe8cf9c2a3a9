"""Released observations: what training leaves is unpacked from an archive, and nothing is trained."""

from dpcanary.core.provenance import Job, listed


localrules:
    unpack_release,  # seconds


# Whatever else could make these files is not asked.
ruleorder: unpack_release > calibrate_noise
ruleorder: unpack_release > craft_canaries
ruleorder: unpack_release > train_shard
ruleorder: unpack_release > draw_shard
ruleorder: unpack_release > score_runs


rule unpack_release:
    input:
        program=program("unpack_release"),
        archive=ancient(str(FILES.archive)),  # known by its hash
    output:
        [f"{RESULTS}/{name}" for name in RELEASED],
    log:
        f"{LOGS}/unpack_release.log",
    conda:
        "../envs/estimation.yaml"
    resources:
        mem_mb=2000,
    params:
        code=code("unpack_release"),
        files=files_in(),
        options=options_of(
            lambda wildcards: Job(
                inputs={"archive": listed([*RELEASED.values()])}
            ).to_json(),
            sha256=EXPERIMENT.settings.archive_sha256,
        ),
        # Its files are too many for a command; the first one is of noise or canaries.
        folder=lambda wildcards, output: Path(output[0]).parents[1],
    message:
        "Unpacking {input.archive}"
    shell:
        "python {input.program:q} {params.options} {params.files}"
        " --output {params.folder} > {log} 2>&1"
