"""The models of the workloads as torch modules, their rounds, and parameters to and from fljax's names and layouts.

Parameters keep fljax's names; kernels are turned to torch's layouts: Dense ``[out, in]``, convolution OIHW, and the
first dense kernel after convolutions reads channels first.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
import torch.nn.functional as F
from protocol import Work
from torch import nn
from torch.func import functional_call, grad, vmap

Leaves = list[torch.Tensor]  # in the order of ``module.parameters()``


def examples(work: Work) -> torch.Tensor:
    """All examples as float32: flat for dense models, channels first for convolutional ones."""
    x = torch.from_numpy(work.x)
    if not _is_convolutional(work.parameters):
        x = x.reshape(len(x), -1)
    else:
        x = x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2)
    x = x.contiguous()  # while the pixels are still bytes
    return x.float().div_(255) if x.dtype == torch.uint8 else x


def _is_convolutional(parameters: dict[str, np.ndarray]) -> bool:
    return any(leaf.ndim == 4 for leaf in parameters.values())


def _channels(parameters: dict[str, np.ndarray]) -> int:
    kernels = [leaf for name, leaf in parameters.items() if name.startswith("conv") and name.endswith("kernel")]
    return kernels[-1].shape[-1] if kernels else 0


def _is_first_dense(name: str, parameters: dict[str, np.ndarray]) -> bool:
    return name == "dense_0/kernel" and _is_convolutional(parameters)


def to_torch(parameters: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Layouts of torch, names of fljax with ``/`` as ``_``."""
    found = {}
    for name, leaf in parameters.items():
        if name.endswith("kernel") and leaf.ndim == 4:
            leaf = leaf.transpose(3, 2, 0, 1)
        elif name.endswith("kernel"):
            if _is_first_dense(name, parameters):
                side = round((leaf.shape[0] / _channels(parameters)) ** 0.5)
                leaf = leaf.reshape(side, side, -1, leaf.shape[1]).transpose(2, 0, 1, 3).reshape(leaf.shape)
            leaf = leaf.T
        found[name.replace("/", "_")] = torch.from_numpy(np.ascontiguousarray(leaf, np.float32))
    return found


