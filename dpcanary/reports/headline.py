"""The first page of a report: the epsilons of one training, and what they say."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite, isinf, isnan
from typing import TYPE_CHECKING

from dpcanary.core.printing import (
    confidence_in_words,
    percent,
    percent_up,
    rounded_down,
    rounded_up,
)
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.ranks.rank_methods import RANK_RULES
from dpcanary.estimation.rule_catalogue import threshold_rule_named

if TYPE_CHECKING:  # it loads slowly
    from dpcanary.accounting.meaning import Meaning


@dataclass(frozen=True)
class Bar:
    """An epsilon of the first page; the value of a bound has a sign, the width is in per cent."""

    kind: str
    value: str
    width: float
    label: str
    note: str


@dataclass(frozen=True)
class OfRealRecord:
    """The strongest bound of `compared` audits of a real record; other names as in `Headline`."""

    shown: float
    attack: str
    difference: str
    compared: int
    assumption: str
    bounds: int = 1
    above: int = 0


@dataclass(frozen=True)
class Headline:
    """What the first page says of one training, and of one audit of it.

    Attributes:
        training: in words, a sentence.
        attack: in words, after "an attack on": how many models, and in what the worlds differ.
        shown: the lower bound, or the mean of several.
        assumption: what the lower bound rests on, or why there is none.
        substitute: accounted; NaN if the audit is under another adjacency or it is not known.
        add_remove: accounted; NaN if it is not known.
        bounds: how many are averaged.
        above: how many of them exceed what is accounted under the audited adjacency.
        chosen: how this audit was chosen among several; empty if there is one.
        advice: what to do if a bound exceeds what is accounted; a sentence after a space.
        difference: in what the worlds differ, in words; empty if it is not known.
        is_real: whether the attack is one on a real record; None if it is not known.
        real: the strongest other attack on a real record, if there is one.
        measured: how well the attacked models predict, as a sentence; empty if it is not known.
        conversion: that of the lower bound, which decides whose epsilon is bounded.
        meaning: what the accounted epsilons mean to a person, as a sentence; empty if it is not
            known.
        data: what the training was on, in words.
        guaranteed_of: of which part of the training the accounted epsilons are, as a sentence;
            empty if they are of the whole.
        refuted: why the training is not the accounted one, as a sentence; empty if this is not
            known. Nothing that is accounted is then stated.
        not_examined: sentences on what this audit leaves out, beside what every audit does.
    """

    training: str
    attack: str
    adjacency: str
    delta: float
    significance: float
    shown: float
    assumption: str
    substitute: float
    add_remove: float
    bounds: int = 1
    above: int = 0
    chosen: str = ""
    is_valid: bool = True
    advice: str = ""
    difference: str = ""
    is_real: bool | None = None
    real: OfRealRecord | None = None
    measured: str = ""
    conversion: Conversion | None = None
    meaning: str = ""
    data: str = "Not known to dpcanary."
    guaranteed_of: str = ""
    refuted: str = ""
    not_examined: Sequence[str] = ()

    @property
    def bars(self) -> list[Bar]:
        """The epsilons that hold, from the smallest to the largest, with widths in per cent."""
        entries: list[tuple[str, float, str, str, str]] = []
        membership = "add/remove" if self.adjacency == "substitute" else self.adjacency
        if not self.refuted:
            entries += [
                ("add-remove", self.add_remove, f"≤ {rounded_up(self.add_remove)}",
                 f"Guaranteed for membership: accounted, {membership} adjacency",
                 "Most libraries report an epsilon of this adjacency."
                 if membership == "add/remove" else ""),
                ("substitute", self.substitute, f"≤ {rounded_up(self.substitute)}",
                 "Guaranteed for content: accounted, substitute adjacency",
                 "A record's label or any feature, if it is known to be in the data."),
            ]  # fmt: skip
        if self.is_valid:
            label = f"Shown {f'with {self.difference}' if self.difference else 'by attack'}"
            label += f", {self.adjacency} adjacency"
            note = f"A lower bound with {self.confidence} confidence, if the conditions below hold."
            entries.append(self._entry("shown", self.shown, self.bounds, label, note))
        if self.real:
            note = (
                f"A lower bound on the epsilon {self._whose_epsilon}, with {self.confidence}"
                " confidence, if it was chosen beforehand and the conditions below hold."
            )
            start = f"{self.real.difference[:1].upper()}{self.real.difference[1:]}"
            entries.append(
                self._entry(
                    "real", self.real.shown, self.real.bounds, "Shown with a real record", note,
                    start=f"{start}, {self.adjacency} adjacency. ",
                )
            )  # fmt: skip
        ranked = sorted(
            (entry for entry in entries if not isnan(entry[1])), key=lambda entry: entry[1]
        )
        largest = max((value for _, value, *_ in ranked if isfinite(value)), default=0.0)
        return [
            Bar(kind, text, _share(value, largest), label, note)
            for kind, value, text, label, note in ranked
        ]

    def _entry(
        self, kind: str, shown: float, bounds: int, label: str, note: str, *, start: str = ""
    ) -> tuple[str, float, str, str, str]:
        """The entry of a lower bound, or of a mean of several, which is no bound."""
        value = f"≥ {rounded_down(shown)}"
        if bounds > 1:
            value, label = rounded_down(shown), f"{label}: mean of {bounds} bounds"
            note = f"Each bound has {self.confidence} confidence, and their mean has none."
        elif shown == 0:
            note = _OF_ZERO
        return kind, shown, value, label, f"{start}{note}"

    @property
    def sections(self) -> list[tuple[str, list[str]]]:
        """The first page: headings, and the sentences of each."""
        sections = [
            ("Claim", [self.training, self._claimed, self.chosen]),
            ("Guaranteed", self._guaranteed),
            ("Shown by attack", self._shown),
            ("Data", [self.data, self.measured]),
            ("Attack", [f"An attack on {self.attack}, under {self.adjacency} adjacency."]),
            ("Conditions", self._conditions),
            ("Not examined", [*self.not_examined, *_NEVER_EXAMINED]),
        ]
        return [(heading, [*filter(None, sentences)]) for heading, sentences in sections]

    @property
    def answer(self) -> list[str]:
        """What is guaranteed and what is shown, in sentences."""
        return [*self._guaranteed, *self._shown]

    @property
    def confidence(self) -> str:
        """That of the lower bound."""
        return confidence_in_words(self.significance)

    @property
    def _claimed(self) -> str:
        """The accounted epsilons in the notation of papers, as a sentence; empty if there is none.

        Under an adjacency of membership, the accounted epsilon is that of this adjacency.
        """
        if self.refuted or not isfinite(self.add_remove):
            return ""
        pairs = {self.adjacency: self.add_remove}
        if not isnan(self.substitute):
            pairs = {"add/remove": self.add_remove, "substitute": self.substitute}
        claims = [
            f"({rounded_up(epsilon)}, {self.delta:g}) under {name} adjacency"
            for name, epsilon in pairs.items()
        ]
        return f"Accounted as (epsilon, delta)-differentially private with {' and '.join(claims)}."

    @property
    def _guaranteed(self) -> list[str]:
        if self.refuted:
            return [f"Nothing, unless this is explained. {self.refuted.removesuffix('.')}."]
        if isinf(self.add_remove):
            return ["Nothing: the training adds no noise, so that no epsilon is finite."]
        if isnan(self.add_remove):
            return ["Nothing is known here: no epsilon was accounted."]
        membership = rounded_up(self.add_remove)
        if isnan(self.substitute):
            sentences = [
                f"Whether a record is in the data ({self.adjacency} adjacency): epsilon is at most"
                f" {membership}. This number is not the epsilon of what the record says."
            ]
        else:
            sentences = [
                f"Whether a record is in the data (add/remove adjacency): epsilon is at most"
                f" {membership}. Most libraries report an epsilon of this adjacency.",
                "What a record says, its label or any of its features, if it is known to be in the"
                f" data (substitute adjacency): epsilon is at most {rounded_up(self.substitute)}.",
            ]
        doubt = ""
        if self.above and self.is_valid:
            doubt = "A bound below exceeds this: it holds only if that is explained."
        return [
            *filter(None, [doubt, *sentences, self.guaranteed_of, self.meaning]),
            _ONLY_IF,
        ]

    @property
    def _shown(self) -> list[str]:
        if self.refuted and not self.is_valid:
            return ["Nothing that may be quoted before this is explained."]
        if not self.is_valid:
            return [f"Nothing: the audit has no valid lower bound. {self.assumption[:1].upper()}"
                    f"{self.assumption[1:].removesuffix('.')}."]  # fmt: skip
        if self.shown == 0 and self.bounds == 1:
            shown = [f"Nothing is shown under {self.adjacency} adjacency. {_OF_ZERO}"]
        else:
            bound = f"Under {self.adjacency} adjacency, {self._bound_in_words}"
            shown = [bound, *filter(None, [self._compared])]
        return [*shown, *self._real_sentences()]

    @property
    def _bound_in_words(self) -> str:
        number = rounded_down(self.shown)
        if self.bounds > 1:
            return (
                f"the mean of {self.bounds} lower bounds on epsilon is {number}; each bound holds"
                f" with {self.confidence} confidence, and their mean has none of its own."
            )
        return (
            f"epsilon is at least {number} with {self.confidence} confidence, if the conditions"
            " below hold."
        )

    @property
    def _compared(self) -> str:
        """The bound beside what is accounted, as sentences; empty if no epsilon is finite."""
        if self.refuted or not isfinite(self.add_remove):
            return ""
        if self.above:
            many = (
                f"{self.above} of {self.bounds} bounds exceed" if self.bounds > 1 else "It exceeds"
            )
            return (
                f"{many} what is accounted. Either this is the chance that the confidence leaves,"
                " or the assumption of the bound does not hold, or the training is not what was"
                f" accounted.{self.advice}"
            )
        if isnan(self.substitute):
            return ""
        if self.shown > self.add_remove:
            above = "This is above the add/remove epsilon, which is evidence that the two differ"
            if self.bounds > 1:
                above = "This mean is above the add/remove epsilon"
            return (
                f"{above}. Who must protect the content of"
                " records should quote the substitute epsilon."
            )
        return (
            "This is not above the add/remove epsilon, and no evidence that the training protects"
            " more than is accounted: a stronger attack may show more."
        )

    def _real_sentences(self) -> Iterator[str]:
        """What a real record leaks, beside what a crafted one does."""
        if self.is_real is not False:
            return
        if self.real is None:
            yield "This is not compared with a real record, which may leak less."
            return
        number, attack = rounded_down(self.real.shown), self.real.attack
        sentence = (
            f"By an attack with a real record, on {attack}, epsilon {self._whose_epsilon} is at"
            f" least {number}, with {self.confidence} confidence for this attack alone, if the"
            " conditions below hold."
        )
        if self.real.bounds > 1:
            sentence = (
                f"With a real record, an attack on {attack} gives {number} on average over"
                f" {self.real.bounds} bounds; their mean has no confidence of its own."
            )
        elif self.real.shown == 0:
            yield f"By an attack with a real record, on {attack}, nothing is shown. {_OF_ZERO}"
            return
        if self.real.above:
            sentence += f" {self.real.above} of {self.real.bounds} bounds exceed what is accounted."
        if self.real.compared > 1:
            many = self.real.compared
            sentence += f" This is the largest of {many} such results: its confidence is lower."
        yield sentence

    @property
    def _whose_epsilon(self) -> str:
        """Whose epsilon the lower bounds are of."""
        return "of what is released" if self.conversion is Conversion.DIRECT else "of the mechanism"

    @property
    def _conditions(self) -> list[str]:
        """What the lower bound rests on, and whose epsilon it bounds."""
        delta = f"All epsilons are at delta {self.delta:g}."
        assumed, num_averaged = [], []
        if self.is_valid:
            assumed.append(("The lower bound", self.assumption))
            num_averaged.append(self.bounds)
        if self.real:
            assumed.append(("That with a real record", self.real.assumption))
            num_averaged.append(self.real.bounds)
        if not assumed:
            return [delta]
        subject = "It is a bound" if len(assumed) == 1 else "Both are bounds"
        if max(num_averaged) > 1:
            subject = "Each single bound is one"
        if len({assumption for _, assumption in assumed}) < len(assumed):
            assumed = [("Each of the two lower bounds", self.assumption)]
        bounded = ""
        if self.conversion is not None:
            is_direct = self.conversion is Conversion.DIRECT
            bounded = f"{subject} on {_RELEASED if is_direct else _MECHANISM}."
        parts = (f"{name} assumes: {text.removesuffix('.')}." for name, text in assumed)
        return [delta, *parts, bounded]


_OF_ZERO = "A bound of 0 says nothing, and is no evidence of safety."
_ONLY_IF = (
    "This holds against any attack on what DP-SGD releases, if batches are drawn, gradients"
    " clipped, sums divided by the expected batch size and noise added as accounted, noise cannot"
    " be predicted, and nothing else that is released or decided depends on the data. Rounding of"
    " floating-point numbers is not covered."
)
# By `docs/what_epsilon_means.md`, "Which epsilon is bounded".
_RELEASED = (
    "what is released: what the attacker saw, usually the last model, of trainings on these data"
)
_MECHANISM = "the mechanism, over all data and for an attacker who sees every update"
_NEVER_EXAMINED = (
    "Stronger attacks, other records and other data: a lower bound is no guarantee.",
    "People with several records: epsilons are those of one record, or of all copies of it where an"
    " audit has copies.",
    "Other results from the same data, such as further models or settings that were chosen by it.",
)


def meaning_in_words(meaning: "Meaning | None") -> str:
    """What no attack on a training exceeds, as one sentence; empty if it is not known."""
    if meaning is None:
        return ""
    count, chance = min(meaning.guesses.items(), key=lambda pair: abs(pair[0] - 10))
    return (
        f"A secret in a record that is one of {count:,} values, each equally likely given all other"
        f" data, such as a random code, is guessed with a probability of at most"
        f" {percent_up(chance)} by any attack, and of {percent(1 / count)} without the model."
    )


def _share(value: float, largest: float) -> float:
    """The width of a bar in per cent; an infinite one is full."""
    if isinf(value):
        return 100.0
    return round(100 * value / largest, 1) if largest else 0.0


_REFERENCES = {
    "abadi": "M. Abadi et al. Deep Learning with Differential Privacy. CCS 2016.",
    "pradhan": "S. Pradhan et al. Beyond Membership: Limitations of Add/Remove Adjacency in"
    " Differential Privacy.",
    "cebere": "T. Cebere et al. Tighter Privacy Auditing of DP-SGD in the Hidden State Threat"
    " Model. ICLR 2025.",
    "boglioni": "M. Boglioni et al. Optimizing Canaries for Privacy Auditing with Metagradient"
    " Descent. 2025.",
    "steinke": "T. Steinke, M. Nasr and M. Jagielski. Privacy Auditing with One (1) Training Run."
    " NeurIPS 2023.",
    "mahloujifar": "S. Mahloujifar, L. Melis and K. Chaudhuri. Auditing f-Differential Privacy in"
    " One Run. 2024.",
    "ville": "J. Ville. Étude critique de la notion de collectif. Gauthier-Villars, 1939.",
    "xiang": "Z. Xiang et al. Tight Privacy Audit in One Run. 2025.",
    "andrew": "G. Andrew et al. One-shot Empirical Privacy Estimation for Federated Learning. ICLR"
    " 2024.",
    "nasr": "M. Nasr et al. Tight Auditing of Differentially Private Machine Learning. USENIX"
    " Security 2023.",
    "dong": "J. Dong, A. Roth and W. J. Su. Gaussian Differential Privacy. JRSS-B 84 (2022).",
    "koskela": "A. Koskela, J. Jälkö and A. Honkela. Computing Tight Differential Privacy"
    " Guarantees Using FFT. AISTATS 2020.",
    "gopi": "S. Gopi, Y. T. Lee and L. Wutschitz. Numerical Composition of Differential Privacy."
    " NeurIPS 2021.",
    "mironov": "I. Mironov. Rényi Differential Privacy. CSF 2017.",
}


@dataclass
class Methods:
    """Paragraphs, and the references that they cite in the order of their first citation."""

    paragraphs: list[str] = field(default_factory=list)
    _cited: list[str] = field(default_factory=list)

    def add(self, *sentences: str) -> None:
        """Adds a paragraph. `{key}` in a sentence cites a reference; other braces stay."""
        text = " ".join(sentence for sentence in sentences if sentence)
        self.paragraphs.append(re.sub(r"\{(\w+)\}", self._citation, text))

    def _citation(self, match: re.Match[str]) -> str:
        key = match[1]
        if key not in _REFERENCES:
            return match[0]
        if key not in self._cited:
            self._cited.append(key)
        return f"[{self._cited.index(key) + 1}]"

    @property
    def references(self) -> list[str]:
        """The cited references."""
        return [_REFERENCES[key] for key in self._cited]


def cited_source(source: str) -> str:
    """The citations of an adversary's source, such as "Pradhan et al., S2; Cebere et al."."""
    citations = {"Pradhan": "{pradhan}", "Cebere": "{cebere}", "Boglioni": "{boglioni}",
             "Steinke": "{steinke}", "Andrew": "{andrew}"}  # fmt: skip
    return ", ".join(citation for name, citation in citations.items() if name in source)


