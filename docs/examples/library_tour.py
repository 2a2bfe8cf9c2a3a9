"""A tour of the library, in one session: each part takes seconds on one core.

Run it with `python docs/examples/library_tour.py`; docs/library.md explains the parts. Critical
values that are not in the package are simulated once, in ten seconds.
"""

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

from dpcanary import (
    InputError,
    Mechanism,
    Records,
    account_epsilon,
    assess_claim,
    calibrate_noise,
    estimate_epsilon,
    estimate_epsilon_one_run,
    runs_needed,
)
from dpcanary.accounting import account_epsilon_curve, trade_off_curve
from dpcanary.estimation import ensemble_scores, estimate_epsilon_at_looks, expected_bound
from dpcanary.training import DPSGD, GradientCanary, Optimizer, train_ensemble

# Accounting and noise.
training = Mechanism("substitute", sample_rate=0.25, num_steps=100)
sigma = calibrate_noise(training, epsilon=10.0, delta=1e-5)
mechanism = training.with_noise(sigma)

bounds = account_epsilon(mechanism.under("add_remove"), delta=1e-5)
print(f"noise {sigma:.2f}: add/remove epsilon {bounds.upper:.2f}")

curve = account_epsilon_curve(mechanism, steps=[25, 50, 100], delta=1e-5)
print("substitute epsilon after 25, 50 and 100 steps:", [round(epsilon, 1) for epsilon in curve])

print("least FNR at an FPR of 1 %:", trade_off_curve(mechanism).fnr(0.01).round(2))

# Lower bounds from scores.
rng = np.random.default_rng(0)
world0_scores, world1_scores = rng.normal(2.0, 1.0, 1000), rng.normal(0.0, 1.0, 1000)
estimate = estimate_epsilon(world0_scores=world0_scores, world1_scores=world1_scores, delta=1e-5)
print(f"epsilon is at least {estimate.epsilon_lower:.1f}")
print("valid:", estimate.is_valid, "- assumption:", estimate.assumption)

few = {"world0_scores": world0_scores[-100:], "world1_scores": world1_scores[-100:], "delta": 1e-5}
conversions = {
    "gdp": estimate_epsilon(**few),
    "subsampled_gaussian": estimate_epsilon(
        **few, conversion="subsampled_gaussian", mechanism=mechanism
    ),
    "direct": estimate_epsilon(**few, conversion="direct"),
}
for name, bound in conversions.items():
    print(f"{name}: epsilon is at least {bound.epsilon_lower:.1f}")

# Bounds while runs come in.
looks = [(50, 50), (100, 100)]  # numbers of scores of world 0 and of world 1
for bound in estimate_epsilon_at_looks(looks=looks, **few):
    print(f"epsilon is at least {bound.epsilon_lower:.1f} (one of {bound.num_looks} looks)")

# A test of an accounted claim.
for claimed in (2.0, 1.5):
    test = assess_claim(
        world0_scores=world0_scores,
        world1_scores=world1_scores,
        mechanism=claimed,
        num_simulations=999,
    )
    print(f"claim mu = {claimed}: p-value {test.p_value:.3f}")

# How many runs an audit needs.
expected = expected_bound(mechanism=2.0, num_runs=1000, delta=1e-5)
print(
    f"mean bound {expected.mean:.1f}; 90 % are between {expected.low:.1f} and {expected.high:.1f}"
)
needed = runs_needed(mechanism=2.0, exceed=4.4, delta=1e-5, power=0.8)
print(f"{needed} runs show an epsilon above 4.4 with a probability of 0.8")

# An ensemble with one canary.
features, labels = load_digits(return_X_y=True)
records = Records(features[:500] / 16, labels[:500])
dpsgd = DPSGD(
    noise_multiplier=sigma,
    max_grad_norm=1.0,
    learning_rate=1.0,
    record_steps=(50, 100),  # steps at which models are observed; training ends with the last
    sample_rate=0.25,
)
result = train_ensemble(
    module=nn.Linear(64, 10),
    records=records,
    test_records=Records(features[500:] / 16, labels[500:]),
    canary=GradientCanary(coordinate=0, target=0),
    dpsgd=dpsgd,
    runs=400,
    seed=0,
)
scores = ensemble_scores(result)  # shape (runs, recorded steps, slots)
last, world = scores[:, -1, 0], result.worlds[:, 0]
one_canary = estimate_epsilon(
    world0_scores=last[world == 0], world1_scores=last[world == 1], delta=1e-5
)
print(f"epsilon is at least {one_canary.epsilon_lower:.1f}")
print(f"mean test accuracy {result.test_accuracy.mean():.2f}")

# Several canaries in each run.
blank_pixels = (0, 32)  # of the 64; the index of a weight is 64 * class + pixel
coordinates = [64 * label + pixel for label in range(10) for pixel in blank_pixels]
slots = train_ensemble(
    module=nn.Linear(64, 10),
    records=records,
    canary=[GradientCanary(coordinate, slot) for slot, coordinate in enumerate(coordinates)],
    dpsgd=dpsgd,
    runs=200,
    seed=0,
)
last = ensemble_scores(slots)[:, -1]  # shape (runs, slots), as slots.worlds

first = slots.worlds[:, 0]
of_first_slot = estimate_epsilon(
    world0_scores=last[first == 0, 0], world1_scores=last[first == 1, 0], delta=1e-5
)
pooled = estimate_epsilon(
    world0_scores=last[slots.worlds == 0], world1_scores=last[slots.worlds == 1], delta=1e-5
)
print(f"first slot: {of_first_slot.epsilon_lower:.1f}, pooled: {pooled.epsilon_lower:.1f}")

# Bounds from one run.
world0_scores = rng.normal(2.0, 1.0, 500)  # of slots in world 0, or of records that are in
world1_scores = rng.normal(0.0, 1.0, 500)
for method in ("steinke", "mahloujifar", "order_statistic"):
    bound = estimate_epsilon_one_run(
        world0_scores=world0_scores,
        world1_scores=world1_scores,
        delta=1e-5,
        method=method,
        positive_guesses=125,  # the highest scores, guessed to be in
        negative_guesses=125,  # the lowest, guessed to be out
    )
    print(f"{method}: at least {bound.epsilon_lower:.1f}; {bound.guesses.num_correct} of 250 right")

# Options and errors.
adam = DPSGD(1.0, 1.0, 0.001, record_steps=10, optimizer="adam")
print(adam.optimizer is Optimizer.ADAM)
try:
    DPSGD(1.0, 1.0, 0.001, record_steps=10, optimizer="adma")
except InputError as error:
    print(error)
