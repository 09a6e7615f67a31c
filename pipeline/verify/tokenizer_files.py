"""What a tokenizer's files say of ids: which there are, and which of them open and end a text.

Reads JSON and text, and runs no tokenizer: of ``tokenizer.json`` the vocabulary and the added tokens alone, since its
merges are most of it. Files that come with a model are anyone's; their size is bounded, and nothing in them raises
anything but ``Unreadable``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.verify.contracts import cut

MAX_BYTES = 1 << 26
MAX_TOKENS = 4_000_000

TOKENIZER, CONFIG, SPECIAL, GENERATION = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)
TEMPLATE = "chat_template.jinja"
OTHERS = ("tokenizer.model", "vocab.json", "vocab.txt", "*.tiktoken", "*.model")

# A key that is followed by an object or an array; within a string the quotes would be escaped, and a token that is
# called so is followed by its id.
_VOCABULARY = re.compile(rb'(?<!\\)"vocab"\s*:\s*(?=[{\[])')
_ADDED = re.compile(rb'(?<!\\)"added_tokens"\s*:\s*(?=\[)')
_MERGES = re.compile(rb'(?<!\\)"merges"\s*:\s*(?=\[)')


class Unreadable(Exception):  # noqa: N818 - becomes a finding
    """Why a tokenizer's file cannot be used: ``file`` is its name, ``what`` stands behind it in a sentence."""

    def __init__(self, file: str, what: str) -> None:
        super().__init__(f"{file} {what}")
        self.file = file
        self.what = what


class Absent(Exception):  # noqa: N818 - becomes a reason
    """There is no tokenizer of a kind that is read here; the message is a reason not to compare."""


class Tokenizer(NamedTuple):
    """``ids`` are those of all tokens, ``added`` those of the added ones by text, ``last_own`` the last of the others.

    ``ends`` are the ids that end a text by the file that names them, ``bos`` the token that opens one, ``None`` where
    none is named. ``unknown`` are named tokens, by what they are, that the tokenizer has not.
    """

    ids: frozenset[int]
    last_own: int
    added: Mapping[str, int]
    ends: Mapping[str, tuple[int, ...]]
    bos: int | None
    unknown: Mapping[str, str]
    template: str

    @property
    def largest(self) -> int:
        """The largest id."""
        return max(self.ids)


def lies_in(directory: Path) -> bool:
    """Whether there is a tokenizer that is read here."""
    return directory.joinpath(TOKENIZER).is_file()


def read(path: Path) -> Tokenizer:
    """The tokenizer in a directory, or of a ``tokenizer.json`` and what lies beside it.

    Raises Unreadable when a file is damaged, Absent when there is none that is read here.
    """
    directory = path if path.is_dir() else path.parent
    file = path / TOKENIZER if path.is_dir() else path
    if not file.is_file():
        other = next((found.name for pattern in OTHERS for found in sorted(directory.glob(pattern))), None)
        if path.is_dir() and other is not None:
            raise Absent(f"{other} is no {TOKENIZER}, which alone is read")
        raise Unreadable(file.name, f"does not exist in {directory}")
    if file.suffix != ".json":
        raise Absent(f"{file.name} is no {TOKENIZER}, which alone is read")
    own, added = _vocabulary(file)
    settings = {**_settings(directory / SPECIAL), **_settings(directory / CONFIG)}
    ends, unknown = {}, {}
    named = {role: _text(settings.get(f"{role}_token")) for role in ("eos", "bos")}
    found = {role: _id(token, own, added) for role, token in named.items() if token is not None}
    for role, token in named.items():
        if token is not None and found[role] is None:
            unknown[role] = token
    if found.get("eos") is not None:
        ends["the tokenizer"] = (found["eos"],)
    generation = _settings(directory / GENERATION).get("eos_token_id")
    stops = generation if isinstance(generation, list) else [generation]
    if all(type(token) is int for token in stops):
        ends["the generation config"] = tuple(stops)
    ids = frozenset(own.values()) if isinstance(own, dict) else frozenset(range(len(own)))
    return Tokenizer(
        ids=ids | frozenset(added.values()),
        last_own=max(ids - frozenset(added.values()), default=-1),
        added=added,
        ends=ends,  # type: ignore[arg-type]
        bos=found.get("bos"),
        unknown=unknown,
        template=_template(directory, settings),
    )


