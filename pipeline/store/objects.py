"""The object store: bytes by their sha256 under ``artifacts/objects``.

An object is written to a scratch directory on the same filesystem, flushed, made read-only and renamed into place, so a
reader sees all of it or nothing, whenever a build is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.digest import sha256_of
from pipeline.errors import StoreError
from pipeline.store.receipts import Receipt

READ_ONLY = 0o444


@dataclass(frozen=True, kw_only=True)
class Object:
    """Stored bytes: their digest and their number."""

    sha256: str
    size_bytes: int


class Store:
    """Objects and receipts below one directory, usually ``artifacts/``. Queries never change anything."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, item: Object) -> Path:
        """Where the object's bytes lie, or would."""
        return self.root / "objects" / item.sha256[:2] / item.sha256[2:]

    def holds(self, item: Object) -> bool:
        """Whether the object is there, whole."""
        try:
            return self.path(item).stat().st_size == item.size_bytes
        except OSError:
            return False

    def receipt(self, step: str, key: str) -> Receipt | None:
        """The receipt of a finished step whose outputs the store still holds; None if it has to run.

        An object that was written to after the receipt is read again: root, or whoever gives himself the right, can
        write to a bundle's file, which is the object's by another name.
        """
        path = self._receipt_path(step, key)
        receipt = Receipt.read(path)
        if receipt is None or (receipt.step, receipt.key) != (step, key):
            return None
        try:
            recorded = path.stat().st_mtime_ns
            for item in (Object(**output) for output in receipt.outputs.values()):
                stored = self.path(item).stat()
                if stored.st_size != item.size_bytes or (stored.st_mtime_ns > recorded and not self._is_sound(item)):
                    return None
        except OSError:
            return None
        return receipt

    def record(self, receipt: Receipt) -> None:
        """Makes the step current. Its outputs must be in the store already."""
        path = self._receipt_path(receipt.step, receipt.key)
        with self.scratch() as scratch:
            draft = scratch / "receipt.json"
            draft.write_text(receipt.to_json(), encoding="utf-8")
            _publish(draft, path)

    def put(self, file: Path) -> Object:
        """Takes ``file``, which lies in a scratch directory of this store, as an object."""
        item = Object(sha256=sha256_of(file), size_bytes=file.stat().st_size)
        if not (self.holds(item) and self._is_sound(item)):
            file.chmod(READ_ONLY)
            _publish(file, self.path(item))
        return item

    def put_tree(self, directory: Path) -> dict[str, Object]:
        """Every file below ``directory``, by its relative path."""
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        return {file.relative_to(directory).as_posix(): self.put(file) for file in files}

    def lay_out(self, outputs: Mapping[str, Object], directory: Path) -> None:
        """Puts objects into ``directory`` under their names: hard links where the filesystem allows, else copies.

        Raises StoreError, and drops the object, when its bytes are not those that were stored.
        """
        for name, item in outputs.items():
            source, target = self.path(item), directory / name
            if not self.holds(item):
                raise StoreError(f"{source}: the object of '{name}' is missing or cut short. Run doit to rebuild it.")
            found = sha256_of(source)
            if found != item.sha256:
                source.unlink()
                raise StoreError(
                    f"{source}: bytes of '{name}' hash to {found[:12]}…, not {item.sha256[:12]}…. The object was "
                    "dropped; run doit to rebuild it."
                )
            link_or_copy(source, target)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty directory on the store's filesystem, gone afterwards. Those of killed builds are swept away."""
        parent = self.root / "scratch"
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        directory = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _is_sound(self, item: Object) -> bool:
        return sha256_of(self.path(item)) == item.sha256

    def _receipt_path(self, step: str, key: str) -> Path:
        return self.root / "receipts" / step / f"{key}.json"


def link_or_copy(source: Path, target: Path) -> None:
    """``target`` becomes a hard link to ``source``, or a copy of the same age and mode where links are impossible."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _publish(draft: Path, path: Path) -> None:
    """Renames a finished file into place, its bytes on disk before its name is."""
    descriptor = os.open(draft, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft.replace(path)
    with contextlib.suppress(OSError):
        # Not every filesystem can sync a directory; the rename is atomic all the same.
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sweep(parent: Path) -> None:
    """Removes scratch directories whose process is gone."""
    for directory in parent.iterdir():
        owner = directory.name.partition("-")[0]
        if owner.isdecimal() and not _alive(int(owner)):
            shutil.rmtree(directory, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
