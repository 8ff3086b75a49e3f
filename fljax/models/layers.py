"""Parameters, under flax's names, of layers that compute in the layout of ``planes``."""

from __future__ import annotations

import flax.linen as nn
from jaxtyping import Array


class Convolution(nn.Module):
    """Kernel ``[size, size, channels, width]`` and bias ``[width]``, named and initialised as in ``nn.Conv``."""

    width: int
    size: int

    @nn.compact
    def __call__(self, channels: int) -> tuple[Array, Array]:
        shape = (self.size, self.size, channels, self.width)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        return kernel, self.param("bias", nn.initializers.zeros_init(), (self.width,))


class GroupNorm(nn.Module):
    """Scale and bias ``[width]``, named and initialised as in ``nn.GroupNorm``."""

    @nn.compact
    def __call__(self, width: int) -> tuple[Array, Array]:
        scale = self.param("scale", nn.initializers.ones_init(), (width,))
        return scale, self.param("bias", nn.initializers.zeros_init(), (width,))
