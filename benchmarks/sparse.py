"""The test loss over a million sparse tasks at a thousand times, beside the direct sum; training in
blocks, eight lanes at once, beside the attention layer on the tokens of one run.
"""

from __future__ import annotations

import json
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from leadline.spec import PerTaskAttention, SparseFeatures
from leadline.theory.sparse_loss import time_loss

TASKS, TIMES, REPEATS = 10**6, 1000, 5
SAMPLED = 8
"""Times at which the direct sum is taken."""
CASES = ((1.8, 0.0, 0.0), (1.8, 0.6, 0.4), (2.5, 0.0, 0.0), (1.2, 0.5, 0.5))


def direct_sum(task: SparseFeatures, times: np.ndarray, start: float) -> np.ndarray:
    """Every task in turn, by the logistic formula."""
    s = np.arange(1.0, task.num_tasks + 1)
    p = s**-task.type_exponent / np.sum(s**-task.type_exponent)
    strength = s**-task.strength_exponent
    rate = 2 * p * task.context * s**-task.context_exponent * (1 + strength**2) * strength
    losses = []
    for t in times:
        left = (1 / start - 1) * np.exp(-rate * t)
        losses.append(np.sum(p * (strength * left / (1 + left)) ** 2) / 2)
    return np.array(losses)


def training() -> None:
    """Steps of descent on batches of 64, of linear and of softmax attention."""
    from leadline.simulation.train import LANES, train
    from leadline.spec import RunSpec, Training, replace

    task = SparseFeatures(num_tasks=64, type_exponent=1.8, context=100)
    steps = 4000
    for attention in ("linear", "softmax"):
        recipe = Training(steps=steps, batch_size=64, queries=1, rate=1e-4)
        run = RunSpec(task=task, model=PerTaskAttention(attention=attention), recipe=recipe)
        lanes = [replace(run, "seed", seed) for seed in range(LANES)]
        train(lanes)
        cpu = []
        for _ in range(REPEATS):
            began = time.process_time()
            train(lanes)
            cpu.append((time.process_time() - began) / steps / LANES)
        row = {"what": f"sparse training step, {attention}", "ours_cpu_s": float(np.median(cpu))}
        if attention == "linear":
            opponent = literal_step(run)
            row |= {"opponent_cpu_s": opponent, "ratio": opponent / row["ours_cpu_s"]}
        print(json.dumps(row), flush=True)


def literal_step(run) -> float:
    """Seconds of CPU of a step of the attention layer on tokens, by automatic differentiation."""
    import jax
    import jax.numpy as jnp

    from leadline.simulation.blocks import starting_blocks
    from leadline.simulation.sequences import (
        draw_sequences,
        draw_types,
        literal_predictions,
        numbers_of,
    )

    with jax.enable_x64(True):
        numbers = numbers_of(run.task)
        v, w = starting_blocks(run)
        count = len(v)
        own = np.arange(count)
        value, weight = np.zeros((count, count + 1)), np.zeros((count + 1, count))
        value[own, own], value[:, -1] = v.T
        weight[own, own], weight[-1] = w.T

        def step(number, now):
            first, second = jax.random.split(jax.random.key(number))
            types = draw_types(first, jnp.asarray(numbers.probability), run.recipe.batch_size)
            batch = draw_sequences(second, types, numbers)

            def loss(parameters):
                return jnp.mean((literal_predictions(*parameters, batch) - batch.targets) ** 2)

            slope = jax.grad(loss)(now)
            return jax.tree.map(lambda a, b: a - run.recipe.rate * b, now, slope)

        many = jax.jit(lambda now: jax.lax.fori_loop(0, 200, step, now))
        now = (jnp.asarray(value), jnp.asarray(weight))
        jax.block_until_ready(many(now))
        began = time.process_time()
        jax.block_until_ready(many(now))
        return (time.process_time() - began) / 200


def main() -> None:
    training()
    for alpha, beta, gamma in CASES:
        task = SparseFeatures(
            num_tasks=TASKS,
            type_exponent=alpha,
            context=100,
            context_exponent=beta,
            strength_exponent=gamma,
        )
        model = PerTaskAttention(start=0.01)
        times = np.geomspace(1e-3, 1e8, TIMES)
        cpu, wall = [], []
        for _ in range(REPEATS):
            began, ticked = time.process_time(), time.perf_counter()
            losses = time_loss(task, times, model=model)
            cpu.append(time.process_time() - began)
            wall.append(time.perf_counter() - ticked)
        few = slice(None, None, TIMES // SAMPLED)
        began = time.process_time()
        exact = direct_sum(task, times[few], model.start)
        opponent = (time.process_time() - began) * TIMES / len(exact)
        print(
            json.dumps(
                {
                    "what": f"sparse loss, alpha {alpha} beta {beta} gamma {gamma}",
                    "ours_cpu_s": float(np.median(cpu)),
                    "ours_wall_s": float(np.median(wall)),
                    "opponent_cpu_s": opponent,
                    "ratio": opponent / float(np.median(cpu)),
                    "largest_relative_error": float(np.abs(losses[few] / exact - 1).max()),
                    "must_s": 2.0,
                    "stretch_s": 0.2,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
