"""What an artifact publishes, whatever generation of the contract it was exported for, and whether its forward fits.

The newer contract (executorch ``extension/llm/runner/model_metadata.h``) names everything. Files of before it have
other names for some of it and nothing for the rest: what can be told from the signature of ``forward`` is told from
that, and said. Nothing is computed here, and whatever a runner would trip over later is refused by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.contract import LOGITS_MODE, SCALAR_TYPE, CacheGeometry, Contract
from pipeline.delegate.executor import BACKEND_ID
from pipeline.errors import DelegateError, VerifyError
from pipeline.pte import Method, TensorValue
from pipeline.pte.flatbuffer import shown
from pipeline.pte.program import Program

FORWARD = "forward"

LARGEST = 2**31 - 1

DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}

GEOMETRY = ("get_kv_heads", "get_head_dims", "get_windows")


@dataclass(frozen=True, kw_only=True)
class Published:
    """``contract`` has no caches where history is ``in_graph``, in the graph's own buffers.

    ``takes_start`` is whether the second input is the step's first position rather than all of them. ``inferred`` says
    in a few words each what the file leaves out, and what was taken for it.
    """

    contract: Contract
    in_graph: bool
    takes_start: bool
    inferred: tuple[str, ...]


def read(program: Program, where: str, capacity: int | None = None) -> Published:
    """``where`` names the file in errors. ``capacity`` stands in for a context length that is not published.

    Raises DelegateError for a forward that no runner of this contract can call here, VerifyError for values that are
    absent, malformed or contradict each other or the signature.
    """
    method = program.methods.get(FORWARD)
    if method is None:
        there_are = ", ".join(map(shown, program.executable)) or "none to execute"
        raise DelegateError(f"{where}: it has no method '{FORWARD}', but {there_are}; expected the export of an LLM.")
    _refuse_other_backends(method, where)
    return _Reader(program.constants(), method, where).published(capacity)


def _refuse_other_backends(method: Method, where: str) -> None:
    delegates = Counter(delegate.id for delegate in method.delegates)
    operators = {call.operator or call.kind for call in method.instructions if call.kind != "delegate_call"}
    if delegates == {BACKEND_ID: 1} and not operators:
        return
    parts = [f"{count} of {shown(name)}" if count > 1 else shown(name) for name, count in delegates.items()]
    named = [shown(name) for name in sorted(operators)]
    if len(named) > 6:
        named = [*named[:6], f"{len(named) - 6} more"]
    raise DelegateError(
        f"{where}: its forward consists of {_listed('delegates', parts)} and {_listed('operators', named)}; expected "
        f"one delegate of {BACKEND_ID} and nothing else, which is what runs here. Export it with backend: mlx."
    )


def _listed(kind: str, names: list[str]) -> str:
    return f"{kind} {', '.join(names)}" if names else f"no {kind}"


class _Reader:
    def __init__(self, constants: Mapping[str, Any], method: Method, where: str) -> None:
        self._constants = constants
        self._where = where
        self._inferred: list[str] = []
        self._tokens, self._positions, *self._selectors = self._inputs(method)
        self._logits = self._output(method)

    def published(self, capacity: int | None) -> Published:
        in_graph = "get_n_caches" not in self._constants
        vocab = self._logits.sizes[-1]
        named = self._number("get_vocab_size")
        if named not in (None, vocab):
            raise self._wrong(f"get_vocab_size is {named} and its logits are {vocab} wide; expected the same")
        contract = Contract(
            max_seq_len=self._largest_step(in_graph),
            max_context_len=self._context(in_graph, capacity),
            vocab_size=vocab,
            dtype=self._dtype(),
            logits=self._mode(),
            caches=() if in_graph else self._caches(),
            eos_ids=self._stop_ids(),
        )
        takes_start = self._positions.sizes == (1,) and self._tokens.sizes[1] > 1
        return Published(contract=contract, in_graph=in_graph, takes_start=takes_start, inferred=tuple(self._inferred))

    def _inputs(self, method: Method) -> list[TensorValue]:
        inputs = method.inputs
        if len(inputs) not in (2, 3):
            raise DelegateError(
                f"{self._where}: its forward takes {len(inputs)} inputs; expected tokens and positions, and for "
                "selected logits the rows to give. Export it as an LLM with a KV cache."
            )
        for index, (value, rank) in enumerate(zip(inputs, (2, 1, 1), strict=False)):
            fits = isinstance(value, TensorValue) and value.dtype == "int64" and len(value.sizes) == rank
            if not fits or (index == 0 and value.sizes[0] != 1) or min(value.sizes) < 1:  # type: ignore[union-attr]
                name, expected = (("tokens", "[1, T]"), ("positions", "[T]"), ("rows", "[rows]"))[index]
                raise DelegateError(
                    f"{self._where}: input {index} of its forward is {_described(value)}; expected {name}, int64 "
                    f"{expected}. Export it as an LLM with a KV cache."
                )
        tensors = [value for value in inputs if isinstance(value, TensorValue)]
        tokens, positions = tensors[:2]
        if positions.sizes not in ((1,), tokens.sizes[1:]) or (tokens.sizes[1] > 1 and not tokens.dynamic):
            raise DelegateError(
                f"{self._where}: its forward takes {_described(tokens)} as tokens and {_described(positions)} as "
                "positions; expected as many of each, any number from 1 up. Export it with a dynamic sequence length."
            )
        return tensors

    def _output(self, method: Method) -> TensorValue:
        logits = method.outputs[0] if method.outputs else None
        fits = isinstance(logits, TensorValue) and len(logits.sizes) == 3 and logits.sizes[0] == 1
        if not fits or logits.dtype not in DTYPES or min(logits.sizes) < 1:  # type: ignore[union-attr]
            raise DelegateError(
                f"{self._where}: the first output of its forward is {_described(logits)}; expected logits, "
                f"[1, rows, vocabulary] of {', '.join(DTYPES)}. Export it as a causal LM."
            )
        assert isinstance(logits, TensorValue)
        return logits

    def _largest_step(self, in_graph: bool) -> int:
        bound = self._tokens.sizes[1]
        # Runners of text models call the whole context of a graph with a cache of its own max_seq_len.
        named = self._either("get_max_seq_len", "get_prefill_chunk_size", alike=not in_graph)
        if named is None:
            self._infer("no largest step", f"{bound}, the bound of its tokens")
        return min(named or bound, bound)

    def _context(self, in_graph: bool, capacity: int | None) -> int:
        named = self._either("get_max_context_len", "get_max_ctx_len")
        if named is not None:
            return named
        if in_graph:
            steps = self._number("get_max_seq_len")
            if steps is not None:
                self._infer("no context length", f"{steps}, its get_max_seq_len")
                return steps
        elif capacity is not None:
            self._infer("no context length", f"{capacity}, the cache's capacity")
            return capacity
        remedy = "Export it with one" if in_graph else "Choose the cache's capacity (--kv-max-capacity)"
        raise VerifyError(
            f"{self._where}: it publishes neither get_max_context_len nor get_max_ctx_len, so how much history it may "
            f"have is not known. {remedy}."
        )

    def _dtype(self) -> str:
        code = self._number("get_activation_dtype")
        if code is None:
            dtype = DTYPES[self._logits.dtype]
            self._infer("no activation dtype", f"{dtype}, its logits'")
            return dtype
        return self._name(SCALAR_TYPE, "get_activation_dtype", code)

    def _mode(self) -> str:
        rows, bound = self._logits.sizes[1], self._tokens.sizes[1]
        fitting = "selected" if self._selectors else "last" if rows == 1 else "full"
        code = self._number("get_logits_to_keep_mode", least=0)
        if code is None:
            self._infer("no logits mode", f"{fitting}, by its signature")
            mode = fitting
        else:
            mode = self._name(LOGITS_MODE, "get_logits_to_keep_mode", code)
        inputs = 2 + len(self._selectors)
        if (mode == "selected") != bool(self._selectors):
            raise self._wrong(f"its logits are {mode} and its forward takes {inputs} inputs; expected {5 - inputs}")
        expected = {"last": 1, "full": bound, "selected": rows}[mode]
        if rows != expected:
            raise self._wrong(
                f"its logits are {mode} and its forward gives up to {rows} rows for {bound} tokens; expected {expected}"
            )
        return mode

    def _caches(self) -> tuple[CacheGeometry, ...]:
        number = self._number("get_n_caches")
        columns = []
        for name in GEOMETRY:
            value = self._constants.get(name)
            if not isinstance(value, dict) or value["dtype"] != "int32" or len(value["sizes"]) != 1:
                raise self._wrong(f"{name} is {_of_kind(value)}; expected an int32 tensor of {number} numbers")
            least = 0 if name == "get_windows" else 1
            if len(value["values"]) != number or min(value["values"]) < least:
                raise self._wrong(
                    f"{name} is {value['values'][:8]} and get_n_caches {number}; expected as many numbers, each "
                    f"{least} or more"
                )
            columns.append(value["values"])
        return tuple(
            CacheGeometry(num_kv_heads=heads, head_dim=dim, window=window)
            for heads, dim, window in zip(*columns, strict=True)
        )

    def _stop_ids(self) -> frozenset[int]:
        value = self._constants.get("get_eos_ids", [])
        ids = value if isinstance(value, list) else [value]
        if not all(type(token) is int for token in ids):
            raise self._wrong(f"get_eos_ids is {_of_kind(value)}; expected whole numbers")
        return frozenset(ids)

    def _either(self, name: str, older: str, *, alike: bool = True) -> int | None:
        """The value of the newer name or, where it is absent, of the older one; both may be there, and ``alike``."""
        found, before = self._number(name), self._number(older)
        if alike and None not in (found, before) and found != before:
            raise self._wrong(f"{name} is {found} and {older} {before}; expected the same of both")
        return before if found is None else found

    def _number(self, name: str, least: int = 1) -> int | None:
        value = self._constants.get(name)
        if name not in self._constants:
            return None
        if type(value) is not int or not least <= value <= LARGEST:
            raise self._wrong(f"{name} is {_of_kind(value)}; expected a whole number from {least} to {LARGEST}")
        return value

    def _name(self, codes: Mapping[str, int], method: str, code: int) -> str:
        for name, known in codes.items():
            if known == code:
                return name
        expected = ", ".join(f"{known} ({name})" for name, known in codes.items())
        raise self._wrong(f"{method} is {code}; expected one of {expected}")

    def _infer(self, absent: str, taken: str) -> None:
        self._inferred.append(f"it publishes {absent}: taken as {taken}")

    def _wrong(self, problem: str) -> VerifyError:
        return VerifyError(f"{self._where}: {problem}. Run pte verify on it, and export it anew.")


def _described(value: object) -> str:
    if not isinstance(value, TensorValue):
        return "absent" if value is None else f"a {type(value).__name__}"
    sizes = ", ".join(map(str, value.sizes))
    return f"{'at most ' if value.dynamic else ''}[{sizes}] of {value.dtype}"


def _of_kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"a tensor of {value['dtype']} {value['sizes']}"
    return "absent" if value is None else repr(value)
