"""What a tokenizer's files say of ids: which there are, and which of them open and end a text.

Reads JSON and text, and runs no tokenizer: of ``tokenizer.json`` the vocabulary and the added tokens alone, since its
merges are most of it. Files that come with a model are anyone's; their size is bounded, and nothing in them raises
anything but ``Unreadable``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.pte.flatbuffer import shown
from pipeline.verify.contracts import cut

MAX_BYTES = 1 << 26
MAX_TOKENS = 1_000_000

TOKENIZER, CONFIG, SPECIAL, GENERATION = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)
TEMPLATE = "chat_template.jinja"
OTHERS = ("tokenizer.model", "vocab.json", "vocab.txt", "*.tiktoken", "*.model")

# A vocabulary's first line and the indentation of its last, and the end of a line of it.
_LINES = re.compile(rb"\{\n( *)  (?=\")")
_ID = re.compile(rb'": (\d{1,9}),?\n')
_OPENING = re.compile(rb"\s*:\s*(?=[{\[])")


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
    return _is_file(directory / TOKENIZER)


def read(path: Path) -> Tokenizer:
    """The tokenizer in a directory, or of a ``tokenizer.json`` and what lies beside it.

    Raises Unreadable when a file is damaged, Absent when there is none that is read here.
    """
    is_directory = os.path.isdir(path)  # noqa: PTH112 - Path's raises where the system says no
    directory = path if is_directory else path.parent
    file = path / TOKENIZER if is_directory else path
    if not _is_file(file):
        other = next((found.name for pattern in OTHERS for found in sorted(directory.glob(pattern))), None)
        if is_directory and other is not None:
            raise Absent(f"{other} is no {TOKENIZER}, which alone is read")
        raise Unreadable(shown(file.name), f"does not exist in {shown(str(directory))}")
    if file.suffix != ".json":
        raise Absent(f"{file.name} is no {TOKENIZER}, which alone is read")
    own, id_of, added = _vocabulary(file)
    settings = {**_settings(directory / SPECIAL), **_settings(directory / CONFIG)}
    ends: dict[str, tuple[int, ...]] = {}
    unknown = {}
    named = {role: _text(settings.get(f"{role}_token")) for role in ("eos", "bos")}
    found = {
        role: None if token is None else id_of(token) if token not in added else added[token]
        for role, token in named.items()
    }
    for role, token in named.items():
        if token is not None and found[role] is None:
            unknown[role] = token
    end = found["eos"]
    if end is not None:
        ends["the tokenizer"] = (end,)
    generation = _settings(directory / GENERATION).get("eos_token_id")
    stops: list[Any] = generation if isinstance(generation, list) else [generation]
    if all(type(token) is int for token in stops):
        ends["the generation config"] = tuple(stops)
    return Tokenizer(
        ids=own.union(added.values()),
        last_own=max(own.difference(added.values()), default=-1),
        added=added,
        ends=ends,
        bos=found["bos"],
        unknown=unknown,
        template=_template(directory, settings),
    )


def _vocabulary(file: Path) -> tuple[frozenset[int], Callable[[str], int | None], dict[str, int]]:
    """The ids of the vocabulary itself, what finds a token's among them, and the added tokens with theirs."""
    data = _bytes(file)
    if not (data.lstrip()[:1] == b"{" and data.rstrip()[-1:] == b"}"):
        raise Unreadable(file.name, "is not a whole JSON object")
    start = _member(data, b'"vocab"')
    if start is None:
        raise Unreadable(file.name, "has no vocabulary")
    listed = _member(data, b'"added_tokens"')
    # Text is decoded up to the vocabulary, where that comes behind.
    entries = [] if listed is None else _parsed(file, data[listed : start if listed < start else None])
    added = {}
    for entry in entries:
        content, token = (entry.get("content"), entry.get("id")) if isinstance(entry, dict) else (None, None)
        if not isinstance(content, str) or type(token) is not int or token < 0:
            raise Unreadable(file.name, f"has {cut(entry)} among its added tokens; expected a content and an id")
        added[content] = token

    @cache
    def tokens() -> dict[str, int]:
        return _tokens(file, data[start : _member(data, b'"merges"', start)])

    return _ids(data, start) or frozenset(tokens().values()), lambda token: tokens().get(token), added


def _tokens(file: Path, data: bytes) -> dict[str, int]:
    """The vocabulary, which gives each token an id or has them in the order of their ids."""
    vocab = _parsed(file, data)
    if isinstance(vocab, list):
        pieces: list[Any] = [entry[0] if isinstance(entry, list) and entry else None for entry in vocab]
        if set(map(type, pieces)) == {str}:
            return {piece: index for index, piece in enumerate(pieces)}
    elif set(map(type, vocab.values())) == {int} and min(vocab.values()) >= 0:
        found: dict[str, int] = vocab
        return found
    raise Unreadable(file.name, "has a vocabulary that does not give each token an id")


def _ids(data: bytes, start: int) -> frozenset[int]:
    """The ids of a vocabulary that has a line for each token, as it is usually written; of any other, none.

    Twice as fast as parsing it. A line never ends within a string, so what stands before its end is an id.
    """
    opening = _LINES.match(data, start)
    end = data.find(b"\n" + opening[1] + b"}", start) if opening else -1
    if opening is None or end < 0:
        return frozenset()
    lines = data[opening.end() : end + 1]
    ids = _ID.findall(lines)
    num_lines = lines.count(b"\n")
    return frozenset(map(int, ids)) if len(ids) == num_lines == lines.count(b'": ') else frozenset()


def _member(data: bytes, name: bytes, start: int = 0) -> int | None:
    """Where the first member of that name begins that is an object or an array.

    Within a string the quotes would be escaped, and a token that is called so is followed by its id.
    """
    at = data.find(name, start)
    while at >= 0:
        opening = _OPENING.match(data, at + len(name))
        if opening and data[at - 1 : at] != b"\\":
            return opening.end()
        at = data.find(name, at + 1)
    return None


def _parsed(file: Path, data: bytes) -> Any:
    """The JSON value at the start of ``data``."""
    if data.count(b",") > 2 * MAX_TOKENS:
        raise Unreadable(file.name, f"has more than {MAX_TOKENS} tokens")
    try:
        return json.JSONDecoder().raw_decode(data.decode("utf-8", "surrogateescape"))[0]
    except (ValueError, RecursionError) as error:
        raise Unreadable(file.name, f"is no JSON ({str(error).split(':')[0] or type(error).__name__})") from None


def _is_file(file: Path) -> bool:
    return os.path.isfile(file)  # noqa: PTH113 - Path's raises where the system says no


def _settings(file: Path) -> dict[str, Any]:
    """A file of settings, which need not exist."""
    if not _is_file(file):
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


def _template(directory: Path, settings: Mapping[str, Any]) -> str:
    """The chat template's text; several are as one to whoever looks for a token in them."""
    file = directory / TEMPLATE
    if _is_file(file):
        return _bytes(file).decode("utf-8", "replace")
    template = settings.get("chat_template", "")
    if isinstance(template, list):
        return "\n".join(str(entry.get("template")) for entry in template if isinstance(entry, dict))
    return template if isinstance(template, str) else ""
