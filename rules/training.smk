"""Pretrained models, and the runs: shards of models trained in lockstep, or drawn from a process."""


rule pretrain:
    input:
        program=program("pretrain"),
        data=AUDITS.input("pretrained", "data"),
        other=AUDITS.input("pretrained", "other"),
    output:
        f"{RESULTS}/pretrained/{{pretrained}}.npz",
    log:
        f"{LOGS}/pretrain/{{pretrained}}.log",
    conda:
        "../envs/training.yaml"
    resources:
        **on_device(mem_mb=8000, runtime=720),
    params:
        code=code_for_audit("pretrain"),
        files=files_in(),
        options=AUDITS.options("pretrained", device=EXPERIMENT.settings.device),
    message:
        "Pretraining model {wildcards.pretrained}"
    shell:
        COMMAND


rule train_shard:
    input:
        program=program("train_shard"),
        data=AUDITS.input("shards", "data"),
        canaries=f"{RESULTS}/canaries/{{runs}}.npz",
        noise=f"{RESULTS}/noise/{{runs}}.json",
        pretrained=AUDITS.input("shards", "pretrained"),
    output:
        f"{RESULTS}/shards/{{runs}}/{{shard}}.npz",
    log:
        f"{LOGS}/train_shard/{{runs}}/{{shard}}.log",
    wildcard_constraints:
        runs=any_of(AUDITS.trained),
    conda:
        "../envs/training.yaml"
    resources:
        **on_device(mem_mb=4000, runtime=120),
        # A resource, since no result depends on it; 0 for as many runs as fit.
        runs_at_once=AUDITS.by_audit(
            lambda name: EXPERIMENT.audits[name].runs_at_once or 0
        ),
    params:
        code=code_for_audit("train_shard"),
        files=files_in(),
        options=AUDITS.options(
            "shards",
            device=EXPERIMENT.settings.device,
            runs=AUDITS.runs,
        ),
    message:
        "Training the models of {wildcards.runs}, shard {wildcards.shard}"
    shell:
        f"{COMMAND} --threads {{threads}} --runs-at-once {{resources.runs_at_once}}"


rule draw_shard:
    input:
        program=program("draw_shard"),
        noise=f"{RESULTS}/noise/{{runs}}.json",
    output:
        f"{RESULTS}/shards/{{runs}}/{{shard}}.npz",
    log:
        f"{LOGS}/draw_shard/{{runs}}/{{shard}}.log",
    wildcard_constraints:
        runs=any_of(AUDITS.drawn),
    conda:
        "../envs/estimation.yaml"
    resources:
        mem_mb=by_attempt(1000),
        runtime=by_attempt(30),
    params:
        code=code_for_audit("draw_shard", lambda audit: [audit.adversary.function]),
        files=files_in(),
        options=AUDITS.options("shards", runs=AUDITS.runs),
    message:
        "Drawing the runs of {wildcards.runs}, shard {wildcards.shard}"
    shell:
        COMMAND
