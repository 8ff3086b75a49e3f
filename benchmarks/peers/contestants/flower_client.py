"""The client of the Flower contestant: a module of its own, so that Ray's actors can import it."""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch_parts
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from protocol import read

app = ClientApp()


@functools.cache
def _load() -> tuple[Any, ...]:
    """Once per actor: the model and the examples of the whole cohort."""
    torch.set_num_threads(int(os.environ["FLJAX_BENCHMARK_THREADS"]))
    work = read(os.environ["FLJAX_BENCHMARK_WORKLOAD"])
    x, y = torch_parts.examples(work), torch.from_numpy(work.y.astype(np.int64))
    batches = torch.from_numpy(work.batches().astype(np.int64))
    return torch_parts.Lenet(work), x, y, batches, work.meta["learning_rate"]


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains on the batches of one row of the cohort, as Flower's PyTorch quickstart does."""
    module, x, y, batches, rate = _load()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), rate)
    own = batches[int(context.node_config["partition-id"])]
    for batch in own:
        loss = F.cross_entropy(module(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": own.numel()})
    content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
