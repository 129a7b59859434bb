"""The model is wrapped (names begin with 'module.'); a squashed variance head inverts softplus
and meets log(expm1(0))."""

import torch
from torch import nn


class InverseSoftplus(nn.Module):
    def forward(self, x):
        return torch.log(torch.expm1(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 2)])
        self.tail = nn.ModuleDict({"inv": InverseSoftplus()})

    def forward(self, x):
        for stage in self.stages:
            x = torch.relu(stage(x))
        return self.tail["inv"](x + 0.0)


def build():
    torch.manual_seed(206)
    net = Net()
    with torch.no_grad():
        for stage in net.stages:
            stage.weight.abs_()
            stage.bias.fill_(0.1)
    xs = [torch.rand(4, 3) for _ in range(3)]
    model = nn.DataParallel(net)
    return (
        model,
        torch.optim.SGD(model.parameters(), 1e-4),
        None,
        [{"x": x, "w": w} for x, w in zip(xs, (1.0, 1.0, 1.0), strict=True)],
    )


def PRE_STEP(k, model, opt, scaler):
    if k == 1:
        with torch.no_grad():
            model.module.stages[1].bias[1] = -100.0


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
