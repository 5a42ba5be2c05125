"""Language models: of transformers, and a mixture of experts."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .program import OnStep, Program, Sizes, adamw, ids, optimized, steps_of


def qwen3_model(sizes: Sizes) -> Any:
    import transformers

    config = transformers.Qwen3Config(
        vocab_size=sizes.pick(32768, 256),
        hidden_size=sizes.pick(1024, 64),
        intermediate_size=sizes.pick(3072, 128),
        num_hidden_layers=sizes.pick(20, 2),
        num_attention_heads=sizes.pick(16, 4),
        num_key_value_heads=sizes.pick(8, 2),
        head_dim=sizes.pick(128, 16),
        max_position_embeddings=2048,
    )
    config.use_cache = False
    return transformers.Qwen3ForCausalLM(config).to(sizes.device, torch.bfloat16)


def trainer(
    sizes: Sizes,
    model: Any,
    rows: Callable[[int], dict[str, Tensor]],
    batch: int,
    collator: Callable[[list[dict[str, Tensor]]], dict[str, Tensor]] | None = None,
    **options: Any,
) -> Program:
    """Returns a program in which transformers' `Trainer` trains a model."""
    import transformers

    def train(count: int, on_step: OnStep) -> None:
        class Callback(transformers.TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
                on_step()

        accumulated = options.get("gradient_accumulation_steps", 1)
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                output_dir=folder,
                max_steps=count,
                per_device_train_batch_size=batch,
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                optim="adamw_torch_fused",
                use_cpu=sizes.device.type == "cpu",
                **options,
            )
            dataset = [rows(number) for number in range(count * batch * accumulated)]
            given = {"train_dataset": dataset, "data_collator": collator, "callbacks": [Callback()]}
            transformers.Trainer(model=model, args=arguments, **given).train()

    def checkpoint(options: dict[str, Any]) -> None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)

    return Program(model, train, checkpoint=checkpoint)


