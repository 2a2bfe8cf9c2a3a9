"""The recipes' programs run, and what they watch is right."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PROGRAMS = {
    "watched_lightning.py": ("lightning", 1.66, 2.96),
    "watched_trainer.py": ("accelerate", 2.01, 3.16),
    "watched_jax.py": ("jax_privacy", 3.36, 6.54),
}
OF_OPACUS = ["with watch(optimizer) as watched:", "watched.result(delta=1e-5)"]
LINES = {
    "watched_jax.py": [
        "from dpcanary.own_training import Recorder, StepTold\n",
        "from dpcanary.watching.optax import shapes_of, watched\n",
        "recorder = Recorder(shapes_of(parameters), noise_multiplier=NOISE, sample_rate=RATE)\n",
        "told = StepTold(noise_multiplier=NOISE, max_grad_norm=NORM, sample_rate=RATE)\n",
        "gaussian_privatizer(stddev=NOISE * NORM, prng_key=noise_key)\n",
        "    watched(privatizer, recorder, told), optax.scale(1 / (RATE * len(labels))), optax.sgd",
        "recorder.result(delta=1e-5)",
    ]
}


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recipe_runs_and_proves_more_than_membership(name: str) -> None:
    """The proven bound lies between the epsilon that is reported and the one that holds."""
    package, reported, accounted = PROGRAMS[name]
    pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(DOCS / "examples" / name)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.search(
        r"sees all updates, knows the other records +>= ([\d.]+).*"
        r"epsilon <= ([\d.]+) under substitute adjacency, ([\d.]+) under add/remove.*"
        r"alarm: none",
        done.stdout,
        re.DOTALL,
    )
    assert found, done.stdout
    proven, upper, membership = map(float, found.groups())
    assert (membership, upper) == (reported, accounted)
    assert 0.5 * upper < proven <= upper


@pytest.mark.parametrize("name", ["watched_training.py", *PROGRAMS])
def test_the_page_names_the_program_and_its_lines(name: str) -> None:
    """What the page shows of a program is in the program."""
    page = (DOCS / "recipes.md").read_text()
    program = (DOCS / "examples" / name).read_text()
    assert f"(examples/{name})" in page
    for line in LINES.get(name, OF_OPACUS):
        assert line in page
        assert line in program


def test_what_the_recipes_say_must_be_changed_is_changed_in_the_programs() -> None:
    page = (DOCS / "recipes.md").read_text()
    of_lightning = (DOCS / "examples/watched_lightning.py").read_text()
    of_trainer = (DOCS / "examples/watched_trainer.py").read_text()
    for line, program in [
        ("use_distributed_sampler=False", of_lightning),
        ("return optimizer", of_lightning.replace("self.", "")),
        ("max_grad_norm=0", of_trainer),
        ("optimizer.zero_grad()", of_trainer),
        ("remove_unused_columns=False", of_trainer),
    ]:
        assert line in page
        assert line in program
