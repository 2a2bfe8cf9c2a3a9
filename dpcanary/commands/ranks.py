"""`dpcanary estimate --ranks`: lower bounds from ranks of secrets, and a check of their law."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.adjacency import ADJACENCIES, Adjacency
from dpcanary.core.printing import (
    bounds_in_lines,
    confidence_in_words,
    p_value_up,
    print_answer,
    table_lines,
    wrapped,
)
from dpcanary.core.printing import rounded_down as down
from dpcanary.errors import InputError, suggestion
from dpcanary.estimation.bound_in_words import quotable
from dpcanary.estimation.estimation_settings import Conversion, RankRule
from dpcanary.estimation.ranks.rank_bound import (
    RanksEstimate,
    assess_claim_from_ranks,
    estimate_epsilon_from_ranks,
)
from dpcanary.estimation.ranks.rank_methods import RANK_RULES
from dpcanary.estimation.ranks.uniform_ranks import UniformityCheck, check_uniform_ranks
from dpcanary.estimation.rule_catalogue import state_of_proof
from dpcanary.scoring.world_scores import columns_of_file

_CONVERSIONS = (Conversion.DIRECT, Conversion.GDP, Conversion.SUBSAMPLED_GAUSSIAN)


@dataclass(frozen=True)
class RanksAsked:
    """What the command line asks about a file of ranks; names as its options."""

    path: Path
    num_candidates: int | None
    delta: float
    significance: float
    rules: tuple[str, ...]
    conversions: tuple[Conversion, ...]
    every: bool
    list_sizes: tuple[int, ...]
    num_guesses: int | None
    adjacency: Adjacency
    mechanism: Mechanism | None
    claim: float | None


@dataclass(frozen=True)
class RankFile:
    """The columns of a file of ranks."""

    ranks: NDArray[Any]
    num_candidates: int
    confidences: NDArray[Any] | None


def read_ranks(path: Path, num_candidates: int | None) -> RankFile:
    """Reads ranks from a .csv, .tsv, .parquet or .npz file.

    Raises:
        InputError: if the file or its column `rank` is missing, or no number of candidates is
            given, or several, or one that is not whole.
    """
    columns = columns_of_file(path)
    if "rank" not in columns:
        raise InputError(f"{path} has no 'rank'; {suggestion('rank', columns)}")
    if "num_candidates" in columns:
        num_candidates = _num_candidates(path, columns["num_candidates"], num_candidates)
    if num_candidates is None:
        raise InputError(f"{path} has no column num_candidates: give --num-candidates")
    return RankFile(columns["rank"], num_candidates, columns.get("confidence"))


def _num_candidates(path: Path, column: NDArray[Any], by_option: int | None) -> int:
    """The only number of a column, which must be that of the option if it is given."""
    numbers = {*np.ravel(column).tolist()}
    if len(numbers) != 1:
        raise InputError(
            f"{path}: num_candidates differs between secrets, or is missing; bounds are for secrets"
            " with one number of candidates"
        )
    [number] = numbers
    if not isinstance(number, int | float) or not float(number).is_integer():
        raise InputError(f"{path}: num_candidates is {number!r}; it must be a whole number")
    if by_option not in (None, number):
        raise InputError(
            f"{path}: num_candidates is {number} in its column, and {by_option} by"
            " --num-candidates: leave the option out, or correct the column"
        )
    return int(number)


def print_ranks(asked: RanksAsked, *, uniform: bool, as_json: bool) -> None:
    """Prints the bounds from a file of ranks, or whether its ranks are uniform."""
    file = read_ranks(asked.path, asked.num_candidates)
    if uniform:
        check = check_uniform_ranks(ranks=file.ranks, num_candidates=file.num_candidates)
        print_answer(asdict(check), _check_in_words(asked.path, check), as_json=as_json)
        return
    bounds = [
        _bound(asked, file, rule, conversion) for rule, conversion in _pairs(asked, len(file.ranks))
    ]
    claims = [_p_value(asked, file, bound) for bound in bounds]
    rows = [
        {**vars(bound), "p_value_of_claim": p_value}
        for bound, p_value in zip(bounds, claims, strict=True)
    ]
    print_answer(
        {"num_secrets": len(file.ranks), "bounds": rows},
        "\n\n".join(_bounds_in_words(asked, bounds, claims)),
        as_json=as_json,
    )


def _pairs(asked: RanksAsked, num_secrets: int) -> list[tuple[str, Conversion]]:
    """Rules and conversions, those that fit with --all."""
    default = RankRule.SINGLE if num_secrets == 1 else RankRule.MAHLOUJIFAR
    if not asked.every:
        rules = [RankRule(name).value for name in asked.rules] or [default.value]
        conversions = [*asked.conversions] or [Conversion.DIRECT]
        return [(rule, conversion) for rule in rules for conversion in conversions]
    return [
        (name, conversion)
        for name, entry in RANK_RULES.items()
        for conversion in _CONVERSIONS
        if conversion in entry.conversions
        and (conversion is not Conversion.SUBSAMPLED_GAUSSIAN or asked.mechanism)
        and asked.adjacency in entry.adjacencies
        and (num_secrets == 1 or name != RankRule.SINGLE)
    ]


def _options(asked: RanksAsked, file: RankFile, rule: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "ranks": file.ranks,
        "num_candidates": file.num_candidates,
        "rule": rule,
        "adjacency": asked.adjacency,
    }
    if not RANK_RULES[rule].may_abstain and asked.every:
        return options
    if asked.num_guesses is not None:
        options |= {"num_guesses": asked.num_guesses, "confidences": file.confidences}
    return options


def _bound(asked: RanksAsked, file: RankFile, rule: str, conversion: Conversion) -> RanksEstimate:
    uses_lists = RANK_RULES[rule].uses_lists or not asked.every
    return estimate_epsilon_from_ranks(
        **_options(asked, file, rule),
        list_size=asked.list_sizes if uses_lists else 1,
        delta=asked.delta,
        significance=asked.significance,
        conversion=conversion,
        mechanism=asked.mechanism if conversion is Conversion.SUBSAMPLED_GAUSSIAN else None,
    )


def _p_value(asked: RanksAsked, file: RankFile, bound: RanksEstimate) -> float | None:
    """The p-value of a claimed epsilon; None without one, or if it is about another conversion."""
    if asked.claim is None or bound.conversion is not Conversion.DIRECT:
        return None
    if len(asked.list_sizes) > 1:
        raise InputError("--claimed-epsilon: a claim is tested with one --list-size")
    return assess_claim_from_ranks(
        **_options(asked, file, bound.rule),
        list_size=bound.list_size,
        epsilon=asked.claim,
        delta=asked.delta,
    ).p_value


def _bounds_in_words(
    asked: RanksAsked, bounds: list[RanksEstimate], claims: list[float | None]
) -> Iterator[str]:
    """What may be stated, the table of all bounds, and what else the ranks show: paragraphs."""
    first = bounds[0]
    if len(bounds) == 1:
        yield wrapped(
            quotable(str(first), epsilon_lower=first.epsilon_lower, is_valid=first.is_valid)
        )
    secrets = "1 secret" if first.num_secrets == 1 else f"{first.num_secrets:,} secrets"
    yield wrapped(
        f"{asked.path}: ranks of {secrets} among {first.num_candidates:,} candidates, mean exposure"
        f" {first.exposure:.2f} bits."
    )
    header = ("rule", "conversion", "right guesses", "epsilon is at least", "proof")
    rows = [
        (
            bound.rule,
            bound.conversion.value,
            _guesses(bound),
            down(bound.epsilon_lower),
            state_of_proof(bound.proof),
        )
        for bound in bounds
    ]
    yield bounds_in_lines(header, rows, [bound.assumption for bound in bounds])
    alone = " Each bound holds alone: choose one before you see them." if len(bounds) > 1 else ""
    yield wrapped(
        f"Under {ADJACENCIES[first.adjacency]} adjacency, at delta {first.delta:g}. A bound exceeds"
        f" the true epsilon with a probability of at most {first.significance:g}, if its conditions"
        f" hold.{alone}"
    )
    for bound in bounds:
        if bound.chance_lower > 0:
            names = "names" if bound.list_size == 1 else f"has among {bound.list_size}"
            yield wrapped(
                f"Without any epsilon: this attack {names} the true value with a probability of at"
                f" least {bound.chance_lower:.3f} ({confidence_in_words(bound.significance)}"
                f" confidence, independent secrets); a blind guess does with"
                f" {bound.list_size / bound.num_candidates:.3g}."
            )
            break
    for bound, p_value in zip(bounds, claims, strict=True):
        if p_value is not None:
            yield wrapped(
                f"The claim that epsilon is at most {asked.claim:g} has the p-value"
                f" {p_value_up(p_value)} by rule {bound.rule}."
            )


def _guesses(bound: RanksEstimate) -> str:
    """Right guesses of all guesses; rules of ranks have none."""
    if not RANK_RULES[bound.rule].uses_lists:
        return "-"
    lists = f", lists of {bound.list_size}" if bound.list_size > 1 else ""
    return f"{bound.num_correct:,} of {bound.num_guesses:,}{lists}"


def _check_in_words(path: Path, check: UniformityCheck) -> str:
    about = wrapped(
        f"{path}: ranks of {check.num_secrets:,} secrets among {check.num_candidates:,} candidates."
        " On a model that never saw the secrets, they must be uniform."
    )
    rows = [
        ("low ranks", f"{check.p_low:.2g}", "secrets can be guessed without the model's training"),
        ("high ranks", f"{check.p_high:.2g}", "ties, or candidates that are treated differently"),
        ("shape", f"{check.p_shape:.2g}", "any other distance from uniform ranks"),
    ]
    table = "\n".join(table_lines(("test", "p-value", "if it is small"), rows))
    verdict = (
        "The ranks are not uniform: do not use these secrets for an audit before the reason is"
        " known."
        if check.p_value < 0.01
        else "Nothing speaks against uniform ranks."
    )
    of_all = wrapped(f"p-value of all three: {check.p_value:.2g}. {verdict}")
    return f"{about}\n\n{table}\n\n{of_all}"
