"""Every model type, tiny and random, through the off-graph path in eager mode, against its own eager attention.

The reference is the model itself: one full forward pass of a whole text, float32, no cache. The same weights are then
saved as a snapshot and go the way of a build: loaded by ``checkpoint``, observed by ``geometry``, rehearsed, and
stepped through ``OffGraphForward`` over an oracle cache that knows nothing but the published geometry, first in
chunks, then token by token. What comes out is one of VERDICTS.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pipeline.contract import CacheGeometry
from pipeline.errors import ExportError
from pipeline.model import attention, checkpoint, suitability
from pipeline.model.forward import OffGraphForward
from pipeline.model.geometry import geometry_of
from pipeline.model.oracle import OracleCache, active
from pipeline.model.rehearsal import rehearse
from tests.sweep import configs

VERDICTS = {
    "right": "the logits are the model's own, and could not have been without the history or the windows",
    "refused": "an ExportError says why it cannot be built",
    "no-evidence": "the logits agree, but would agree without the history or the windows too: the recipe is too tame",
    "wrong": "nothing was refused, and the logits are others",
    "crash": "an exception that is no ExportError",
    "unbuildable": "the library cannot build or run this model type by itself",
}

STEPS = (5, 4, configs.WINDOW, *(1,) * 9)
TEXT_LENGTH = sum(STEPS)
CAPACITY = 64

TOLERANCE = 1e-4
"""Of the logits' spread; float32 rounding over a few layers leaves about 1e-6."""
EVIDENCE = 100 * TOLERANCE

SECONDS = 30
"""One model type may take so long; most take half a second."""
BYTES = 3 << 30
"""What a model type may allocate on top of what the process has."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model type, and what its configuration changes about the recipe's."""

    name: str
    model_type: str
    changes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a case. ``caches`` are (KV heads, head_dim, window) of each."""

    name: str
    verdict: str
    detail: str = ""
    seconds: float = 0.0
    num_parameters: int = 0
    caches: tuple[tuple[int, int, int], ...] = ()


class _TooSlowError(BaseException):
    """Past SECONDS. No Exception, for libraries that catch those."""


class _UnbuildableError(Exception):
    """The library's own failure, before anything of ours had a part."""


