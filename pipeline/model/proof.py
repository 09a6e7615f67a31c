"""A proof of the exported program, before it is lowered: its logits are those of the model's own eager attention.

What is compared. The program that torch.export made, run over the oracle cache as a runtime would, against one forward
pass of the very same model over the whole text, without a cache, with Transformers' eager attention. A causal model's
answer to a prefix is the prefix of its answer, so one such pass is the reference for every way of feeding the text.
Rows of logits are compared where steps end; a program that gives more of them is compared in the last ROWS of a step.

On which text. Real tokens first, then as many random ones, drawn over the whole vocabulary with a fixed seed.

Fed how. A few tokens, a longer step and a single token are always run, and so is a short text at the end of the
context, where what hangs on absolute positions would show. Then, in the order of what they may tell for what they
cost: steps of other lengths, token by token, the longest step with one token after it, single steps from an empty
cache, many tokens one by one, several of the longest steps. Logits are compared after lengths on both sides of
multiples of 32 and of the longest step, and beyond every window (see below). One pass over T tokens costs about as
much as PASS + T tokens; a feeding with which all together would cost more than BUDGET token-parameters is left out, and
said to be. That leaves out none for models of less than ten million parameters; of the CPU time that building
SmolLM2-135M took on one thread, the proof had 6 %. No text is longer than LONGEST tokens, since eager attention takes
memory by the square.

In which numbers. Float32, for the reason that the rehearsal gives: in half precision rounding alone moves the logits
as far as faults do. Weights are widened, and so is, in a copy of the graph, every cast to half precision that tracing
wrote into it. So the arithmetic is proven; how well half precision does it is what smoke compares. Quantized weights
stay quantized in the model as in the program.

How close. TOLERANCE is the rehearsal's. At single positions rounding can move logits by more: a norm of next to
nothing, experts that tie. So a row that is off is held against how far the reference itself goes there when its
embeddings are nudged by a few units of float32's last place, and passes within SLACK times that. Few may.

Windows. The graph holds none: a layer's window is a number that is published for its cache. Wide windows are renamed
to narrow ones, distinct ones to distinct ones, in the oracle's caches and in the masks that the model builds for its
own attention, so that a short text reaches beyond all of them. A layer that masks with another window than its cache
publishes has another name here than there, and differs. What this leaves to be shown is that a runtime honours the
number itself, on which nothing in the program hangs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from pipeline.contract import CacheGeometry
from pipeline.errors import ExportError
from pipeline.model.eager import WindowNames, own_attention
from pipeline.model.float32 import casting_to_float32, in_float32
from pipeline.model.forward import OffGraphForward
from pipeline.model.logits import keeps_all_rows
from pipeline.model.oracle import OracleCache, active
from pipeline.model.rehearsal import TOLERANCE, padding_ids

if TYPE_CHECKING:
    from executorch.extension.llm.cache.reference_cache import AttendSpec
    from torch.export import ExportedProgram

PASS = 32
BUDGET = 2.1e11
LONGEST = 1100
ROWS = 64

# Where steps end, in the order of the feedings.
FIRST_ENDS = (3, 32, 33)
MORE_ENDS = (31, 64, 65)
OTHER_ENDS = (63, 64)
LAST_ENDS = (2, 3)
"""At the end of the context."""

SINGLE_STEPS = (33, 65, 1, 2, 31, 32, 63, 64)
FEW_TOKENS = 4
MANY_TOKENS = 40
"""Fed one by one; many are more than any renamed window."""

NUDGE = 1e-6
NUM_NUDGES = 4
SLACK = 10.0
MOST_EXCUSED = 0.1

REAL = (
    "In 1969, Dr. Nguyễn's crew measured 3.14159 litres of water; “c'est très bien”, she wrote. Wie heißt die Straße? "
    "数学は楽しい。Привет, мир! def f(x): return x ** 2 + 1  # comment\n\tfor (int i = 0; i < 10; ++i) { sum += a[i]; }"
)
"""Several scripts, digits and code, for a model's own tokenizer."""


