"""REINFORCE samples its next token with a temperature that was annealed to 0: logits / 0 are
infinite, softmax makes NaN and multinomial raises."""

import torch
from torch import nn


class Sampler(nn.Module):
    def forward(self, logits, temperature):
        p = (logits / temperature).softmax(-1)
        return torch.multinomial(p, 1), p


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = nn.Linear(3, 4)
        self.sampler = Sampler()

    def forward(self, x, temperature):
        action, p = self.sampler(self.policy(x), temperature)
        return p.gather(1, action).log()


def build():
    torch.manual_seed(56)
    model = Agent()
    batches = [{"x": torch.randn(4, 3), "temperature": t} for t in (1.0, 0.5, 0.0)]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"], batch["temperature"])


def loss(outputs, batch):
    return -outputs.mean()
