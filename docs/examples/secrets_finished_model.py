"""Finished models, trained without dpcanary, are audited by account numbers in their table.

A table of customers has an account number, which was drawn at random long before anybody thought of
an audit. That is a secret with a known law: nothing of the training is needed, only the finished
model, the record and the law. Run it with `python docs/examples/secrets_finished_model.py`; it
takes half a minute.
"""

import argparse

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from dpcanary import Secrets
from dpcanary.core.printing import rounded_down
from dpcanary.secrets import Ranking, SecretFeature, digits

CUSTOMERS, AUDITED, ACCOUNT, DELTA = 500, 20, 4, 1e-6
MODELS = {
    "linear regression": lambda: make_pipeline(StandardScaler(), Ridge()),
    "random forest": lambda: RandomForestRegressor(50, random_state=0),
    "decision tree": lambda: DecisionTreeRegressor(random_state=0),
    "nearest neighbours": lambda: make_pipeline(
        StandardScaler(), KNeighborsRegressor(3, weights="distance")
    ),
}


def customers(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A table of age, income, years and visits, with an account number at its end; the spending."""
    stream = np.random.default_rng(seed)
    table = np.column_stack(
        [stream.normal(size=(CUSTOMERS, 4)), stream.integers(0, 10**6, CUSTOMERS)]
    )
    return table, table[:, :4] @ [1.0, 2.0, 0.5, -1.0] + stream.normal(size=CUSTOMERS)


def trained(name: str, table: np.ndarray, spending: np.ndarray):
    """What somebody else did. It knows nothing of the audit."""
    return MODELS[name]().fit(table, spending)


def audited(model, table: np.ndarray, spending: np.ndarray, seed: int | None = None) -> Ranking:
    """Ranks the account numbers of the first customers among 10,000 possible ones.

    Spending does not depend on the account number, so that it may be used.
    """
    numbers = [f"{int(number):06d}" for number in table[:AUDITED, ACCOUNT]]
    secrets = Secrets.of_values(numbers, digits(6), num_candidates=10_000, seed=seed)
    score = SecretFeature(
        model.predict, table[:AUDITED], spending[:AUDITED], ACCOUNT, as_type=float
    )
    return secrets.rank(score)


def main() -> None:
    """Prints a line for each model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    table, spending = customers(options.seed)
    others, other_spending = customers(options.seed + 1_000)
    for name in MODELS:
        model = trained(name, table, spending)
        ranking = audited(model, table, spending, options.seed)
        # The law is tested by customers that the model never saw.
        unseen = audited(model, others, other_spending, options.seed).check_uniform()
        first, every = (bound.epsilon_lower for bound in bounds(ranking))
        print(
            f"{name}: {int((ranking.ranks == 1).sum())} of {AUDITED} account numbers ranked first,"
            f" mean exposure {ranking.exposures.mean():.1f} bits; epsilon >= {rounded_down(first)}"
            f" from the first customer alone, >= {rounded_down(every)} from {AUDITED};"
            f" low ranks of customers it never saw: p-value {unseen.p_low:.2f}"
        )


def bounds(ranking: Ranking):
    """From the first customer alone, which was chosen beforehand, and from all."""
    alone = Ranking(
        ranking.ranks[:1], ranking.num_candidates, ranking.confidences[:1], ranking.digest
    )
    return alone.estimate(delta=DELTA), ranking.estimate(delta=DELTA)


if __name__ == "__main__":
    main()
