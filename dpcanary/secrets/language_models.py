"""Scores of language models of transformers, for texts with a secret in them."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dpcanary.core.argument_checks import checked_count
from dpcanary.errors import InputError
from dpcanary.secrets.ranking import Candidates

Tokens = tuple[int, ...]
Scores = NDArray[np.float64]


class _Branch(NamedTuple):
    """Sequences that share their first tokens: those from `low` to `high`, in sorted order."""

    low: int
    high: int
    parent: int  # the row of the tokens before, in a batch
    score: float  # of all tokens that the branch shares


class CausalLanguageModel:
    """The log-likelihood of each candidate's text under a causal language model.

    Beginnings that several texts share are computed once: the texts form a tree of tokens, whose
    branches keep the states of attention. For 10,000 codes of four digits at the end of a text, the
    model reads 1,110 tokens and one common text, and not 10,000 texts.

    Args:
        model: a causal language model of transformers. Of a model of Opacus, its inner one.
        tokenizer: of the model, or a function from a list of texts to a list of lists of tokens.
        reference: a model that never saw the secrets, such as the one before fine-tuning. Its
            log-likelihood is subtracted: what is likely in any case, such as a frequent token,
            then no longer hides the secret. Any model is allowed: the bound is valid.
        batch_size: the most tokens in one forward pass.
        shares_prefixes: otherwise every text is read whole, as with models without a cache.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        reference: Any = None,
        batch_size: int = 1024,
        shares_prefixes: bool = True,
    ) -> None:
        self.models = [model] if reference is None else [model, reference]
        self.tokenizer = tokenizer
        self.batch_size = checked_count("batch_size", batch_size)
        self.shares_prefixes = shares_prefixes

    def __call__(self, candidates: Candidates) -> Scores:
        """One number for each candidate."""
        texts = _tokens(self.tokenizer, candidates.texts)
        if len({text[:1] for text in texts}) > 1:
            raise InputError(
                f"the texts of secret {candidates.index} differ in their first token, which nothing"
                " predicts: put words before {secret} in the template"
            )
        scores = [_in_evaluation(model, self._of_texts, texts) for model in self.models]
        return scores[0] if len(scores) == 1 else scores[0] - scores[1]

    def _of_texts(self, model: Any, texts: Sequence[Tokens]) -> Scores:
        score = _scores_of_tree if self.shares_prefixes else _scores_of_texts
        every = sorted({*texts})
        score_of = dict(zip(every, score(model, every, self.batch_size), strict=True))
        return np.array([score_of[text] for text in texts])


class MaskedLanguageModel:
    """The log-probability that a masked language model gives each candidate's tokens.

    All tokens that are not common to the texts of a secret are masked at once. So one pass is
    enough for all candidates of as many tokens.

    Args:
        model: a masked language model of transformers.
        tokenizer: of the model, with a mask token.
        reference: a model that never saw the secrets, whose log-probability is subtracted.
    """

    def __init__(self, model: Any, tokenizer: Any, *, reference: Any = None) -> None:
        if getattr(tokenizer, "mask_token_id", None) is None:
            raise InputError("the tokenizer has no mask token: its model is no masked one")
        self.models = [model] if reference is None else [model, reference]
        self.tokenizer = tokenizer

    def __call__(self, candidates: Candidates) -> Scores:
        """One number for each candidate."""
        texts = _tokens(self.tokenizer, candidates.texts)
        scores = [_in_evaluation(model, self._of_texts, texts) for model in self.models]
        return scores[0] if len(scores) == 1 else scores[0] - scores[1]

    def _of_texts(self, model: Any, texts: Sequence[Tokens]) -> Scores:
        start = _shared(min(texts), max(texts))
        rests = [text[start:][::-1] for text in texts]  # a token is not shared at both ends
        end = _shared(min(rests), max(rests))
        scores = np.empty(len(texts))
        for length in sorted({len(text) for text in texts}):
            chosen = [index for index, text in enumerate(texts) if len(text) == length]
            masked = slice(start, length - end)
            values = torch.tensor([texts[index][masked] for index in chosen], dtype=torch.long)
            whole = torch.tensor([texts[chosen[0]]], device=_device(model))
            whole[:, masked] = self.tokenizer.mask_token_id
            logs = model(input_ids=whole).logits.float().log_softmax(-1)[0, masked].cpu()
            scores[chosen] = logs.gather(1, values.T).sum(0).double().numpy()
        return scores