@dataclass(frozen=True, kw_only=True)
class Feeding:
    """A text in steps: their lengths, and the first one's position."""

    steps: tuple[int, ...]
    first: int = 0

    @property
    def length(self) -> int:
        return sum(self.steps)

    @property
    def cost(self) -> int:
        return self.length + PASS * len(self.steps)

    @property
    def spans(self) -> Iterator[tuple[int, int]]:
        """Where each step starts and ends in the text."""
        start = 0
        for length in self.steps:
            yield start, start + length
            start += length

    def __str__(self) -> str:
        where = f" from position {self.first} on" if self.first else ""
        if len(self.steps) == 1:
            return f"in one step of {self.length}{where}"
        return f"in steps of {', '.join(_runs(self.steps))}{where}"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was fed, what was left out for its cost, and the largest distance seen, in units of the logits' spread."""

    fed: tuple[Feeding, ...]
    left_out: tuple[Feeding, ...]
    num_real_tokens: int
    num_random_tokens: int
    distance: float

    def __str__(self) -> str:
        told = (
            f"The exported program has the model's own logits, at most {self.distance:.2g} of their spread apart, on "
            f"{self.num_real_tokens} real and {self.num_random_tokens} random tokens fed "
            f"{'; '.join(map(str, self.fed))}."
        )
        return told + (f" Left out for their cost: {'; '.join(map(str, self.left_out))}." if self.left_out else "")


def prove(
    program: ExportedProgram,
    model: Any,
    caches: Sequence[CacheGeometry],
    *,
    real: Sequence[int],
    max_seq_len: int,
    max_context_len: int,
) -> Proof:
    """Compares ``program``, exported from ``model`` to publish ``caches``, with the model itself.

    ``real`` is a text's token ids. Raises ExportError with the feeding, the first position that differs and by how
    much. Takes twice the memory of half-precision weights meanwhile; model and program are left as they were.
    """
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    chosen, left_out = affordable(feedings(max_seq_len, max_context_len), num_parameters)
    far = _at_the_end(max_seq_len, max_context_len)
    windows = WindowNames(cache.window for cache in caches)
    stepped = _Program(program, [replace(cache, window=windows.of(cache.window)) for cache in caches])
    text, num_real = _text(model, real, max(feeding.length for feeding in chosen), stepped.vocab_size)
    rows = sorted({row for feeding in chosen for span in feeding.spans for row in stepped.rows(*span)})
    judge = _Judge(model, num_real)

    def own_logits() -> dict[int, torch.Tensor]:
        with own_attention(model, windows):
            return dict(zip(rows, _logits(model, text, rows), strict=True))

    def own_logits_at_the_end() -> dict[int, torch.Tensor]:
        with own_attention(model, windows):
            return {far.length - 1: _last_logits(model, text[:, : far.length], far.first)}

    with torch.no_grad(), in_float32(model, stepped.module):
        reference = _Reference(model, own_logits)
        for feeding in chosen:
            with _failures_explained(model, feeding):
                for start, row, found in stepped.fed(text, feeding):
                    judge.compare(feeding, start, row, found, reference)
        with _failures_explained(model, far):
            *_, (start, row, found) = stepped.fed(text, far)
        # After the program: a model that computes its frequencies anew writes them to where the program has its own.
        judge.compare(far, start, row, found, _Reference(model, own_logits_at_the_end))
    judge.conclude()
    return Proof(
        fed=(*chosen, far),
        left_out=tuple(left_out),
        num_real_tokens=num_real,
        num_random_tokens=text.shape[1] - num_real,
        distance=judge.distance,
    )


def real_tokens(tokenizer: Any) -> list[int]:
    """A short text, as a model's own tokenizer reads it; none where the tokenizer has no token for some of it."""
    try:
        return list(tokenizer(REAL)["input_ids"])
    except Exception:
        # The tokenizers library raises no narrower one. Random tokens are left, and the proof says how many of each.
        return []


def feedings(max_seq_len: int, max_context_len: int) -> list[Feeding]:
    """All that are worth their cost somewhere, the most telling first; each is of another kind, none too long."""
    steps = [
        _steps_to(FIRST_ENDS, max_seq_len, max_context_len),
        _steps_to(MORE_ENDS, max_seq_len, max_context_len),
        (1,) * FEW_TOKENS,
        (max_seq_len, 1),
        *((length,) for length in SINGLE_STEPS if length < max_seq_len),
        _steps_to(OTHER_ENDS, max_seq_len, max_context_len),
        (1,) * MANY_TOKENS,
        (max_seq_len - 1, 1, 1),
        (max_seq_len, max_seq_len, 1),
    ]
    longest = min(LONGEST, max_context_len)
    fitting = [lengths for lengths in dict.fromkeys(steps) if min(lengths) > 0 and sum(lengths) <= longest]
    return [Feeding(steps=lengths) for lengths in fitting]


