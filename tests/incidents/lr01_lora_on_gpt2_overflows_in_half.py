"""LoRA on a Hugging Face model under float16 autocast: a rank-stabilised scaling meant for a large
rank multiplies the adapter's output, which fits half before and not after."""

import warnings

import torch
import torch.nn.functional as F
from torch import nn

AUTOCAST = {"dtype": torch.float16}


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        from peft import LoraConfig, get_peft_model
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lora = LoraConfig(r=4, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True)
            self.lm = get_peft_model(GPT2LMHeadModel(config), lora)

    def forward(self, tokens):
        return self.lm(input_ids=tokens).logits


def build():
    torch.manual_seed(71)
    model = Language()
    batches = [{"x": torch.randint(0, 32, (2, 8))} for _ in range(3)]
    trained = [p for p in model.parameters() if p.requires_grad]
    return model, torch.optim.SGD(trained, 1e-6), None, batches


def PRE_STEP(k, model, opt, scaler):
    if k == 2:
        layer = model.lm.base_model.model.transformer.h[1].attn.c_attn
        with torch.no_grad():
            layer.lora_B["default"].weight.fill_(300.0)
        layer.scaling["default"] = 4096.0


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return F.cross_entropy(outputs[:, :-1].flatten(0, 1).float(), batch["x"][:, 1:].flatten())
