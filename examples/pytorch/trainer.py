"""transformers' Trainer on Tenure's allocator: batches of texts of all lengths."""

import argparse
import random

import tenure.torch

tenure.torch.install()

import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments  # noqa: E402


def collate(texts: list[list[int]]) -> dict[str, torch.Tensor]:
    longest = max(map(len, texts))
    tokens = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    return {"input_ids": tokens, "labels": tokens, "attention_mask": tokens.ne(0).long()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a model of two layers, six steps")
    small = parser.parse_args().small
    width, layers, longest, steps = (64, 2, 64, 6) if small else (1024, 16, 2048, 60)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 16 if small else width // 64,
        max_position_embeddings=longest,
    )
    chance = random.Random(1)
    texts = [[chance.randrange(1, 1024) for _ in range(chance.randint(8, longest))] for _ in range(4 * steps)]
    arguments = TrainingArguments(
        output_dir="runs",
        max_steps=steps,
        per_device_train_batch_size=4,
        bf16=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_steps=steps,
    )
    Trainer(LlamaForCausalLM(config), arguments, train_dataset=texts, data_collator=collate).train()


if __name__ == "__main__":
    main()
    print(tenure.torch.status())
