"""Wrong and right trainings with Opacus under `dpcanary.watch`, from its documentation alone.

Each function takes nothing, trains while it is watched, and returns `watched.result(delta=1e-5)`.
WRONG and RIGHT map names to pairs of such a function and the kind of alarm that is expected of it.
A right training is expected to raise none.
"""

import io

import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialGradClip, ExponentialNoise, StepGradClip
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import watch

NUM_RECORDS = 1_000
NUM_CLASSES = 10
BATCH_SIZE = 100
RATE = BATCH_SIZE / NUM_RECORDS
NOISE = 1.5
EPOCHS = 15


def records(num_records=NUM_RECORDS, dtype=torch.float32):
    """Draws records of ten classes that a linear rule tells apart, the same in every call."""
    generator = torch.Generator().manual_seed(5)
    rule = torch.randn(30, NUM_CLASSES, generator=generator)
    features = torch.randn(num_records, 30, generator=generator)
    return TensorDataset(features.to(dtype), (features @ rule).argmax(dim=1))


def bags_of_words():
    """Draws records of five words each, of which some words are much rarer than others."""
    generator = torch.Generator().manual_seed(6)
    frequencies = 1 / torch.arange(1.0, 301).expand(NUM_RECORDS, -1)
    words = torch.multinomial(frequencies, 5, generator=generator)
    features = torch.zeros(NUM_RECORDS, 300).scatter(1, words, 1.0)
    return TensorDataset(features, words.amax(dim=1) % NUM_CLASSES)


def perceptron():
    """Makes a network with one hidden layer, the same in every call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 80), nn.ReLU(), nn.Linear(80, NUM_CLASSES))


def private(model=None, data=None, optimizer=None, batch_size=BATCH_SIZE, **options):
    """Makes model, optimizer and loader private; `optimizer` makes one of the parameters."""
    model = model or perceptron()
    torch.manual_seed(1)
    make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    engine = PrivacyEngine(accountant="rdp")
    parts = engine.make_private(
        module=model,
        optimizer=make([parameter for parameter in model.parameters() if parameter.requires_grad]),
        data_loader=DataLoader(data or records(), batch_size=batch_size),
        **{"noise_multiplier": NOISE, "max_grad_norm": 1.0} | options,
    )
    return engine, *parts


def step(model, optimizer, batch, targets, loss=cross_entropy):
    """Makes one step."""
    optimizer.zero_grad()
    loss(model(batch), targets).backward()
    optimizer.step()


def fit(model, optimizer, loader, epochs=EPOCHS, loss=cross_entropy, **calls):
    """Trains with a plain loop, which calls `after_step` and `after_epoch` if they are given."""
    for _ in range(epochs):
        for batch, targets in loader:
            step(model, optimizer, batch, targets, loss)
            calls.get("after_step", bool)()
        calls.get("after_epoch", bool)()


def watched_fit(parts, **options):
    """Watches a plain loop with what `private` gave."""
    _engine, model, optimizer, *criterion, loader = parts
    if criterion:
        options["loss"] = criterion[0]
    with watch(optimizer) as watched:
        fit(model, optimizer, loader, **options)
    return watched.result(delta=1e-5)


def accuracy(model, num_records, first=0):
    """Gives the share of right predictions for some records, in evaluation mode."""
    features, targets = records(num_records).tensors
    model.eval()
    with torch.no_grad():
        right = (model(features).argmax(dim=1) == targets)[first:]
    model.train()
    return right.float().mean().item()


def watch_own(optimizer_class, model=None, data=None):
    """Watches a plain loop whose optimizer has methods of one's own, and all else of Opacus."""
    parts = private(model, data)
    parts[2].__class__ = optimizer_class
    return watched_fit(parts)


class _OwnNoise(DPOptimizer):
    num_steps = 0

    def add_noise(self):
        for parameter in self.params:
            noise = self.noise(parameter, self.noise_multiplier * self.max_grad_norm)
            parameter.grad = parameter.summed_grad + noise
        self.num_steps += 1


def steps_undone():
    """A step after which the clean loss of its batch is larger is undone."""
    _engine, model, optimizer, loader = private(
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.05)
    )
    with watch(optimizer) as watched:
        for _ in range(EPOCHS):
            for batch, targets in loader:
                before = {name: value.clone() for name, value in model.state_dict().items()}
                with torch.no_grad():
                    loss = cross_entropy(model(batch), targets)
                step(model, optimizer, batch, targets)
                with torch.no_grad():
                    worse = cross_entropy(model(batch), targets) > loss
                if worse:
                    model.load_state_dict(before)
    return watched.result(delta=1e-5)


