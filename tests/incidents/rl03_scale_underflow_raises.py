"""A Gaussian policy's standard deviation exp(-120) underflows to 0, and torch.distributions
refuses it: every number is finite, the exception is all there is."""

import torch
from torch import nn
from torch.distributions import Normal


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(3, 2)
        self.log_std = nn.Linear(3, 2)

    def forward(self, obs):
        return Normal(self.mean(obs), self.log_std(obs).exp())


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = Policy()

    def forward(self, obs, action):
        return self.policy(obs).log_prob(action)


def build():
    torch.manual_seed(10)
    model = Agent()
    with torch.no_grad():
        model.policy.log_std.weight.fill_(0.5)
    xs = [torch.randn(4, 3) for _ in range(3)]
    xs[1][2] = -80.0
    batches = [{"obs": x, "action": torch.randn(4, 2)} for x in xs]
    return model, torch.optim.SGD(model.parameters(), 1e-4), None, batches


def forward(model, batch):
    return model(batch["obs"], batch["action"])


def loss(outputs, batch):
    return -outputs.mean()