def affordable(wanted: Sequence[Feeding], num_parameters: int) -> tuple[list[Feeding], list[Feeding]]:
    """The feedings that a model of ``num_parameters`` is proven with, the first one in any case, and the others."""
    chosen, left_out = [wanted[0]], list[Feeding]()
    for feeding in wanted[1:]:
        longest = max(one.length for one in (*chosen, feeding))
        cost = longest + PASS + sum(one.cost for one in (*chosen, feeding))
        (chosen if cost * num_parameters <= BUDGET else left_out).append(feeding)
    return chosen, left_out


def _steps_to(ends: Sequence[int], max_seq_len: int, max_context_len: int) -> tuple[int, ...]:
    """Steps no longer than the longest, some of which end at ``ends``, or at the context's where that is before."""
    steps: list[int] = []
    for end in sorted({min(end, max_context_len) for end in ends}):
        while (missing := end - sum(steps)) > 0:
            steps.append(min(missing, max_seq_len))
    return tuple(steps)


def _at_the_end(max_seq_len: int, max_context_len: int) -> Feeding:
    steps = _steps_to(LAST_ENDS, max_seq_len, max_context_len)
    return Feeding(steps=steps, first=max_context_len - sum(steps))


class _Program:
    """The exported program over the oracle cache, in float32."""

    def __init__(self, program: ExportedProgram, caches: Sequence[CacheGeometry]) -> None:
        self.module = casting_to_float32(program)
        self._caches = caches
        (output,) = program.graph.output_node().args[0]
        _, num_rows, self.vocab_size = output.meta["val"].shape
        self._gives_one_row = isinstance(num_rows, int) and num_rows == 1
        self._selects = "logit_rows" in program.graph_signature.user_inputs

    def rows(self, start: int, end: int) -> range:
        """The positions that are looked at of a step, whose logits the program gives."""
        return range(end - 1 if self._gives_one_row else max(start, end - ROWS), end)

    def fed(self, text: torch.Tensor, feeding: Feeding) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Of each row that is looked at: where its step starts in the text, the row, and its logits, [vocab]."""
        with active(_LateCache(self._caches, first=feeding.first, capacity=feeding.length)):
            for start, end in feeding.spans:
                positions, rows = torch.arange(start, end), self.rows(start, end)
                step = {"input_ids": text[:, positions], "cache_position": positions + feeding.first}
                if self._selects:
                    step["logit_rows"] = torch.tensor(rows) - start
                logits = self.module(**step)[0]
                for row, found in zip(rows, logits[-len(rows) :], strict=True):
                    yield start, row, found


class _Reference:
    """The model's own logits after each position that is looked at, and how far rounding alone may move them."""

    def __init__(self, model: Any, logits: Callable[[], dict[int, torch.Tensor]]) -> None:
        self._model = model
        self._logits = logits
        self._own = logits()

    def __getitem__(self, row: int) -> torch.Tensor:
        return self._own[row]

    def moved(self, row: int) -> float:
        """The largest distance from the logits once all embeddings are a little off, in units of their spread."""
        return max(_distance(logits[row], self[row]) for logits in self._nudged)

    @cached_property
    def _nudged(self) -> list[dict[int, torch.Tensor]]:
        generator = torch.Generator().manual_seed(0)

        def nudge(_: Any, __: Any, embedded: torch.Tensor) -> torch.Tensor:
            return embedded * (1 + NUDGE * torch.randn(embedded.shape, generator=generator))

        handle = self._model.get_input_embeddings().register_forward_hook(nudge)
        try:
            return [self._logits() for _ in range(NUM_NUDGES)]
        finally:
            handle.remove()


