"""A propensity model of a randomised trial is audited by the arms that the trial drew.

In a trial, a fair coin decides who is treated. Nothing that was measured before can predict it, so
a model of the treatment that was fitted on these patients should know nothing. What it knows of
single arms, it has memorised. Run it with `python docs/examples/secrets_randomised_trial.py`; it
takes ten seconds.
"""

import argparse

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler

from dpcanary import Secrets
from dpcanary.core.printing import rounded_down
from dpcanary.secrets import SecretFeature, SecretLabel, words

PATIENTS, MEASURED, DELTA = 1_000, 10, 1e-6
ARMS = words(["control", "treated"])
MODELS = {
    "logistic regression": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    "splines": lambda: make_pipeline(
        SplineTransformer(n_knots=40), LogisticRegression(C=100.0, max_iter=300)
    ),
    "random forest": lambda: RandomForestClassifier(100, random_state=0),
}


def trial(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What was measured before, the arms, and whether patients recovered: treatment helps."""
    stream = np.random.default_rng(seed)
    before = stream.normal(size=(PATIENTS, MEASURED))
    treated = stream.integers(0, 2, PATIENTS)
    recovered = stream.random(PATIENTS) < 0.3 + 0.4 * treated
    return before, treated, recovered.astype(int)


def names_of(treated: np.ndarray) -> list[str]:
    """Names of the arms that the patients were assigned to."""
    return ["treated" if is_treated else "control" for is_treated in treated]


def main() -> None:
    """Prints a line for each model, and what happens if the score uses the outcome."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    before, treated, recovered = trial(options.seed)
    unseen, other_arms, other_outcomes = trial(options.seed + 1_000)
    arms = Secrets.of_values(names_of(treated), ARMS)
    of_others = Secrets.of_values(names_of(other_arms), ARMS)
    for name, build in MODELS.items():
        model = build().fit(before, names_of(treated))
        ranking = arms.rank(SecretLabel(model.predict_proba, before, model.classes_))
        check = of_others.rank(SecretLabel(model.predict_proba, unseen, model.classes_))
        print(
            f"{name}: {(ranking.ranks == 1).mean():.0%} of {PATIENTS:,} arms guessed; epsilon >="
            f" {rounded_down(ranking.estimate(delta=DELTA).epsilon_lower)}; low ranks of patients"
            f" it never saw: p-value {check.check_uniform().p_low:.2f}"
        )
    # The trap: recovery depends on the arm, and so tells it without a model of these patients.
    model = LogisticRegression().fit(np.column_stack([before, treated]), recovered)
    records = np.column_stack([unseen, other_arms])
    score = SecretFeature(
        model.predict_proba, records, other_outcomes, MEASURED,
        as_type=lambda arm: float(arm == "treated"),
    )  # fmt: skip
    wrong = of_others.rank(score)
    bound = wrong.estimate(delta=DELTA).epsilon_lower
    print(
        f"wrong: a score that uses the outcome 'shows' {rounded_down(bound)}"
        " of patients that the model never saw; the check of uniform ranks finds it:"
        f" p-value {wrong.check_uniform().p_low:.1g}"
    )


if __name__ == "__main__":
    main()
