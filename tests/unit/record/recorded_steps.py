"""Training steps that the recorder's tests drive; imported by fresh processes too."""

import random

import torch
from torch import nn

from workbench import Autocast, TrainingStep


class Cnn(TrainingStep):
    """BatchNorm and dropout; a batch field ``w`` of -1 makes the loss NaN."""

    def build_model(self):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(4 * 16, 2),
        )

    def build_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), 1e-2)

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        return {
            "square": outputs.pow(2).mean() * (1 + random.random()),
            "log": torch.log(batch["w"]).mean(),
        }

    def batch(self, k, bad=False):
        g = torch.Generator().manual_seed(k)
        return {
            "x": torch.randn(6, 1, 6, 6, generator=g),
            "w": torch.full((3,), -1.0 if bad else 1.0),
        }


class BadGradient(Cnn):
    """A finite loss whose gradient is NaN: sqrt at zero, times zero."""

    def loss(self, outputs, batch):
        loss = outputs.pow(2).mean()
        return loss if batch["w"][0] > 0 else loss + (outputs * 0).abs().sqrt().sum()


class Clipped(Cnn):
    """Clipping without a scaler: gate and clip share one norm in training."""

    max_grad_norm = 0.05


class Tied(Cnn):
    def build_model(self):
        class Language(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(16, 8)
                self.mix = nn.Linear(8, 8)
                self.head = nn.Linear(8, 16, bias=False)
                self.head.weight = self.embed.weight

            def forward(self, ids):
                return self.head(torch.tanh(self.mix(self.embed(ids))))

        return Language()

    def loss(self, outputs, batch):
        entropy = nn.functional.cross_entropy(outputs.flatten(0, 1), batch["ids"].flatten())
        return entropy + torch.log(batch["w"]).mean()

    def forward(self, model, batch):
        return model(batch["ids"])

    def batch(self, k, bad=False):
        g = torch.Generator().manual_seed(k)
        ids = torch.randint(0, 16, (3, 5), generator=g)
        return {"ids": ids, "w": torch.full((3,), -1.0 if bad else 1.0)}


class Lstm(Cnn):
    def build_model(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm = nn.LSTM(3, 5, num_layers=2, dropout=0.2, batch_first=True)
                self.head = nn.Linear(5, 1)

            def forward(self, x):
                return self.head(self.lstm(x)[0][:, -1])

        return Net()

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def batch(self, k, bad=False):
        g = torch.Generator().manual_seed(k)
        return {"x": torch.randn(4, 6, 3, generator=g), "w": torch.full((3,), -1.0 if bad else 1.0)}


class Half(Cnn):
    """float16 autocast, a loss scaler, clipping."""

    autocast = Autocast(torch.float16, "cpu")
    max_grad_norm = 0.5

    def build_model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def build_scaler(self):
        return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)

    def loss(self, outputs, batch):
        return outputs.float().pow(2).mean() * batch["s"] + torch.log(batch["w"]).mean()

    def batch(self, k, bad=False, s=1.0):
        g = torch.Generator().manual_seed(k)
        return {
            "x": torch.randn(6, 4, generator=g),
            "w": torch.full((3,), -1.0 if bad else 1.0),
            "s": s,
        }


class Gan(Cnn):
    """Two phases, two optimizers."""

    phases = ("critic", "generator")

    def build_model(self):
        return nn.ModuleDict({"critic": nn.Linear(3, 1), "generator": nn.Linear(2, 3)})

    def build_optimizer(self, model):
        return [
            torch.optim.Adam(model["critic"].parameters(), 1e-2),
            torch.optim.SGD(model["generator"].parameters(), 1e-2),
        ]

    def forward(self, model, batch, phase):
        fake = model["generator"](torch.randn(4, 2))
        if phase == "critic":
            return model["critic"](fake.detach()), model["critic"](batch["x"])
        return (model["critic"](fake),)

    def loss(self, outputs, batch, phase):
        if phase == "critic":
            return (outputs[0] - outputs[1]).mean()
        return -outputs[0].mean() + torch.log(batch["w"]).mean()

    def batch(self, k, bad=False):
        g = torch.Generator().manual_seed(k)
        return {"x": torch.randn(4, 3, generator=g), "w": torch.full((3,), -1.0 if bad else 1.0)}


ALL = {kind.__name__: kind for kind in (Cnn, BadGradient, Clipped, Tied, Lstm, Half, Gan)}


def build(step, seed=0):
    """Build all objects of a step from a seed: step, model, optimizers, scaler."""
    torch.manual_seed(seed)
    random.seed(seed)
    model = step.build_model()
    built = step.build_optimizer(model)
    optimizers = list(built) if isinstance(built, list | tuple) else [built]
    return model, optimizers, step.build_scaler()
