"""Bundles of tiny artifacts: a ``.pte`` and its tokenizer's files in a directory, as a user has them."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_models import Artifact, edit_json, save_tokenizer

TEMPLATE = (
    "<s>{% for message in messages %}{{ message.role }}: {{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""Every turn ends with the end of text."""

Bundle = Callable[..., Path]


@pytest.fixture(scope="session")
def bundle(artifact: Callable[[str], Artifact], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The bundle of an artifact's name, with ``TEMPLATE``; ``ends_with`` is the id that its </s> has instead of 1.

    So a model with random weights can be made to end its turn: the piece that it would have said has the other id.
    """
    made: dict[tuple[str, int], Path] = {}

    def get(name: str, ends_with: int = 1) -> Path:
        if (name, ends_with) not in made:
            directory = tmp_path_factory.mktemp("bundles") / name
            directory.mkdir()
            shutil.copyfile(artifact(name).pte, directory / "model.pte")
            save_tokenizer(directory, chat_template=TEMPLATE)
            _respell(directory, ends_with)
            made[name, ends_with] = directory
        return made[name, ends_with]

    return get


def _respell(directory: Path, ends_with: int) -> None:
    """Bytes beyond ASCII become pieces of two letters, so that whatever is answered is text, of more than one spelling.

    A random model would answer with halves of characters, which no transcript holds.
    """
    file = directory / "tokenizer.json"
    content = json.loads(file.read_text())
    pairs = map("".join, itertools.product("abcdefghijkl", repeat=2))
    vocab = {
        piece if len(piece) > 1 or 0x20 < ord(piece) < 0x7F or 0x100 <= ord(piece) < 0x122 else next(pairs): token
        for piece, token in content["model"]["vocab"].items()
    }
    swapped = {1: ends_with, ends_with: 1}
    content["model"]["vocab"] = {piece: swapped.get(token, token) for piece, token in vocab.items()}
    for added in content["added_tokens"]:
        added["id"] = swapped.get(added["id"], added["id"])
    content["added_tokens"].sort(key=lambda added: added["id"])
    file.write_text(json.dumps(content))
    edit_json(directory / "tokenizer_config.json", "added_tokens_decoder")
