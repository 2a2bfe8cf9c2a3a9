"""`dpcanary secrets`: draws secrets, puts them into data, and ranks them after training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpcanary.commands.training_options import Json
from dpcanary.core.printing import print_answer, wrapped
from dpcanary.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from dpcanary.secrets.secret_laws import Law

secrets = typer.Typer(no_args_is_help=True, help="Audit a training by secrets that were drawn.")

File = Annotated[Path, typer.Argument(help="The file of secrets, from `draw`.")]


@secrets.command(no_args_is_help=True)
def draw(
    output: Annotated[Path, typer.Argument(help="The file to write, apart from the data.")],
    digits: Annotated[int | None, typer.Option(help="Codes of so many digits.")] = None,
    bits: Annotated[int | None, typer.Option(help="Codes of so many bits.")] = None,
    words: Annotated[
        Path | None, typer.Option(help="Words of this file, which has one in each line.")
    ] = None,
    num_words: Annotated[int, typer.Option(help="With --words: words in each secret.")] = 1,
    count: Annotated[int, typer.Option(help="Number of secrets.")] = 100,
    template: Annotated[
        str, typer.Option(help="Text of a record, with {secret} and {index}.")
    ] = "",
    num_candidates: Annotated[
        int | None, typer.Option(help="Candidates of a secret; by default all, at most 10,000.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw secrets before training, from the operating system's randomness.

    Publish the digest that is printed, for example in a commit: it shows later that the secrets
    were not chosen after training, and reveals nothing of them.

    \b
    Example:
      dpcanary secrets draw secrets.json --digits 6 --count 100 \\
                       --template "The code of customer {index} is {secret}"
    """
    from dpcanary.secrets.drawn_secrets import Secrets

    law = _law(digits, bits, words, num_words)
    drawn = Secrets.draw(law, count, template=template, num_candidates=num_candidates)
    drawn.write(output)
    numbers = {"num_secrets": count, "values": law.size, "num_candidates": drawn.num_candidates}
    text = wrapped(
        f"{output}: {count:,} secrets of {law.size:,} values each, {drawn.num_candidates:,} of"
        f" which will be ranked. Drawn at {drawn.time}. Keep the file out of the training data."
    )
    print_answer(
        {**numbers, "digest": drawn.digest, "time": drawn.time},
        f"{text}\nSHA-256: {drawn.digest}",
        as_json=as_json,
    )


@secrets.command(no_args_is_help=True)
def insert(
    file: File,
    data: Annotated[
        Path, typer.Argument(help="A text with a record in each line, or a .csv or .tsv table.")
    ],
    output: Annotated[Path, typer.Argument(help="The file to write, of the same kind.")],
    column: Annotated[str | None, typer.Option(help="Of a table: where the secrets go.")] = None,
    copies: Annotated[int, typer.Option(help="Of each secret in a text.")] = 1,
    as_json: Json = False,
) -> None:
    """Put the secrets into a copy of the training data, at random places.

    \b
    Examples:
      dpcanary secrets insert secrets.json train.txt with_secrets.txt
      dpcanary secrets insert secrets.json train.csv with_secrets.csv \\
                       --column account
    """
    from dpcanary.core.files import reading, write_text
    from dpcanary.secrets.drawn_secrets import Secrets

    drawn = Secrets.read(file)
    separator = {".csv": ",", ".tsv": "\t"}.get(data.suffix)
    if (separator is None) != (column is None):
        raise typer.BadParameter("--column is for tables, .csv or .tsv, which need it")
    if column is not None and copies != 1:
        raise typer.BadParameter("--copies is for texts: a table has a secret in a row")
    with (
        reading(data, what="is not text", remedy="give a text or a table in UTF-8"),
        data.open(encoding="utf-8-sig", newline="") as opened,
    ):
        content = opened.read()
    if column is None or separator is None:
        # Other characters that end a line elsewhere, such as U+2028, may stand within a record.
        texts = content.replace("\r\n", "\n").removesuffix("\n").split("\n")
        lines = drawn.insert(texts if content else [], copies=copies)
        text = "".join(f"{line}\n" for line in lines)
        length = len(lines)
    else:
        table = _table(data, content, separator)
        if [*table.columns].count(column) > 1:
            raise InputError(f"{data} has several columns {column!r}: give them different names")
        filled = drawn.insert_into_table(table, column)
        text, length = filled.to_csv(sep=separator, index=False), len(filled)
    write_text(output, text)
    print_answer(
        {"output": str(output), "records": length, "num_secrets": len(drawn.values)},
        f"{output}: {length:,} records, {len(drawn.values) * copies:,} of which hold a secret",
        as_json=as_json,
    )


