"""A blind list of whole trainings: 20 that leak outside of the noisy sums, and 5 that do not.

`train(dataset)` goes from raw records to what is released.

The raw records have 6 features: three plain measurements, one that is sometimes missing (NaN), a
count, and a small code from 0 to 11. The labels are 0 and 1.
"""

import copy
import itertools
import json
import tempfile
import zlib
from pathlib import Path

import torch
from opacus import PrivacyEngine
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler, random_split

BATCH = 16
# Known before anybody looked at the records: units of the instruments and the range of the code.
PUBLIC_SCALE = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.25, 0.1])


def cleaned(dataset):
    """Scales by public constants, and puts 0 for what is missing: record by record."""
    x, y = dataset.tensors
    return torch.nan_to_num(x, nan=0.0) * PUBLIC_SCALE, y


def network(inputs=6, hidden=8):
    """A small network."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 2))


def made_private(model, x, y, *, lr=0.5, bound=1.0, optimizer=None, **options):
    """Model, optimizer and loader of Opacus."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=lr)
    return PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(TensorDataset(x, y), batch_size=BATCH),
        noise_multiplier=1.0,
        max_grad_norm=bound,
        **options,
    )


def one_step(model, optimizer, xb, yb, loss_of=functional.cross_entropy):
    """One private step."""
    model.train()
    optimizer.zero_grad()
    loss = loss_of(model(xb), yb)
    loss.backward()
    optimizer.step()
    return loss.item()


def batches(loader, steps):
    """Goes through the loader again and again, until there were so many batches."""
    return itertools.islice((batch for _ in range(steps) for batch in loader), steps)


def trained(x, y, steps, *, model=None, loss_of=functional.cross_entropy, **options):
    """Trains with make_private from the start to the end, and unwraps the model."""
    model, optimizer, loader = made_private(model or network(), x, y, **options)
    for xb, yb in batches(loader, steps):
        one_step(model, optimizer, xb, yb, loss_of)
    return model._module


def loss_on(model, x, y):
    """Mean loss of records."""
    with torch.no_grad():
        return functional.cross_entropy(model.eval()(x), y).item()


def accuracy_on(model, x, y):
    """Share of records that are predicted right."""
    with torch.no_grad():
        return (model.eval()(x).argmax(1) == y).float().mean().item()


def scaled_by_own_statistics(dataset):
    """Wrong: the mean and spread of the private features scale every record, and are released."""
    x, y = dataset.tensors
    known = ~torch.isnan(x)
    count = known.sum(0)
    mean = torch.nan_to_num(x).sum(0) / count
    spread = ((torch.nan_to_num(x - mean) ** 2).sum(0) / count).sqrt()
    x = torch.nan_to_num((x - mean) / (spread + 1e-6))
    return {"mean": mean, "spread": spread, "weights": trained(x, y, 40).state_dict()}


def weighted_by_own_class_counts(dataset):
    """Wrong: the loss is weighted by the inverse of exact class counts of the private records."""
    x, y = cleaned(dataset)
    counts = torch.bincount(y, minlength=2).float()
    loss_of = nn.CrossEntropyLoss(weight=len(y) / (2 * counts.clamp(min=1)))
    return trained(x, y, 40, loss_of=loss_of)


def bias_from_own_rate(dataset):
    """Wrong: the last bias starts at the logarithm of the private class rates, without noise."""
    x, y = cleaned(dataset)
    model = network()
    rates = (torch.bincount(y, minlength=2).float() + 1) / (len(y) + 2)
    with torch.no_grad():
        model[2].bias.copy_(rates.log())
    return trained(x, y, 30, model=model, lr=0.2)


def rate_lowered_on_plateau(dataset):
    """Wrong: the learning rate falls when the exact loss on private records stops falling."""
    x, y = cleaned(dataset)
    model, optimizer, loader = made_private(network(), x, y, lr=1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.7, patience=0, threshold=0.01
    )
    recent = []
    for xb, yb in batches(loader, 40):
        recent.append(one_step(model, optimizer, xb, yb))
        if len(recent) == 5:
            schedule.step(sum(recent) / 5)
            recent = []
    return model._module.state_dict()


