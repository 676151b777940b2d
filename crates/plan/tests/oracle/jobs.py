"""What jobs name: types and optimizers."""

import torch

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, None: None}
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "adamw_fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "adamw_forloop": lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, foreach=True),
    "sgd_momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=True),
}
