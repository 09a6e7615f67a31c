"""Which files make a model's snapshot: configuration, weights, tokenizer, generation config, chat template.

Names only, as Transformers writes them; nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from pipeline.errors import FetchError

CONFIGURATION = ("config.json", "generation_config.json")
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
VOCABULARY = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")
TOKENIZER = (
    *VOCABULARY,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "merges.txt",
)
FILES = (*CONFIGURATION, *WEIGHTS, *TOKENIZER)
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.msgpack", "*.h5")

# What the quantize step makes of them.
QUANTIZED_WEIGHTS, QUANTIZATION_REPORT = "quantized.safetensors", "quantization.json"


def is_tokenizer_file(name: str) -> bool:
    """Whether a snapshot's file belongs to the tokenizer, and so into a bundle."""
    return _matches(name, TOKENIZER)


def belongs(name: str) -> bool:
    """Whether a file of that name, at the top of a repository or directory, belongs to the snapshot."""
    return "/" not in name and _matches(name, FILES)


def local_files(path: Path) -> dict[str, Path]:
    """The files a local path contributes: one GGUF file, or those at the top of a directory that belong to a snapshot.

    Raises FetchError when the path does not exist or holds no model.
    """
    if path.is_file():
        if path.suffix != ".gguf":
            raise FetchError(
                f"{path}: model.source.path is a '{path.suffix}' file; expected a directory or a .gguf file."
            )
        return {path.name: path}
    if not path.is_dir():
        raise FetchError(f"{path}: model.source.path does not exist; expected a directory or a .gguf file.")
    files = {file.name: file for file in sorted(path.iterdir()) if file.is_file()}
    check_complete(files, str(path))
    return {name: file for name, file in files.items() if belongs(name)}


def check_complete(names: Iterable[str], where: str) -> None:
    """Raises FetchError unless the names at the top hold a configuration, safe weights and a tokenizer."""
    present = {name for name in names if "/" not in name}
    if not any(_matches(name, ("*.safetensors",)) for name in present):
        pickled = sorted(name for name in present if _matches(name, PICKLED))
        if pickled:
            raise FetchError(
                f"{where}: its weights are {', '.join(pickled[:3])}; expected safetensors or GGUF. Such checkpoints "
                "can run code when they are opened and are refused. Convert them to safetensors first."
            )
        raise FetchError(f"{where}: it has no weights; expected *.safetensors at the top, or a .gguf file.")
    if "config.json" not in present:
        raise FetchError(f"{where}: config.json is missing; expected the model's configuration beside its weights.")
    if not any(_matches(name, VOCABULARY) for name in present):
        raise FetchError(f"{where}: it has no tokenizer; expected tokenizer.json or another tokenizer file.")


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
