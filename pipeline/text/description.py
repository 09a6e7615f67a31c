"""The files beside a tokenizer that say what its vocabulary does not: names of special pieces, the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import TextError

CONFIG, NAMES = "tokenizer_config.json", "special_tokens_map.json"
TEMPLATE, TEMPLATE_IN_JSON = "chat_template.jinja", "chat_template.json"

DEFAULT = "default"
"""The name of the template for conversations, where a model has several."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What Transformers' files say about a tokenizer; all of it is optional.

    ``names`` maps bos_token, eos_token and the like to pieces. ``added`` are special pieces by id, of
    ``tokenizer_config.json``. ``template_file`` is where the template was found.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    template: str | None = None
    template_file: Path | None = None

    @classmethod
    def beside(cls, directory: Path) -> Description:
        """That of a directory. Raises TextError for a file of it that is damaged."""
        config = _object(directory / CONFIG)
        template, file = _template(directory, config)
        return cls(
            names=_names(config) or _names(_object(directory / NAMES)),
            added=_added(config, directory / CONFIG),
            template=template,
            template_file=file,
        )


def _names(content: Mapping[str, Any]) -> dict[str, str]:
    """Pieces are given as they are, or as a token's fields."""
    named = {name: value for name, value in content.items() if name.endswith("_token") and not name.startswith("add_")}
    pieces = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
    return {name: piece for name, piece in pieces.items() if isinstance(piece, str)}


def _added(config: Mapping[str, Any], path: Path) -> dict[int, Mapping[str, Any]]:
    try:
        return {int(token): dict(fields, content=str(fields["content"])) for token, fields in _listed(config)}
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise TextError(
            f"{path}: added_tokens_decoder cannot be read ({error!r}); expected ids, each with its content. Fetch the "
            "tokenizer's files anew."
        ) from error


def _listed(config: Mapping[str, Any]) -> Any:
    return config.get("added_tokens_decoder", {}).items()


def _template(directory: Path, config: Mapping[str, Any]) -> tuple[str | None, Path | None]:
    """A file of its own comes before a field, as in Transformers."""
    file = directory / TEMPLATE
    if file.is_file():
        return _text(file), file
    for file, content in ((directory / CONFIG, config), (directory / TEMPLATE_IN_JSON, None)):
        found = (_object(file) if content is None else content).get("chat_template")
        if isinstance(found, list):
            named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
            found = named.get(DEFAULT, next(iter(named.values()), None) if len(named) == 1 else None)
        if isinstance(found, str):
            return found, file
    return None, None


def _object(path: Path) -> dict[str, Any]:
    """A JSON object, empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise TextError(
            f"{path}:{error.lineno}: it is no JSON ({error.msg}). Fetch the tokenizer's files anew."
        ) from error
    if not isinstance(content, dict):
        raise TextError(f"{path}: it holds a {type(content).__name__}; expected an object of named fields.")
    return content


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise TextError(f"{path}: it cannot be read: {reason}. Fetch the tokenizer's files anew.") from error
