#!/usr/bin/env python3
"""make_lora.py OUT_DIR SEED: a random LoRA adapter (rank 8, q_proj and v_proj) for the tiny model."""
import json
import os
import sys

import torch
from safetensors.torch import save_file

out, seed = sys.argv[1], int(sys.argv[2])
os.makedirs(out, exist_ok=True)
torch.manual_seed(seed)
tensors = {}
for layer in range(2):
    for module in ("q_proj", "v_proj"):
        name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
        tensors[name + ".lora_A.weight"] = torch.randn(8, 64) * 0.1
        tensors[name + ".lora_B.weight"] = torch.randn(64, 8) * 0.1
save_file(tensors, os.path.join(out, "adapter_model.safetensors"))
with open(os.path.join(out, "adapter_config.json"), "w", encoding="utf-8") as f:
    json.dump(
        {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "bias": "none",
            "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "tiny", "inference_mode": True,
            "fan_in_fan_out": False, "modules_to_save": None,
        },
        f,
    )
