"""Objects are whole or absent, whatever happens to who writes them; bytes that changed are never served."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.digest import sha256_of
from pipeline.errors import StoreError
from pipeline.store import Object, Receipt, Store

KEY = "ab" * 32


def put(store: Store, content: bytes) -> Object:
    with store.scratch() as scratch:
        file = scratch / "file"
        file.write_bytes(content)
        return store.put(file)


def receipt_for(*items: Object, step: str = "build", key: str = KEY) -> Receipt:
    outputs = {f"file-{i}": {"sha256": item.sha256, "size_bytes": item.size_bytes} for i, item in enumerate(items)}
    return Receipt(step=step, key=key, asked={"step": step}, outputs=outputs, seconds=0.5)


def edit(path: Path, content: bytes) -> None:
    """In place, as only root or an owner who first gives himself the right can."""
    path.chmod(0o644)
    path.write_bytes(content)
    path.chmod(0o444)
    later = time.time_ns() + 10**9
    os.utime(path, ns=(later, later))


def rot(path: Path, content: bytes) -> None:
    """Other bytes of the same age: what a bad disk does."""
    before = path.stat()
    edit(path, content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "artifacts")


def test_an_object_lies_under_its_digest_and_cannot_be_written_to(store: Store) -> None:
    item = put(store, b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    assert item == Object(sha256=digest, size_bytes=7)
    assert store.path(item) == store.root / "objects" / digest[:2] / digest[2:]
    assert store.path(item).read_bytes() == b"weights"
    assert store.path(item).stat().st_mode & 0o777 == 0o444
    assert store.holds(item)


def test_equal_bytes_are_one_object_and_the_first_one_stays(store: Store) -> None:
    first = put(store, b"same")
    inode = store.path(first).stat().st_ino
    assert put(store, b"same") == first
    assert store.path(first).stat().st_ino == inode


def test_a_tree_is_stored_under_its_relative_names(store: Store) -> None:
    with store.scratch() as scratch:
        (scratch / "a" / "b").mkdir(parents=True)
        (scratch / "a" / "b" / "deep").write_bytes(b"1")
        (scratch / "a" / "empty").mkdir()
        (scratch / "top").write_bytes(b"")
        items = store.put_tree(scratch)
    assert {name: item.size_bytes for name, item in items.items()} == {"a/b/deep": 1, "top": 0}
    out = store.root / "out"
    store.lay_out(items, out)
    assert (out / "a" / "b" / "deep").read_bytes() == b"1"
    assert (out / "top").read_bytes() == b""


def test_what_is_laid_out_is_the_object_by_another_name(store: Store) -> None:
    item = put(store, b"weights")
    store.lay_out({"model.pte": item}, store.root / "out")
    assert (store.root / "out" / "model.pte").samefile(store.path(item))


def test_where_links_are_impossible_files_are_copied_with_their_age_and_mode(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("links are not supported here")

    item = put(store, b"weights")
    monkeypatch.setattr(os, "link", refuse)
    store.lay_out({"model.pte": item}, store.root / "out")
    copy, stored = (store.root / "out" / "model.pte").stat(), store.path(item).stat()
    assert copy.st_ino != stored.st_ino
    assert (copy.st_size, copy.st_mode, copy.st_mtime_ns) == (stored.st_size, stored.st_mode, stored.st_mtime_ns)


def test_a_truncated_object_is_not_held_and_its_receipt_is_not_current(store: Store) -> None:
    item = put(store, b"weights")
    store.record(receipt_for(item))
    assert store.receipt("build", KEY) is not None
    edit(store.path(item), b"weig")
    assert not store.holds(item)
    assert store.receipt("build", KEY) is None
    with pytest.raises(StoreError) as caught:
        store.lay_out({"model.pte": item}, store.root / "out")
    assert str(caught.value) == (
        f"{store.path(item)}: the object of 'model.pte' is missing or cut short. Run doit to rebuild it."
    )


def test_an_object_edited_in_place_makes_its_receipt_stale_though_its_size_is_the_same(store: Store) -> None:
    item = put(store, b"weights")
    store.record(receipt_for(item))
    edit(store.path(item), b"WEIGHTS")
    assert store.receipt("build", KEY) is None


def test_an_object_that_is_newer_than_its_receipt_and_sound_stays_current(store: Store) -> None:
    item = put(store, b"weights")
    store.record(receipt_for(item))
    later = time.time_ns() + 10**9
    os.utime(store.path(item), ns=(later, later))
    assert store.receipt("build", KEY) == receipt_for(item)


def test_a_corrupted_object_is_refused_dropped_and_can_be_stored_again(store: Store) -> None:
    item = put(store, b"weights")
    rot(store.path(item), b"Weights")
    found = hashlib.sha256(b"Weights").hexdigest()
    with pytest.raises(StoreError) as caught:
        store.lay_out({"model.pte": item}, store.root / "out")
    assert str(caught.value) == (
        f"{store.path(item)}: bytes of 'model.pte' hash to {found[:12]}…, not {item.sha256[:12]}…. The object was "
        "dropped; run doit to rebuild it."
    )
    assert not store.holds(item)
    assert not (store.root / "out" / "model.pte").exists()
    assert put(store, b"weights") == item
    store.lay_out({"model.pte": item}, store.root / "out")


def test_storing_bytes_again_heals_their_corrupted_object(store: Store) -> None:
    item = put(store, b"weights")
    rot(store.path(item), b"Weights")
    put(store, b"weights")
    assert store.path(item).read_bytes() == b"weights"


@pytest.mark.parametrize("missing", [0, 1])
def test_a_receipt_is_current_only_while_every_output_is_held(store: Store, missing: int) -> None:
    items = [put(store, b"one"), put(store, b"two")]
    store.record(receipt_for(*items))
    store.path(items[missing]).unlink()
    assert store.receipt("build", KEY) is None


@pytest.mark.parametrize("other", [{"step": "smoke"}, {"key": "cd" * 32}])
def test_a_receipt_lies_under_its_own_step_and_key_or_is_ignored(store: Store, other: dict[str, str]) -> None:
    store.record(receipt_for())
    file = store.root / "receipts" / "build" / f"{KEY}.json"
    moved = store.root / "receipts" / other.get("step", "build") / f"{other.get('key', KEY)}.json"
    moved.parent.mkdir(exist_ok=True)
    file.rename(moved)
    assert store.receipt(other.get("step", "build"), other.get("key", KEY)) is None


def test_queries_create_nothing(store: Store) -> None:
    item = Object(sha256="00" * 32, size_bytes=1)
    assert not store.holds(item)
    assert store.receipt("build", KEY) is None
    assert not store.root.exists()


def test_scratch_is_gone_afterwards_even_when_the_work_fails(store: Store) -> None:
    with contextlib.suppress(RuntimeError), store.scratch() as scratch:
        (scratch / "half-made").write_bytes(b"x")
        raise RuntimeError
    assert list((store.root / "scratch").iterdir()) == []


def test_scratch_of_dead_processes_is_swept_and_of_living_ones_kept(store: Store) -> None:
    parent = store.root / "scratch"
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    alive = parent / f"{os.getppid()}-alive"
    strange = parent / "no number"
    for directory in (parent / f"{dead.pid}-dead", parent / f"{10**30}-never", alive, strange):
        directory.mkdir(parents=True)
        (directory / "half-made").write_bytes(b"x")
    with store.scratch() as scratch:
        assert set(parent.iterdir()) == {alive, strange, scratch}


WRITER = """
import sys
from pathlib import Path
from pipeline.store import Receipt, Store

