"""A tiktoken file: ranked pieces and nothing else, as Llama 3's ``tokenizer.model`` is published by its makers.

Such a file says neither how text is split nor which special tokens follow its pieces. For Llama 3 both are known
(https://github.com/meta-llama/llama-models, models/llama3/tokenizer.py); a file with another number of pieces is of
another family, and reading it by these rules would be silently wrong.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import TextError
from pipeline.text.tokenizer import Tokenizer

NUM_RANKS = 128_000
NUM_SPECIALS = 256

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

NAMED = {
    0: "<|begin_of_text|>",
    1: "<|end_of_text|>",
    2: "<|reserved_special_token_0|>",
    3: "<|reserved_special_token_1|>",
    4: "<|finetune_right_pad_id|>",
    5: "<|step_id|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    8: "<|eom_id|>",
    9: "<|eot_id|>",
    10: "<|python_tag|>",
    11: "<|image|>",
}

LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+")


class Llama3Tokenizer(Tokenizer):
    """Raises TextError for a damaged file, or one that is not Llama 3's."""

    def __init__(self, path: Path) -> None:
        try:
            import tiktoken
        except ImportError as error:
            raise TextError(
                f"{path}: a tiktoken file is read with the tiktoken library, which is not installed. Run pip install "
                "'pte-pipeline[run]'."
            ) from error
        self.where = str(path)
        ranks = _ranks(path)
        if len(ranks) != NUM_RANKS:
            raise TextError(
                f"{path}: it ranks {len(ranks)} pieces; expected Llama 3's {NUM_RANKS}. A tiktoken file does not say "
                "how its family splits text, nor its special tokens. Use the model's tokenizer.json."
            )
        names = [
            NAMED.get(index, f"<|reserved_special_token_{index - len(NAMED) + 2}|>") for index in range(NUM_SPECIALS)
        ]
        self.specials = {name: NUM_RANKS + index for index, name in enumerate(names)}
        self.controls = frozenset(names)
        self.bos_id, self.eos_id = NUM_RANKS, NUM_RANKS + 1
        self.prefix = (self.bos_id,)
        self.vocab_size = NUM_RANKS + NUM_SPECIALS
        self._library: Any = tiktoken.Encoding(
            "llama3", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=dict(self.specials)
        )

    def encode(self, text: str) -> list[int]:
        return list(self._library.encode(text, allowed_special="all"))

    def encode_literally(self, piece: str) -> list[int]:
        return self._literal(piece, list(self._library.encode(piece, disallowed_special=())))

    def id_of(self, piece: str) -> int | None:
        try:
            return int(self._library.encode_single_token(piece))
        except KeyError:
            return None

    def piece(self, token: int) -> bytes:
        try:
            return bytes(self._library.decode_single_token_bytes(token))
        except KeyError:
            return b""

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._library.decode(list(tokens), errors="replace"))


def _ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            piece, rank = line.split()
            ranks[base64.b64decode(piece, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise TextError(
                f"{path}:{number}: the line is {line[:40]!r}; expected a piece in base64 and its rank. Fetch the file "
                "anew."
            ) from error
    if set(ranks.values()) != set(range(len(ranks))):
        raise TextError(
            f"{path}: {len(ranks)} pieces have ranks other than 0 to {len(ranks) - 1}; expected each once. Fetch the "
            "file anew."
        )
    return ranks
