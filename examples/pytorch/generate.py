"""transformers' generate on Tenure's allocator: prompts of many lengths, whose caches grow with each token."""

import argparse
import random

import tenure.torch

tenure.torch.install()

import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a model of two layers, four prompts")
    small = parser.parse_args().small
    width, layers, longest, prompts = (64, 2, 48, 4) if small else (2048, 16, 2000, 40)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 16 if small else width // 64,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    chance = random.Random(1)
    for _ in range(prompts):
        tokens = torch.randint(1, 1024, (chance.randint(1, 4), chance.randint(4, longest)), device="cuda")
        answer = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            min_new_tokens=16,
            max_new_tokens=16,
            do_sample=False,
            pad_token_id=0,
        )
        print(f"{tokens.shape[0]} prompts of {tokens.shape[1]} tokens: {answer.shape[1]} after")


if __name__ == "__main__":
    main()
    print(tenure.torch.status())
