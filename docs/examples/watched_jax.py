"""One training of a classifier of digits with jax_privacy and optax, watched while it runs.

Run it with `python docs/examples/watched_jax.py`; it takes half a minute.
"""

import jax
import jax.numpy as jnp
import optax
from jax_privacy import noise_addition
from sklearn.datasets import load_digits

from dpcanary.own_training import Recorder, StepSettings
from dpcanary.watching.optax import shapes_of, watched

RATE, NOISE, NORM, STEPS = 0.1, 2.0, 1.0, 200

images, targets = load_digits(return_X_y=True)
images, targets = jnp.asarray(images / 16), jnp.asarray(targets)
features, labels = images[:1400], targets[:1400]

start, noise_key, batch_key = jax.random.split(jax.random.key(1), 3)
parameters = {
    "hidden": jax.random.normal(start, (64, 128)) / 8,
    "hidden_bias": jnp.zeros(128),
    "out": jnp.zeros((128, 10)),
    "out_bias": jnp.zeros(10),
}


def logits(values, image):
    """The network: one hidden layer."""
    hidden = jax.nn.relu(image @ values["hidden"] + values["hidden_bias"])
    return hidden @ values["out"] + values["out_bias"]


def clipped(values, image, label):
    """The gradient of one record, of norm 1 at most."""

    def loss(values):
        return optax.softmax_cross_entropy_with_integer_labels(logits(values, image), label)

    gradient = jax.grad(loss)(values)
    scale = jnp.minimum(1.0, NORM / optax.global_norm(gradient))
    return jax.tree.map(lambda part: scale * part, gradient)


recorder = Recorder(shapes_of(parameters), noise_multiplier=NOISE, sample_rate=RATE)
settings = StepSettings(noise_multiplier=NOISE, max_grad_norm=NORM, sample_rate=RATE)
privatizer = noise_addition.gaussian_privatizer(stddev=NOISE * NORM, prng_key=noise_key)
optimizer = optax.chain(
    watched(privatizer, recorder, settings), optax.scale(1 / (RATE * len(labels))), optax.sgd(0.5)
)
state = optimizer.init(parameters)


@jax.jit
def step(values, state, key):
    """The parameters and the state of the optimizer after a step."""
    is_drawn = jax.random.bernoulli(key, RATE, labels.shape)  # Poisson sampling
    gradients = jax.vmap(clipped, in_axes=(None, 0, 0))(values, features, labels)
    sums = jax.tree.map(lambda part: jnp.tensordot(is_drawn, part, axes=1), gradients)
    updates, state = optimizer.update(sums, state, values)
    return optax.apply_updates(values, updates), state


for key in jax.random.split(batch_key, STEPS):
    parameters, state = step(parameters, state, key)
jax.effects_barrier()  # what the last step tells the recorder has arrived

print(recorder.result(delta=1e-5))
right = logits(parameters, images[1400:]).argmax(axis=1) == targets[1400:]
print(f"test accuracy {right.mean():.3f}")