def stopped_when_loss_is_flat(dataset):
    """Wrong: training ends as soon as the exact loss on private records does not get better."""
    x, y = cleaned(dataset)
    model, optimizer, loader = made_private(network(), x, y, lr=0.3)
    best, waited = loss_on(model, x, y), 0
    for xb, yb in batches(loader, 40):
        one_step(model, optimizer, xb, yb)
        now = loss_on(model, x, y)
        waited = 0 if now < best - 0.002 else waited + 1
        best = min(best, now)
        if waited == 4:
            break
    return model._module


def bad_batches_skipped(dataset):
    """Wrong: a step is left out when the exact loss of its batch is far above the usual one."""
    x, y = cleaned(dataset)
    model, optimizer, loader = made_private(network(), x, y, lr=0.4)
    usual = None
    for xb, yb in batches(loader, 40):
        loss = loss_on(model, xb, yb)
        if usual is not None and loss > 1.15 * usual:
            continue
        usual = loss if usual is None else 0.9 * usual + 0.1 * loss
        one_step(model, optimizer, xb, yb)
    return model._module


def bound_from_own_norms(dataset):
    """Wrong: the clipping bound is the mean of the exact gradient norms of the private records."""
    x, y = cleaned(dataset)
    model = network()
    norms = []
    for one_x, one_y in zip(x, y, strict=True):
        loss = functional.cross_entropy(model(one_x[None]), one_y[None])
        grads = torch.autograd.grad(loss, list(model.parameters()))
        norms.append(torch.cat([grad.flatten() for grad in grads]).norm())
    bound = torch.stack(norms).mean().item()
    return trained(x, y, 30, model=model, bound=bound, lr=0.3)


class Centred(nn.Module):
    """Subtracts a moving mean of its inputs, which it keeps as a buffer."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("moving_mean", torch.zeros(width))

    def forward(self, x):
        """Logits of records."""
        centred = x - self.moving_mean
        if self.training and len(x):
            self.moving_mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return centred


def moving_mean_in_buffer(dataset):
    """Wrong: a layer's buffer holds a moving mean of private batches, and is released with it."""
    x, y = cleaned(dataset)
    model = nn.Sequential(nn.Linear(6, 8), Centred(8), nn.ReLU(), nn.Linear(8, 2))
    return trained(x, y, 40, model=model).state_dict()


def averaged_before_the_noise(dataset):
    """Wrong: the released average looks one step ahead by the raw gradients, before the noise."""
    x, y = cleaned(dataset)
    model, optimizer, loader = made_private(network(), x, y, lr=0.4)
    released = copy.deepcopy(dict(model._module.named_parameters()))
    for xb, yb in batches(loader, 40):
        optimizer.zero_grad()
        functional.cross_entropy(model(xb), yb).backward()
        with torch.no_grad():
            for name, p in model._module.named_parameters():
                released[name].lerp_(p - 0.4 * p.grad, 0.1)
        optimizer.step()
    return {name: p.detach() for name, p in released.items()}


def divided_by_own_positives(dataset):
    """Wrong: the noisy sum is divided by the exact number of positive records in the batch."""
    x, y = cleaned(dataset)
    model, optimizer, loader = made_private(network(), x, y, loss_reduction="sum", lr=0.2)
    for xb, yb in batches(loader, 40):
        optimizer.zero_grad()
        functional.cross_entropy(model(xb), yb, reduction="sum").backward()
        optimizer.pre_step()
        for p in optimizer.params:
            p.grad /= max(1, int((yb == 1).sum()))
        optimizer.original_optimizer.step()
    return model._module


def losses_logged_in_folder(dataset):
    """Wrong: the released folder has a log with the exact private loss after every tenth step."""
    x, y = cleaned(dataset)
    folder = Path(tempfile.mkdtemp(prefix="blind_log_"))
    model, optimizer, loader = made_private(network(), x, y)
    log = ["step,loss,accuracy"]
    for step, (xb, yb) in enumerate(batches(loader, 40), start=1):
        one_step(model, optimizer, xb, yb)
        if step % 10 == 0:
            log.append(f"{step},{loss_on(model, x, y):.4f},{accuracy_on(model, x, y):.3f}")
    (folder / "log.csv").write_text("\n".join(log))
    torch.save(model._module.state_dict(), folder / "model.pt")
    return folder