def from_torch(tensors: dict[str, torch.Tensor], like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of ``to_torch``; a leading axis of models is kept."""
    found = {}
    for name, shape in ((name, leaf.shape) for name, leaf in like.items()):
        leaf = tensors[name.replace("/", "_")].detach().numpy()
        lead = leaf.shape[: leaf.ndim - len(shape)]
        n = len(lead)
        if name.endswith("kernel") and len(shape) == 4:
            leaf = np.moveaxis(leaf, (n + 2, n + 3, n + 1, n), (n, n + 1, n + 2, n + 3))
        elif name.endswith("kernel"):
            leaf = np.swapaxes(leaf, n, n + 1)
            if _is_first_dense(name, like):
                channels = _channels(like)
                side = round((shape[0] / channels) ** 0.5)
                leaf = np.moveaxis(leaf.reshape(*lead, channels, side, side, shape[1]), n, n + 2)
        found[name] = np.ascontiguousarray(leaf.reshape(*lead, *shape))
    return found


class Lenet(nn.Module):
    """Convolutions with max-pooling after each block, dense layers; ReLU throughout. Without convolutions: an MLP."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        widths = {name[:-7]: leaf.shape for name, leaf in work.parameters.items() if name.endswith("/kernel")}
        self.conv = nn.ModuleList(
            nn.Conv2d(s[2], s[3], s[:2]) for name, s in sorted(widths.items()) if name.startswith("conv")
        )
        self.dense = nn.ModuleList(nn.Linear(*s) for name, s in sorted(widths.items()) if name.startswith("dense"))
        self.head = nn.Linear(*widths["head"])
        self.pooled = work.pooled(len(self.conv))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, pooled in zip(self.conv, self.pooled, strict=True):
            x = F.relu(layer(x))
            x = F.max_pool2d(x, 2) if pooled else x
        x = x.flatten(1)
        for layer in self.dense:
            x = F.relu(layer(x))
        return self.head(x)


class Normalised(nn.Module):
    """A convolution with bias and a GroupNorm of 16 channels per group."""

    def __init__(self, channels: int, width: int, size: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, size, stride, size // 2)
        self.norm = nn.GroupNorm(width // 16, width, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x))


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = Normalised(channels, width, 3, stride)
        self.second = Normalised(width, width)
        self.shortcut = Normalised(channels, width, 1, stride) if stride != 1 or channels != width else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(F.relu(self.first(x)))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet18(nn.Module):
    """fljax's resnet18."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Normalised(3, 64)
        widths, blocks = (64, 128, 256, 512), []
        for stage, width in enumerate(widths):
            blocks.append(Residual(widths[max(0, stage - 1)], width, 2 if stage else 1))
            blocks.append(Residual(width, width, 1))
        self.block = nn.ModuleList(blocks)
        self.head = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        for block in self.block:
            x = block(x)
        return self.head(x.mean((2, 3)))


def module(work: Work) -> nn.Module:
    """The module that has the parameters of a workload."""
    return ResNet18() if any(name.startswith("stem") for name in work.parameters) else Lenet(work)


def ordered(module: nn.Module, parameters: dict[str, np.ndarray]) -> list[str]:
    """Names (as ``to_torch`` gives them) in the order of ``module.parameters()``."""
    own = []
    for name, _ in module.named_parameters():
        layer, kind = name.replace(".", "_").rsplit("_", 1)
        own.append(f"{layer}_{'bias' if kind == 'bias' else 'scale' if layer.endswith('norm') else 'kernel'}")
    missing = set(own) ^ {name.replace("/", "_") for name in parameters}
    assert not missing, sorted(missing)[:4]
    return own


class Setting:
    """A workload on a device: data, batches of round 0 ``[S, T, b]``, the module, the server's initial parameters."""

    def __init__(self, work: Work, device: str = "cpu") -> None:
        self.x = examples(work).to(device)
        self.y, self.batches = (
            torch.from_numpy(numbers.astype(np.int64)).to(device) for numbers in (work.y, work.batches())
        )
        self.module = module(work).to(device)
        self.names = ordered(self.module, work.parameters)
        initial = to_torch(work.parameters)
        self.server = [initial[name].to(device) for name in self.names]
        self.own = list(self.module.parameters())
        self.rate = work.meta["learning_rate"]
        self.optimizer = torch.optim.SGD(self.own, self.rate)

    def train(self, start: Leaves, batches: Iterable[torch.Tensor]) -> None:
        """Trains the module from ``start`` on the batches of one client."""
        with torch.no_grad():
            torch._foreach_copy_(self.own, start)
        for batch in batches:
            loss = F.cross_entropy(self.module(self.x[batch]), self.y[batch])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def looped(self, server: Leaves) -> Leaves:
        """A round of one client after another; clients are of equal size."""
        total = [torch.zeros_like(leaf) for leaf in server]
        for batches in self.batches:
            self.train(server, batches)
            with torch.no_grad():
                torch._foreach_add_(total, self.own)
        return [leaf / len(self.batches) for leaf in total]

    def mapped(self, compiled: bool) -> Callable[[Leaves], Leaves]:
        """A round of all clients side by side, whose step is eager or compiled; clients are of equal size."""
        own = [name for name, _ in self.module.named_parameters()]
        batches = self.batches.transpose(0, 1).contiguous()  # [T, S, b]
        clients, rate = batches.shape[1], self.rate

        def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(functional_call(self.module, parameters, (x,)), y)

        def step(models: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            slope = vmap(grad(loss))(models, x, y)
            return {name: leaf - rate * slope[name] for name, leaf in models.items()}

        step = torch.compile(step, fullgraph=True) if compiled else step

        def round_of(server: Leaves) -> Leaves:
            with torch.no_grad():
                named = zip(own, server, strict=True)
                models = {name: leaf.expand(clients, *leaf.shape).contiguous() for name, leaf in named}
                for batch in batches:
                    models = step(models, self.x[batch], self.y[batch])
                return [models[name].mean(0) for name in own]

        return round_of