def head_with_another_optimizer():
    """The last layer is trained by Adam with the clean gradients, beside the private optimizer."""
    network = perceptron()
    body = list(network[0].parameters())
    _engine, model, optimizer, loader = private(
        network, optimizer=lambda _: torch.optim.SGD(body, lr=0.5)
    )
    head_optimizer = torch.optim.Adam(network[2].parameters(), lr=1e-3)
    with watch(optimizer) as watched:
        for _ in range(EPOCHS):
            for batch, targets in loader:
                model.zero_grad()
                optimizer.zero_grad()
                cross_entropy(model(batch), targets).backward()
                optimizer.step()
                head_optimizer.step()
    return watched.result(delta=1e-5)


def head_refitted():
    """After the last step, the last layer is fitted to the private records by least squares."""
    network = perceptron()
    _engine, model, optimizer, loader = private(network)
    features, targets = records().tensors
    with watch(optimizer) as watched:
        fit(model, optimizer, loader)
        with torch.no_grad():
            hidden = network[1](network[0](features))
            penalty = torch.eye(hidden.shape[1])
            right = hidden.T @ one_hot(targets, NUM_CLASSES).float()
            network[2].weight.copy_(torch.linalg.solve(hidden.T @ hidden + penalty, right).T)
    return watched.result(delta=1e-5)


def seed_in_every_epoch():
    """The global seed is set again after each epoch, so all further ones have the same noise."""
    return watched_fit(private(), after_epoch=lambda: torch.manual_seed(42))


class _SeededByStep(_OwnNoise):
    def noise(self, parameter, deviation):
        generator = torch.Generator().manual_seed(1000 + self.num_steps)
        return deviation * torch.randn(parameter.shape, generator=generator)


def tensors_share_noise():
    """Each parameter's generator starts from the same seed, so tensors get the same numbers."""
    return watch_own(_SeededByStep)


class _AntiCorrelated(_OwnNoise):
    def noise(self, parameter, deviation):
        fresh = torch.randn_like(parameter)
        last = getattr(parameter, "last_noise", torch.randn_like(parameter))
        parameter.last_noise = fresh
        return deviation * (fresh - 0.5 * last) / 1.25**0.5


def noise_that_cancels():
    """Noise as of matrix factorisation cancels over steps, but is accounted as independent."""
    return watch_own(_AntiCorrelated)


class _OnlyTouchedWords(_OwnNoise):
    def noise(self, parameter, deviation):
        return deviation * torch.randn_like(parameter) * (parameter.summed_grad != 0)


def noise_only_at_gradients():
    """Words that no record of the batch has get no noise, which tells who has them."""
    torch.manual_seed(0)
    return watch_own(_OnlyTouchedWords, nn.Linear(300, NUM_CLASSES), bags_of_words())


class _Gridded(_OwnNoise):
    def noise(self, parameter, deviation):
        return torch.round(torch.randn_like(parameter) * 2) * deviation / 2


def discrete_noise_on_a_continuous_sum():
    """Noise is discrete and sums are not, so what is left of a sum between steps is seen."""
    return watch_own(_Gridded)


class _Annealed(_OwnNoise):
    def noise(self, parameter, deviation):
        return 0.5 ** (self.num_steps / 200) * deviation * torch.randn_like(parameter)


def annealed_noise():
    """Noise falls inside the optimizer, where the accountant is told the first multiplier."""
    return watch_own(_Annealed)


def hook_replaced():
    """A hook that logs gradient norms replaces the one that tells the accountant of steps."""
    _engine, model, optimizer, loader = private()
    norms = []

    def log(private_optimizer):
        norms.append([parameter.grad.norm().item() for parameter in private_optimizer.params])

    with watch(optimizer) as watched:
        fit(model, optimizer, loader, epochs=5)
        optimizer.attach_step_hook(log)
        fit(model, optimizer, loader, epochs=10)
    return watched.result(delta=1e-5)


def accountant_of_an_old_checkpoint():
    """Training goes on from the newest weights, with the accountant of an older checkpoint."""
    engine, model, optimizer, loader = private()
    with watch(optimizer) as watched:
        fit(model, optimizer, loader, epochs=2)
        file = io.BytesIO()
        torch.save(engine.accountant.state_dict(), file)
        fit(model, optimizer, loader, epochs=7)
        file.seek(0)
        engine.accountant.load_state_dict(torch.load(file, weights_only=False))
        fit(model, optimizer, loader, epochs=6)
    return watched.result(delta=1e-5)


