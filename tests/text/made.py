"""Real tokenizers of every format, trained here in a moment, and what their own libraries say of them.

A tokenizer is a directory, as a bundle is; its ``decode`` is the library's, called as its makers call it.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pipeline.text.loading import load
from pipeline.text.tokenizer import Tokenizer as TextTokenizer

SPECIALS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "<bos>"]
MARKUP = ["<think>", "</think>"]

CORPUS = [
    "The capital of France is Paris. What is the capital of Poland, then?",
    "user assistant system model: you are a helpful assistant, and answer in words.",
    "Zażółć gęślą jaźń; Größe, naïve café, “quoted” … 1234567890.",
    "東京は日本の首都です。 Привет, мир! שלום עולם 😀👩‍👩‍👧",
    "def f(x):\n    return x ** 2\n\n\tprint('hello')\r\n",
] * 8

TEXTS = [
    "",
    " ",
    "  two spaces, and a trailing one ",
    "What is the capital of France?",
    "line\n\nline\ttab\r\n  indented",
    "Zażółć gęślą jaźń 東京 😀👩‍👩‍👧 שלום",
    "\u0000\u001b[31mred\u202e",
    "a <think>b</think> c",
]


@dataclass(frozen=True)
class Made:
    """A tokenizer's directory, and its own library's decoding of ids, special pieces included."""

    directory: Path
    vocab_size: int
    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], list[int]]


def saved(directory: Path, library: Any, **config: Any) -> Made:
    directory.mkdir(parents=True, exist_ok=True)
    library.save(str(directory / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(names | config))
    return Made(
        directory,
        library.get_vocab_size(),
        lambda ids: str(library.decode(list(ids), skip_special_tokens=False)),
        lambda text: list(library.encode(text, add_special_tokens=False).ids),
    )


def byte_level(directory: Path, **config: Any) -> Made:
    """As GPT-2, Llama 3, Qwen and SmolLM2 have it."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    library.add_tokens(MARKUP)
    return saved(directory, library, **config)


def byte_fallback(directory: Path, *, opens_with_space: bool, **config: Any) -> Made:
    """As Llama 2, where a space is put before a text, and Gemma, where none is."""
    learned = Tokenizer(models.BPE(unk_token="<unk>"))
    spaces = [normalizers.Replace(" ", "▁")]
    learned.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *spaces] if opens_with_space else spaces)
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIALS, show_progress=False, limit_alphabet=60)
    learned.train_from_iterator([part for text in CORPUS for part in text.split()], trainer)
    model = json.loads(learned.to_str())["model"]
    vocab = model["vocab"]
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    vocab.setdefault("▁", len(vocab))
    merges = [tuple(merge) for merge in model["merges"]]
    library = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = learned.normalizer
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if opens_with_space else steps)
    library.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in SPECIALS])
    library.add_tokens([AddedToken(piece, normalized=False) for piece in MARKUP])
    return saved(directory, library, **config)


def metaspace(directory: Path) -> Made:
    """As T5 and its kin have it: Unigram pieces, no bytes."""
    library = Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False)
    library.train_from_iterator(CORPUS, trainer)
    return saved(directory, library)


def word_ends(directory: Path) -> Made:
    """As the first GPT has it: a piece ends a word or does not, and decoding looks at its neighbours."""
    library = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.decoder = decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIALS, end_of_word_suffix="</w>", show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    return saved(directory, library)


def sentencepiece(directory: Path) -> Made:
    """As Llama 2's own file: spaces are kept, unknown characters are bytes."""
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=500,
        byte_fallback=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=["<start_of_turn>", "<end_of_turn>"],
        control_symbols=["<bos>"],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.model").write_bytes(model.getvalue())
    library = SentencePieceProcessor(model_proto=model.getvalue())
    return Made(
        directory,
        library.vocab_size(),
        lambda ids: str(library.decode(list(ids))),
        lambda text: list(library.encode(text)),
    )


def ranked(num_ranks: int) -> bytes:
    """A tiktoken file: all bytes, all pairs of them, and as many triples as there is room for."""
    pieces = itertools.chain.from_iterable(itertools.product(range(256), repeat=length) for length in (1, 2, 3))
    lines = (b"%s %d" % (base64.b64encode(bytes(piece)), rank) for rank, piece in enumerate(pieces))
    return b"\n".join(itertools.islice(lines, num_ranks)) + b"\n"


def llama3(directory: Path) -> Made:
    from pytorch_tokenizers import TiktokenTokenizer

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.model").write_bytes(ranked(128_000))
    library = TiktokenTokenizer(str(directory / "tokenizer.model"))
    return Made(
        directory,
        library.n_words,
        library.decode,
        lambda text: library.encode(text, bos=False, eos=False, allowed_special="all"),
    )


MAKERS: dict[str, Callable[[Path], Made]] = {
    "byte-level": byte_level,
    "byte-fallback-spaced": lambda path: byte_fallback(path, opens_with_space=True),
    "byte-fallback": lambda path: byte_fallback(path, opens_with_space=False),
    "metaspace": metaspace,
    "word-ends": word_ends,
    "sentencepiece": sentencepiece,
    "llama3": llama3,
}


@cache
def opened(directory: Path) -> TextTokenizer:
    """The tokenizer of a directory that no test changes, opened once."""
    return load(directory)


def with_bos(library: Any) -> Any:
    """The library's tokenizer, which now puts a BOS before each text and an EOS behind it."""
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        special_tokens=[("<s>", library.token_to_id("<s>")), ("</s>", library.token_to_id("</s>"))],
    )
    return library
