"""Train a small network on handwritten digits in JAX, with RADAR and Muon from `aimopt.jax`.

    pip install '.[jax]' scikit-learn
    python examples/jax_training.py

The matrix between the hidden layers takes Muon's steps, everything else takes RADAR's.
"""

from itertools import pairwise
from typing import Any

import jax
import optax
from jax import numpy as jnp
from sklearn.datasets import load_digits

import aimopt.jax

Layers = list[dict[str, Any]]


def initial_params(widths: tuple[int, ...], key: Any) -> Layers:
    layers = []
    for inputs, outputs in pairwise(widths):
        key, draw = jax.random.split(key)
        layers.append({"w": jax.random.normal(draw, (outputs, inputs)) / inputs**0.5, "b": jnp.zeros(outputs)})
    return layers


def logits(params: Layers, x: Any) -> Any:
    for layer in params[:-1]:
        x = jax.nn.gelu(x @ layer["w"].T + layer["b"])
    return x @ params[-1]["w"].T + params[-1]["b"]


def loss(params: Layers, x: Any, y: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()


def main(steps: int = 600) -> float:
    pixels, labels = load_digits(return_X_y=True)
    x, y = jnp.asarray(pixels / 16, jnp.float32), jnp.asarray(labels)
    train_x, train_y, test_x, test_y = x[:1400], y[:1400], x[1400:], y[1400:]
    params = initial_params((64, 64, 64, 10), jax.random.key(0))

    schedule = optax.warmup_cosine_decay_schedule(0.0, 1.0, steps // 10, steps)
    kinds = [{"w": "muon" if i == 1 else "radar", "b": "radar"} for i in range(3)]
    transformation = optax.multi_transform(
        {
            "muon": aimopt.jax.muon(lambda t: 0.02 * schedule(t)),
            "radar": aimopt.jax.radar(lambda t: 3e-3 * schedule(t), weight_decay=0.01),
        },
        kinds,
    )

    def step(carry: Any, key: Any) -> Any:
        params, state = carry
        batch = jax.random.randint(key, (128,), 0, len(train_x))
        value, grads = jax.value_and_grad(loss)(params, train_x[batch], train_y[batch])
        updates, state = transformation.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), value

    keys = jax.random.split(jax.random.key(1), steps)
    train = jax.jit(lambda start: jax.lax.scan(step, start, keys))
    (params, _), losses = train((params, transformation.init(params)))
    accuracy = float((logits(params, test_x).argmax(-1) == test_y).mean())
    print(f"loss {losses[0]:.3f} -> {losses[-20:].mean():.3f}, accuracy on new digits {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
