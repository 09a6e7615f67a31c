"""A receipt is read back as it was written, or not at all."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pipeline.store import Receipt, Store

KEY = "ab" * 32
GOOD = Receipt(
    step="build",
    key=KEY,
    asked={"spec": {"dtype": "bf16"}, "inputs": {}},
    outputs={"model.pte": {"sha256": "00" * 32, "size_bytes": 3}},
    seconds=1.5,
)


def changed(**fields: Any) -> str:
    return json.dumps(json.loads(GOOD.to_json()) | fields)


def output(**fields: Any) -> str:
    return changed(outputs={"model.pte": {"sha256": "00" * 32, "size_bytes": 3} | fields})


def test_a_receipt_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    file.write_text(GOOD.to_json())
    assert Receipt.read(file) == GOOD


GARBAGE = {
    "nothing": "",
    "no JSON": "{",
    "no text": b"\xff\xfe\x00",
    "no object": "[]",
    "a number": "7",
    "deep": "[" * 100_000,
    "a field too few": json.dumps({"step": "build"}),
    "a field too many": changed(more=1),
    "outputs are no object": changed(outputs=[1]),
    "outputs are null": changed(outputs=None),
    "asked is no object": changed(asked="x"),
    "an output is no object": changed(outputs={"model.pte": 5}),
    "an output lacks its size": changed(outputs={"model.pte": {"sha256": "00" * 32}}),
    "an output has more": output(more=1),
    "a digest is a number": output(sha256=5),
    "a digest is short": output(sha256="00"),
    "a digest leads elsewhere": output(sha256="../" * 21 + "x"),
    "a size is text": output(size_bytes="3"),
    "a size is true": output(size_bytes=True),
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_no_receipt(content: str | bytes, tmp_path: Path) -> None:
    file = tmp_path / "receipts" / "build" / f"{KEY}.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert Receipt.read(file) is None
    assert Store(tmp_path).receipt("build", KEY) is None


def test_no_file_and_a_directory_are_no_receipt(tmp_path: Path) -> None:
    assert Receipt.read(tmp_path / "absent") is None
    assert Receipt.read(tmp_path) is None


def test_bytes_changed_at_random_never_raise(tmp_path: Path) -> None:
    draw = random.Random(1)
    file = tmp_path / "receipts" / "build" / f"{KEY}.json"
    file.parent.mkdir(parents=True)
    for _ in range(300):
        content = bytearray(GOOD.to_json().encode())
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        file.write_bytes(content)
        assert Store(tmp_path).receipt("build", KEY) is None
