"""PEFT on Tenure's allocator: adapters on a frozen model, merged into it at the end."""

import argparse

import tenure.torch

tenure.torch.install()

import torch  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a model of two layers, four steps")
    small = parser.parse_args().small
    width, layers, length, steps = (64, 2, 32, 4) if small else (2048, 16, 1024, 60)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 16 if small else width // 64,
    )
    base = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    model = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW([it for it in model.parameters() if it.requires_grad], lr=1e-4)
    for step in range(steps):
        tokens = torch.randint(0, 1024, (4, length - step % 4), device="cuda")
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")
    model.merge_and_unload()


if __name__ == "__main__":
    main()
    print(tenure.torch.status())
