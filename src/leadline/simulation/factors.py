r"""Batches of contexts, drawn in as few numbers as the loss of the reduced model depends on.

The model sees a context through $\hat\Sigma = XX^T/P$ and the moment $XY/P$ alone, and an
orthogonal rotation among the $P$ examples changes neither. So the white inputs, $k\times P$, are
replaced by their triangular factor (Bartlett): independent normals below the diagonal, on it chi
variates of $P, P - 1, \dots$ degrees of freedom. Its $\min(k, P)$ columns are examples like any
others. The same holds for queries, of which the mean squared error enters, with their label noise
as one more coordinate.

$k$ is the dimension, unless a narrow stream reads the inputs: the $N$ rows of its read-in and the
task span $N + 1$ directions, and nothing outside them is drawn. Under a Haar rotation the rows of
$A = LQ$ are $L$ times a Haar frame, $N\times D$. Derived in docs/theory/equivalents.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from leadline.simulation.contexts import Law, haar, normals, substream, uniforms
from leadline.simulation.models import tokens_are_cheaper, weights

CHI_COST = 24
"""What a chi variate costs, in normals."""


class Batch(NamedTuple):
    """Contexts in white coordinates; a `read` that all contexts share has no batch axis."""

    read: Float[Array, "*batch width white"] | Float[Array, "white"]
    """The stream of a white input; a vector is a diagonal."""
    task: Float[Array, "batch white"]
    """The label of a white input."""
    inputs: Float[Array, "batch white example"] | None
    r"""White inputs over $\sqrt P$, or their factor; None stands for infinitely many."""
    noise: Float[Array, "batch example"] | None
    r"""Label noise over $\sqrt P$."""
    queries: Float[Array, "batch white_and_noise query"] | None
    """White queries over the root of their number, or their factor, with the label noise as last
    row; None averages over queries exactly, without label noise.
    """


@dataclass(frozen=True, kw_only=True)
class Columns:
    """`count` independent columns of `size` normals, of which only the products of rows matter:
    drawn as they are or as a triangular factor, whichever takes less.
    """

    size: int
    count: int

    @property
    def is_factored(self) -> bool:
        """Whether the factor takes less."""
        columns = min(self.size, self.count)
        return self.size * self.count > self._below(columns) + CHI_COST * columns

    @property
    def drawn(self) -> int:
        """The columns of `matrix`."""
        return min(self.size, self.count) if self.is_factored else self.count

    @property
    def numbers(self) -> int:
        """The normals that `matrix` takes."""
        return self._below(self.drawn) if self.is_factored else self.size * self.count

    @property
    def freedoms(self) -> list[int]:
        """Degrees of freedom of the chi variates that `matrix` takes."""
        return [self.count - i for i in range(self.drawn)] if self.is_factored else []

    def _below(self, columns: int) -> int:
        return self.size * columns - columns * (columns + 1) // 2

    def matrix(
        self, white: Float[Array, "batch number"], chi: Float[Array, "batch freedom"]
    ) -> Float[Array, "batch size column"]:
        """$F$, for which $FF^T$ has the law of the mean over columns of their outer squares."""
        if not self.is_factored:
            return white.reshape(-1, self.size, self.count) / math.sqrt(self.count)
        places = np.zeros((self.size, self.drawn), int)  # entry 0 is zero
        places[np.tril_indices(self.size, -1, self.drawn)] = 1 + np.arange(self.numbers)
        np.fill_diagonal(places, 1 + self.numbers + np.arange(self.drawn))
        zero = jnp.zeros((white.shape[0], 1), white.dtype)
        values = jnp.concatenate([zero, white, chi.astype(white.dtype)], axis=1)
        return values[:, places] / math.sqrt(self.count)


def chis(
    key: Key[Array, ""], freedoms: list[int], *, batch_size: int
) -> Float[Array, "batch freedom"]:
    r"""Independent chi variates of whole `freedoms`, exactly, by rejection.

    With a normal $x$ and $v = (1 + x/\sqrt{9d})^3$, $dv$ kept with probability
    $e^{x^2/2 + d(1 - v + \ln v)}$ is a gamma variate of shape $d + 1/3$. The exponent is never
    positive for any $d > 0$, so that one degree of freedom, $d = 1/6$, is no special case.

    Ref: Marsaglia and Tsang, ACM Trans. Math. Softw. 26 (2000).
    """
    size = (batch_size, len(freedoms))
    d = jnp.asarray(freedoms, jnp.float64) / 2 - 1 / 3

    def attempt(state: tuple[Array, Array]) -> tuple[Array, Array]:
        number, found = state
        flat = uniforms(jax.random.fold_in(key, number), 2 * math.prod(size))
        first, second = flat.reshape(2, *size)
        normal = (math.sqrt(2) * jax.lax.erf_inv(first)).astype(jnp.float64)
        chance = (second.astype(jnp.float64) + 1) / 2
        root = jnp.maximum(1 + normal / jnp.sqrt(9 * d), 0)
        exponent = normal**2 / 2 + d * (1 - root**3 + 3 * jnp.log(root))  # -inf at zero
        kept = (found == 0) & (jnp.log(chance) < exponent)
        return number + 1, jnp.where(kept, d * root**3, found)

    def unfinished(state: tuple[Array, Array]) -> Array:
        return jnp.any(state[1] == 0)

    start = (jnp.asarray(0), jnp.zeros(size, jnp.float64))
    _, found = jax.lax.while_loop(unfinished, attempt, start)
    return jnp.sqrt(2 * found)


def _turned(
    read_in: Float[Array, "width dim"], white: Float[Array, "batch dim column"]
) -> Float[Array, "batch width dim"]:
    """`read_in` under a Haar rotation for each context, made of a column of normals for each row,
    or of as many as there are dimensions.
    """
    frame = haar(white)
    if white.shape[-1] == white.shape[-2]:
        return read_in @ frame
    return jnp.linalg.qr(read_in.T, mode="r").T @ jnp.matrix_transpose(frame)


def _spanned(
    read: Float[Array, "*batch width dim"], task: Float[Array, "batch dim"]
) -> tuple[Float[Array, "*batch width white"], Float[Array, "batch white"]]:
    """`read` and `task` in coordinates of the directions that their rows span."""
    directions, triangle = jnp.linalg.qr(jnp.matrix_transpose(read))
    inside = jnp.einsum("...dn,...d->...n", directions, task)
    outside = task - jnp.einsum("...dn,...n->...d", directions, inside)
    column = jnp.zeros((*read.shape[:-1], 1), read.dtype)
    rest = jnp.linalg.norm(outside, axis=-1, keepdims=True)
    return (
        jnp.concatenate([jnp.matrix_transpose(triangle), column], axis=-1),
        jnp.concatenate([inside, rest], axis=-1),
    )


def _matrices(
    key: Key[Array, ""], columns: dict[str, Columns], white: dict[str, Array]
) -> dict[str, Array]:
    """The matrix of each of the `columns`, from its normals in `white` and chi variates."""
    freedoms = list(chain.from_iterable(own.freedoms for own in columns.values()))
    batch_size = white["task"].shape[0]
    chi = chis(key, freedoms, batch_size=batch_size) if freedoms else jnp.zeros((batch_size, 0))
    ends = np.cumsum([len(own.freedoms) for own in columns.values()])[:-1].tolist()
    parts = jnp.split(chi, ends, axis=1) if columns else []
    return {
        name: own.matrix(white[name], part)
        for (name, own), part in zip(columns.items(), parts, strict=True)
    }


def draw_batch(
    key: Key[Array, ""],
    law: Law,
    query_noise: Float[Array, ""],
    read_in: Float[Array, "width dim"] | None,
    *,
    rotated: bool,
    context: int | float,
    queries: int | float,
    batch_size: int,
) -> Batch:
    """`batch_size` contexts of `context` examples and `queries` queries from the stream `key`, in
    the precision of `law`. The rotations of the contexts turn `read_in` in place of the inputs.
    """
    dim = law.inputs.shape[-1]
    width = dim if read_in is None else read_in.shape[0]
    narrow = 2 * width < dim
    size = width + 1 if narrow else dim
    shapes: dict[str, tuple[int, ...]] = {"task": (dim,)}
    columns: dict[str, Columns] = {}
    if not math.isinf(context):
        columns["inputs"] = Columns(size=size, count=int(context))
        shapes["noise"] = (columns["inputs"].drawn,)
    if not math.isinf(queries):
        columns["queries"] = Columns(size=size + 1, count=int(queries))
    if rotated:
        shapes["basis"] = (dim, min(width, dim))
    shapes |= {name: (own.numbers,) for name, own in columns.items()}
    white = normals(key, batch_size=batch_size, shapes=shapes)
    white = {name: values.astype(law.inputs.dtype) for name, values in white.items()}
    drawn = _matrices(substream(key, "chi"), columns, white)

    root = jnp.sqrt(law.inputs)
    task = root * jnp.sqrt(law.tasks) * white["task"]
    if read_in is None:
        read = haar(white["basis"]) * root if rotated else root
    else:
        read = (_turned(read_in, white["basis"]) if rotated else read_in) * root
    if narrow:
        read, task = _spanned(read, task)
    noise = law.noise * white["noise"] / math.sqrt(context) if "noise" in white else None
    if "queries" in drawn:
        drawn["queries"] = drawn["queries"].at[:, -1].multiply(query_noise)
    return Batch(read, task, drawn.get("inputs"), noise, drawn.get("queries"))


def batch_loss(
    gamma: Float[Array, "layer width width"], batch: Batch, *, depth: int
) -> Float[Array, ""]:
    """Mean squared error of layers `gamma`, of which there are one or `depth`, on `batch`."""

    def one(
        read: Array, task: Array, inputs: Array | None, noise: Array | None, queries: Array | None
    ) -> Array:
        diagonal = read.ndim == 1
        if inputs is None:
            seen, labels = jnp.diag(read) if diagonal else read, task
        else:
            assert noise is not None
            seen = read[:, None] * inputs if diagonal else read @ inputs
            labels = task @ inputs + noise
        width, examples = seen.shape
        by_tokens = tokens_are_cheaper(dim=width, context=examples, depth=depth)
        covariance = None if by_tokens else seen @ seen.T
        tokens = math.sqrt(examples) * seen  # `weights` divides by their number
        weight = weights(gamma, covariance, tokens, seen @ labels, depth=depth)
        missed = (read * weight if diagonal else read.T @ weight) - task
        if queries is None:
            return jnp.sum(missed**2)
        return jnp.sum((jnp.append(missed, 1) @ queries) ** 2)

    shared = batch.read.ndim < 3
    return jnp.mean(jax.vmap(one, in_axes=(None if shared else 0, 0, 0, 0, 0))(*batch))
