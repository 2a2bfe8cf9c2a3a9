"""The first screen of a report: three numbers, and what they say."""

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
from dpcanary.estimation.ranks.rank_methods import rule_named

if TYPE_CHECKING:  # it loads slowly
    from dpcanary.accounting.meaning import Meaning


@dataclass(frozen=True)
class Bar:
    """An epsilon of the first screen; the value of a bound has a sign, the width is in per cent."""

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
    bounds: int = 1
    above: int = 0


@dataclass(frozen=True)
class Headline:
    """The numbers of the first screen: one training, and one audit of it.

    Attributes:
        training: in words.
        attack: in words, after "an attack on": how many models, and in what the worlds differ.
        shown: the lower bound, or the mean of several.
        assumption: what the lower bound rests on.
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

    @property
    def bars(self) -> list[Bar]:
        """The epsilons from the smallest to the largest, with widths in per cent."""
        sign = "≥ " if self.is_valid else ""
        entries = [
            ("add-remove", self.add_remove, f"≤ {rounded_up(self.add_remove)}",
             "Whether a record is in the data: accounted, add/remove adjacency",
             "What most libraries report."),
            ("shown", self.shown, f"{sign}{rounded_down(self.shown)}", *self._shown_label()),
            ("substitute", self.substitute, f"≤ {rounded_up(self.substitute)}",
             "What a record says: accounted, substitute adjacency",
             "Its label or any feature, if it is known to be in the data."),
        ]  # fmt: skip
        if self.real:
            note = f"{self.real.difference[:1].upper()}{self.real.difference[1:]}, same adjacency."
            number = f"≥ {rounded_down(self.real.shown)}"
            label = "Shown with a real record"
            label += f": mean of {self.real.bounds} bounds" if self.real.bounds > 1 else ""
            entries.append(("real", self.real.shown, number, label, note))
        ranked = sorted((one for one in entries if not isnan(one[1])), key=lambda one: one[1])
        largest = max((value for _, value, *_ in ranked if isfinite(value)), default=0.0)
        return [
            Bar(kind, text, _share(value, largest), label, note)
            for kind, value, text, label, note in ranked
        ]

    @property
    def answer(self) -> list[str]:
        """The question's answer in sentences."""
        if not self.is_valid:
            return [
                f"This audit shows nothing: its number, {rounded_down(self.shown)}, is not a"
                f" valid lower bound. {self.assumption[:1].upper()}{self.assumption[1:]}."
            ]
        sentences = [*self._accounted_sentences(), *filter(None, [self.meaning])]
        on_average = self.bounds > 1
        if not isfinite(self.add_remove):
            sentences.append(self._shown_sentence("epsilon"))
        elif self.above:
            many = f"{self.above} of {self.bounds} bounds exceed" if on_average else "It exceeds"
            sentences.append(
                f"{self._shown_sentence('epsilon')} {many} what is accounted. Either this is the"
                " chance that the confidence leaves, or the assumption below does not hold, or the"
                f" training is not what was accounted.{self.advice}"
            )
        elif isnan(self.substitute):
            sentences.append(self._shown_sentence("this epsilon"))
        elif self.shown > self.add_remove:
            real = "" if on_average else "This is evidence that the difference is real: "
            sentences.append(
                f"{real}{self._shown_sentence('the latter')} Who must protect the content of"
                " records should quote the substitute epsilon."
            )
        else:
            sentences.append(
                f"{self._shown_sentence('the latter')} This is not above the add/remove epsilon,"
                " and no evidence that the training protects more than is accounted: more models"
                " or a stronger canary may show more."
            )
        sentences += self._real_sentences()
        return [sentence[:1].upper() + sentence[1:] for sentence in sentences]

    @property
    def bounded(self) -> str:
        """Whose epsilon the lower bound is about, as a sentence; empty if there is no valid one."""
        if self.conversion is None or not self.is_valid:
            return ""
        if self.conversion is Conversion.DIRECT:
            return "It bounds the epsilon of what the attacker saw of trainings on these data."
        return (
            "It bounds the epsilon of the mechanism, over all data and with all updates seen;"
            " conversion direct bounds that of what the attacker saw."
        )

    def _accounted_sentences(self) -> Iterator[str]:
        if isinf(self.add_remove):
            yield "The training adds no noise: no epsilon is finite, and nothing is protected."
        elif isnan(self.add_remove):
            yield "What is accounted is not known."
        elif isnan(self.substitute):
            yield (
                f"Under {self.adjacency} adjacency, epsilon is at most"
                f" {rounded_up(self.add_remove)} by accounting. It protects whether a record is in"
                " the data, not what the record says."
            )
        else:
            yield (
                "Whether a record is in the data is protected by epsilon"
                f" {rounded_up(self.add_remove)}, the number that most libraries report."
            )
            yield (
                f"What a record says is protected by epsilon {rounded_up(self.substitute)}, by"
                " accounting."
            )

    def _real_sentences(self) -> Iterator[str]:
        """What a real record leaks, beside what a crafted one does."""
        if self.is_real is not False:
            return
        if self.real is None:
            yield "No audit here is of a real record, which may leak less."
            return
        number, attack = rounded_down(self.real.shown), self.real.attack
        sentence = f"With a real record, at least {number} is shown, by an attack on {attack}."
        if self.real.bounds > 1:
            sentence = (
                f"With a real record, an attack on {attack} gives {number} on average over"
                f" {self.real.bounds} bounds; their mean has no confidence of its own."
            )
        if self.real.above:
            sentence += f" {self.real.above} of {self.real.bounds} bounds exceed what is accounted."
        if self.real.compared > 1:
            sentence += (
                f" This is the largest of {self.real.compared} such results; each holds alone."
            )
        yield sentence

    def _shown_sentence(self, what: str) -> str:
        number = rounded_down(self.shown)
        if self.bounds > 1:
            return (
                f"{what} is at least {number} on average over {self.bounds} bounds, by an attack on"
                f" {self.attack}; each bound holds with {self.confidence} confidence, and their"
                " mean has none of its own."
            )
        return (
            f"{what} is at least {number} with {self.confidence} confidence, by an attack on"
            f" {self.attack}."
        )

    def _shown_label(self) -> tuple[str, str]:
        if not self.is_valid:
            return "NOT a valid lower bound", "It may exceed the truth more often than is said."
        means = f"with {self.difference}" if self.difference else "by attack"
        label = f"Shown {means}, {self.adjacency} adjacency"
        if self.bounds > 1:
            return (
                f"{label}: mean of {self.bounds} bounds",
                f"Each of them holds with {self.confidence} confidence.",
            )
        return label, f"A lower bound with {self.confidence} confidence."

    @property
    def confidence(self) -> str:
        """That of the lower bound."""
        return confidence_in_words(self.significance)


