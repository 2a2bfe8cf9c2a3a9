"""`dpcanary results` and `report`: what an experiment has found."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dpcanary.commands.training_options import Cores, Json
from dpcanary.core.printing import print_answer, print_json
from dpcanary.experiment.release import Released


def _in_results(folder: Path) -> Path:
    """The path itself, or, if no results are there, the folder of this name in results/."""
    in_results = Path("results") / folder
    holds_results = any((folder / name).exists() for name in ("experiment.json", "summary.tsv"))
    return in_results if in_results.is_dir() and not (holds_results or folder.is_file()) else folder


Folder = Annotated[
    Path,
    typer.Argument(
        help="The folder of an experiment, such as results/demo, or its name.", callback=_in_results
    ),
]


def results(folder: Folder, as_json: Json = False) -> None:
    """Print what the audits of an experiment have shown, beside the accounted epsilons.

    \b
    Example:
      dpcanary results results/demo
    """
    from dpcanary.experiment.results_table import print_results, read_with_products, results_table

    if as_json:
        summary, products = read_with_products(folder)
        audits = results_table(summary).to_dict("records")
        print_json({"audits": audits, "compared_with_config": products is not None})
        return
    print_results(folder)


def verify(
    folder: Folder,
    replay: Annotated[
        int,
        typer.Option(min=0, help="Also retrain so many shards and other models, drawn at random."),
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of that draw.")] = 0,
    cores: Cores = None,
    as_json: Json = False,
) -> None:
    """Recompute every number of an experiment from its shards, and compare.

    Datasets, canaries, scores, bounds, accounting, the summary and the figures are recomputed in
    another folder, from the resolved config and the outputs of training. The exit status is 0 if
    all are equal, 3 if one was changed, 4 if one is missing, 5 if one has other settings, 6 if one
    cannot be recomputed.

    \b
    Examples:
      dpcanary verify results/demo
      dpcanary verify results/demo --replay 3
    """
    from dpcanary.audits.verification import verify_results

    verification = verify_results(folder, replay=replay, seed=seed, cores=cores)
    print_answer(
        {
            "exit_status": verification.exit_status,
            "files": [vars(file) for file in verification.files],
            "replayed": verification.replayed,
            "error": verification.error,
        },
        str(verification),
        as_json=as_json,
    )
    if verification.exit_status:
        raise typer.Exit(verification.exit_status)


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            help="The folder of an experiment, such as results/demo, or its name; or the journal"
            " (.npz) of a watched training.",
            callback=_in_results,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="The file; by default report.html in the folder, or beside the journal."),
    ] = None,
    delta: Annotated[
        float, typer.Option(help="Of a watched training: delta of all epsilons.")
    ] = 1e-5,
    author: Annotated[
        str, typer.Option(help="Who makes the report; by default it has a line to sign.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Write a report: one HTML page that works offline.

    Its summary is one printed page for a privacy officer: the claim, what is guaranteed, what an
    attack has shown, on which data, under which conditions, what was not examined, and who made it
    when and from which files. Then come every audit with its settings, the figures, a methods text
    with references for a paper, and versions and hashes.

    \b
    Example:
      dpcanary report results/demo --author "A. Lovelace"
      dpcanary report watched.npz --delta 1e-6
    """
    from dpcanary.reports.experiment_report import report_of_experiment
    from dpcanary.reports.report_page import write_report

    if folder.suffix == ".npz":
        from dpcanary.watching.recorder import read_watched
        from dpcanary.watching.watch_report import report_of_watched_training

        path = output or folder.with_suffix(".html")
        watched = read_watched(folder, delta=delta)
        document = report_of_watched_training(watched, name=folder.stem, journal=folder)
    else:
        path = output or folder / "report.html"
        document = report_of_experiment(folder)
    write_report(path, document, author=author)
    print_answer(
        {"report": str(path), "answer": document.headline.answer},
        f"Open {path} in a browser.",
        as_json=as_json,
    )


def release(
    folder: Folder,
    observations: Annotated[
        Released,
        typer.Option(
            help="What of training: the scores of each run, or shards, which are much larger."
        ),
    ] = Released.SCORES,
    output: Annotated[
        Path | None,
        typer.Option(help="The archive; by default <experiment>.zip in the working directory."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make an archive from which others get the same bounds and figures, without training.

    It holds the outputs of training, with hashes. A config beside it runs from the archive: bounds,
    accounting, the summary and the figures are recomputed, without data.

    \b
    Examples:
      dpcanary release results/demo
      dpcanary release results/demo --observations shards \\
                       --output released/demo.zip
    """
    from dpcanary.audits.release_making import release_results

    archive = release_results(folder, observations=observations, output=output)
    place, config = (
        shlex.quote(str(path)) for path in (archive.config.parent, archive.config.name)
    )
    there = "" if place == "." else f"cd {place} && "
    print_answer(
        {**vars(archive), "archive": str(archive.archive), "config": str(archive.config)},
        f"{archive.archive}: {observations} in {archive.files:,} files,"
        f" {archive.bytes / 1e6:,.1f} MB\n"
        f"SHA-256: {archive.sha256}\n"
        f"All else is recomputed, best in another folder, by: {there}dpcanary run {config}",
        as_json=as_json,
    )


def crate(
    folder: Folder,
    license: Annotated[
        str, typer.Option(help="Of the results, by SPDX, such as CC-BY-4.0, or an address.")
    ],
    author: Annotated[
        list[str] | None, typer.Option(help="The name of an author; may be given again.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Describe the results for an archive: the folder becomes an RO-Crate.

    One file is written into it, ro-crate-metadata.json. It says what each file is, with its size
    and SHA-256, and which files it was made from.

    \b
    Example:
      dpcanary crate results/demo --license CC-BY-4.0 --author "Ada Lovelace"
    """
    from dpcanary.audits.ro_crate import write_crate

    path = write_crate(folder, license=license, authors=author or ())
    print_answer(
        {"description": str(path)},
        f"{path} describes the folder. Archive it as it is, without logs/.",
        as_json=as_json,
    )