def loader_of_before():
    """The loop takes the shuffled loader that it always had, not the one of Opacus."""
    loader = DataLoader(records(), batch_size=BATCH_SIZE, shuffle=True)
    return watched_fit((*private()[:3], loader))


def small_batches_skipped():
    """Batches below the expected size are left out, as too noisy, and not accounted."""
    _engine, model, optimizer, loader = private()
    with watch(optimizer) as watched:
        for _ in range(20):
            for batch, targets in loader:
                if len(batch) < BATCH_SIZE:
                    continue
                step(model, optimizer, batch, targets)
    return watched.result(delta=1e-5)


class _Shards:
    def __len__(self):
        return round(1 / RATE)

    def __iter__(self):
        for _ in range(len(self)):
            drawn = torch.rand(NUM_RECORDS // 10) < RATE
            yield torch.arange(NUM_RECORDS).view(-1, 10)[drawn].flatten().tolist()


def shards_drawn():
    """Records of a shard enter together, so who knows nine of them knows of the tenth."""
    loader = DataLoader(records(), batch_sampler=_Shards())
    return watched_fit((*private()[:3], loader))


class _ClipsTensors(DPOptimizer):
    def clip_and_accumulate(self):
        for parameter in self.params:
            samples = self._get_flat_grad_sample(parameter)
            norms = samples.flatten(1).norm(dim=1)
            factors = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1)
            parameter.summed_grad = torch.einsum("i,i...", factors, samples)


def tensors_clipped_alone():
    """Each of four tensors is clipped to C, so a record has up to 2 C, with noise for C."""
    return watch_own(_ClipsTensors)


def clean_anchor_gradient():
    """The clean gradient of all records at the epoch's start steadies noisy gradients (SVRG)."""
    network, snapshot = perceptron(), perceptron()
    parts = private(network)
    features, targets = records().tensors
    anchor = []

    def renew():
        snapshot.load_state_dict(network.state_dict())
        loss = cross_entropy(snapshot(features), targets)
        anchor[:] = torch.autograd.grad(loss, list(snapshot.parameters()))

    def add_anchor(_optimizer, _arguments, _named):
        for parameter, gradient in zip(network.parameters(), anchor, strict=True):
            parameter.grad += 0.5 * gradient

    renew()
    parts[2].original_optimizer.register_step_pre_hook(add_anchor)
    return watched_fit(parts, after_epoch=renew)


class _Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Buffer(torch.zeros(30)), nn.Buffer(torch.zeros(30))

    def forward(self, inputs):
        if self.training and len(inputs):
            self.low = torch.minimum(self.low, inputs.amin(dim=0))
            self.high = torch.maximum(self.high, inputs.amax(dim=0))
        size = (self.high - self.low).clamp(min=1e-6) / 255
        return torch.round(inputs.clamp(self.low, self.high) / size) * size


def observer_of_ranges():
    """The ranges for quantisation are the smallest and largest private values, released as is."""
    return watched_fit(private(nn.Sequential(_Observer(), *perceptron())))