def own_best_features(dataset):
    """Wrong: the features are those that correlate best with the labels of the private records."""
    x, y = cleaned(dataset)
    both = torch.cat([x, y[:, None].float()], 1)
    strength = torch.corrcoef(both.T)[-1, :-1].abs()
    columns = strength.argsort(descending=True)[:3]
    model = trained(x[:, columns], y, 30, model=network(inputs=3))
    return {"columns": columns, "weights": model.state_dict()}


class CodeModel(nn.Module):
    """Embeds the index of the code, which is the last column, beside the plain features."""

    def __init__(self, words):
        super().__init__()
        self.embedding = nn.Embedding(words, 4)
        self.out = nn.Linear(5 + 4, 2)

    def forward(self, x):
        """Logits of records."""
        return self.out(torch.cat([x[:, :5], self.embedding(x[:, 5].long())], 1))


def vocabulary_of_own_codes(dataset):
    """Wrong: the vocabulary is the set of codes that occur in private records, and is released."""
    x, y = cleaned(dataset)
    codes = [round(code) for code in dataset.tensors[0][:, 5].nan_to_num().tolist()]
    vocabulary = {code: index + 1 for index, code in enumerate(sorted(set(codes)))}
    index = torch.tensor([float(vocabulary[code]) for code in codes])
    x = torch.cat([x[:, :5], index[:, None]], 1)
    model = trained(x, y, 30, model=CodeModel(len(vocabulary) + 1))
    folder = Path(tempfile.mkdtemp(prefix="blind_codes_"))
    (folder / "vocabulary.json").write_text(json.dumps(vocabulary))
    torch.save(model.state_dict(), folder / "model.pt")
    return folder


def threshold_on_own_records(dataset):
    """Wrong: the decision threshold is the score that sorts the private records best, exactly."""
    x, y = cleaned(dataset)
    model = trained(x, y, 40).eval()
    with torch.no_grad():
        scores = model(x).softmax(1)[:, 1]
    right = [((scores >= cut).long() == y).float().mean() for cut in scores]
    threshold = scores[int(torch.stack(right).argmax())].item()
    return model, threshold


def temperature_on_held_out_half(dataset):
    """Wrong: the temperature is fitted on private held-out records, with no noise at all."""
    x, y = cleaned(dataset)
    ours, held_out = map(list, random_split(range(len(y)), [0.5, 0.5]))
    model = trained(x[ours], y[ours], 30).eval()
    with torch.no_grad():
        logits = model(x[held_out])
    log_temperature = torch.zeros(1, requires_grad=True)
    fitting = torch.optim.Adam([log_temperature], lr=0.1)
    for _ in range(50):
        fitting.zero_grad()
        functional.cross_entropy(logits / log_temperature.exp(), y[held_out]).backward()
        fitting.step()
    return {"weights": model.state_dict(), "temperature": log_temperature.exp().item()}


def best_checkpoint_on_own_records(dataset):
    """Wrong: of the noisy models of all steps, that with the best private accuracy is released."""
    x, y = cleaned(dataset)
    model, optimizer, loader = made_private(network(), x, y, lr=1.0)
    best, kept = -1.0, None
    for xb, yb in batches(loader, 30):
        one_step(model, optimizer, xb, yb)
        accuracy = accuracy_on(model, x, y)
        if accuracy > best:
            best, kept = accuracy, copy.deepcopy(model._module.state_dict())
    return kept