def meaning_in_words(meaning: "Meaning | None") -> str:
    """What no attack on a training exceeds, as one sentence; empty if it is not known."""
    if meaning is None:
        return ""
    count, chance = min(meaning.guesses.items(), key=lambda pair: abs(pair[0] - 10))
    return (
        f"A secret in a record that is one of {count:,} equally likely values, such as a random"
        f" code, is guessed with a probability of at most {percent_up(chance)} by any attack, and"
        f" of {percent(1 / count)} without the model."
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

    def _citation(self, found: re.Match[str]) -> str:
        key = found[1]
        if key not in _REFERENCES:
            return found[0]
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
    }
    used = [text for method, text in by.items() if method in {*methods}]
    return f"Upper bounds on epsilon were computed by {' and '.join(used)}." if used else ""


def curve_sentence(*, is_valid: bool) -> str:
    """What the dashed curve of a figure of error rates is."""
    if is_valid:
        return (
            "The dashed curve is that of the lower bound: the training's own lies on it or below."
        )
    return (
        "The dashed curve is that of the number, which is not a valid lower bound: the training's"
        " own may lie above it."
    )


def bound_sentences(rules: Sequence[str], conversions: Sequence[str]) -> list[str]:
    """How scores became lower bounds."""
    of_conversions = {
        "gdp": "the largest mu of Gaussian differential privacy that the error rates allow was"
        " converted to epsilon {nasr} {dong}; this assumes that the mechanism's trade-off"
        " curve is Gaussian",
        "direct": "error rates were converted by the definition of (epsilon, delta)-differential"
        " privacy alone",
        "subsampled_gaussian": "error rates were compared with the exact curves of the subsampled"
        " Gaussian mechanism",
    }
    of_rules = {one: rule_named(one).sentence for one in rules}
    sentences = [f"Threshold rule {one}: {text}." for one, text in of_rules.items() if text]
    silent = [one for one, text in of_rules.items() if not text]
    if silent:
        sentences.append(f"Threshold rule {' and '.join(silent)}: describe it here.")
    return [*sentences, *(f"Conversion {one}: {of_conversions[one]}." for one in conversions)]
