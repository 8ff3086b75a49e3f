"""Models for texts, token ids padded with 0: padding changes no logits; a text without words is one padding token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax.models.task import Common, check_rate, check_widths, dot_general, network, network_task
from fljax.protocol import Task

Tokens = Int[Array, "b length"]


class Recurrent(nn.Module):
    """An embedding and an LSTM layer in both directions: maps tokens to both final states, ``[b, 2 hidden]``."""

    vocabulary: int
    embedding: int
    hidden: int

    @nn.compact
    def __call__(self, tokens: Tokens) -> Float[Array, "b both"]:
        embed = nn.Embed(self.vocabulary, self.embedding, name="embedding")
        length = _lengths(tokens)
        last = []
        # Reverse the token ids before the embedding, rather than the vectors after it.
        for name, words in (("forward", tokens), ("backward", _reversed(tokens, length))):
            x = embed(words)
            # Start in the dtype of the embedding; the cell's default start is always float32.
            start = (jnp.zeros((x.shape[0], self.hidden), x.dtype),) * 2
            # PyTorch's initialisation; flax's orthogonal kernels take seconds, as each needs a decomposition.
            uniform = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
            cell = nn.OptimizedLSTMCell(self.hidden, recurrent_kernel_init=uniform, name=f"{name}_lstm")
            lstm = nn.RNN(cell, return_carry=True, name=name)
            (_, state), _ = lstm(x, initial_carry=start, seq_lengths=length)
            last.append(state)
        return jnp.concatenate(last, axis=-1)


class BiLstm(nn.Module):
    """Both final states of the LSTM, dropout, dense layers with ReLU, and the output layer."""

    classes: int
    vocabulary: int
    embedding: int
    hidden: int
    dense_widths: tuple[int, ...]
    dropout: float

    def setup(self) -> None:
        self.body = Recurrent(self.vocabulary, self.embedding, self.hidden)
        self.dense = [nn.Dense(width, dot_general=dot_general) for width in self.dense_widths]
        self.drop = nn.Dropout(self.dropout)
        self.head = nn.Dense(self.classes, dot_general=dot_general)

    def features(self, tokens: Tokens, train: bool = False) -> Array:
        x = self.drop(self.body(tokens), deterministic=not train)
        for layer in self.dense:
            x = nn.relu(layer(x))
        return x

    def __call__(self, tokens: Tokens, train: bool = False) -> Array:
        return self.head(self.features(tokens, train))


class Windows(nn.Module):
    """An embedding and convolutions over time: maps tokens to each map's maximum, ``[b, kernels * maps]``."""

    vocabulary: int
    embedding: int
    kernels: tuple[int, ...]
    maps: int

    @nn.compact
    def __call__(self, tokens: Tokens) -> Float[Array, "b all"]:
        length = _lengths(tokens)
        place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        real = place < length[:, None]
        x = jnp.where(real[..., None], nn.Embed(self.vocabulary, self.embedding, name="embedding")(tokens), 0)
        # Pad with zeros after the last word, so that a text shorter than the kernel still has one window.
        x = jnp.pad(x, ((0, 0), (0, max(self.kernels) - 1), (0, 0)))
        b, steps = tokens.shape
        pooled = []
        for i, width in enumerate(self.kernels):
            # A convolution over time is a dense layer on windows: one product, fast even with kernels per client.
            window = jnp.concatenate([x[:, k : k + steps] for k in range(width)], axis=-1)
            layer = nn.Dense(self.maps, dot_general=dot_general, name=f"conv_{i}")
            y = layer(window.reshape(b * steps, -1)).reshape(b, steps, self.maps)
            begins = place <= jnp.maximum(length - width, 0)[:, None]
            # ReLU outputs are at least 0, so a 0 at an invalid window does not change the maximum.
            pooled.append(jnp.max(jnp.where(begins[..., None], nn.relu(y), 0), axis=1))
        return jnp.concatenate(pooled, axis=-1)


class TextCnn(nn.Module):
    """The maximum over time of every map, dropout, and a dense layer."""

    classes: int
    vocabulary: int
    embedding: int
    kernels: tuple[int, ...]
    maps: int
    dropout: float

    def setup(self) -> None:
        self.body = Windows(self.vocabulary, self.embedding, self.kernels, self.maps)
        self.drop = nn.Dropout(self.dropout)
        self.head = nn.Dense(self.classes, dot_general=dot_general)

    def features(self, tokens: Tokens, train: bool = False) -> Array:
        return self.drop(self.body(tokens), deterministic=not train)

    def __call__(self, tokens: Tokens, train: bool = False) -> Array:
        return self.head(self.features(tokens, train))