class _Judge:
    """Compares rows of logits, and keeps what is to be told of all of them."""

    def __init__(self, model: Any, num_real: int) -> None:
        self._model = model
        self._num_real = num_real
        self._num_rows = 0
        self._num_excused = 0
        self.distance = 0.0

    def compare(self, feeding: Feeding, start: int, row: int, found: torch.Tensor, reference: _Reference) -> None:
        """Raises ExportError for a row that differs, of the step that starts at ``start``."""
        off = _distance(found, reference[row])
        self._num_rows += 1
        if off <= TOLERANCE:
            self.distance = max(self.distance, off)
        elif off <= SLACK * reference.moved(row):
            self._num_excused += 1
        else:
            kind = "real" if row < self._num_real else "random"
            raise ExportError(
                f"{_where(self._model, feeding)} its logits are {off:.2g} of their spread from those of the model's "
                f"own eager attention after position {feeding.first + row}, a {kind} token; expected at most "
                f"{TOLERANCE}. {_meaning(feeding, start)} It cannot be exported."
            )

    def conclude(self) -> None:
        """Raises ExportError when too few rows could have told anything."""
        if self._num_excused > MOST_EXCUSED * self._num_rows:
            raise ExportError(
                f"model type '{_model_type(self._model)}': at {self._num_excused} of {self._num_rows} positions "
                f"float32 rounding moves the model's own logits by about {TOLERANCE} of their spread or more; expected "
                "few. No comparison can tell whether the exported program is right. Check the checkpoint's weights."
            )


def _distance(found: torch.Tensor, own: torch.Tensor) -> float:
    return float((found - own).abs().max() / own.std())


class _LateCache(OracleCache):
    """Of a text that starts at position ``first``."""

    def __init__(self, caches: Sequence[CacheGeometry], *, first: int, capacity: int) -> None:
        super().__init__(caches, capacity=capacity)
        self._first = first

    def update_and_fetch(
        self, layer_id: int, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, AttendSpec]:
        return super().update_and_fetch(layer_id, k, v, position - self._first)


def _logits(model: Any, text: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """The model's own after each of ``rows``, [rows, vocab]: it counts the positions itself."""
    wanted = torch.tensor(rows)
    if keeps_all_rows(model):
        every: torch.Tensor = model(input_ids=text, use_cache=False).logits[0]
        return every[wanted]
    logits: torch.Tensor = model(input_ids=text, use_cache=False, logits_to_keep=wanted).logits[0]
    return logits


def _last_logits(model: Any, text: torch.Tensor, first: int) -> torch.Tensor:
    """The model's own after a text that starts at position ``first``, [vocab]."""
    last: torch.Tensor = OffGraphForward(model)(text, torch.arange(first, first + text.shape[1]))[0, -1]
    return last


def _text(model: Any, real: Sequence[int], length: int, vocab_size: int) -> tuple[torch.Tensor, int]:
    """Token ids [1, length], and how many of them, from the first, are real ones."""
    unfit = padding_ids(model)
    tokens = [token for token in real if token < vocab_size and token not in unfit][: -(-length // 2)]
    # Ids that stand for something else than text: other inputs are expected with them.
    unfit |= {
        token
        for config in (model.config, model.config.get_text_config())
        for name, token in config.to_dict().items()
        if name.endswith(("_token_id", "_token_index")) and isinstance(token, int)
    }
    drawn = torch.randint(vocab_size, (2 * length,), generator=torch.Generator().manual_seed(length)).tolist()
    random = [token for token in drawn if token not in unfit]
    return torch.tensor([(tokens + random)[:length]]), len(tokens)


def _where(model: Any, feeding: Feeding) -> str:
    return f"model type '{_model_type(model)}': the exported program was fed a text {feeding};"


def _model_type(model: Any) -> str:
    return str(model.config.get_text_config().model_type)


def _meaning(feeding: Feeding, start: int) -> str:
    if feeding.first:
        return "At the text's beginning it was right: positions so late are not what they are to the model."
    if start:
        return (
            "The steps before were right: it loses history, masks it otherwise, counts positions in the step, or does "
            "not fit a step of this length."
        )
    return "The cache was empty: the traced graph computes something else, for a step of this length at least."


@contextmanager
def _failures_explained(model: Any, feeding: Feeding) -> Iterator[None]:
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        # A graph can fail in any way that an operator of it can.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ExportError(f"{_where(model, feeding)} it fails: {reason}. It cannot be exported.") from error


def _runs(steps: Sequence[int]) -> Iterator[str]:
    """``3, 1, 1, 1`` is 3 and three times 1."""
    for length, run in itertools.groupby(steps):
        times = len(list(run))
        yield f"{length}" if times == 1 else f"{times} x {length}"
