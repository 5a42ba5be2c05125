"""The tokenizer of the small encoders. It knows a few words and all small letters."""

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

LETTERS = [chr(ord("a") + i) for i in range(26)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
WORDS += ["cat", "dog", "the", "on", "mat", "memory", ".", ","]


def word_pieces() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer
