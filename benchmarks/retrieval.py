"""Softmax attention on retrieval against literal and absorbed forms, on one thread.

`python benchmarks/retrieval.py [--torch FOLDER]` prints one line of JSON a measurement: the ratio
of CPU seconds of a step (loss and gradient on given contexts), ours and the opponents alternating
in one process, median over the rounds. PyTorch is no requirement of the package; without it, or a
folder that holds it, the opponents written in it are not measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from leadline.simulation.contexts import stream
from leadline.simulation.retrievers import Weights, batch_slope, starting_weights
from leadline.simulation.tokens import Spectra, Tokens, draw_tokens, shape_of, spectra_of
from leadline.spec import Retrieval, SoftmaxAttention, Spectrum

ROUNDS = 3
SECONDS = 0.3
"""CPU time of a round that a measurement takes at least, unless one step is longer."""
SIZES = ((128, 1024, 16), (16, 64, 256))
DEPTHS = (1, 16, 64)
DEEPEST = {128: 16, 16: 64}
"""Layers that literal attention is measured with, by dimension: deeper it does not fit the memory,
and its time, which grows by the layer, is extrapolated.
"""
MUST = {
    ("literal", 128): {1: (80, 100), 16: (500, 800), 64: (800, 1200)},
    ("test row", 128): {1: (10, 14), 16: (30, 50), 64: (55, 100)},
    ("literal", 16): {1: (20, 30), 16: (130, 200), 64: (220, 350)},
    ("absorbed", 128): {16: (0.9, 1.3), 64: (0.9, 1.3)},
    ("absorbed", 16): {16: (1.5, 2.5), 64: (1.5, 2.5)},
    ("updates", 128): {16: (2.5, 5)},
    ("updates", 16): {16: (4.5, 8)},
}
"""Ratios to reach, and better ones, by opponent, dimension and depth."""

Step = Callable[[], Any]


def cpu_seconds(step: Step) -> float:
    """CPU seconds of one call of `step`."""
    started, calls = time.process_time(), 0
    while True:
        step()
        calls += 1
        spent = time.process_time() - started
        if spent >= SECONDS:
            return spent / calls


def compare(
    what: str,
    ours: Step,
    opponents: dict[str, Step],
    *,
    dim: int,
    depth: int,
    times_longer: dict[str, float],
) -> None:
    """Alternate `ours` with each opponent and print the ratios; the time of some opponents is
    extrapolated to one so many `times_longer`.
    """
    for step in (ours, *opponents.values()):
        step()
    times: dict[str, list[float]] = {name: [] for name in ("ours", *opponents)}
    walls = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        ours()
        walls.append(time.perf_counter() - started)
        for name, step in (("ours", ours), *opponents.items()):
            times[name].append(cpu_seconds(step) * times_longer.get(name, 1))
    mine = statistics.median(times["ours"])
    for name in opponents:
        ratios = [b / a for a, b in zip(times["ours"], times[name], strict=True)]
        must, stretch = MUST.get((name, dim), {}).get(depth, (None, None))
        row = {
            "what": what,
            "opponent": name,
            "ours_cpu_ms": round(1e3 * mine, 3),
            "ours_wall_ms": round(1e3 * statistics.median(walls), 3),
            "opponent_cpu_ms": round(1e3 * statistics.median(times[name]), 2),
            "ratio": round(statistics.median(ratios), 2),
            "ratio_min": round(min(ratios), 2),
            "ratio_max": round(max(ratios), 2),
            "must": must,
            "stretch": stretch,
            "extrapolated": times_longer.get(name),
        }
        print(json.dumps({k: v for k, v in row.items() if v is not None}), flush=True)


def contexts(
    model: SoftmaxAttention, *, dim: int, context: int, batch: int, dtype: str = "float32"
) -> tuple[Weights, Tokens, Spectra]:
    """Weights at their start and isotropic contexts of one query."""
    task = Retrieval(
        spectrum=Spectrum(dim=dim, input_exponent=0.0, task_exponent=0.0),
        context=context,
        targets=2,
    )
    shape = shape_of(task, queries=1, rotated=True, drawn_tasks=False)
    spectra = spectra_of(task)
    tokens = draw_tokens(stream(0, "data"), spectra, shape, batch_size=batch, dtype=dtype)
    weights = starting_weights(model, stream(0, "weights"), dim=dim, dtype=dtype)
    return weights, tokens, spectra


# --- opponents in PyTorch: factors W_k, W_q of N = d, a fixed task vector as labels ---------------


def torch_arrays(
    torch: ModuleType, weights: Weights, tokens: Tokens
) -> tuple[Any, Any, Any, Any, Any, Any, Any]:
    """Leaves that learn, normalized tokens, labels of one task vector and their targets."""
    as_tensor = lambda a: torch.tensor(np.asarray(a))  # noqa: E731
    inputs, queries = as_tensor(tokens.inputs), as_tensor(tokens.queries)[:, 0]
    task = torch.ones(inputs.shape[-1], dtype=inputs.dtype)
    norm = math.sqrt(inputs.shape[-1])
    hat = lambda a: norm * a / a.norm(dim=-1, keepdim=True)  # noqa: E731
    learn = [as_tensor(weights[n]).requires_grad_() for n in ("key", "query", "gain")]
    target = as_tensor(tokens.targets)[:, 0] @ task
    return (*learn, hat(inputs), hat(queries), inputs @ task, target)


def torch_step(torch: ModuleType, answer: Callable[..., Any], arrays: tuple[Any, ...]) -> Step:
    """Loss and gradient of the predictions `answer`."""
    key, query, gain, inputs, queries, labels, target = arrays

    def step() -> Any:
        for leaf in (key, query, gain):
            leaf.grad = None
        loss = ((answer(key, query, gain, inputs, queries, labels) - target) ** 2).mean()
        loss.backward()
        return loss

    return step


def torch_literal(torch: ModuleType, *arrays: Any) -> Any:
    """Every token attends, layer by layer, as the paper writes it: a label stream of the width of
    the inputs, read in, mixed by a value matrix and read out; only the test row is used.
    """
    key, query, gain, inputs, queries, labels = arrays
    depth, width, count = key.shape[0], key.shape[1], inputs.shape[1]
    tokens = torch.cat([inputs, queries[:, None]], 1)
    read_in = torch.full((width,), width**-0.5, dtype=inputs.dtype)
    value = gain * torch.eye(width, dtype=inputs.dtype)
    stream = torch.cat([labels, torch.zeros_like(labels[:, :1])], 1)[..., None] * read_in
    mask = torch.zeros(count + 1, 1, dtype=inputs.dtype)
    mask[-1] = 1
    for layer in range(depth):
        keys, asked = inputs @ key[layer].T, tokens @ query[layer].T
        rows = torch.softmax(asked @ keys.transpose(1, 2) / math.sqrt(width), -1)
        stream = stream + mask / depth * (rows @ (stream[:, :count] @ value.T))
    return stream[:, -1] @ read_in


def torch_scalar_labels(torch: ModuleType, *arrays: Any) -> Any:
    """The same with one label a token."""
    key, query, gain, inputs, queries, labels = arrays
    depth, width, count = key.shape[0], key.shape[1], inputs.shape[1]
    tokens = torch.cat([inputs, queries[:, None]], 1)
    stream = torch.cat([labels, torch.zeros_like(labels[:, :1])], 1)
    mask = torch.zeros(count + 1, dtype=inputs.dtype)
    mask[-1] = 1
    for layer in range(depth):
        keys, asked = inputs @ key[layer].T, tokens @ query[layer].T
        rows = torch.softmax(asked @ keys.transpose(1, 2) / math.sqrt(width), -1)
        moved = (rows @ stream[:, :count, None])[..., 0]
        stream = stream + gain / depth * mask * moved
    return stream[:, -1]


def torch_test_row(torch: ModuleType, *arrays: Any) -> Any:
    """Only the test token attends; keys of every token and layer are formed."""
    key, query, gain, inputs, queries, labels = arrays
    depth, width = key.shape[:2]
    answer = torch.zeros_like(labels[:, 0])
    for layer in range(depth):
        keys, asked = inputs @ key[layer].T, queries @ query[layer].T
        rows = torch.softmax((keys @ asked[..., None])[..., 0] / math.sqrt(width), -1)
        answer = answer + gain / depth * (rows * labels).sum(-1)
    return answer


def torch_absorbed(torch: ModuleType, *arrays: Any) -> Any:
    """Keys absorbed into the queries, all layers in one product."""
    key, query, gain, inputs, queries, labels = arrays
    depth, width = key.shape[:2]
    asked = torch.einsum("bd,lnd->bln", queries, query)
    directions = torch.einsum("bln,lnd->bld", asked, key) / math.sqrt(width)
    rows = torch.softmax(directions @ inputs.transpose(1, 2), -1)
    return gain / depth * (rows @ labels[..., None])[..., 0].sum(-1)


# --- context updates: literal JAX -----------------------------------------------------------------


def literal_updates(weights: Weights, inputs: Any, queries: Any, labels: Any, target: Any) -> Any:
    """Labels of all tokens move in every layer, scores of (P + 1) x P formed by autodiff."""
    depth, count = len(weights["matrix"]), inputs.shape[1]
    tokens = jnp.concatenate([inputs, queries[:, None]], 1)

    def layer(stream: Any, matrix: Any) -> tuple[Any, None]:
        scores = jnp.einsum("bqd,ed,bpe->bqp", tokens, matrix, inputs)
        rows = jax.nn.softmax(scores, axis=-1)
        moved = jnp.einsum("bqp,bp->bq", rows, stream[:, :count]) / depth
        factor = jnp.append(jnp.full(count, weights["mask"]), weights["gain"][0])
        return stream + factor * moved, None

    start = jnp.concatenate([labels, jnp.zeros_like(labels[:, :1])], 1)
    end, _ = jax.lax.scan(layer, start, weights["matrix"])
    return jnp.mean((end[:, -1] - target) ** 2)


def measure(torch: ModuleType | None) -> None:
    """All rows."""
    for dim, context, batch in SIZES:
        for depth in DEPTHS:
            model = SoftmaxAttention(depth=depth, width=dim, start=0.0, spread=1.0)
            weights, tokens, spectra = contexts(model, dim=dim, context=context, batch=batch)
            fast = jax.jit(partial(batch_slope, model=model))
            opponents: dict[str, Step] = {}
            longer: dict[str, float] = {}
            if torch is not None:
                arrays = torch_arrays(torch, weights, tokens)
                opponents = {
                    name: torch_step(torch, partial(answer, torch), arrays)
                    for name, answer in (("test row", torch_test_row), ("absorbed", torch_absorbed))
                }
                layers = min(depth, DEEPEST[dim])
                fewer = weights | {name: weights[name][:layers] for name in ("key", "query")}
                arrays = torch_arrays(torch, fewer, tokens)
                for name, answer in (
                    ("literal", torch_literal),
                    ("literal, scalar labels", torch_scalar_labels),
                ):
                    opponents[name] = torch_step(torch, partial(answer, torch), arrays)
                    if layers < depth:
                        longer[name] = depth / layers
            compare(
                f"softmax step, d {dim} P {context} B {batch}, L {depth}",
                lambda f=fast, a=(weights, tokens, spectra): jax.block_until_ready(f(*a)),
                opponents,
                dim=dim,
                depth=depth,
                times_longer=longer,
            )
    for dim, context, batch in SIZES:
        depth = 16
        model = SoftmaxAttention(depth=depth, updates=True)
        weights, tokens, spectra = contexts(model, dim=dim, context=context, batch=batch)
        fast = jax.jit(partial(batch_slope, model=model))
        literal = jax.jit(jax.value_and_grad(literal_updates))
        assert tokens.inputs is not None
        norm = math.sqrt(dim)
        hats = [
            norm * a / jnp.linalg.norm(a, axis=-1, keepdims=True)
            for a in (tokens.inputs, tokens.queries)
        ]
        data = (hats[0], hats[1][:, 0], tokens.inputs.sum(-1), tokens.targets[:, 0].sum(-1))
        compare(
            f"context updates, d {dim} P {context} B {batch}, L {depth}",
            lambda f=fast, a=(weights, tokens, spectra): jax.block_until_ready(f(*a)),
            {"updates": lambda f=literal, a=(weights, *data): jax.block_until_ready(f(*a))},
            dim=dim,
            depth=depth,
            times_longer={},
        )


def main() -> None:
    """Find PyTorch, and measure."""
    # read when the first array is made
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", help="a folder that holds PyTorch")
    folder = parser.parse_args().torch
    if folder is not None:
        sys.path.append(folder)
    try:
        import torch
    except ImportError:
        print(json.dumps({"what": "PyTorch", "measured": False}), flush=True)
        torch = None
    else:
        torch.set_num_threads(1)
    with jax.enable_x64(True):  # data are drawn with it, floats stay single
        measure(torch)


if __name__ == "__main__":
    main()
