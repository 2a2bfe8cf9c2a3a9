"""Errors of published versions of Opacus, each with what finds it.

    python -m benchmarks.museum [EXHIBIT ...]

Installs each version into a folder of its own, runs the exhibit with it, and prints what fails in
the versions that have the error, and nothing in the first one that has not.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).parents[1]
SHOW = "import sys; from benchmarks.museum import show; show(sys.argv[1])"


@dataclass(frozen=True)
class Exhibit:
    """An error of some versions of Opacus.

    Attributes:
        name: in a few words.
        run: prints what dpcanary finds with the version that is imported; nothing if all is right.
        wrong: versions that have the error, from the first to the last that were tried.
        right: the first version without it; empty if none is known.
        finds: what must be printed.
        by: what finds it, in words.
        effect: on epsilon.
        source: where it was reported or mended.
    """

    name: str
    run: Callable[[], None]
    wrong: tuple[str, ...]
    right: str
    finds: str
    by: str
    effect: str
    source: str


class Language(nn.Module):
    """An embedding, two linear layers and a layer norm: logits of the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(11, 8), nn.Linear(8, 16)
        self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 11)

    def forward(self, words: Tensor) -> Tensor:
        """Shape (records, words, 11), of words of shape (records, words)."""
        logits: Tensor = self.out(self.norm(self.hidden(self.embedding(words)).relu()))
        return logits