store, seed = Store(Path(sys.argv[1])), int(sys.argv[2])
print("ready", flush=True)
for number in range(256):
    with store.scratch() as scratch:
        with (scratch / "file").open("wb") as file:
            for part in range(20):
                file.write(bytes([seed, number, part]) * 700)
                file.flush()
        item = store.put(scratch / "file")
    outputs = {"file": {"sha256": item.sha256, "size_bytes": item.size_bytes}}
    store.record(Receipt(step="build", key=f"{seed:02x}{number:02x}" * 16, asked={}, outputs=outputs, seconds=0.0))
"""


def test_whenever_a_writer_is_killed_nothing_half_written_is_served(store: Store) -> None:
    draw = random.Random(7)
    seen = 0
    for seed in range(40):
        command = [sys.executable, "-c", WRITER, str(store.root), str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(draw.uniform(0.0, 0.03))
            writer.kill()
        for file in (store.root / "objects").glob("*/*"):
            assert sha256_of(file) == file.parent.name + file.name
            assert file.stat().st_mode & 0o222 == 0
        for file in (store.root / "receipts").glob("*/*"):
            receipt = store.receipt("build", file.stem)
            assert receipt is not None
            store.lay_out({name: Object(**item) for name, item in receipt.outputs.items()}, store.root / "out")
            shutil.rmtree(store.root / "out")
            seen += 1
            file.unlink()
    assert seen
    with store.scratch() as scratch:
        assert list(scratch.parent.iterdir()) == [scratch]


def test_a_full_disk_leaves_neither_object_nor_receipt(store: Store) -> None:
    item = put(store, b"whole")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            put(store, b"x" * 65)
        with pytest.raises(OSError, match="File too large"):
            store.record(receipt_for(item))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert [file.name for file in (store.root / "objects").glob("*/*")] == [item.sha256[2:]]
    assert not (store.root / "receipts").exists()
    assert list((store.root / "scratch").iterdir()) == []
