r"""The models of retrieval token by token, as their layers form them: the oracle of the fast forms.

All take one context: `inputs` and a `query` as attention sees them, and the `labels`. The query is
token number P + 1 and enters with the label zero.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from leadline.simulation.retrievers import Weights, layer_matrices
from leadline.simulation.tokens import Spectra, Tokens
from leadline.spec import LinearAttention, SoftmaxAttention, StreamAttention
from leadline.spec.question import RetrievalModel


def literal_linear(
    weights: Weights,
    inputs: Float[Array, "token dim"],
    labels: Float[Array, "token"],
    query: Float[Array, "dim"],
    *,
    model: LinearAttention,
) -> Float[Array, ""]:
    """Linear attention: labeled tokens receive their sum with sign -1, the query with +1."""
    matrices = layer_matrices(weights, dim=query.shape[0])
    count = inputs.shape[0]
    stream = jnp.append(labels, 0)
    tokens = jnp.concatenate([inputs, query[None]])
    sign = jnp.append(-jnp.ones(count, labels.dtype), 1)
    for number in range(model.depth):
        matrix = matrices[number % len(matrices)]
        scores = tokens @ matrix @ tokens.T / count
        stream = stream + sign * (scores[:, :count] @ stream[:count])
    return stream[-1]


def literal_softmax(
    weights: Weights,
    inputs: Float[Array, "token dim"],
    labels: Float[Array, "token"],
    query: Float[Array, "dim"],
    *,
    model: SoftmaxAttention,
) -> Float[Array, ""]:
    """Softmax attention on two streams, the full matrix of scores in every layer."""
    matrices = layer_matrices(weights, dim=query.shape[0])
    count, dim = inputs.shape
    tokens = jnp.concatenate([inputs, query[None]])
    if model.normalized:
        tokens = dim**0.5 * tokens / jnp.linalg.norm(tokens, axis=-1, keepdims=True)
    mask = weights["mask"] if model.updates else 0.0
    mask = mask * jnp.append(jnp.ones(count, labels.dtype), 0)
    stream = labels
    answer = jnp.zeros((), labels.dtype)
    for number in range(model.depth):
        matrix = matrices[number % len(matrices)]
        if "temperature" in weights:
            matrix = weights["temperature"][number] * matrix
        gain = weights["gain"][number % len(weights["gain"])]
        scores = tokens[:count] @ matrix @ tokens.T  # keys times queries
        attended = jax.nn.softmax(scores, axis=0).T @ stream
        answer = answer + gain * attended[-1] / model.depth
        stream = stream + mask[:count] * attended[:count] / model.depth
    return answer


def literal_stream(
    weights: Weights,
    inputs: Float[Array, "token dim"],
    labels: Float[Array, "token"],
    query: Float[Array, "dim"],
    *,
    model: StreamAttention,
) -> Float[Array, ""]:
    """Softmax attention on one stream, one token after the other."""
    count, dim = inputs.shape

    def hat(vector: Array) -> Array:
        return dim**0.5 * vector / jnp.linalg.norm(vector) if model.normalized else vector

    embedded = [weights["inputs"] @ inputs[i] + weights["labels"] * labels[i] for i in range(count)]
    state = weights["inputs"] @ query
    for number in range(model.depth):
        matrix = weights["matrix"][number]
        powers = [jnp.exp(hat(token) @ matrix @ hat(state)) for token in embedded]
        attended = sum(power * token for power, token in zip(powers, embedded, strict=True))
        state = state + weights["value"] @ attended / sum(powers) / model.depth
    return weights["output"] @ state


def literal_loss(
    weights: Weights, tokens: Tokens, spectra: Spectra, *, model: RetrievalModel
) -> Float[Array, ""]:
    r"""The mean squared error over contexts and queries: for the drawn task vectors, or averaged
    over them, as the sum of $\omega_k$ times the error for the task vector along mode $k$.
    """

    def answer(inputs: Array, labels: Array, query: Array) -> Array:
        if isinstance(model, LinearAttention):
            return literal_linear(weights, inputs, labels, query, model=model)
        if isinstance(model, SoftmaxAttention):
            return literal_softmax(weights, inputs, labels, query, model=model)
        return literal_stream(weights, inputs, labels, query, model=model)

    def context(own: Tokens) -> Array:
        seen = own.inputs
        assert seen is not None
        eye = jnp.eye(seen.shape[-1])
        basis = eye if own.basis is None else own.basis
        tasks = jnp.sqrt(spectra.tasks) * eye if own.tasks is None else own.tasks[None]
        inputs = seen @ basis.T

        def error(query: Array, target: Array, task: Array) -> Array:
            return (answer(inputs, seen @ task, basis @ query) - target @ task) ** 2

        by_task = jax.vmap(error, in_axes=(None, None, 0))
        each = jax.vmap(by_task, in_axes=(0, 0, None))(own.queries, own.targets, tasks)
        return jnp.mean(jnp.sum(each, -1))

    return jnp.mean(jax.vmap(context)(tokens))
