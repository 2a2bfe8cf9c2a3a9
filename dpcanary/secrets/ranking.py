"""Candidates of a secret, as a score sees them, and the ranks that the scores give."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from dpcanary.core.tsv_tables import read_table, write_table
from dpcanary.errors import InputError
from dpcanary.estimation.ranks.rank_bound import RanksEstimate, estimate_epsilon_from_ranks
from dpcanary.estimation.ranks.rank_laws import ranks_of_truth
from dpcanary.estimation.ranks.uniform_ranks import UniformityCheck, check_uniform_ranks


@dataclass(frozen=True)
class Candidates:
    """The values that a secret may have, the true one among them, in sorted order.

    Attributes:
        index: of the secret, from 0.
        values: shape (k,).
        texts: the template filled with each value; the values themselves without a template.
    """

    index: int
    values: tuple[str, ...]
    texts: tuple[str, ...]


Score = Callable[[Candidates], ArrayLike]


@dataclass(frozen=True)
class Ranking:
    """The ranks of secrets among their candidates.

    Attributes:
        ranks: shape (m,); 1 is the likeliest candidate. A tie counts as the last of its ranks.
        num_candidates: k.
        confidences: shape (m,); the difference between the two highest scores of a secret. It does
            not depend on which candidate is true, so that it may choose the secrets to guess.
        digest: that of the secrets, which were committed to before training.
    """

    ranks: NDArray[np.int64]
    num_candidates: int
    confidences: NDArray[np.float64]
    digest: str

    @property
    def exposures(self) -> NDArray[np.float64]:
        """log2(k / rank), in bits (Carlini et al., 2019)."""
        return np.asarray(np.log2(self.num_candidates / self.ranks), np.float64)

    def estimate(self, *, delta: float, **options: Any) -> RanksEstimate:
        """A lower bound on epsilon.

        Args:
            delta: the delta of (epsilon, delta).
            options: of `dpcanary.estimation.estimate_epsilon_from_ranks`.
        """
        if "num_guesses" in options:
            options = {"confidences": self.confidences, **options}
        return estimate_epsilon_from_ranks(
            ranks=self.ranks, num_candidates=self.num_candidates, delta=delta, **options
        )

    def check_uniform(self) -> UniformityCheck:
        """Whether the ranks may be uniform, as on a model that never saw the secrets."""
        return check_uniform_ranks(ranks=self.ranks, num_candidates=self.num_candidates)

    def write(self, path: Path | str) -> None:
        """Writes a table with a row for each secret, and its checksum, for `read_ranking`."""
        table = pd.DataFrame({"rank": self.ranks, "confidence": self.confidences})
        table["num_candidates"] = self.num_candidates
        table["digest"] = f"sha256:{self.digest}"
        write_table(Path(path), table)


def read_ranking(path: Path | str) -> Ranking:
    """Reads a table of `Ranking.write`.

    Raises:
        InputError: if the file is missing, damaged or of something else.
    """
    names = ("rank", "confidence", "num_candidates", "digest")
    table = read_table(Path(path), columns=names)
    counts, digests = table["num_candidates"].unique(), table["digest"].unique()
    if len(counts) != 1 or len(digests) != 1:
        raise InputError(f"{path} holds ranks of several sets of secrets")
    return Ranking(
        table["rank"].to_numpy(np.int64),
        int(counts[0]),
        table["confidence"].to_numpy(np.float64),
        str(digests[0]).removeprefix("sha256:"),
    )


def rank_of_truth(scores: ArrayLike, candidates: Candidates, truth: str) -> tuple[int, float]:
    """The rank of the true value, and the difference between the two highest scores.

    Candidates of a sampler may be equal. Which of the copies is the true one is not known, so that
    the rank is that of the copy with the least score.

    Raises:
        InputError: if there is not one score for each candidate, or a score is NaN.
    """
    values = np.asarray(scores, np.float64)
    if values.shape != (len(candidates.values),):
        raise InputError(
            f"the score of secret {candidates.index} has shape {values.shape}; it must give one"
            f" number for each of the {len(candidates.values):,} candidates"
        )
    if np.isnan(values).any():
        raise InputError(f"a score of secret {candidates.index} is NaN")
    copies = [place for place, value in enumerate(candidates.values) if value == truth]
    position = min(copies, key=values.__getitem__)
    rank = int(ranks_of_truth(scores=values[None], truth=np.array([position]))[0])
    second, first = np.partition(values, -2)[-2:].tolist()
    return rank, 0.0 if first == second else float(first - second)