class _Standardised(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.deviation = nn.Buffer(torch.zeros(30)), nn.Buffer(torch.ones(30))

    def forward(self, inputs):
        return (inputs - self.mean) / self.deviation


def statistics_recalibrated():
    """After the last step, the input's mean and deviation are set to those of private records."""
    layer = _Standardised()
    _engine, model, optimizer, loader = private(nn.Sequential(layer, *perceptron()))
    features = records().tensors[0]
    with watch(optimizer) as watched:
        fit(model, optimizer, loader)
        layer.mean.copy_(features.mean(dim=0))
        layer.deviation.copy_(features.std(dim=0))
    return watched.result(delta=1e-5)


def ghost_with_a_clip_schedule():
    """With ghost clipping, a schedule of C lowers the noise and not what the module clips to."""
    parts = private(grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss())
    schedule = ExponentialGradClip(parts[2], gamma=0.95)
    return watched_fit(parts, after_epoch=schedule.step)


def divided_by_the_drawn_batch():
    """The noisy sum is divided by the size of the batch that was drawn, which it then reveals."""
    _engine, model, optimizer, loader = private()
    with watch(optimizer) as watched:
        for _ in range(EPOCHS):
            for batch, targets in loader:
                optimizer.expected_batch_size = len(batch)
                step(model, optimizer, batch, targets)
    return watched.result(delta=1e-5)


WRONG = {
    "steps undone": (steps_undone, "parameters"),
    "head with another optimizer": (head_with_another_optimizer, "parameters"),
    "head refitted": (head_refitted, "parameters"),
    "seed in every epoch": (seed_in_every_epoch, "noise repeated"),
    "tensors share noise": (tensors_share_noise, "noise shared"),
    "noise that cancels": (noise_that_cancels, "noise correlated"),
    "noise only at gradients": (noise_only_at_gradients, "noise missing"),
    "discrete noise on a continuous sum": (discrete_noise_on_a_continuous_sum, "noise law"),
    "annealed noise": (annealed_noise, "noise scale"),
    "hook replaced": (hook_replaced, "steps unaccounted"),
    "accountant of an old checkpoint": (accountant_of_an_old_checkpoint, "steps unaccounted"),
    "loader of before": (loader_of_before, "batch sizes"),
    "small batches skipped": (small_batches_skipped, "batch sizes"),
    "shards drawn": (shards_drawn, "batch sizes"),
    "tensors clipped alone": (tensors_clipped_alone, "clipping"),
    "clean anchor gradient": (clean_anchor_gradient, "gradients changed"),
    "observer of ranges": (observer_of_ranges, "buffer"),
    "statistics recalibrated": (statistics_recalibrated, "buffer"),
    "ghost with a clip schedule": (ghost_with_a_clip_schedule, "clipping bound"),
    "divided by the drawn batch": (divided_by_the_drawn_batch, "normalisation"),
}


def adam_with_one_cycle():
    """AdamW and a schedule of its rate and momentum come after the noise."""
    parts = private(optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        parts[2].original_optimizer, max_lr=0.01, total_steps=EPOCHS * len(parts[3]) + 1
    )
    return watched_fit(parts, after_step=schedule.step)


def physical_batches():
    """Batches are split for memory, and noise is added once for all parts of one."""
    settings = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}
    engine, model, optimizer, loader = private(
        optimizer=lambda parameters: torch.optim.SGD(parameters, **settings)
    )
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=32, optimizer=optimizer
    ) as physical:
        return watched_fit((engine, model, optimizer, physical))


def ghost_clipping():
    """Ghost clipping gives the same sums without gradients of single records."""
    return watched_fit(private(grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss()))


def clipping_per_layer():
    """Each tensor is clipped to its own norm, and noise is for all of them together."""
    return watched_fit(private(clipping="per_layer", max_grad_norm=[0.8, 0.2, 0.5, 0.2]))


def functorch_in_double():
    """Gradients by functorch in double precision, with a generator for the noise alone."""
    noise_generator = torch.Generator().manual_seed(17)
    options = {"grad_sample_mode": "functorch", "noise_generator": noise_generator}
    return watched_fit(private(perceptron().double(), records(dtype=torch.float64), **options))


def averaged_weights():
    """Averages of weights are swapped in for each evaluation, and kept in the end."""
    _engine, model, optimizer, loader = private()
    average = {name: value.clone() for name, value in model.state_dict().items()}

    def update():
        for name, value in model.state_dict().items():
            average[name].lerp_(value, 0.02)

    def evaluate():
        kept = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(average)
        accuracy(model, num_records=1_300, first=NUM_RECORDS)
        model.load_state_dict(kept)

    with watch(optimizer) as watched:
        fit(model, optimizer, loader, after_step=update, after_epoch=evaluate)
        with watched.public():
            model.load_state_dict(average)
    return watched.result(delta=1e-5)


def schedules_of_noise_and_clipping():
    """Noise multiplier and C follow fixed schedules, of which the accountant is told."""
    parts = private()
    noise = ExponentialNoise(parts[2], gamma=0.98)
    clipping = StepGradClip(parts[2], step_size=5, gamma=0.7)
    return watched_fit(parts, after_epoch=lambda: (noise.step(), clipping.step()))


def frozen_backbone():
    """Only the head is trained, with a rate for weights and another for biases."""
    torch.manual_seed(0)
    backbone = nn.Linear(30, 250).requires_grad_(False)
    head = nn.Linear(250, NUM_CLASSES)
    groups = [{"params": [head.weight], "lr": 0.01}, {"params": [head.bias], "lr": 0.001}]
    network = nn.Sequential(backbone, nn.Tanh(), nn.Dropout(0.1), head)
    return watched_fit(private(network, optimizer=lambda _: torch.optim.Adam(groups)))


