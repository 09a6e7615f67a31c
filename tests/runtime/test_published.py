"""What a file publishes is read whatever generation it is of, completed from its signature, and refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pipeline.contract import CacheGeometry, Contract
from pipeline.delegate.executor import BACKEND_ID
from pipeline.errors import DelegateError, PipelineError, VerifyError
from pipeline.pte import Delegate, PteFile
from pipeline.pte.program import Instruction, IntValue, Method, Program, StringValue, TensorValue, Value
from pipeline.runtime.decoder import Decoder
from pipeline.runtime.policy import CachePolicy
from pipeline.runtime.published import read
from tests.tiny_models import VOCAB_SIZE, Artifact

TOKENS = TensorValue("int64", (1, 4), True)
POSITIONS = TensorValue("int64", (4,), True)
ROWS = TensorValue("int64", (4,), True)
LOGITS = TensorValue("float16", (1, 1, 9), False)
ALL_LOGITS = TensorValue("float32", (1, 4, 9), True)


def ints(*values: int, dtype: str = "int32") -> TensorValue:
    data = b"".join(value.to_bytes(4 if dtype == "int32" else 8, "little", signed=True) for value in values)
    return TensorValue(dtype, (len(values),), False, memoryview(data))


OLDER: dict[str, Value] = {
    "get_max_ctx_len": IntValue(64),
    "get_prefill_chunk_size": IntValue(4),
    "get_n_caches": IntValue(2),
    "get_kv_heads": ints(2, 2),
    "get_head_dims": ints(16, 16),
    "get_windows": ints(0, 8),
}
NEWER: dict[str, Value] = OLDER | {
    "get_max_context_len": IntValue(64),
    "get_max_seq_len": IntValue(4),
    "get_vocab_size": IntValue(9),
    "get_activation_dtype": IntValue(15),
    "get_logits_to_keep_mode": IntValue(1),
    "get_eos_ids": IntValue(2),
}

CACHES = tuple(CacheGeometry(num_kv_heads=2, head_dim=16, window=window) for window in (0, 8))


def program(
    constants: dict[str, Value], inputs: tuple[Value, ...] = (TOKENS, POSITIONS), output: Value | None = LOGITS
) -> Program:
    """A forward of this signature that is one MLX delegate."""
    values = (*inputs, *([] if output is None else [output]))
    forward = Method(
        "forward",
        values,
        tuple(range(len(inputs))),
        tuple(range(len(inputs), len(values))),
        (Instruction("delegate_call", None, 0, tuple(range(len(values)))),),
        (Delegate(BACKEND_ID, memoryview(b"")),),
    )
    methods = {name: Method(name, (value,), (), (0,), (), ()) for name, value in constants.items()}
    return Program(0, {"forward": forward, **methods})


def without(constants: dict[str, Value], *names: str) -> dict[str, Value]:
    return {name: value for name, value in constants.items() if name not in names}


def refusal(kind: type[PipelineError], action: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


def test_the_newer_contract_is_read_and_nothing_is_inferred() -> None:
    found = read(program(NEWER), "x.pte")
    assert found.contract == Contract(
        max_seq_len=4,
        max_context_len=64,
        vocab_size=9,
        dtype="bf16",
        logits="last",
        caches=CACHES,
        eos_ids=frozenset({2}),
    )
    assert not found.in_graph
    assert found.inferred == ()


def test_the_older_contract_is_completed_from_the_signature_and_that_is_said() -> None:
    found = read(program(OLDER), "x.pte")
    assert found.contract == Contract(
        max_seq_len=4,
        max_context_len=64,
        vocab_size=9,
        dtype="fp16",
        logits="last",
        caches=CACHES,
        eos_ids=frozenset(),
    )
    assert found.inferred == (
        "it publishes no activation dtype: taken as fp16, its logits'",
        "it publishes no logits mode: taken as last, by its signature",
    )


@pytest.mark.parametrize(
    ("inputs", "output", "mode"),
    [
        ((TOKENS, POSITIONS), LOGITS, "last"),
        ((TOKENS, POSITIONS), ALL_LOGITS, "full"),
        ((TOKENS, POSITIONS, ROWS), ALL_LOGITS, "selected"),
    ],
)
def test_the_logits_mode_is_inferred_from_inputs_and_rows(inputs: tuple[Value, ...], output: Value, mode: str) -> None:
    assert read(program(OLDER, inputs, output), "x.pte").contract.logits == mode


def test_a_step_is_never_longer_than_the_tokens_input_takes() -> None:
    longer = {"get_max_seq_len": IntValue(99), "get_prefill_chunk_size": IntValue(99)}
    assert read(program(NEWER | longer), "x.pte").contract.max_seq_len == 4
    absent = read(program(without(OLDER, "get_prefill_chunk_size")), "x.pte")
    assert absent.contract.max_seq_len == 4
    assert "it publishes no largest step: taken as 4, the bound of its tokens" in absent.inferred


def test_a_context_that_is_not_published_is_the_capacity_that_is_chosen() -> None:
    nameless = program(without(OLDER, "get_max_ctx_len"))
    assert read(nameless, "x.pte", 48).contract.max_context_len == 48
    assert refusal(VerifyError, lambda: read(nameless, "x.pte")) == (
        "x.pte: it publishes neither get_max_context_len nor get_max_ctx_len, so how much history it may have is not "
        "known. Choose the cache's capacity (--kv-max-capacity)."
    )


def test_without_geometry_history_is_in_the_graph() -> None:
    constants = without(NEWER, "get_n_caches", "get_kv_heads", "get_head_dims", "get_windows")
    found = read(program(constants | {"get_prefill_chunk_size": IntValue(3)}), "x.pte")
    assert found.in_graph
    assert not found.takes_start
    assert found.contract.caches == ()
    assert found.contract.max_context_len == 64
    start = read(program(constants, (TOKENS, TensorValue("int64", (1,), False))), "x.pte")
    assert start.takes_start


WRONG: list[tuple[dict[str, Value | None], str]] = [
    ({"get_vocab_size": IntValue(10)}, "get_vocab_size is 10 and its logits are 9 wide; expected the same"),
    ({"get_max_ctx_len": IntValue(32)}, "get_max_context_len is 64 and get_max_ctx_len 32; expected the same of both"),
    ({"get_max_seq_len": IntValue(0)}, "get_max_seq_len is 0; expected a whole number from 1 to 2147483647"),
    ({"get_max_context_len": IntValue(2**31)}, "get_max_context_len is 2147483648; expected a whole number from 1 to "),
    ({"get_activation_dtype": StringValue("bf16")}, "get_activation_dtype is 'bf16'; expected a whole number from 1"),
    ({"get_activation_dtype": IntValue(4)}, "get_activation_dtype is 4; expected one of 5 (fp16), 6 (fp32), 15 (bf16)"),
    ({"get_logits_to_keep_mode": IntValue(3)}, "get_logits_to_keep_mode is 3; expected one of 0 (full), 1 (last), 2 "),
    ({"get_logits_to_keep_mode": IntValue(2)}, "its logits are selected and its forward takes 2 inputs; expected 3"),
    (
        {"get_logits_to_keep_mode": IntValue(0)},
        "its logits are full and its forward gives up to 1 rows for 4 tokens; expected 4",
    ),
    ({"get_kv_heads": ints(2)}, "get_kv_heads is [2] and get_n_caches 2; expected as many numbers, each 1 or more"),
    ({"get_windows": ints(0, -1)}, "get_windows is [0, -1] and get_n_caches 2; expected as many numbers, each 0 or "),
    ({"get_windows": None}, "get_windows is absent; expected an int32 tensor of 2 numbers"),
    (
        {"get_head_dims": ints(16, 16, dtype="int64")},
        "get_head_dims is a tensor of int64 [2]; expected an int32 tensor of 2 numbers",
    ),
    ({"get_eos_ids": ints(2)}, "get_eos_ids is a tensor of int32 [1]; expected whole numbers"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_what_is_malformed_or_contradicts_is_refused(changes: dict[str, Value | None], message: str) -> None:
    constants = {name: value for name, value in (NEWER | changes).items() if value is not None}
    assert refusal(VerifyError, lambda: read(program(constants), "x.pte")).startswith(f"x.pte: {message}")


SIGNATURES: list[tuple[tuple[Value, ...], Value | None, str]] = [
    (
        (TOKENS,),
        LOGITS,
        "its forward takes 1 inputs; expected tokens and positions, and for selected logits the rows to give. Export "
        "it as an LLM with a KV cache.",
    ),
    (
        (TensorValue("float32", (1, 4), True), POSITIONS),
        LOGITS,
        "input 0 of its forward is at most [1, 4] of float32; expected tokens, int64 [1, T]. Export it as an LLM with "
        "a KV cache.",
    ),
    (
        (TensorValue("int64", (2, 4), True), POSITIONS),
        LOGITS,
        "input 0 of its forward is at most [2, 4] of int64; expected tokens, int64 [1, T]. Export it as an LLM with a "
        "KV cache.",
    ),
    (
        (TensorValue("int64", (1, 4), False), POSITIONS),
        LOGITS,
        "its forward takes [1, 4] of int64 as tokens and at most [4] of int64 as positions; expected as many of each, "
        "any number from 1 up. Export it with a dynamic sequence length.",
    ),
    (
        (TOKENS, POSITIONS),
        TensorValue("uint16", (1, 1, 9), False),
        "the first output of its forward is [1, 1, 9] of uint16; expected logits, [1, rows, vocabulary] of float32, "
        "float16, bfloat16. Export it as a causal LM.",
    ),
    (
        (TOKENS, POSITIONS),
        None,
        "the first output of its forward is absent; expected logits, [1, rows, vocabulary] of float32, float16, "
        "bfloat16. Export it as a causal LM.",
    ),
]


@pytest.mark.parametrize(("inputs", "output", "message"), SIGNATURES, ids=[case[2][:40] for case in SIGNATURES])
def test_a_forward_that_no_runner_could_call_is_refused(
    inputs: tuple[Value, ...], output: Value | None, message: str
) -> None:
    assert refusal(DelegateError, lambda: read(program(NEWER, inputs, output), "x.pte")) == f"x.pte: {message}"


def test_another_backends_artifact_is_refused_with_all_that_it_consists_of() -> None:
    made = program(NEWER)
    forward = made.methods["forward"]
    kernel = replace(forward.instructions[0], kind="kernel_call", delegate=None)
    others = replace(
        forward,
        delegates=(Delegate("XnnpackBackend", memoryview(b"")),) * 2 + forward.delegates,
        instructions=(*forward.instructions, *(replace(kernel, operator=f"aten::{op}.out") for op in "cab")),
    )
    made = replace(made, methods={**made.methods, "forward": others})
    assert refusal(DelegateError, lambda: read(made, "x.pte")) == (
        "x.pte: its forward consists of delegates 2 of XnnpackBackend, MLXBackend and operators aten::a.out, "
        "aten::b.out, aten::c.out; expected one delegate of MLXBackend and nothing else, which is what runs here. "
        "Export it with backend: mlx."
    )


def test_a_file_without_a_forward_is_refused() -> None:
    made = program(NEWER)
    del made.methods["forward"]
    assert refusal(DelegateError, lambda: read(made, "x.pte")) == (
        "x.pte: it has no method 'forward', but none to execute; expected the export of an LLM."
    )


@pytest.fixture
def pte(artifact: Callable[[str], Artifact]) -> Any:
    with PteFile.open(artifact("mixed").pte) as opened:
        yield opened


def leave(pte: PteFile, *names: str) -> None:
    """Only these constant methods are published any more."""
    methods = {name: method for name, method in pte.program.methods.items() if name in (*names, "forward")}
    pte.program = replace(pte.program, methods=methods)


def test_an_artifact_of_the_older_contract_decodes_the_same_text(pte: PteFile) -> None:
    expected = [token for token, _ in Decoder(pte).greedy([3, 1, 4, 1, 5, 9], 8)]
    leave(pte, *OLDER)
    decoder = Decoder(pte)
    assert decoder.contract.vocab_size == VOCAB_SIZE
    assert [token for token, _ in decoder.greedy([3, 1, 4, 1, 5, 9], 8)] == expected


def test_a_graph_that_keeps_no_history_as_it_is_published_is_refused(pte: PteFile) -> None:
    leave(pte, "get_max_context_len")
    assert refusal(DelegateError, lambda: Decoder(pte)) == (
        "model.pte: its graph does not use buffers of its own, so that every step would forget the ones before; "
        "expected one that keeps history. Run pte verify on it."
    )


def test_a_capacity_stands_in_for_a_context_in_a_decoder_too(pte: PteFile) -> None:
    leave(pte, *without(OLDER, "get_max_ctx_len"))
    assert Decoder(pte, policy=CachePolicy(capacity=10)).capacity == 10
