"""A module and its step as users write them, for the tests of the Lightning integration."""

from __future__ import annotations

import lightning
import torch

from workbench.integrations.lightning_step import LightningStep


class Net(lightning.LightningModule):
    def __init__(self, width=8, rate=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(3, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)
        )
        self.before_step = lambda index: None

    def training_step(self, batch, batch_idx):
        self.before_step(batch_idx)
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.body(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Step(LightningStep):
    module = Net
