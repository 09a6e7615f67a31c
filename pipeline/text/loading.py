"""Opens a tokenizer: a bundle's, a snapshot's or a file of any format that its bytes show."""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import TextError
from pipeline.text.description import Description
from pipeline.text.huggingface import HuggingFaceTokenizer
from pipeline.text.llama3 import LINE, Llama3Tokenizer
from pipeline.text.sentencepiece_model import SentencePieceTokenizer
from pipeline.text.tokenizer import Tokenizer

PREFERRED = "tokenizer.json"
OTHERS = ("tokenizer.model", "*.model", "*.tiktoken")
EXPECTED = "tokenizer.json, tokenizer.model or *.tiktoken"

# The field of a SentencePiece model that comes first: its pieces, each a message.
PIECES_FIELD = b"\x0a"


def load(path: Path) -> Tokenizer:
    """The tokenizer of a directory, or of a file with what lies beside it.

    Raises TextError if there is none, or it is damaged or of an unknown format.
    """
    file = _file(path)
    try:
        with file.open("rb") as stream:
            start = stream.read(256)
    except OSError as error:
        raise TextError(f"{file}: it cannot be read: {error.strerror}. Check its permissions.") from error
    if start.lstrip().startswith(b"{"):
        return HuggingFaceTokenizer(file, Description.beside(file.parent))
    if LINE.fullmatch(start.partition(b"\n")[0].rstrip(b"\r")):
        return Llama3Tokenizer(file)
    if start.startswith(PIECES_FIELD):
        return SentencePieceTokenizer(file)
    raise TextError(
        f"{file}: it is neither a tokenizer.json nor a tiktoken file nor a SentencePiece model; expected one of those. "
        "Fetch the tokenizer's files anew."
    )


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise TextError(f"{path}: it does not exist; expected a tokenizer's file, or a directory with {EXPECTED}.")
    for pattern in (PREFERRED, *OTHERS):
        found = sorted(path.glob(pattern))
        if found:
            return found[0]
    if (path / "vocab.json").is_file():
        raise TextError(
            f"{path}: its tokenizer is vocab.json, of an older format; expected {EXPECTED}. Load it with Transformers' "
            "AutoTokenizer and save it: that writes tokenizer.json."
        )
    raise TextError(f"{path}: it has no tokenizer; expected {EXPECTED} in it.")
