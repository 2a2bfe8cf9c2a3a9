"""Kills a run at random moments, runs it again, and compares: `python tests/faults/kills.py N`.

Prints what differs, and ends with status 1 if anything does.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import study
from running import started
from tqdm import tqdm

# A run is killed so often before it may end.
AT_MOST = 4


def after_kills(folder: Path, *, seed: int, longest: float) -> tuple[int, int]:
    """Starts a study in a new folder, kills it some times, each in so many seconds, and ends it.

    Returns how often it was killed, and how many finished shards were recomputed.
    """
    rng = np.random.default_rng(seed)
    study.make(folder)
    kills = 0
    for _ in range(int(rng.integers(1, AT_MOST + 1))):
        running = started(study.RUN, folder)
        end = time.monotonic() + float(rng.uniform(0.2, longest))
        while time.monotonic() < end and running.poll() is None:
            time.sleep(0.01)
        has_ended = running.poll() is not None
        study.kill_all(folder)
        running.wait()
        if has_ended:
            break
        kills += 1
    times = {path: path.stat().st_mtime_ns for path in folder.glob("results/study/shards/*/*.npz")}
    study.run(folder)
    return kills, sum(path.stat().st_mtime_ns != when for path, when in times.items())


def differences(folder: Path, expected: dict[str, bytes]) -> list[str]:
    """Files that are not as expected, and what is left over."""
    results = study.results(folder)
    wrong = [name for name in {**expected, **results} if expected.get(name) != results.get(name)]
    return wrong + [path.name for path in folder.rglob("*.part")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dpcanary-kills-") as folder:
        whole = study.make(Path(folder) / "whole")
        began = time.monotonic()
        study.run(whole)
        longest = time.monotonic() - began
        expected = study.results(whole)
        done, trial, wrong = 0, 0, 0
        with tqdm(total=arguments.kills, unit="kill") as bar:
            while done < arguments.kills:
                place = Path(folder) / str(trial)
                kills, _ = after_kills(place, seed=arguments.seed + trial, longest=longest)
                for name in differences(place, expected):
                    wrong += 1
                    print(f"after {kills} kills, seed {arguments.seed + trial}: {name} differs")
                done, trial = done + kills, trial + 1
                bar.update(kills)
        print(f"{done} kills in {trial} studies: {wrong} files differ from an undisturbed run")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
