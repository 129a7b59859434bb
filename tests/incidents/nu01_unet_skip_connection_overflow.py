"""A diffusion U-Net under float16 autocast: a skip connection is added without scaling, the
second up-convolution sums 8 x 9 large terms past 65,504."""

import torch
import torch.nn.functional as F
from torch import nn

AUTOCAST = {"dtype": torch.float16}


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)])
        self.up = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 2, 3, padding=1)])
        self.norm = nn.GroupNorm(1, 2)

    def forward(self, x):
        first = F.silu(self.down[0](x))
        second = F.silu(self.down[1](first))
        return self.norm(self.up[1](self.up[0](second) + first).float())


def build():
    torch.manual_seed(62)
    model = UNet().to(memory_format=torch.channels_last)
    with torch.no_grad():
        for conv in (*model.down, *model.up):
            conv.weight.abs_()
    xs = [torch.rand(2, 2, 6, 6) for _ in range(3)]
    xs[1][1] *= 3000
    xs = [x.to(memory_format=torch.channels_last) for x in xs]
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return F.mse_loss(outputs, batch["x"].float().clamp_max(1))