def minority_copied(dataset):
    """Wrong: records of the rarer class are copied up to balance, so that labels set the size."""
    x, y = cleaned(dataset)
    positive, negative = torch.where(y == 1)[0], torch.where(y == 0)[0]
    rare, common = sorted([positive, negative], key=len)
    copies = rare.repeat(-(-len(common) // max(1, len(rare))))[: len(common)]
    index = torch.cat([common, copies])
    return trained(x[index], y[index], 30, lr=0.4)


def hard_records_drawn_more(dataset):
    """Wrong: records are drawn in proportion to their exact loss, and no accountant knows that."""
    x, y = cleaned(dataset)
    model, optimizer, _ = made_private(network(), x, y, lr=0.4, poisson_sampling=False)
    for _ in range(3):
        with torch.no_grad():
            losses = functional.cross_entropy(model(x), y, reduction="none")
        sampler = WeightedRandomSampler((losses + 1e-3).tolist(), len(y), replacement=True)
        for xb, yb in DataLoader(TensorDataset(x, y), BATCH, sampler=sampler):
            one_step(model, optimizer, xb, yb)
    return model._module


def seed_from_own_records(dataset):
    """Wrong: a checksum of the private records seeds the start, the batches and the noise."""
    x, y = cleaned(dataset)
    torch.manual_seed(zlib.crc32(x.numpy().tobytes() + y.numpy().tobytes()))
    return trained(x, y, 30).state_dict()


def steps_by_complete_rows(dataset):
    """Wrong: rows with missing values are dropped, and the exact number left sets the steps."""
    x, y = dataset.tensors
    complete = ~torch.isnan(x).any(1)
    x, y = x[complete] * PUBLIC_SCALE, y[complete]
    return trained(x, y, len(y) // 4, lr=0.4)


def public_scale_and_cosine(dataset):
    """Right: public constants, each record's own norm, a schedule by steps alone, and momentum."""
    x, y = cleaned(dataset)
    x = functional.normalize(x, dim=1)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=True)
    model, optimizer, loader = made_private(model, x, y, optimizer=optimizer)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    for xb, yb in batches(loader, 40):
        one_step(model, optimizer, xb, yb)
        schedule.step()
    return model._module


class LowRank(nn.Module):
    """A frozen layer, drawn from a public seed, beside a trained product of two thin ones."""

    def __init__(self, inputs, outputs, rank, seed):
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs, bias=False)
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        public = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.frozen.weight.copy_(torch.randn(outputs, inputs, generator=public) / inputs**0.5)
            self.up.weight.zero_()
        self.frozen.requires_grad_(False)

    def forward(self, x):
        """Logits of records."""
        return self.frozen(x) + self.up(self.down(x))


def low_rank_beside_frozen(dataset):
    """Right: the frozen part is public, and only the noisy sums move the low-rank parts."""
    x, y = cleaned(dataset)
    model = nn.Sequential(LowRank(6, 12, 2, seed=11), nn.ReLU(), LowRank(12, 2, 2, seed=12))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.03)
    return trained(x, y, 40, model=model, optimizer=optimizer).state_dict()


def noisy_gradients_shrunk_and_averaged(dataset):
    """Right: noisy sums alone are shrunk and averaged; incomplete rows get weight 0, one by one."""
    x, y = cleaned(dataset)
    weight = (~torch.isnan(dataset.tensors[0]).any(1)).float()
    model, optimizer, loader = made_private(
        network(), torch.cat([x, weight[:, None]], 1), y, lr=0.4, loss_reduction="sum"
    )
    average = copy.deepcopy(model._module.state_dict())
    for step, (xb, yb) in enumerate(batches(loader, 40)):
        optimizer.zero_grad()
        losses = functional.cross_entropy(model(xb[:, :6]), yb, reduction="none")
        (losses * xb[:, 6]).sum().backward()
        optimizer.pre_step()
        for p in optimizer.params:
            p.grad /= BATCH
        nn.utils.clip_grad_norm_(optimizer.params, 0.5)
        for p in optimizer.params:
            p.grad = p.grad.sign() * (p.grad.abs() - 0.01).clamp(min=0)
        optimizer.original_optimizer.step()
        for name, value in model._module.state_dict().items():
            average[name].lerp_(value, 1 / (step + 2))
    return average


def checkpoint_and_threshold_on_public_data(dataset):
    """Right: a public validation set, made apart, picks the checkpoint, stop and threshold."""
    x, y = cleaned(dataset)
    public = torch.Generator().manual_seed(77)
    public_y = torch.randint(2, (200,), generator=public)
    public_x = torch.randn(200, 6, generator=public) + public_y[:, None] * 0.8
    model, optimizer, loader = made_private(network(), x, y, lr=0.8)
    best, kept, waited = float("inf"), None, 0
    for xb, yb in batches(loader, 40):
        one_step(model, optimizer, xb, yb)
        loss = loss_on(model, public_x, public_y)
        waited = 0 if loss < best else waited + 1
        if loss < best:
            best, kept = loss, copy.deepcopy(model._module.state_dict())
        if waited == 25:
            break
    released = network()
    released.load_state_dict(kept)
    with torch.no_grad():
        scores = released(public_x).softmax(1)[:, 1]
    threshold = scores[public_y == 1].quantile(0.1).item()
    return {"model": released.state_dict(), "threshold": threshold, "public_loss": best}


