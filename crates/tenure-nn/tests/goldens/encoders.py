"""Writes the folder `encoders`, small encoders of six architectures as sentence-transformers saves them, and
`encoders.safetensors`, the vectors that it computes of texts.

    python encoders.py

Weights are random. Needs PyTorch 2.11, transformers 5, sentence-transformers 6 and tokenizers.
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Normalize, Pooling, Transformer
from word_pieces import word_pieces

HERE = Path(__file__).parent
FOLDER = HERE / "encoders"

TEXTS = [
    "cat",
    "a cat on the mat",
    "the dog and the memory, on the mat.",
    "memory " * 9,
    "the quick brown fox jumps over the lazy dog " * 4,
    "a [PAD] cat \u2603 on the mat",
]
WIDTH = 8


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    special = {f"{name}_token": token for name, token in names.items()}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=word_pieces(), model_max_length=48, **special)


def sizes(**more: object) -> dict[str, object]:
    common = {"vocab_size": 65, "hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 2}
    common |= {"intermediate_size": 12, "max_position_embeddings": 64, "initializer_range": 0.5, "pad_token_id": 0}
    return common | more


def model(kind: str) -> transformers.PreTrainedModel:
    match kind:
        case "distilbert":
            of_distilbert = {"dim": WIDTH, "n_layers": 3, "n_heads": 2, "hidden_dim": 12, "initializer_range": 0.5}
            config = transformers.DistilBertConfig(vocab_size=65, max_position_embeddings=64, **of_distilbert)
        case "modernbert":
            special = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
            config = transformers.ModernBertConfig(**sizes(local_attention=6, num_hidden_layers=4), **special)
        case _:
            config = transformers.AutoConfig.for_model(kind, **sizes())
    return transformers.AutoModel.from_config(config).eval()


def behind(kind: str) -> list[torch.nn.Module]:
    """Returns the modules after the model. Each kind of module is in one of the encoders."""
    match kind:
        case "roberta":
            return [Pooling(WIDTH, "mean")]
        case "xlm-roberta":
            return [Pooling(WIDTH, "cls"), Normalize()]
        case "mpnet":
            return [Pooling(WIDTH, "mean"), Normalize()]
        case "distilbert":
            return [Pooling(WIDTH, "max"), Dense(WIDTH, 6), Normalize()]
        case "modernbert":
            return [Pooling(WIDTH, "weightedmean"), LayerNorm(WIDTH)]
        case _:
            dense = Dense(3 * WIDTH, 5, bias=False, activation_function=torch.nn.Identity())
            return [Pooling(WIDTH, ("lasttoken", "cls", "mean_sqrt_len_tokens")), dense]


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    vectors = {}
    for kind in ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "modernbert"):
        torch.manual_seed(0)
        folder = FOLDER / kind
        with tempfile.TemporaryDirectory() as made:
            model(kind).save_pretrained(made)
            tokenizer().save_pretrained(made)
            prompts = {"prompts": {"query": "the cat: "}, "default_prompt_name": "query"} if kind == "bert" else {}
            encoder = SentenceTransformer(modules=[Transformer(made), *behind(kind)], **prompts)
        encoder.save(str(folder), create_model_card=False)
        if kind == "roberta":
            rename_old(folder)
        vectors[kind] = encoder.encode(TEXTS, convert_to_tensor=True).contiguous()
    save_file(vectors, HERE / "encoders.safetensors", {"texts": json.dumps(TEXTS)})


def rename_old(folder: Path) -> None:
    """Gives normalisations the names of old files, and pooling the keys of older releases."""
    from safetensors.torch import load_file

    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = load_file(folder / "model.safetensors")
    renamed = {}
    for name, tensor in tensors.items():
        for part, other in old.items():
            name = name.replace(part, other)
        renamed[f"roberta.{name}"] = tensor
    save_file(renamed, folder / "model.safetensors")
    pooling = {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


main()