def _vocabulary(file: Path) -> tuple[dict[str, int] | list[str], dict[str, int]]:
    """Tokens to ids, or in the order of their ids, without and of the added ones."""
    data = _bytes(file)
    if not (data.lstrip()[:1] == b"{" and data.rstrip()[-1:] == b"}"):
        raise Unreadable(file.name, "is not a whole JSON object")
    start = _VOCABULARY.search(data)
    if start is None:
        raise Unreadable(file.name, "has no vocabulary")
    merges = _MERGES.search(data, start.end())
    vocab = _parsed(file, data[start.end() : merges.start() if merges else len(data)])
    listed = _ADDED.search(data)
    added = _parsed(file, data[listed.end() : _end_of_added(data, listed.end(), start.start())]) if listed else []
    if isinstance(vocab, list):
        vocab = [entry[0] if isinstance(entry, list) and entry else None for entry in vocab]
        sound = all(isinstance(token, str) for token in vocab)
    else:
        sound = all(type(token) is int and token >= 0 for token in vocab.values())
    if not (sound and vocab):
        raise Unreadable(file.name, "has a vocabulary that does not give each token an id")
    tokens = {}
    for entry in added:
        content, token = (entry.get("content"), entry.get("id")) if isinstance(entry, dict) else (None, None)
        if not isinstance(content, str) or type(token) is not int or token < 0:
            raise Unreadable(file.name, f"has {cut(entry)} among its added tokens; expected a content and an id")
        tokens[content] = token
    return vocab, tokens


def _end_of_added(data: bytes, start: int, vocabulary: int) -> int:
    """Where the text to look for the added tokens ends: at the vocabulary, where that comes behind."""
    return vocabulary if start < vocabulary else len(data)


def _parsed(file: Path, data: bytes) -> Any:
    """The JSON value at the start of ``data``."""
    if data.count(b",") > 2 * MAX_TOKENS:
        raise Unreadable(file.name, f"has more than {MAX_TOKENS} tokens")
    try:
        return json.JSONDecoder().raw_decode(data.decode("utf-8", "surrogateescape"))[0]
    except (ValueError, RecursionError) as error:
        raise Unreadable(file.name, f"is no JSON ({str(error).split(':')[0] or type(error).__name__})") from None


def _settings(file: Path) -> dict[str, Any]:
    """A file of settings, which need not exist."""
    if not file.is_file():
        return {}
    try:
        settings = json.loads(_bytes(file))
    except (ValueError, RecursionError) as error:
        raise Unreadable(file.name, f"is no JSON ({str(error).split(':')[0] or type(error).__name__})") from None
    if not isinstance(settings, dict):
        raise Unreadable(file.name, f"is {cut(settings)}; expected a JSON object")
    return settings


def _bytes(file: Path) -> bytes:
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise Unreadable(file.name, f"has {size} bytes; at most {MAX_BYTES} are read")
        return file.read_bytes()
    except OSError as error:
        raise Unreadable(file.name, f"cannot be read ({error.strerror})") from None


def _text(token: Any) -> str | None:
    """A token's text, which settings give alone or with how it is matched."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and text else None


def _id(token: str, own: dict[str, int] | list[str], added: dict[str, int]) -> int | None:
    if token in added:
        return added[token]
    if isinstance(own, dict):
        return own.get(token)
    return own.index(token) if token in own else None


def _template(directory: Path, settings: Mapping[str, Any]) -> str:
    """The chat template's text; several are as one to whoever looks for a token in them."""
    file = directory / TEMPLATE
    if file.is_file():
        return _bytes(file).decode("utf-8", "replace")
    template = settings.get("chat_template", "")
    if isinstance(template, list):
        return "\n".join(str(entry.get("template")) for entry in template if isinstance(entry, dict))
    return template if isinstance(template, str) else ""
