"""The sha256 of files outside the store, remembered as long as size, modification time and inode stay the same."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

from pipeline.digest import sha256_of

SETTLED_NS = 2_000_000_000
"""The coarsest clock that filesystems date files by: a younger file may change again and keep its date."""


class DigestMemo:
    """A small file of digests. Losing it costs hashing again, nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, list[object]] | None = None

    def sha256(self, file: Path) -> str:
        """The file's digest, read from disk only if it may have changed."""
        if self._known is None:
            self._known = self._load()
        stat, now = file.stat(), time.time_ns()
        name, identity = os.fspath(file.resolve()), [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        known = self._known.get(name)
        if known is not None and known[:3] == identity:
            return str(known[3])
        digest = sha256_of(file)
        if now - stat.st_mtime_ns > SETTLED_NS:
            self._known[name] = [*identity, digest]
            self._save()
        return digest

    def _load(self) -> dict[str, list[object]]:
        try:
            known = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(known, dict):
            return {}
        return {name: entry for name, entry in known.items() if isinstance(entry, list) and len(entry) == 4}

    def _save(self) -> None:
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(self._known), encoding="utf-8")
            draft.replace(self._path)