class TokenLoss(nn.CrossEntropyLoss):
    """Cross-entropy of all words."""

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean over words that are not ignored."""
        return super().forward(outputs.reshape(-1, outputs.shape[-1]), labels.reshape(-1))


class Mean(nn.Module):
    """Over the words of a record."""

    def forward(self, values: Tensor) -> Tensor:
        """Shape (records, values), of shape (records, words, values)."""
        return values.mean(dim=1)


def print_failing(result: Any) -> None:
    """A line for each property that does not hold."""
    for finding in result.findings:
        if not finding.holds:
            print(f"{finding.name}: {finding.measured}")


def language_model(*, ignored: int = 0) -> None:
    """Ghost clipping of sequences, the last words of which are ignored."""
    from dpcanary import check_model

    words, labels = torch.randint(11, (20, 7)), torch.randint(11, (20, 7))
    labels[:, 7 - ignored :] = -100
    print_failing(check_model(Language(), (words, labels), TokenLoss()))


def padded_embedding() -> None:
    """A word that stands for padding, whose row is not trained."""
    from dpcanary import check_model

    words, labels = torch.randint(1, 11, (20, 7)), torch.randint(3, (20,))
    words[:, 5:] = 0
    model = nn.Sequential(nn.Embedding(11, 6, padding_idx=0), Mean(), nn.Linear(6, 3))
    print_failing(check_model(model, (words, labels)))


def circular_convolution() -> None:
    """A convolution whose border is not padded with zeros."""
    from dpcanary import check_model

    images, labels = torch.randn(20, 3, 8, 8), torch.randint(3, (20,))
    layer = nn.Conv2d(3, 6, 3, padding=1, padding_mode="circular")
    model = nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.Linear(6 * 64, 3))
    print_failing(check_model(model, (images, labels)))


def two_passes(module: Any, dataset: Any, settings: Any, *, physical: int = 0) -> None:
    """Ghost clipping as until 1.5.2: the norms, and then the sum of clipped gradients."""
    from opacus import PrivacyEngine

    model, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=settings.learning_rate),
        data_loader=DataLoader(dataset, batch_size=round(settings.sample_rate * len(dataset))),
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=settings.max_grad_norm,
        grad_sample_mode="ghost",
        clipping="ghost",
    )
    criterion, done = nn.CrossEntropyLoss(reduction="none"), 0
    while done < settings.num_steps:
        with _physical(loader, optimizer, physical) as batches:
            for features, labels in batches:
                optimizer.zero_grad()
                losses = criterion(model(features), labels)
                losses.mean().backward(retain_graph=True)
                optimizer.zero_grad()
                factors = model.get_coeff()
                model.disable_hooks()
                (factors * losses).sum().backward()
                model.enable_hooks()
                optimizer.step()
                done += not optimizer._is_last_step_skipped
                if done == settings.num_steps:
                    break


@contextmanager
def _physical(loader: Any, optimizer: Any, size: int) -> Iterator[Any]:
    """The batches, in parts of a size if there is one."""
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    if not size:
        yield loader
        return
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=size, optimizer=optimizer
    ) as parts:
        yield parts


def ghost_loop(*, max_grad_norm: float, physical: int = 0) -> None:
    """The check of such a loop."""
    from dpcanary import check_mechanism

    def train(module: Any, dataset: Any, settings: Any) -> None:
        two_passes(module, dataset, settings, physical=physical)

    print_failing(check_mechanism(train, num_trainings=10, max_grad_norm=max_grad_norm))


def adaptive_clipping(noise_multiplier: float) -> None:
    """A training with adaptive clipping that is watched: its alarm."""
    from opacus import PrivacyEngine

    from dpcanary.own_training import watch

    features = torch.randn(400, 10)
    dataset = TensorDataset(features, (features[:, 0] > 0).long())
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(dataset, batch_size=20),
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
        clipping="adaptive",
        target_unclipped_quantile=0.5,
        clipbound_learning_rate=0.2,
        max_clipbound=10.0,
        min_clipbound=0.01,
        unclipped_num_std=1.0,
    )
    with watch(optimizer, sample_rate=0.05, seed=0, on_alarm=lambda alarm: None) as watched:
        for _ in range(5):
            for inputs, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(private(inputs), labels).backward()
                optimizer.step()
    if watched.alarm:
        print(watched.alarm)


def half_precision() -> None:
    """A training under autocast that is watched: what clipping leaves, if it is above C."""
    from opacus import PrivacyEngine

    from dpcanary.own_training import watch

    features = torch.randn(400, 20)
    dataset = TensorDataset(features, (features[:, 0] > 0).long())
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2))
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(dataset, batch_size=50),
        noise_multiplier=1.2,
        max_grad_norm=1.0,
    )
    with watch(optimizer, seed=0) as watched:
        for inputs, labels in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(private(inputs), labels)
            loss.backward()
            optimizer.step()
    measured = watched.result(delta=1e-5, conversion="gdp").measured
    if measured.clipped_to > 1.001:
        print(f"clipping left a norm of {measured.clipped_to:.4f} C")


_LOOP, _MODEL = "`dpcanary check` of the loop", "`dpcanary check --model`"
_WATCH = "`watch`"
EXHIBITS = (
    Exhibit(
        "ghost clipping ignores the clipping norm",
        lambda: ghost_loop(max_grad_norm=0.5),
        ("1.5", "1.5.1", "1.5.2"),
        "",
        "clipping: norms up to 2",
        _LOOP,
        "clips to 1, and adds noise for C: at C = 0.5 half of the noise that is accounted",
        "[PR 664](https://github.com/meta-pytorch/opacus/pull/664)",
    ),
    Exhibit(
        "ghost clipping in physical batches",
        lambda: ghost_loop(max_grad_norm=1.0, physical=8),
        ("1.5.2",),
        "",
        "noise scale: 0.5 times as much",
        _LOOP,
        "a batch's last part alone is used, twice, with one noise: half of the noise",
        "[PR 707](https://github.com/meta-pytorch/opacus/pull/707),"
        " [issue 692](https://github.com/meta-pytorch/opacus/issues/692)",
    ),
    Exhibit(
        "ghost clipping of biases of sequences",
        language_model,
        ("1.5.2", "1.5.3"),
        "1.5.4",
        "ghost: norms of single records: norms wrong by up to",
        _MODEL,
        "norms are too small by some percent: so is the noise",
        "[issue 751](https://github.com/meta-pytorch/opacus/issues/751)",
    ),
    Exhibit(
        "ignored words in ghost clipping",
        lambda: language_model(ignored=3),
        ("1.5.4",),
        "1.6.0",
        "ghost: losses of single records: wrong by up to 42.9%",
        _MODEL,
        "none: records with many ignored words count less",
        "[issue 792](https://github.com/meta-pytorch/opacus/issues/792)",
    ),
    Exhibit(
        "adaptive clipping, enlarged noise accounted",
        lambda: adaptive_clipping(1.5),
        ("1.5.3", "1.5.4"),
        "1.6.0",
        "noise multiplier 2.268 is accounted",
        _WATCH,
        "noise multiplier 2.27 is accounted where 1.5 protects",
        "[PR 807](https://github.com/meta-pytorch/opacus/pull/807)",
    ),
    Exhibit(
        "the same with little noise",
        lambda: adaptive_clipping(0.8),
        ("1.5.4",),
        "1.6.0",
        "the noise has about",
        _WATCH,
        "noise multiplier 0.87 is accounted where 0.8 protects",
        "[PR 807](https://github.com/meta-pytorch/opacus/pull/807)",
    ),
    Exhibit(
        "gradients in half precision by autocast",
        half_precision,
        ("1.6.0",),
        "",
        "clipping left a norm of 1.00",
        _WATCH,
        "norms are rounded to 8 binary digits: records move the sum by up to 1.007 C",
        "found here",
    ),
    Exhibit(
        "a word for padding in an embedding",
        padded_embedding,
        ("1.3.0", "1.5.4", "1.6.0"),
        "",
        "hooks: gradients of single records: gradients wrong by up to",
        _MODEL,
        "none: the row of padding is trained, which PyTorch leaves as it is",
        "found here",
    ),
    Exhibit(
        "convolutions that are not padded with zeros",
        circular_convolution,
        ("1.5.2", "1.5.4", "1.6.0"),
        "",
        "ghost: norms of single records: norms wrong by up to",
        _MODEL,
        "ghost clipping: norms are wrong by a percent; hooks: none, the wrong gradient is trained",
        "found here",
    ),
)
BY_NAME = {exhibit.name: exhibit for exhibit in EXHIBITS}


def markdown_rows() -> list[str]:
    """The rows of the table in docs/reliability.md."""
    return [
        f"| {entry.name} | {', '.join(entry.wrong)} | {entry.right or '-'} | {entry.effect} |"
        f' {entry.by}: "{entry.finds}" | {entry.source} |'
        for entry in EXHIBITS
    ]


def show(name: str) -> None:
    """Runs an exhibit with the version of Opacus that is imported."""
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    BY_NAME[name].run()


def installed(version: str, folder: Path) -> Path:
    """The place of a version of Opacus, which is installed if it is not there."""
    place = folder / version
    if not place.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        subprocess.run([*command, str(place), f"opacus=={version}"], check=True)
    return place


def printed(exhibit: Exhibit, place: Path) -> str:
    """What an exhibit prints with the version at a place."""
    # Ours first: some versions of Opacus install a package `benchmarks`.
    path = os.pathsep.join([str(ROOT), str(place)])
    result = subprocess.run(
        [sys.executable, "-c", SHOW, exhibit.name],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(result.stderr)
    return result.stdout


def main() -> None:
    """Shows exhibits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exhibits", nargs="*", default=[*BY_NAME], metavar="EXHIBIT")
    parser.add_argument("--markdown", action="store_true", help="the rows of docs/reliability.md")
    arguments = parser.parse_args()
    if arguments.markdown:
        print("\n".join(markdown_rows()))
        return
    with TemporaryDirectory() as folder:
        for name in arguments.exhibits:
            exhibit = BY_NAME[name]
            for version in [*exhibit.wrong, *([exhibit.right] if exhibit.right else [])]:
                output = printed(exhibit, installed(version, Path(folder)))
                print(f"{name}, Opacus {version}:\n{output or 'nothing'}")


if __name__ == "__main__":
    main()