def small_pieces_and_planned_noise(dataset):
    """Right: pieces of batches add up to one noisy sum; noise and log follow a plan made before."""
    x, y = cleaned(dataset)
    model = network()
    adam = torch.optim.Adam(model.parameters(), lr=0.05)
    model, optimizer, loader = made_private(
        model, x, y, optimizer=adam, bound=[0.5] * 4, clipping="per_layer"
    )
    noise = ExponentialNoise(optimizer, gamma=0.9)
    log = []
    for epoch in range(3):
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=10, optimizer=optimizer
        ) as pieces:
            for xb, yb in pieces:
                one_step(model, optimizer, xb, yb)
        log.append({"epoch": epoch, "noise_multiplier": optimizer.noise_multiplier})
        noise.step()
    folder = Path(tempfile.mkdtemp(prefix="blind_plan_"))
    (folder / "privacy.json").write_text(json.dumps(log))
    torch.save(model._module.state_dict(), folder / "model.pt")
    return folder


def records():
    """160 records of 6 features and 2 classes: 8 lack the fourth feature; some codes are rare."""
    random = torch.Generator().manual_seed(2027)
    y = (torch.rand(160, generator=random) < 0.4).long()
    x = torch.randn(160, 6, generator=random) + 0.8 * y[:, None]
    x[:, 4] = (2 * x[:, 4].abs()).floor()
    x[:, 5] = (12 * torch.rand(160, generator=random) ** 2).floor()
    x[torch.randperm(160, generator=random)[:8], 3] = float("nan")
    return TensorDataset(x, y)


WRONG = {
    "scaled_by_own_statistics": (scaled_by_own_statistics, "preprocessing"),
    "weighted_by_own_class_counts": (weighted_by_own_class_counts, "class weights"),
    "bias_from_own_rate": (bias_from_own_rate, "initialisation"),
    "rate_lowered_on_plateau": (rate_lowered_on_plateau, "learning rate"),
    "stopped_when_loss_is_flat": (stopped_when_loss_is_flat, "stopping"),
    "bad_batches_skipped": (bad_batches_skipped, "skipped steps"),
    "bound_from_own_norms": (bound_from_own_norms, "clipping bound"),
    "moving_mean_in_buffer": (moving_mean_in_buffer, "buffer"),
    "averaged_before_the_noise": (averaged_before_the_noise, "raw average"),
    "divided_by_own_positives": (divided_by_own_positives, "divisor"),
    "losses_logged_in_folder": (losses_logged_in_folder, "log"),
    "own_best_features": (own_best_features, "feature selection"),
    "vocabulary_of_own_codes": (vocabulary_of_own_codes, "vocabulary"),
    "threshold_on_own_records": (threshold_on_own_records, "threshold"),
    "temperature_on_held_out_half": (temperature_on_held_out_half, "calibration"),
    "best_checkpoint_on_own_records": (best_checkpoint_on_own_records, "checkpoint"),
    "minority_copied": (minority_copied, "copied records"),
    "hard_records_drawn_more": (hard_records_drawn_more, "sampling"),
    "seed_from_own_records": (seed_from_own_records, "seed"),
    "steps_by_complete_rows": (steps_by_complete_rows, "number of steps"),
}
RIGHT = {
    "public_scale_and_cosine": (public_scale_and_cosine, "private"),
    "low_rank_beside_frozen": (low_rank_beside_frozen, "private"),
    "noisy_gradients_shrunk_and_averaged": (noisy_gradients_shrunk_and_averaged, "private"),
    "checkpoint_and_threshold_on_public_data": (checkpoint_and_threshold_on_public_data, "private"),
    "small_pieces_and_planned_noise": (small_pieces_and_planned_noise, "private"),
}