def _scores_of_tree(model: Any, texts: Sequence[Tokens], batch_size: int) -> list[float]:
    """The log-likelihood of each text after its first token; the texts are sorted, and differ."""
    scores = [0.0] * len(texts)
    low = int(len(texts[0]) == 1)  # nothing predicts the only token
    if low == len(texts):
        return scores
    pending: list[tuple[int, int, list[_Branch], Any]] = [
        (0, _last_read(texts, low, len(texts)), [_Branch(low, len(texts), 0, 0.0)], None)
    ]
    while pending:
        # The last comes first, so that the states of few batches are kept at once.
        begin, end, branches, states = pending.pop()
        logs, states = _read(model, texts, begin, end, branches, states)
        if states is None:
            return _scores_of_texts(model, texts, batch_size)
        groups: dict[int, list[_Branch]] = {}
        for branch in _branches_after(texts, begin, end, branches, logs):
            if len(texts[branch.low]) == end + 1:  # the others, if any, begin with it
                scores[branch.low] = branch.score
                branch = branch._replace(low=branch.low + 1)
            if branch.low < branch.high:
                groups.setdefault(_last_read(texts, branch.low, branch.high), []).append(branch)
        for next_end, group in groups.items():
            size = max(1, batch_size // (next_end - end))
            for start in range(0, len(group), size):
                pending.append((end, next_end, group[start : start + size], states))
    return scores


def _read(
    model: Any, texts: Sequence[Tokens], begin: int, end: int, branches: list[_Branch], states: Any
) -> tuple[torch.Tensor, Any]:
    """Log-probabilities after each token from `begin` to `end`, and the model's states there."""
    rows = [texts[branch.high - 1][begin:end] for branch in branches]
    tokens = torch.tensor(rows, device=_device(model))
    if states is not None:
        states = deepcopy(states)  # the model appends to them
        parents = [branch.parent for branch in branches]
        states.batch_select_indices(torch.tensor(parents, device=tokens.device))
    output = model(input_ids=tokens, past_key_values=states, use_cache=True)
    after = getattr(output, "past_key_values", None)
    logs = output.logits.float().log_softmax(-1).cpu()
    return logs, after if hasattr(after, "batch_select_indices") else None


def _branches_after(
    texts: Sequence[Tokens], begin: int, end: int, branches: list[_Branch], logs: torch.Tensor
) -> list[_Branch]:
    """The branches by the token at `end`, which their scores include."""
    rows, tokens, ranges = [], [], []
    read = torch.tensor([texts[branch.high - 1][begin + 1 : end] for branch in branches])
    within = logs[:, :-1].gather(2, read.long()[:, :, None]).sum((1, 2)).tolist()
    for row, branch in enumerate(branches):
        inside = (index for index in range(branch.low, branch.high) if len(texts[index]) > end)
        for token, indices in groupby(inside, key=lambda index: texts[index][end]):
            members = [*indices]
            rows.append(row)
            tokens.append(token)
            ranges.append((members[0], members[-1] + 1))
    gained = logs[rows, -1, tokens].tolist()
    return [
        _Branch(low, high, row, branches[row].score + within[row] + gain)
        for (low, high), row, gain in zip(ranges, rows, gained, strict=True)
    ]


def _last_read(texts: Sequence[Tokens], low: int, high: int) -> int:
    """How many tokens of these texts are read at once: the shared ones, but the last of no text."""
    return min(_shared(texts[low], texts[high - 1]), len(texts[low]) - 1)


def _scores_of_texts(model: Any, texts: Sequence[Tokens], batch_size: int) -> list[float]:
    """The log-likelihood of each text after its first token, each read whole."""
    scores = [0.0] * len(texts)
    for length in sorted({len(text) for text in texts} - {1}):
        chosen = [index for index, text in enumerate(texts) if len(text) == length]
        size = max(1, batch_size // length)
        for start in range(0, len(chosen), size):
            piece = chosen[start : start + size]
            tokens = torch.tensor([texts[index] for index in piece], device=_device(model))
            logs = model(input_ids=tokens).logits[:, :-1].float().log_softmax(-1)
            sums = logs.gather(2, tokens[:, 1:, None]).sum((1, 2)).tolist()
            for index, value in zip(piece, sums, strict=True):
                scores[index] = value
    return scores


def _shared(first: Sequence[int], last: Sequence[int]) -> int:
    """The number of first tokens that two texts share."""
    pairs = zip(first, last, strict=False)
    least = min(len(first), len(last))
    return next((index for index, (token, other) in enumerate(pairs) if token != other), least)


def _tokens(tokenizer: Any, texts: Sequence[str]) -> list[Tokens]:
    encoded = tokenizer([*texts])
    rows = encoded["input_ids"] if isinstance(encoded, Mapping) else encoded
    if any(len(row) == 0 for row in rows):
        raise InputError("the tokenizer makes no token of a text")
    return [tuple(row) for row in rows]


def _device(model: Any) -> torch.device:
    device: torch.device = next(iter(model.parameters())).device
    return device


def _in_evaluation(
    model: Any, score: Callable[[Any, Sequence[Tokens]], Scores], texts: Sequence[Tokens]
) -> Scores:
    """A score of texts without dropout and gradients; the modes of all modules are restored."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            return score(model, texts)
    finally:
        for module, was_training in modes:
            module.training = was_training
