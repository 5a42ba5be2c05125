"""Writes `configs.json`: the results of Transformers' models with unusual values in `config.json`, in double precision,
from the values of `models.py`. For each model it has the model's file, and the values that `models.py` writes.

Needs torch 2.11 and transformers.
"""

import json
from pathlib import Path

import torch
import transformers
from models import golden, tokens
from torch import nn


class Forward(nn.Module):
    """A model whose output is the one of that name, with the model's own parameter names."""

    def __init__(self, model: nn.Module, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def state_dict(self) -> dict:
        # A last layer that is the token table has no name of its own here.
        return {key: value for key, value in self.model.state_dict().items() if key != "lm_head.weight"}

    def named_parameters(self):
        return self.model.named_parameters()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(tokens, use_cache=False)[self.output]


def unusual(model: type[nn.Module], config: transformers.PretrainedConfig, output: str) -> dict:
    config.bos_token_id = config.eos_token_id = None
    # The other implementations ignore some settings of the file.
    config._attn_implementation = "eager"
    with torch.no_grad():
        made = model(config)
    return {"file": json.loads(config.to_json_string()), **golden(Forward(made, output), tokens(2, 5, 11))}


if __name__ == "__main__":
    llama = transformers.LlamaConfig(
        vocab_size=11, hidden_size=18, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, hidden_act="gelu_pytorch_tanh", attention_bias=True, mlp_bias=True,
        tie_word_embeddings=True, rms_norm_eps=1e-4, rope_scaling={"type": "linear", "factor": 2.0}, pad_token_id=-1,
    )  # fmt: skip
    gpt2 = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=12, n_layer=2, n_head=3, n_inner=20, activation_function="relu",
        scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True, layer_norm_epsilon=1e-3, embd_pdrop=0.0,
        attn_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    bert = transformers.BertConfig(
        vocab_size=11, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
        max_position_embeddings=8, type_vocab_size=3, hidden_act="silu", layer_norm_eps=1e-3, pad_token_id=3,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    goldens = {
        "llama": unusual(transformers.LlamaForCausalLM, llama, "logits"),
        "gpt2": unusual(transformers.GPT2LMHeadModel, gpt2, "logits"),
        "bert": unusual(transformers.BertModel, bert, "last_hidden_state"),
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(goldens) + "\n")