def checkpoint_loaded():
    """In the middle, model, optimizer and accountant are saved and loaded again as they were."""
    engine, model, optimizer, loader = private(
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    )
    file = io.BytesIO()
    with watch(optimizer) as watched:
        fit(model, optimizer, loader, epochs=8)
        engine.save_checkpoint(path=file, module=model, optimizer=optimizer)
        file.seek(0)
        engine.load_checkpoint(path=file, module=model, optimizer=optimizer)
        fit(model, optimizer, loader, epochs=7)
    return watched.result(delta=1e-5)


def evaluated_between_epochs():
    """Accuracies and epsilon are logged after each epoch, and decide nothing."""
    engine, model, optimizer, loader = private()
    log = []

    def evaluate():
        log.append(accuracy(model, num_records=NUM_RECORDS))
        log.append(accuracy(model, num_records=1_300, first=NUM_RECORDS))
        log.append(engine.get_epsilon(delta=1e-5))

    return watched_fit((engine, model, optimizer, loader), after_epoch=evaluate)


def adaptive_clipping():
    """C follows a noisy share of clipped records, for which the optimizer adds more noise."""
    bounds = {"min_clipbound": 0.05, "max_clipbound": 2.0, "clipbound_learning_rate": 0.2}
    noisy_count = {"target_unclipped_quantile": 0.5, "unclipped_num_std": 10.0}
    return watched_fit(private(clipping="adaptive", **bounds, **noisy_count))


class _SignDescent(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                average = state.setdefault("average", torch.zeros_like(parameter))
                average.lerp_(parameter.grad, 0.1)
                parameter.sub_(group["lr"] * average.sign())


def signs_for_a_target_epsilon():
    """Noise is found for a given epsilon, and an optimizer of one's own uses signs only."""
    model = perceptron()
    torch.manual_seed(1)
    engine = PrivacyEngine(accountant="prv")
    parts = engine.make_private_with_epsilon(
        module=model,
        optimizer=_SignDescent(model.parameters(), lr=0.003),
        data_loader=DataLoader(records(), batch_size=BATCH_SIZE),
        target_epsilon=3.0,
        target_delta=1e-5,
        epochs=EPOCHS,
        max_grad_norm=0.5,
    )
    return watched_fit((engine, *parts))


def small_sample_rate():
    """Batches of four records on average are sometimes empty, and still get a noisy step."""
    _engine, model, optimizer, loader = private(
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02), batch_size=4
    )
    with watch(optimizer) as watched:
        for number, (batch, targets) in enumerate(loader, start=1):
            step(model, optimizer, batch, targets)
            if number == 200:
                break
    return watched.result(delta=1e-5)


def projected_weights():
    """After each step, weights are projected onto a ball, which is declared as public."""
    _engine, model, optimizer, loader = private()
    with watch(optimizer) as watched:

        def project():
            with watched.public(), torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_((3 / parameter.norm()).clamp(max=1))

        fit(model, optimizer, loader, after_step=project)
    return watched.result(delta=1e-5)


def halves_accumulated_by_hand():
    """Each batch is split by hand into two parts, of which the first skips noise and step."""
    _engine, model, optimizer, loader = private()
    with watch(optimizer) as watched:
        for _ in range(EPOCHS):
            for batch, targets in loader:
                halves = list(zip(batch.chunk(2), targets.chunk(2), strict=True))
                for number, (features, classes) in enumerate(halves, start=1):
                    optimizer.signal_skip_step(do_skip=number < len(halves))
                    step(model, optimizer, features, classes)
    return watched.result(delta=1e-5)


RIGHT = {
    "Adam with one cycle": (adam_with_one_cycle, "none"),
    "physical batches": (physical_batches, "none"),
    "ghost clipping": (ghost_clipping, "none"),
    "clipping per layer": (clipping_per_layer, "none"),
    "functorch in double": (functorch_in_double, "none"),
    "averaged weights": (averaged_weights, "none"),
    "schedules of noise and clipping": (schedules_of_noise_and_clipping, "none"),
    "frozen backbone": (frozen_backbone, "none"),
    "checkpoint loaded": (checkpoint_loaded, "none"),
    "evaluated between epochs": (evaluated_between_epochs, "none"),
    "adaptive clipping": (adaptive_clipping, "none"),
    "signs for a target epsilon": (signs_for_a_target_epsilon, "none"),
    "small sample rate": (small_sample_rate, "none"),
    "projected weights": (projected_weights, "none"),
    "halves accumulated by hand": (halves_accumulated_by_hand, "none"),
}
