"""`dpcanary account`: the epsilons of a training."""

from dpcanary.adjacency import ADJACENCIES, PROTECTS
from dpcanary.commands.training_options import (
    BatchSize,
    Delta,
    Epochs,
    Json,
    NoiseMultiplier,
    NumRecords,
    NumSteps,
    SampleRate,
    mechanism_of,
    warn_of_large_delta,
)
from dpcanary.printing import print_json, print_table, print_text, rounded_up


def account(
    noise_multiplier: NoiseMultiplier,
    delta: Delta,
    sample_rate: SampleRate = None,
    batch_size: BatchSize = None,
    num_records: NumRecords = None,
    num_steps: NumSteps = None,
    epochs: Epochs = None,
    as_json: Json = False,
) -> None:
    """Print the epsilons of a training, and what each of them protects.

    \b
    Examples:
      dpcanary account --batch-size 256 --num-records 60000 --epochs 10 \\
                       --noise-multiplier 1.1 --delta 1e-5
      dpcanary account --sample-rate 0.25 --num-steps 500 \\
                       --noise-multiplier 5.574 --delta 1e-5 --json
    """
    mechanism = mechanism_of(
        sample_rate, batch_size, num_records, num_steps, epochs, noise_multiplier
    )
    warn_of_large_delta(delta, num_records)
    from dpcanary.accounting.by_adjacency import account_by_adjacency

    found = account_by_adjacency(mechanism, delta=delta)
    epsilons = {name: getattr(found, name) for name in PROTECTS}
    if as_json:
        training = {
            "sample_rate": mechanism.sample_rate,
            "noise_multiplier": mechanism.noise_multiplier,
            "num_steps": mechanism.num_steps,
            "delta": delta,
        }
        print_json({**training, "epsilon": epsilons, "method": found.method.value})
        return
    print_text(
        f"DP-SGD with Poisson sampling: sample rate {mechanism.sample_rate:.4g}, noise multiplier"
        f" {noise_multiplier:g}, {mechanism.num_steps:,} steps, delta {delta:g}."
    )
    print()
    print_table(
        ("adjacency", "epsilon", "protects"),
        [(ADJACENCIES[name], rounded_up(epsilons[name]), text) for name, text in PROTECTS.items()],
    )
    print()
    times = ""
    if found.add_remove > 0:
        ratio = found.substitute / found.add_remove
        times = f": it is {ratio:.1f} times the one that most libraries report"
    print_text(
        "These are upper bounds on the true epsilons. If what records say needs protection, quote"
        f" the substitute epsilon{times}."
    )