def cases(names: Sequence[str] = ()) -> list[Case]:
    """All of them, or those named."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = [Case(name=name, model_type=name, changes={}) for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]
    known += [
        Case(name=name, model_type=name.partition(":")[0], changes=changes)
        for name, changes in configs.VARIANTS.items()
    ]
    return [case for case in known if not names or case.name in names]


def sweep(chosen: Sequence[Case]) -> Iterator[Result]:
    """The results as they come."""
    from transformers.utils import logging

    verbosity, threads = logging.get_verbosity(), torch.get_num_threads()
    logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            # The libraries' own deprecations are not ours to fix.
            warnings.simplefilter("ignore")
            attention.register()
            for case in chosen:
                yield _limited(case)
    finally:
        logging.set_verbosity(verbosity)
        torch.set_num_threads(threads)


def _limited(case: Case) -> Result:
    directory, started = Path(tempfile.mkdtemp(prefix="sweep-")), time.perf_counter()
    try:
        with _limits():
            result = judge(case, directory)
    except _TooSlowError:
        result = Result(name=case.name, verdict="crash", detail=f"it takes more than {SECONDS} s")
    finally:
        shutil.rmtree(directory)
    return replace(result, seconds=round(time.perf_counter() - started, 2))


@contextmanager
def _limits() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _TooSlowError

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    # Where little is left, libraries written in C end the process.
    resource.setrlimit(resource.RLIMIT_DATA, (_allocated() + BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def _allocated() -> int:
    """Bytes that count against RLIMIT_DATA by now, where the system tells."""
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        return 0
    (line,) = (line for line in status.splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) << 10


def judge(case: Case, directory: Path) -> Result:
    """The verdict of one case; its snapshot is written into ``directory``."""
    seed = zlib.crc32(case.name.encode())
    text = torch.randint(4, configs.TEXT_VOCAB, (1, TEXT_LENGTH), generator=torch.Generator().manual_seed(seed))
    result = Result(name=case.name, verdict="right")
    try:
        num_parameters, expected = _reference(case, text, seed, directory)
        result = replace(result, num_parameters=num_parameters)
        suitability.refuse_unsuitable(checkpoint.load_config(directory), max_context_len=CAPACITY)
        ours = checkpoint.load_model(directory, "fp32", attention.IMPLEMENTATION)
        caches = geometry_of(ours)
        rehearse(ours, caches, max_context_len=CAPACITY)
        result = replace(result, caches=tuple((c.num_kv_heads, c.head_dim, c.window) for c in caches))
        modes = {"last": _last_rows(), "full": list(range(TEXT_LENGTH)), "selected": _reversed_rows()}
        for mode, rows in modes.items():
            distance = _distance(_stepped(ours, caches, text, logits=mode), expected[rows])
            if not distance <= TOLERANCE:
                break
    except _UnbuildableError as error:
        return replace(result, verdict="unbuildable", detail=_line(error.__cause__ or error))
    except ExportError as error:
        return replace(result, verdict="refused", detail=str(error).replace(str(directory), "snapshot"))
    except Exception as error:
        return replace(result, verdict="crash", detail=f"{type(error).__name__}: {_line(error)}")
    if not distance <= TOLERANCE:
        detail = f"off by {distance:.2g} of the logits' spread"
        if not _distance(_reloaded(directory, text), expected[_last_rows()]) <= TOLERANCE:
            detail += "; so is the eager model, once it is saved and loaded"
        return replace(result, verdict="wrong", detail=detail)
    tame = [what for what, lost in _controls(ours, caches, text) if not _distance(lost, expected[-1:]) >= EVIDENCE]
    if tame:
        return replace(result, verdict="no-evidence", detail=f"the same logits come without {' or '.join(tame)}")
    return result


def _reference(case: Case, text: torch.Tensor, seed: int, directory: Path) -> tuple[int, torch.Tensor]:
    """A model with weights that make every part of it matter: how many, and its logits, [TEXT_LENGTH, vocab].

    It is saved to ``directory``.
    """
    from transformers import AutoModelForCausalLM

    try:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            config = configs.tiny_config(case.model_type, case.changes)
            model = AutoModelForCausalLM.from_config(config, attn_implementation=checkpoint.EAGER).eval()
            _randomize(model)
            logits = model(input_ids=text, use_cache=False).logits[0].float()
            model.save_pretrained(directory)
            # A wrapper's language model is saved with its own configuration; published snapshots have the wrapper's.
            config.save_pretrained(directory)
    except Exception as error:
        raise _UnbuildableError from error
    if logits.shape[0] != TEXT_LENGTH:
        raise _UnbuildableError(f"its logits are {list(logits.shape)} for a text of {TEXT_LENGTH}")
    if not logits.isfinite().all():
        raise _UnbuildableError("its logits are not finite")
    return model.num_parameters(), logits


def _last_rows() -> list[int]:
    return [sum(STEPS[: step + 1]) - 1 for step in range(len(STEPS))]


def _reversed_rows() -> list[int]:
    """Every token, those of each step backwards."""
    starts = [0, *(row + 1 for row in _last_rows())]
    return [row for start, length in zip(starts, STEPS, strict=False) for row in range(start, start + length)[::-1]]


def _randomize(model: torch.nn.Module) -> None:
    """Weights that keep the scale of what passes through them; the rest a little off what it is initialised to.

    Initialisation leaves gates shut and biases at zero, behind which a mistake could hide.
    """
    embeddings = {id(module.weight): module for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    for parameter in model.parameters():
        if id(parameter) in embeddings:
            parameter.normal_()
            padding = embeddings[id(parameter)].padding_idx
            if padding is not None:
                # Some model types zero it whenever they are loaded.
                parameter[padding] = 0
        elif parameter.dim() > 1 and min(parameter.shape[-2:]) > 1:
            parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
        else:
            parameter.add_(torch.randn_like(parameter), alpha=0.1)


def _reloaded(directory: Path, text: torch.Tensor) -> torch.Tensor:
    model = checkpoint.load_model(directory, "fp32")
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=text, use_cache=False).logits[0]
    return logits[_last_rows()]


def _stepped(
    model: Any, caches: Sequence[CacheGeometry], text: torch.Tensor, steps: Sequence[int] = STEPS, logits: str = "last"
) -> torch.Tensor:
    """The rows of logits of all steps, [rows, vocab]; in mode ``selected``, every token is, backwards in each step."""
    forward, rows, start = OffGraphForward(model, logits), [], 0
    with torch.no_grad(), active(OracleCache(caches, capacity=CAPACITY)):
        for length in steps:
            positions = torch.arange(start, start + length)
            selected = (torch.arange(length).flip(0),) if logits == "selected" else ()
            rows.append(forward(text[:, positions], positions, *selected)[0])
            start += length
    return torch.cat(rows)


def _controls(model: Any, caches: Sequence[CacheGeometry], text: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """What the logits of the last token are, [1, vocab], once something that the caches owe the model is lost."""

    class Forgetful(OracleCache):
        def update_and_fetch(self, layer_id: int, k: Any, v: Any, position: torch.Tensor) -> Any:
            return super().update_and_fetch(layer_id, k, v, position - position[0])

    with torch.no_grad(), active(Forgetful(caches, capacity=CAPACITY)):
        last = torch.tensor([TEXT_LENGTH - 1])
        yield "history", OffGraphForward(model)(text[:, last], last)[0]
    if any(cache.window for cache in caches):
        unbounded = [replace(cache, window=0) for cache in caches]
        yield "windows", _stepped(model, unbounded, text, (TEXT_LENGTH - 1, 1))[-1:]


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference as a fraction of the spread of the expected logits; NaN where one is not finite."""
    if found.shape != expected.shape:
        return float("nan")
    return float((found - expected).abs().max() / expected.std())


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def table(results: Sequence[Result]) -> str:
    """Verdict by verdict, the worst last; the right ones in one paragraph."""
    lines = []
    for verdict in VERDICTS:
        those = [result for result in results if result.verdict == verdict]
        if not those:
            continue
        lines.append(f"{verdict}: {len(those)}")
        if verdict == "right":
            lines.append(f"  {' '.join(result.name for result in those)}")
        else:
            lines += [f"  {result.name:28} {result.detail}" for result in those]
    return "\n".join(lines)


def write(results: Sequence[Result], path: Path) -> None:
    """All of the results, as JSON."""
    path.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
