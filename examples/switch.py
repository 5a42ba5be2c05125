"""Switches between two models of transformers on a GPU that has room for the weights of one.

    python examples/switch.py

GPT-2 continues some tokens, and BERT reads the result, again and again. Both models are small and have random weights,
so that nothing is downloaded. The program needs a GPU with 1 GiB free, and transformers.
"""

from __future__ import annotations

import sys

try:
    import torch

    import tenure.torch

    if not torch.cuda.is_available():
        sys.exit("switch.py: PyTorch finds no GPU")
    from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel
except ImportError as error:
    sys.exit(f"switch.py: {error}: install it")

tokens = torch.randint(1000, (1, 16), device="cuda")
gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=256, n_layer=4, n_head=4, pad_token_id=0))
bert = BertModel(BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024))

with tenure.torch.Switcher(device_bytes=64 << 20, host_bytes=1 << 30) as switcher:
    switcher.add("gpt2", gpt2.eval(), example=tokens)
    switcher.add("bert", bert.eval(), example=tokens)
    for _ in range(3):
        with switcher.use("gpt2") as module:
            written = module.generate(tokens, max_new_tokens=4)
        print("read", tuple(switcher("bert", written).last_hidden_state.shape))
    for model in switcher.report().per_model:
        print(f"{model.name}: {model.bytes >> 20} MiB, {model.switches} copies of {model.mean_copy_ms:.1f} ms")