def accounting_sentence(methods: Iterable[str]) -> str:
    """How upper bounds were computed."""
    by = {
        "pld": "privacy loss distributions {koskela}",
        "prv": "privacy random variables {gopi}",
        "closed_form": "the closed form of the Gaussian mechanism {dong}",
        "loose": "losses on a coarse grid {koskela} or Rényi divergences {mironov}, whichever is"
        " less, which may be far above the exact epsilon",
        "group_privacy": "group privacy from the add/remove epsilon {pradhan}",
    }
    used = [text for method, text in by.items() if method in {*methods}]
    return f"Upper bounds on epsilon were computed by {' and '.join(used)}." if used else ""


CAPTION_OF_SCORES = (
    "The dashed curve, where there is a valid bound, is that of the bound: a Gaussian one, or that"
    " of (epsilon, delta)-DP where the legend says so. With the stated confidence and under the"
    " bound's assumption, the mechanism satisfies no curve of this kind above it; at some rates,"
    " its own curve may still lie above. Measured error rates have no confidence bounds; the lowest"
    " rest on single scores."
)


def bound_sentences(
    rules: Sequence[str], conversions: Sequence[str], *, of_ranks: bool = False
) -> list[str]:
    """How scores, or ranks of secrets, became lower bounds."""
    of_conversions = {
        "gdp": "the smallest mu of Gaussian differential privacy that the error rates do not refute"
        " was converted to epsilon {nasr} {dong}; this assumes that the mechanism's trade-off"
        " curve is Gaussian",
        "direct": "error rates were converted by the definition of (epsilon, delta)-differential"
        " privacy alone",
        "subsampled_gaussian": "error rates were compared with numerical curves of the subsampled"
        " Gaussian mechanism (privacy loss distributions)",
    }
    entry = RANK_RULES.__getitem__ if of_ranks else threshold_rule_named
    of_rules = {rule: entry(rule).sentence for rule in rules}
    sentences = [
        f"Threshold rule {rule}: {text.removesuffix('.')}."
        for rule, text in of_rules.items()
        if text
    ]
    silent = [rule for rule, text in of_rules.items() if not text]
    if silent:
        sentences.append(f"Threshold rule {' and '.join(silent)}: describe it here.")
    return [
        *sentences,
        *(f"Conversion {conversion}: {of_conversions[conversion]}." for conversion in conversions),
    ]