@network
def bilstm(
    input_shape: Sequence[int],
    classes: int,
    *,
    vocabulary: int | None = None,
    embedding: int = 300,
    hidden: int = 120,
    dense: Sequence[int] = (120, 84),
    dropout: float = 0.5,
    **common: Unpack[Common],
) -> Task:
    """A bidirectional LSTM for SST-5 in IAFL: embedding 300, hidden 120, then 240-120-84-classes.

    The dense layers read the forward state after the last word and the backward state after the first word,
    concatenated. Parameters are under ``body``, ``dense_0``, ``dense_1`` and ``head``, in this order.

    Args:
      input_shape: ``(length,)``; a text is whole numbers in 0..vocabulary - 1, with 0 as padding at the end.
      classes: number of classes.
      vocabulary: number of different tokens, including padding; an experiment takes it from the data set.
      embedding: width of word vectors, which are learned from scratch.
      hidden: width of the state in each direction.
      dense: widths of the hidden dense layers.
      dropout: dropout rate of the concatenated states.

    Source: Wu et al., "Incentive-Aware Federated Learning with Training-Time Model Rewards" (IAFL), appendix on the
    experiments; the widths are those of its code.

    Raises:
      ValueError: if the inputs are not texts, or ``initialisation`` is not a valid name.
    """
    size = _check_texts("bilstm", input_shape, vocabulary)
    embedding, hidden = check_widths("embedding and hidden", (embedding, hidden))
    module = BiLstm(classes, size, embedding, hidden, check_widths("dense", dense), check_rate("dropout", dropout))
    common["prepare"] = common.get("prepare") or _whole_numbers
    return network_task(module, input_shape, classes, stored=jnp.int32, **common)


@network
def text_cnn(
    input_shape: Sequence[int],
    classes: int,
    *,
    vocabulary: int | None = None,
    embedding: int = 300,
    kernels: Sequence[int] = (3, 3, 3),
    maps: int = 128,
    dropout: float = 0.5,
    **common: Unpack[Common],
) -> Task:
    """A convolutional network for texts: maps over windows of words, ReLU, the maximum over time, a dense layer.

    Parameters are under ``body`` (``embedding``, ``conv_0``, ...) and ``head``.

    Args:
      input_shape: ``(length,)``; a text is whole numbers in 0..vocabulary - 1, with 0 as padding at the end.
      classes: number of classes.
      vocabulary: number of different tokens, including padding; an experiment takes it from the data set.
      embedding: width of word vectors, which are learned from scratch.
      kernels: width of each kernel in words; a text shorter than a kernel is padded with zero vectors.
      maps: number of maps of each kernel.
      dropout: dropout rate of the maxima.

    Source: Kim, "Convolutional Neural Networks for Sentence Classification", EMNLP 2014.

    Raises:
      ValueError: if the inputs are not texts, a kernel is narrower than one word, or ``initialisation`` is not a valid
        name.
    """
    size, widths = _check_texts("text_cnn", input_shape, vocabulary), tuple(kernels)
    if not widths or min(widths) < 1:
        raise ValueError(f"expected kernels of at least 1 word, got {list(widths)}")
    embedding, maps = check_widths("embedding and maps", (embedding, maps))
    module = TextCnn(classes, size, embedding, check_widths("kernels", widths), maps, check_rate("dropout", dropout))
    common["prepare"] = common.get("prepare") or _whole_numbers
    return network_task(module, input_shape, classes, stored=jnp.int32, **common)


def _check_texts(name: str, input_shape: Sequence[int], vocabulary: int | None) -> int:
    shape = tuple(input_shape)
    if vocabulary is None or len(shape) != 1:
        got = f"inputs of shape {shape}" + (" without a vocabulary" if vocabulary is None else "")
        raise ValueError(f"expected texts for {name}, inputs of shape (length,) with a vocabulary, got {got}")
    if vocabulary < 2:
        raise ValueError(f"expected a vocabulary of at least 2 tokens, padding and a word, got {vocabulary}")
    return vocabulary


def _whole_numbers(tokens: Array) -> Tokens:
    """``Task.prepare`` for texts: casts tokens of any stored dtype to int32."""
    return tokens.astype(jnp.int32)


def _lengths(tokens: Tokens) -> Int[Array, " b"]:
    """Number of words in each text, at least 1; padding is at the end."""
    return jnp.maximum(jnp.sum(tokens != 0, axis=1, dtype=jnp.int32), 1)


def _reversed(tokens: Tokens, length: Int[Array, " b"]) -> Tokens:
    """The words of each text from last to first; padding stays at the end."""
    place = length[:, None] - 1 - jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    return jnp.where(place >= 0, jnp.take_along_axis(tokens, jnp.maximum(place, 0), axis=1), 0)