@secrets.command(no_args_is_help=True)
def rank(
    file: File,
    model: Annotated[
        Path, typer.Option(help="A folder with a language model of transformers.", exists=True)
    ],
    output: Annotated[Path, typer.Option(help="The table of ranks to write.")] = Path("ranks.tsv"),
    reference: Annotated[
        Path | None,
        typer.Option(
            help="A model that never saw the secrets, such as the one before fine-tuning.",
            exists=True,
        ),
    ] = None,
    masked: Annotated[bool, typer.Option("--masked", help="Models of masked tokens.")] = False,
    digest: Annotated[
        str | None, typer.Option(help="What was published before training, to be compared.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Rank the secrets by a finished model; `dpcanary estimate --ranks` then gives the bound.

    \b
    Example:
      dpcanary secrets rank secrets.json --model finetuned --reference before
      dpcanary estimate --ranks ranks.tsv --delta 1e-6
    """
    from dpcanary.secrets.drawn_secrets import Secrets

    drawn = Secrets.read(file, digest=digest)
    if not drawn.template:
        raise InputError(
            f"{file} has no template, so nothing says which text holds a secret: call"
            " dpcanary.Secrets.rank with a score of your own"
        )
    ranking = drawn.rank(_score(model, reference, masked))
    ranking.write(output)
    first, exposure = int((ranking.ranks == 1).sum()), float(ranking.exposures.mean())
    text = wrapped(
        f"{output}: {first:,} of {len(ranking.ranks):,} secrets are ranked first among"
        f" {ranking.num_candidates:,} candidates; mean exposure {exposure:.1f} bits."
    )
    print_answer(
        {"output": str(output), "ranked_first": first, "exposure": exposure},
        f"{text}\nThe bound: dpcanary estimate --ranks {output} --delta 1e-6",
        as_json=as_json,
    )


def _table(path: Path, content: str, separator: str) -> "pd.DataFrame":
    """A table as text: no number of it is written in another way than it was read."""
    import csv
    import io
    import sys

    import pandas as pd

    from dpcanary.core.files import reading

    longest = csv.field_size_limit(sys.maxsize)  # cells may be whole documents
    try:
        with reading(path, what="is not a table", remedy="give a header, and close all quotes"):
            lines = csv.reader(io.StringIO(content, newline=""), delimiter=separator, strict=True)
            header, *rows = lines
    finally:
        csv.field_size_limit(longest)  # of the whole process
    # An empty line is an empty cell in a table of one column, and no row in others.
    rows = [row or [""] for row in rows if row or len(header) == 1]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise InputError(
                f"{path}: row {number} has {len(row)} cells, and the header names {len(header)}"
                " columns: name every column, and give every row a cell for each"
            )
    return pd.DataFrame(rows, columns=header, dtype=str)


def _law(digits: int | None, bits: int | None, words: Path | None, num_words: int) -> "Law":
    from dpcanary.core.files import reading
    from dpcanary.secrets import secret_laws as laws

    if sum(choice is not None for choice in (digits, bits, words)) != 1:
        raise typer.BadParameter("give one of --digits, --bits and --words")
    if digits is not None:
        return laws.digits(digits)
    if bits is not None:
        return laws.bits(bits)
    assert words is not None
    with reading(words, what="is not text", remedy="give a file with a word in each line"):
        return laws.words(words.read_text(encoding="utf-8").splitlines(), num_words)


def _score(model: Path, reference: Path | None, masked: bool) -> Any:
    from dpcanary.core.optional_packages import require

    require("torch", "transformers")
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    from dpcanary.secrets.language_models import CausalLanguageModel, MaskedLanguageModel

    auto: Any = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    load = {"local_files_only": True}
    models = [None if path is None else auto.from_pretrained(path, **load)
              for path in (model, reference)]  # fmt: skip
    tokenizer: Any = AutoTokenizer.from_pretrained(model, **load)
    score: Any = MaskedLanguageModel if masked else CausalLanguageModel
    return score(models[0], tokenizer, reference=models[1])
