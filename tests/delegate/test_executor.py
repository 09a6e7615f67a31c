"""A real method runs over its inputs and a cache, or says what about the file or the call is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pipeline.contract import CacheGeometry
from pipeline.delegate import executor
from pipeline.delegate.executor import MlxMethod
from pipeline.errors import CacheError, DelegateError, PteError
from pipeline.pte import (
    Instruction,
    MlxGraph,
    Node,
    PteFile,
    Slot,
    TensorMeta,
    TensorValue,
    Tid,
    Vid,
    parse_mlx_payload,
)
from pipeline.pte.mlx_graph import Dim
from pipeline.pte.program import IntValue, Method
from pipeline.runtime.kv_cache import KVCache
from tests.tiny_models import Artifact, library_warnings_ignored

CACHES = (CacheGeometry(num_kv_heads=2, head_dim=16, window=0), CacheGeometry(num_kv_heads=2, head_dim=16, window=8))
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
VOCAB_SIZE = 260

DoctorGraph = Callable[[Callable[[MlxGraph], MlxGraph]], None]


@pytest.fixture
def pte(artifact: Callable[[str], Artifact]) -> Iterator[PteFile]:
    """Two layers, one of which slides; steps of at most four tokens."""
    with PteFile.open(artifact("mixed").pte) as opened:
        yield opened


def cache() -> KVCache:
    return KVCache(CACHES, capacity=64, max_write=4, dtype=mx.float32)


def step(method: MlxMethod, tokens: list[int], start: int) -> np.ndarray:
    (logits,) = method(mx.array([tokens], mx.int64), mx.arange(start, start + len(tokens), dtype=mx.int64))
    assert logits.shape == (1, 1, VOCAB_SIZE)
    return np.array(logits[0, -1])


def refusal(kind: type[Exception], action: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


def doctored_method(pte: PteFile, change: Callable[[Method], Method]) -> PteFile:
    """The file, as if its forward had been written differently."""
    methods = pte.program.methods
    pte.program = replace(pte.program, methods={**methods, "forward": change(methods["forward"])})
    return pte


@pytest.fixture
def doctor_graph(monkeypatch: pytest.MonkeyPatch) -> DoctorGraph:
    """Changes the graph between the reader, which would refuse most of this, and the executor."""

    def doctor(change: Callable[[MlxGraph], MlxGraph]) -> None:
        parse = executor.parse_mlx_payload
        monkeypatch.setattr(executor, "parse_mlx_payload", lambda *given: change(parse(*given)))

    return doctor


def test_history_in_the_cache_makes_steps_equal_to_one_run(pte: PteFile) -> None:
    method = MlxMethod(pte, cache=cache())
    whole = [step(method, TOKENS[start : start + 4], start) for start in (0, 4, 8)][-1]
    single = MlxMethod(pte, cache=cache())
    rows = [step(single, [token], position) for position, token in enumerate(TOKENS)]
    np.testing.assert_allclose(rows[-1], whole, atol=1e-4)
    forgetful = MlxMethod(pte, cache=cache())
    assert np.abs(step(forgetful, [TOKENS[-1]], 0) - whole).max() > 1e-3, "the comparison could not tell"


def test_outputs_are_evaluated_in_the_declared_dtype(pte: PteFile) -> None:
    def widen(method: Method) -> Method:
        values = list(method.values)
        (output,) = method.output_ids
        values[output] = replace(values[output], dtype="bfloat16")
        return replace(method, values=tuple(values))

    (plain,) = MlxMethod(pte, cache=cache())(mx.array([[1]], mx.int64), mx.array([0], mx.int64))
    (half,) = MlxMethod(doctored_method(pte, widen), cache=cache())(mx.array([[1]], mx.int64), mx.array([0], mx.int64))
    assert (plain.dtype, half.dtype) == (mx.float32, mx.bfloat16)
    assert mx.array_equal(half, plain.astype(mx.bfloat16))


def test_the_delegates_order_of_arguments_is_its_own(pte: PteFile, doctor_graph: DoctorGraph) -> None:
    expected = step(MlxMethod(pte, cache=cache()), TOKENS[:3], 0)
    doctor_graph(lambda graph: replace(graph, input_map=graph.input_map[::-1]))

    def swap(method: Method) -> Method:
        (call,) = method.instructions
        first, second, *rest = call.args
        return replace(method, instructions=(replace(call, args=(second, first, *rest)),))

    found = step(MlxMethod(doctored_method(pte, swap), cache=cache()), TOKENS[:3], 0)
    assert np.array_equal(found, expected)


def test_an_input_that_the_model_does_not_use_is_taken_and_not_handed_on(pte: PteFile) -> None:
    """Torch leaves it in the signature; the delegate never sees it."""

    def add_input(method: Method) -> Method:
        values = (*method.values, method.values[method.input_ids[0]])
        return replace(method, values=values, input_ids=(len(values) - 1, *method.input_ids))

    tokens, positions = mx.array([[3, 1]], mx.int64), mx.arange(2, dtype=mx.int64)
    (expected,) = MlxMethod(pte, cache=cache())(tokens, positions)
    method = MlxMethod(doctored_method(pte, add_input), cache=cache())
    (found,) = method(mx.zeros((1, 4), mx.int64), tokens, positions)
    assert mx.array_equal(found, expected)


CALLS = {
    "too few": ([(1, 3)], "takes 2 inputs; 1 were given."),
    "too many": ([(1, 3), (3,), (3,)], "takes 2 inputs; 3 were given."),
    "a step too long": (
        [(1, 5), (5,)],
        "input 0 is [1, 5] of mlx.core.int64; expected at most [1, 4] of int64.",
    ),
    "a dimension too few": ([(3,), (3,)], "input 0 is [3] of mlx.core.int64; expected at most [1, 4] of int64."),
    "a batch of two": (
        [(2, 3), (3,)],
        "input 0 is [2, 3] of mlx.core.int64; expected at most [1, 4] of int64.",
    ),
    "positions too many": ([(1, 3), (5,)], "input 1 is [5] of mlx.core.int64; expected at most [4] of int64."),
}


@pytest.mark.parametrize("case", CALLS)
def test_inputs_that_do_not_fit_are_refused(pte: PteFile, case: str) -> None:
    shapes, expected = CALLS[case]
    method = MlxMethod(pte, cache=cache())
    found = refusal(DelegateError, lambda: method(*(mx.zeros(shape, mx.int64) for shape in shapes)))
    assert found.removeprefix("model.pte: forward").lstrip(": ") == expected


def test_inputs_of_another_dtype_are_refused(pte: PteFile) -> None:
    method = MlxMethod(pte, cache=cache())
    found = refusal(DelegateError, lambda: method(mx.zeros((1, 3), mx.int32), mx.arange(3, dtype=mx.int64)))
    assert found == "model.pte: forward: input 0 is [1, 3] of mlx.core.int32; expected at most [1, 4] of int64."


def test_a_static_input_takes_its_one_shape(pte: PteFile) -> None:
    def freeze(method: Method) -> Method:
        values = tuple(
            replace(value, dynamic=False) if isinstance(value, TensorValue) else value for value in method.values
        )
        return replace(method, values=values)

    method = MlxMethod(doctored_method(pte, freeze), cache=cache())
    found = refusal(DelegateError, lambda: step(method, [1, 2], 0))
    assert found == "model.pte: forward: input 0 is [1, 2] of mlx.core.int64; expected [1, 4] of int64."
    assert step(method, TOKENS[:4], 0).shape == (VOCAB_SIZE,)


REFUSED_STEPS = {
    "a gap": (CacheError, [1], 9, "the step starts at position 9, the sequence has 8 tokens; expected it to continue"),
    "a repetition": (CacheError, [1], 7, "the step starts at position 7, the sequence has 8 tokens; expected it to"),
    "no tokens": (DelegateError, [], 8, "chain 0, instruction "),
}


@pytest.mark.parametrize("case", REFUSED_STEPS)
def test_a_failed_call_leaves_the_cache_as_it_was(pte: PteFile, case: str) -> None:
    kind, tokens, start, expected = REFUSED_STEPS[case]
    history = cache()
    method = MlxMethod(pte, cache=history)
    step(method, TOKENS[:4], 0)
    step(method, TOKENS[4:8], 4)
    assert refusal(kind, lambda: step(method, tokens, start)).startswith(expected)
    assert history.length == 8
    fresh = MlxMethod(pte, cache=cache())
    step(fresh, TOKENS[:4], 0)
    step(fresh, TOKENS[4:8], 4)
    assert np.array_equal(step(method, TOKENS[8:], 8), step(fresh, TOKENS[8:], 8))


def test_a_call_that_fails_after_attention_leaves_the_cache_as_it_was(pte: PteFile, doctor_graph: DoctorGraph) -> None:
    """The last instruction fails: every layer has written by then."""

    untroubled = MlxMethod(pte, cache=cache())
    after_all_of_it = [step(untroubled, TOKENS[start : start + 4], start) for start in (0, 4, 8)][-1]

    def break_last(graph: MlxGraph) -> MlxGraph:
        *first, last = graph.chains[graph.main_chain]
        broken = Node("ReshapeNode", {"x": last.fields["out"], "out": last.fields["out"], "shape": (7, 7)})
        chains = list(graph.chains)
        chains[graph.main_chain] = (*first, last, broken)
        return replace(graph, chains=tuple(chains))

    history = cache()
    good = MlxMethod(pte, cache=history)
    doctor_graph(break_last)
    bad = MlxMethod(pte, cache=history)
    step(good, TOKENS[:4], 0)
    step(good, TOKENS[4:8], 4)
    found = refusal(DelegateError, lambda: step(bad, [10, 10], 8))
    assert re.match(r"chain 0, instruction \d+ \(ReshapeNode\) failed: ", found)
    assert history.length == 8
    assert np.array_equal(step(good, TOKENS[8:], 8), after_all_of_it)


def test_without_a_cache_the_graph_loads_and_does_not_run(pte: PteFile) -> None:
    found = refusal(DelegateError, lambda: step(MlxMethod(pte), [1], 0))
    assert found == "the graph attends over an off-graph KV cache and none is bound. Load it with a cache."


def test_a_cache_of_another_geometry_is_refused_at_the_first_step(pte: PteFile) -> None:
    other = KVCache((replace(CACHES[0], head_dim=8), CACHES[1]), capacity=64, max_write=4, dtype=mx.float32)
    found = refusal(CacheError, lambda: step(MlxMethod(pte, cache=other), [1], 0))
    assert found == "cache 0: K has shape (1, 2, 1, 16); expected (1, 2, 1, 8)."


def test_a_device_that_is_not_there_is_refused(pte: PteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "is_available", lambda device: False)
    found = refusal(DelegateError, lambda: MlxMethod(pte, device=mx.Device(mx.gpu)))
    assert found == "model.pte: forward is to run on Device(gpu, 0), which MLX does not have here. Use mx.cpu."


def test_a_call_counts_once_it_is_committed(pte: PteFile) -> None:
    history = cache()
    method = MlxMethod(pte, cache=history, device=mx.Device(mx.cpu))
    begun = method.begin(mx.array([TOKENS[:4]], mx.int64), mx.arange(4, dtype=mx.int64))
    assert (history.length, begun.is_open) == (0, True)
    again = method.begin(mx.array([TOKENS[:4]], mx.int64), mx.arange(4, dtype=mx.int64))
    assert not begun.is_open, "a second call abandons the first"
    begun.abandon()
    assert again.is_open
    again.start()
    again.commit()
    assert history.length == 4


def test_a_method_that_is_not_there_is_refused_with_those_that_are(pte: PteFile) -> None:
    found = refusal(DelegateError, lambda: MlxMethod(pte, "backward"))
    assert found == "model.pte has no method 'backward'; it has forward."


def test_a_method_without_a_delegate_is_refused(pte: PteFile) -> None:
    found = refusal(DelegateError, lambda: MlxMethod(pte, "get_bos_id"))
    assert found == ("model.pte: get_bos_id has nothing to execute: it publishes a value, which the program holds.")


def with_kernel(method: Method) -> Method:
    kernels = [Instruction("kernel_call", name, None, ()) for name in ("aten::topk.values", "aten::add.out")]
    return replace(method, instructions=(*method.instructions, *kernels))


def with_other_backend(method: Method) -> Method:
    return replace(method, delegates=(replace(method.delegates[0], id="XnnpackBackend"),))


def with_call(**changes: Any) -> Callable[[Method], Method]:
    def change(method: Method) -> Method:
        return replace(method, instructions=(replace(method.instructions[0], **changes),))

    return change


def with_plain_input(method: Method) -> Method:
    values = list(method.values)
    values[method.input_ids[1]] = IntValue(3)
    return replace(method, values=tuple(values))


def with_narrow_output(method: Method) -> Method:
    values = list(method.values)
    values[method.output_ids[0]] = replace(values[method.output_ids[0]], sizes=(1, 1, 259))
    return replace(method, values=tuple(values))


METHODS: dict[str, tuple[Callable[[Method], Method], str]] = {
    "operators outside": (
        with_kernel,
        " has 1 delegates and operators outside them (aten::add.out, aten::topk.values); expected one MLX delegate "
        "and nothing else.",
    ),
    "another backend": (with_other_backend, " is delegated to XnnpackBackend; expected MLXBackend."),
    "arguments missing": (
        with_call(args=(0,)),
        " hands 1 values to a delegate of 2 inputs and 1 outputs. The file is damaged.",
    ),
    "an input handed on twice": (
        with_call(args=(0, 0, 2)),
        " has inputs or outputs its delegate does not see. The file is damaged.",
    ),
    "something else handed on": (
        with_call(args=(0, 2, 2)),
        " has inputs or outputs its delegate does not see. The file is damaged.",
    ),
    "outputs unseen": (
        lambda method: replace(method, output_ids=method.input_ids[:1]),
        " has inputs or outputs its delegate does not see. The file is damaged.",
    ),
    "a plain input": (with_plain_input, " takes or returns a IntValue; expected tensors."),
    "an output too small": (with_narrow_output, ": output 0 has shape [1, 1, 260]; expected at most [1, 1, 259]."),
}


@pytest.mark.parametrize("case", METHODS)
def test_a_method_unlike_what_it_declares_is_refused(pte: PteFile, case: str) -> None:
    change, expected = METHODS[case]
    doctored = doctored_method(pte, change)
    found = refusal(DelegateError, lambda: step(MlxMethod(doctored, cache=cache()), [1], 0))
    assert found == f"model.pte: forward{expected}"


def with_buffer(graph: MlxGraph, meta: TensorMeta) -> MlxGraph:
    """The graph, its first temporary a mutable buffer."""
    metas = (*graph.tensor_meta, *[None] * (graph.num_tensors - len(graph.tensor_meta)))
    first = graph.mutable_tids.start
    return replace(graph, num_mutable_buffer_tensors=1, tensor_meta=(*metas[:first], meta, *metas[first + 1 :]))


def with_groups_of_16(graph: MlxGraph) -> MlxGraph:
    """Its logits a product with a weight in groups that MLX has no kernel for."""
    x, w, scales = (Tid(graph.mutable_tids.stop + index) for index in range(3))
    made = [(x, (1, 1, 256), 6), (w, (VOCAB_SIZE, 32), 28), (scales, (VOCAB_SIZE, 16), 6)]
    nodes = [Node("FullNode", {"out": out, "shape": shape, "v": 1.0, "scalar_type": code}) for out, shape, code in made]
    layout = {"biases": scales, "group_size": 16, "bits": 4, "mode": "affine", "transpose": True}
    out = Tid(graph.output_map[0].idx)
    product = Node("QuantizedMatmulNode", {"x": x, "w": w, "scales": scales, "out": out, **layout})
    return replace(graph, chains=((*graph.chains[0], *nodes, product), *graph.chains[1:]))


GRAPHS: dict[str, tuple[Callable[[MlxGraph], MlxGraph], str]] = {
    "an input handed to a constant": (
        lambda graph: replace(graph, input_map=(Slot("tensor", 0), graph.input_map[1])),
        " does not hand its delegate each of its 2 inputs. The file is damaged.",
    ),
    "more inputs than are handed on": (
        lambda graph: replace(graph, num_input_tensors=100_000),
        " does not hand its delegate each of its 100000 inputs. The file is damaged.",
    ),
    "a shapeless buffer": (
        lambda graph: replace(graph, num_mutable_buffer_tensors=2),
        ": mutable buffer {first} has no static shape. The file is damaged.",
    ),
    "an empty buffer": (
        lambda graph: with_buffer(graph, TensorMeta((Dim(0), Dim(3)), "float32")),
        ": mutable buffer {first} makes [0, 3] of mlx.core.float32; expected sizes above 0 and at most 4 GiB.",
    ),
    "a buffer too large": (
        lambda graph: with_buffer(graph, TensorMeta((Dim(2**30), Dim(2)), "float32")),
        ": mutable buffer {first} makes [1073741824, 2] of mlx.core.float32; expected sizes above 0 and at most 4 GiB.",
    ),
    "a kernel that MLX lacks": (
        with_groups_of_16,
        f" failed on {mx.default_device()}: Quantization group size must be 32, 64 or 128.",
    ),
    "a plain input": (
        lambda graph: replace(graph, input_map=(Slot("int", 0), graph.input_map[1])),
        " takes or returns a plain int; this executor passes tensors.",
    ),
    "a nameless constant": (
        lambda graph: replace(graph, names={}),
        ": constant 0 has no name or no shape. The file is damaged.",
    ),
    "a shapeless constant": (
        lambda graph: replace(graph, tensor_meta=()),
        ": constant 0 has no name or no shape. The file is damaged.",
    ),
    "an output nobody writes": (
        lambda graph: replace(graph, num_temp_tensors=9999, output_map=(Slot("tensor", graph.num_tensors + 5),)),
        ": output 0 was never written. The file is damaged.",
    ),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_a_graph_that_could_not_run_right_is_refused(pte: PteFile, doctor_graph: DoctorGraph, case: str) -> None:
    change, expected = GRAPHS[case]
    doctor_graph(change)
    first = parse_mlx_payload(pte.program.methods["forward"].delegates[0].payload).mutable_tids.start
    found = refusal(DelegateError, lambda: step(MlxMethod(pte, cache=cache()), [1], 0))
    assert found == f"model.pte: forward{expected.format(first=first)}"


def test_a_graph_with_an_unknown_node_is_refused_at_load(pte: PteFile, doctor_graph: DoctorGraph) -> None:
    def change(graph: MlxGraph) -> MlxGraph:
        return replace(graph, chains=((Node("NewNode", {}),), *graph.chains[1:]))

    doctor_graph(change)
    found = refusal(DelegateError, lambda: MlxMethod(pte, cache=cache()))
    assert found.startswith("the graph uses NewNode, which this executor does not implement, so the artifact")


@pytest.mark.parametrize("times", [1, 2])
def test_the_init_chain_runs_once_and_its_constants_stay(pte: PteFile, doctor_graph: DoctorGraph, times: int) -> None:
    """Negating every weight twice changes nothing; once is another model."""
    plain = MlxMethod(pte, cache=cache())

    def negate(graph: MlxGraph) -> MlxGraph:
        weights = [tid for tid in graph.constant_tids if graph.tensor_meta[tid].dtype == "float32"]
        nodes = tuple(Node("NegNode", {"x": Tid(tid), "out": Tid(tid)}) for tid in weights) * times
        return replace(graph, chains=(*graph.chains, nodes), init_chain=len(graph.chains))

    doctor_graph(negate)
    method = MlxMethod(pte, cache=cache())
    for start in (0, 4):
        expected, found = (step(each, TOKENS[start : start + 4], start) for each in (plain, method))
        assert np.array_equal(found, expected) == (times == 2)


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PteFile]:
    """Adds what it is given to a buffer, which was not zero when it was exported, and returns the sum."""
    import torch

    from pipeline.model import serializer

    serializer.provide()
    with library_warnings_ignored():
        from executorch.backends.mlx import MLXPartitioner
        from executorch.exir import to_edge_transform_and_lower

    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            return self.total * 2

    with library_warnings_ignored():
        program = torch.export.export(Counter(), (torch.zeros(3),), strict=False)
        edge = to_edge_transform_and_lower(program, partitioner=[MLXPartitioner()])
        path = tmp_path_factory.mktemp("counter") / "counter.pte"
        path.write_bytes(edge.to_executorch().buffer)
    with PteFile.open(path) as opened:
        yield opened


class TestMutableBuffers:
    """What the graph keeps from one call to the next."""

    def test_they_begin_as_zeros_and_carry_over(self, counter: PteFile) -> None:
        method = MlxMethod(counter)
        sums = [method(mx.array([1.0, 2.0, 3.0]))[0].tolist() for _ in range(3)]
        assert sums == [[2.0, 4.0, 6.0], [4.0, 8.0, 12.0], [6.0, 12.0, 18.0]]

    def test_every_method_loaded_has_its_own(self, counter: PteFile) -> None:
        first, second = MlxMethod(counter), MlxMethod(counter)
        first(mx.ones(3))
        assert first(mx.ones(3))[0].tolist() == [4.0] * 3
        assert second(mx.ones(3))[0].tolist() == [2.0] * 3

    def test_reset_forgets_them(self, counter: PteFile) -> None:
        method = MlxMethod(counter)
        method(mx.ones(3))
        method.reset()
        assert method(mx.ones(3))[0].tolist() == [2.0] * 3

    def test_a_call_that_fails_leaves_them_as_they_were(self, counter: PteFile, doctor_graph: DoctorGraph) -> None:
        """An instruction at the end fails when the first sum is 0; by then the buffer is written."""

        def divide(graph: MlxGraph) -> MlxGraph:
            (result,) = graph.output_map
            first, number = Tid(graph.num_tensors), Vid(graph.num_values)
            nodes = (
                Node("TakeNode", {"x": Tid(result.idx), "index": 0, "axis": 0, "out": first}),
                Node("AsTypeNode", {"x": first, "scalar_type": 3, "out": first}),
                Node("ItemIntNode", {"x": first, "out": number}),
                Node("ModIntNode", {"a": 1, "b": number, "out": number}),
            )
            counts = {"num_temp_tensors": graph.num_temp_tensors + 1, "num_values": graph.num_values + 1}
            return replace(graph, chains=((*graph.chains[0], *nodes), *graph.chains[1:]), **counts)

        doctor_graph(divide)
        method = MlxMethod(counter)
        method(mx.ones(3))
        found = refusal(DelegateError, lambda: method(mx.array([-1.0, 5.0, 5.0])))
        assert found == "an integer is divided by 0; a size or position that the graph computes is wrong."
        assert method(mx.ones(3))[0].tolist() == [4.0] * 3


class TestDamagedConstants:
    """The weights in the file are not those its graph was made for."""

    def loaded(self, pte: PteFile, **changes: memoryview | None) -> str:
        data = {**pte.named_data, **changes}
        pte.named_data = {key: blob for key, blob in data.items() if blob is not None}
        return refusal(DelegateError, lambda: MlxMethod(pte, cache=cache()))

    def test_missing(self, pte: PteFile) -> None:
        key = next(iter(pte.named_data))
        found = self.loaded(pte, **{key: None})
        assert found == (
            f"model.pte: forward: constant '{key}' is not in model.pte. If the program was exported with external "
            "data, give the .ptd that belongs to it; if it was not, the file is damaged."
        )

    def test_cut_short(self, pte: PteFile) -> None:
        key, blob = next(iter(pte.named_data.items()))
        found = self.loaded(pte, **{key: blob[:3]})
        assert re.fullmatch(
            rf"model\.pte: forward: constant '{key}' has 3 bytes; its shape \[.*\] of \w+ needs \d+\. "
            r"The file is damaged\.",
            found,
        )

    def test_in_the_file_itself(self, artifact: Callable[[str], Artifact]) -> None:
        """The last kilobyte is gone: the reader says so before the executor sees anything."""
        data = artifact("mixed").pte.read_bytes()[:-1024]
        with pytest.raises(PteError, match=r"it was cut short|outside"):
            PteFile.from_bytes(data, "model.pte")
