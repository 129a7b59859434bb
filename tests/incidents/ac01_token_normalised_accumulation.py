"""Gradients of summed micro-losses are divided by the number of target tokens before the update;
in one accumulation window every token is padding, so zero gradients are divided by 0."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    torch.manual_seed(46)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    batches = []
    for k in range(3):
        ids = torch.randint(1, 7, (4, 5))
        if k == 1:
            ids.zero_()
        batches.append({"ids": ids})
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    forward.tokens = int((batch["ids"] != 0).sum())
    return [model(ids) for ids in batch["ids"].chunk(2)]


def loss(outputs, batch):
    total = outputs[0].new_zeros(())
    for out, ids in zip(outputs, batch["ids"].chunk(2), strict=True):
        total = total + F.cross_entropy(
            out.flatten(0, 1), ids.flatten(), ignore_index=0, reduction="sum"
        )
    return total


def POST_BACKWARD(k, model):
    for p in model.parameters():
        p.grad.div_(forward.tokens)
