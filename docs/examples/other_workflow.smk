# A workflow of one's own that has dpcanary's as a module; its config has a section `privacy`.
from dpcanary.core.installation import SNAKEFILE

module privacy:
    snakefile: str(SNAKEFILE)
    config: config["privacy"]
    prefix: "audits"

use rule * from privacy as privacy_*

rule all:
    default_target: True
    input: "paper/table.tex", rules.privacy_all.input

rule table:
    input: "audits/results/small/summary.tsv"
    output: "paper/{name}.tex"
    shell: "python make_table.py {input} > {output}"