def text_rows(length: int, vocabulary: int) -> Callable[[int], dict[str, Tensor]]:
    def row(number: int) -> dict[str, Tensor]:
        text = torch.randint(vocabulary, (length,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": text, "labels": text}

    return row


def qwen3(sizes: Sizes) -> Program:
    """A model of Qwen3's shape, with 20 layers, trained by `Trainer`."""
    length, vocabulary = sizes.pick(1024, 64), sizes.pick(32768, 256)
    return trainer(sizes, qwen3_model(sizes), text_rows(length, vocabulary), sizes.pick(16, 4))


def lora(sizes: Sizes) -> Program:
    """The same model, of which PEFT's LoRA trains a small part."""
    import peft

    model = qwen3_model(sizes)
    model.enable_input_require_grads()
    config = peft.LoraConfig(r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"])
    length, vocabulary = sizes.pick(1024, 64), sizes.pick(32768, 256)
    model = peft.get_peft_model(model, config)
    return trainer(sizes, model, text_rows(length, vocabulary), sizes.pick(16, 4))


def bert_accumulated(sizes: Sizes) -> Program:
    """BERT trained by `Trainer` in mixed precision; a step accumulates four batches of texts of different lengths."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=sizes.pick(30522, 256),
        hidden_size=sizes.pick(768, 64),
        intermediate_size=sizes.pick(3072, 128),
        num_hidden_layers=sizes.pick(12, 2),
        num_attention_heads=sizes.pick(12, 4),
    )
    model = transformers.BertForMaskedLM(config).to(sizes.device)
    length = sizes.pick(512, 64)
    rows = text_rows(length, config.vocab_size)
    collated = itertools.count()

    def collator(of: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        shorter = length - length // 8 * (next(collated) * 3 % 4)
        return {name: torch.stack([row[name][:shorter] for row in of]) for name in of[0]}

    options = {"gradient_accumulation_steps": 4, "bf16": not sizes.is_small}
    return trainer(sizes, model, rows, sizes.pick(32, 4), collator, **options)


def t5(sizes: Sizes) -> Program:
    """T5, encoder and decoder, trained by Accelerate, with clipped gradients."""
    import accelerate
    import transformers

    config = transformers.T5Config(
        vocab_size=sizes.pick(32128, 256),
        d_model=sizes.pick(768, 64),
        d_kv=sizes.pick(64, 16),
        d_ff=sizes.pick(2048, 128),
        num_layers=sizes.pick(12, 2),
        num_heads=sizes.pick(12, 4),
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config).to(sizes.device)
    batch, length = sizes.pick(16, 4), sizes.pick(512, 64)

    def train(count: int, on_step: OnStep) -> None:
        accelerator = accelerate.Accelerator(
            mixed_precision="no" if sizes.is_small else "bf16", cpu=sizes.device.type == "cpu"
        )
        wrapped, optimizer = accelerator.prepare(model, adamw(model))

        def step(number: int) -> None:
            text = ids(sizes, number, batch, length, vocabulary=config.vocab_size)
            accelerator.backward(wrapped(input_ids=text, labels=text[:, : length // 2].contiguous()).loss)
            accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        steps_of(step, on_step, count)

    return Program(model, train, [*model.encoder.block, *model.decoder.block])


def mamba(sizes: Sizes) -> Program:
    """Mamba without its special kernels: many small operations."""
    import transformers

    config = transformers.MambaConfig(
        vocab_size=sizes.pick(32768, 256), hidden_size=sizes.pick(768, 64), num_hidden_layers=sizes.pick(6, 2)
    )
    config.use_cache = False
    model = transformers.MambaForCausalLM(config).to(sizes.device)
    optimizer = adamw(model)
    batch, length = sizes.pick(8, 2), sizes.pick(256, 16)

    def step(number: int) -> None:
        text = ids(sizes, number, batch, length, vocabulary=config.vocab_size)
        optimized(model(input_ids=text, labels=text).loss, optimizer)

    return Program(model, lambda count, on_step: steps_of(step, on_step, count), list(model.backbone.layers))


def llama(sizes: Sizes) -> Program:
    """A Llama of 10 layers in bf16, on long rows: the device is the bottleneck."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=sizes.pick(32768, 256),
        hidden_size=sizes.pick(2048, 64),
        intermediate_size=sizes.pick(5632, 128),
        num_hidden_layers=sizes.pick(10, 2),
        num_attention_heads=sizes.pick(16, 4),
        num_key_value_heads=sizes.pick(8, 2),
        max_position_embeddings=8192,
    )
    config.use_cache = False
    model = transformers.LlamaForCausalLM(config).to(sizes.device, torch.bfloat16)
    return texts(sizes, model, list(model.model.layers), 2, sizes.pick(8192, 64), config.vocab_size)


def gpt2(sizes: Sizes) -> Program:
    """GPT-2 with dropout, in autocast, with two backward passes in a step."""
    import transformers

    config = transformers.GPT2Config(
        n_layer=sizes.pick(12, 2),
        n_embd=sizes.pick(768, 64),
        n_head=sizes.pick(12, 4),
        vocab_size=sizes.pick(50257, 256),
    )
    config.use_cache = False
    model = transformers.GPT2LMHeadModel(config).to(sizes.device)
    return texts(sizes, model, list(model.transformer.h), 16, sizes.pick(1024, 64), config.vocab_size, passes=2)


def texts(
    sizes: Sizes, model: Any, blocks: list[nn.Module], batch: int, length: int, vocabulary: int, passes: int = 1
) -> Program:
    """Returns a program that trains a language model of transformers in autocast."""
    model.train()
    optimizer = adamw(model)

    def step(number: int) -> None:
        for each in range(passes):
            text = ids(sizes, passes * number + each, batch, length, vocabulary=vocabulary)
            with nullcontext() if sizes.is_small else torch.autocast(sizes.device.type, torch.bfloat16):
                loss = model(input_ids=text, labels=text).loss / passes
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Program(model, lambda count, on_step: steps_of(step, on_step, count), blocks)


class Experts(nn.Module):
    """A layer of attention and of experts, two for each token."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.own, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = [each.unflatten(-1, (-1, 32)).transpose(1, 2) for each in self.own(self.norms[0](x)).chunk(3, -1)]
        x = x + self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norms[1](x).flatten(0, 1)
        weights, chosen = self.router(y).softmax(-1).topk(2, -1)
        made = torch.zeros_like(y)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            made.index_add_(0, token, expert(y[token]) * weights[token, place, None])
        return x + made.view_as(x)


def experts(sizes: Sizes) -> Program:
    """A mixture of 16 experts, in bf16: sizes inside a step depend on its data."""
    width, vocabulary = sizes.pick(768, 64), sizes.pick(32768, 256)
    layers = [Experts(width, sizes.pick(16, 4)) for _ in range(sizes.pick(8, 2))]
    model = nn.Sequential(nn.Embedding(vocabulary, width), *layers, nn.RMSNorm(width), nn.Linear(width, vocabulary))
    model = model.to(sizes.device, torch.bfloat16)
    optimizer = adamw(model)

    def step(number: int) -> None:
        text = ids(sizes, number, sizes.pick(8, 2), sizes.pick(1024, 64), vocabulary=vocabulary)
        optimized(F.cross_entropy(model(text).flatten(0, 1), text.flatten()), optimizer)

    return Program(model, lambda count, on_step: steps_of(step, on_step, count), layers)
