"""A bill of materials in CycloneDX and a table of licences, of what `make` installs.

`make sbom` runs this on what `cyclonedx-py environment` wrote. Added are the hashes of the locks,
what is needed by whom, and licences that a package states in its files alone.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Not in the locks: PyTorch, what only its CUDA build needs, and the pip that comes with Python. See
# docs/install.md.
NOT_LOCKED = re.compile("torch|nvidia-.*|cuda-.*|pip")
# Whose metadata has no expression or classifier: what their licence files, or for arcp,
# dp-accounting and transformers a field of free text, say.
READ_BY_US = {
    "arcp": "Apache-2.0",
    "asttokens": "Apache-2.0",
    "conda-inject": "MIT",
    "dp-accounting": "Apache-2.0",
    "prv-accountant": "MIT",
    "pysocks": "BSD-3-Clause",
    "snakemake-interface-common": "MIT",
    "snakemake-interface-logger-plugins": "MIT",
    "snakemake-interface-report-plugins": "MIT",
    "snakemake-interface-scheduler-plugins": "MIT",
    "snakemake-interface-storage-plugins": "MIT",
    "transformers": "Apache-2.0",
}
# References that lead to a package's home, best first; most say "source" in words.
HOMES = ("website", "vcs", "source", "other", "issue-tracker", "documentation")


def canonical(name: str) -> str:
    """A package's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(*paths: Path) -> dict[tuple[str, str], list[str]]:
    """The SHA-256 of all files, by name and version, of files in pip's format."""
    hashes: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        for entry in re.split(r"^(?=\w)", path.read_text(), flags=re.MULTILINE):
            if pin := re.match(r"([\w.-]+)==([\w.!+-]+)", entry):
                hashes[canonical(pin[1]), pin[2]] = re.findall(r"--hash=sha256:(\w+)", entry)
    return hashes


def licence(component: dict[str, Any]) -> str:
    """A component's licence: as SPDX where the package has that, or its classifier; maybe empty."""
    spdx, names = [], []
    for entry in component.get("licenses", []):
        stated = entry.get("license", {})
        if identifier := entry.get("expression") or stated.get("id"):
            spdx.append(identifier)
        elif name := stated.get("name"):
            names.append(name.splitlines()[0].split(" :: ")[-1])
    return " AND ".join(spdx) or ", ".join(names)


def home(component: dict[str, Any]) -> str:
    """Where a component is made, or else where it is written about; maybe empty."""
    ranked = []
    for reference in component.get("externalReferences", []):
        kind, comment = reference["type"], reference.get("comment", "").lower()
        if kind == "other" and re.search("source|repository|github|home|code", comment):
            kind = "source"
        if kind in HOMES:
            ranked.append((HOMES.index(kind), reference["url"]))
    return min(ranked, default=(0, ""), key=lambda pair: pair[0])[1]


def complete(
    bill: dict[str, Any],
    hashes: dict[tuple[str, str], list[str]],
    needed: set[str],
) -> dict[str, Any]:
    """The bill with what the locks know.

    Args:
        bill: as `cyclonedx-py` wrote it; it is changed.
        hashes: SHA-256 of all files, by name and version.
        needed: what dpcanary itself needs; the rest builds it, tests it, or is for clusters.
    """
    for component in bill["components"]:
        name = canonical(component["name"])
        component["scope"] = "required" if name in needed else "optional"
        if not component.get("licenses") and name in READ_BY_US:
            spdx = {"id": READ_BY_US[name], "acknowledgement": "concluded"}
            component["licenses"] = [{"license": spdx}]
        if digests := hashes.get((name, component["version"])):
            files = {
                "type": "distribution",
                "url": component["purl"],
                "comment": "any file of this version: wheels and source",
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in digests],
            }
            component.setdefault("externalReferences", []).append(files)
    return bill


def faults(bill: dict[str, Any]) -> Iterator[str]:
    """What a complete bill must have and this one lacks."""
    for component in bill["components"]:
        name = canonical(component["name"])
        label = f"{name} {component['version']}"
        if not licence(component) or licence(component).lower() in ("unknown", "none"):
            yield f"{label}: states no licence; read its files, and add it to READ_BY_US"
        references = component.get("externalReferences", [])
        if not NOT_LOCKED.fullmatch(name) and not any(
            "hashes" in reference for reference in references
        ):
            yield f"{label}: is not in the locks; run `make lock`, or make the environment anew"


def table(bill: dict[str, Any]) -> str:
    """The licences, as tab-separated values."""
    rows = [("package", "version", "licence", "scope", "home page")]
    for part in sorted(bill["components"], key=lambda part: canonical(part["name"])):
        rows.append(
            (canonical(part["name"]), part["version"], licence(part), part["scope"], home(part))
        )
    return "".join("\t".join(row) + "\n" for row in rows)


def main() -> None:
    """Completes, checks and writes the bill and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bill", type=Path, help="what cyclonedx-py wrote; it is completed in place")
    parser.add_argument("licences", type=Path, help="the table to write")
    arguments = parser.parse_args()

    locks = [ROOT / "locks" / f"{name}.txt" for name in ("build", "dpcanary", "tools")]
    needed = {"torch", *(name for name, _ in locked(locks[1]))}
    bill = complete(json.loads(arguments.bill.read_text()), locked(*locks), needed)
    text = json.dumps(bill, indent=2) + "\n"
    # Here, not above: tests import this module in an environment without it.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    errors = [*faults(bill)]
    if invalid := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        errors.append(f"no valid CycloneDX 1.6: {invalid}")
    if errors:
        sys.exit("\n".join(f"error: {error}" for error in errors))
    arguments.bill.write_text(text)
    arguments.licences.write_text(table(bill))


if __name__ == "__main__":
    main()
