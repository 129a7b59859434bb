"""The hue of a grey pixel divides by a chroma of zero and is selected away afterwards: forward is
finite, and the derivative of the division that was dropped is 0 / 0."""

import torch
from torch import nn
from torch.nn import functional


def hue(image):
    largest, channel = image.max(1)
    chroma = largest - image.min(1).values
    r, g, b = image.unbind(1)
    from_green = torch.where(channel == 1, (b - r) / chroma + 2, (r - g) / chroma + 4)
    angle = torch.where(channel == 0, (g - b) / chroma % 6, from_green)
    return torch.where(chroma == 0, torch.zeros_like(angle), angle)


def build():
    torch.manual_seed(13)
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sigmoid())
    batches = [{"x": torch.rand(2, 3, 4, 4), "hue": torch.rand(2, 4, 4)} for _ in range(4)]
    return model, torch.optim.Adam(model.parameters(), 1e-3), None, batches


def PRE_STEP(k, model, opt, scaler):
    if k == 2:
        with torch.no_grad():
            model[0].weight.zero_()
            model[0].bias.zero_()


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return functional.mse_loss(hue(outputs), batch["hue"])
