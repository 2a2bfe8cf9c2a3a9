"""The methods of an audit as text for a paper, with references."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dpcanary.estimation.rules import threshold_rule_named

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
    known = {"Pradhan": "{pradhan}", "Cebere": "{cebere}", "Boglioni": "{boglioni}",
             "Steinke": "{steinke}", "Andrew": "{andrew}"}  # fmt: skip
    return ", ".join(citation for name, citation in known.items() if name in source)


def accounting_sentence(methods: Iterable[str]) -> str:
    """How upper bounds were computed."""
    by = {
        "pld": "privacy loss distributions {koskela}",
        "prv": "privacy random variables {gopi}",
        "closed_form": "the closed form of the Gaussian mechanism {dong}",
    }
    used = [text for method, text in by.items() if method in {*methods}]
    return f"Upper bounds on epsilon were computed by {' and '.join(used)}." if used else ""


def bound_sentences(rules: Sequence[str], conversions: Sequence[str]) -> list[str]:
    """How scores became lower bounds."""
    of_conversions = {
        "gdp": "the largest mu of Gaussian differential privacy that the error rates allow was"
        " converted to epsilon {nasr} {dong}; this assumes a Gaussian trade-off curve",
        "direct": "error rates were converted by the definition of (epsilon, delta)-differential"
        " privacy alone",
        "subsampled_gaussian": "error rates were compared with the exact curves of the subsampled"
        " Gaussian mechanism",
    }
    of_rules = {one: threshold_rule_named(one).sentence for one in rules}
    told = [f"Threshold rule {one}: {text}." for one, text in of_rules.items() if text]
    silent = [one for one, text in of_rules.items() if not text]
    if silent:
        told.append(f"Threshold rule {' and '.join(silent)}: describe it here.")
    return [*told, *(f"Conversion {one}: {of_conversions[one]}." for one in conversions)]
