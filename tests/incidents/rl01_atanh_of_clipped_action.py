"""Tanh-squashed Gaussian policy: the log-probability of a stored action needs atanh(action), and
the environment clipped that action to exactly 1."""

import math

import torch
from torch import nn


def build():
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    batches = []
    for k in range(3):
        action = torch.rand(5, 1) * 1.6 - 0.8
        if k == 1:
            action[4] = 1.0
        batches.append({"obs": torch.randn(5, 3), "action": action, "advantage": torch.randn(5, 1)})
    return model, torch.optim.Adam(model.parameters(), 3e-4), None, batches


def forward(model, batch):
    return model(batch["obs"])


def loss(outputs, batch):
    mean, log_std = outputs.chunk(2, -1)
    raw = torch.atanh(batch["action"])
    z = (raw - mean) * torch.exp(-log_std)
    log_prob = -0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)
    log_prob = log_prob - torch.log(1 - batch["action"] ** 2 + 1e-6)
    return -(log_prob * batch["advantage"]).mean()
