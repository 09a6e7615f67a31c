"""A method of a ``.pte`` whose whole body is one MLX delegate, ready to be called with arrays.

Knows the container, the graph and the cache's interface; does not know language models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from pipeline.delegate import dtypes
from pipeline.delegate.arrays import Array, to_mlx
from pipeline.delegate.body import Body, body_of
from pipeline.delegate.constants import Constants
from pipeline.delegate.fuse import fused as fused_body
from pipeline.delegate.fuse import joined, row_by_row
from pipeline.delegate.ops import OPERATORS, metal
from pipeline.delegate.ops.attention import BoundCache, UpdateAndAttend
from pipeline.delegate.ops.creation import check_allocation
from pipeline.delegate.ops.fused import OPERATORS as FUSED
from pipeline.delegate.plan import FAILURES, Call, Operator, Slots, plan_chain
from pipeline.delegate.replay import Replayed
from pipeline.delegate.straight import StraightLine
from pipeline.delegate.threads import tidied
from pipeline.errors import DelegateError
from pipeline.pte import Delegate, Method, PteFile, TensorValue, parse_mlx_payload
from pipeline.pte.flatbuffer import quoted, shown

BACKEND_ID = "MLXBackend"


def find_method(pte: PteFile, name: str) -> Method:
    """Raises DelegateError, with the names there are, when there is none."""
    method = pte.program.methods.get(name)
    if method is None:
        there_are = ", ".join(map(shown, pte.program.executable)) or "none to execute"
        raise DelegateError(f"{pte.path.name} has no method {quoted(name)}; it has {there_are}.")
    return method


def is_gpu(device: mx.Device) -> bool:
    """Whether graphs are executed there as a GPU gains from."""
    return bool(device == mx.gpu)


class Execution:
    """One call under way. Its ``outputs`` are recorded and may not have been computed yet.

    It counts only once it is committed: until then neither the method's buffers nor the cache have moved on.
    """

    def __init__(self, method: MlxMethod, outputs: list[mx.array], buffers: list[mx.array]) -> None:
        self.outputs = outputs
        self._method = method
        self._buffers = buffers

    @property
    def is_open(self) -> bool:
        """Whether it can still be committed: no other call of the method has begun since."""
        return self._method.under_way is self

    def start(self, *others: mx.array) -> None:
        """Lets MLX compute the outputs, and ``others`` made of them, without waiting."""
        self._method.evaluated(mx.async_eval, others, self.outputs, self._buffers)

    def finish(self) -> list[mx.array]:
        """Waits for the outputs and commits. What fails is abandoned."""
        try:
            self._method.evaluated(mx.eval, self.outputs, self._buffers)
        except BaseException:
            self.abandon()
            raise
        self.commit()
        return self.outputs

    def commit(self) -> None:
        """What the call left in buffers and cache is there for the next."""
        assert self.is_open
        self._method.end(self._buffers)

    def abandon(self) -> None:
        """Buffers and cache are as if the call had never been made. Does nothing if it is no longer open."""
        if self.is_open:
            self._method.end(None)


class MlxMethod:
    """Call it with one array per input; it returns one array per output, evaluated.

    What the graph keeps from one call to the next is in mutable buffers of this object's own, or in the bound cache; a
    call that fails leaves both as they were. Raises DelegateError for inputs of another number, dtype or
    shape than the method declares, and CacheError when the cache refuses the step.

    Nodes that are one MLX primitive together are computed as that; ``fused=False`` executes the graph as it is written,
    node by node. ``device`` is where MLX computes, its default device unless given. Methods given the same
    ``constants`` have in common all but their buffers and cache.
    """

    def __init__(
        self,
        pte: PteFile,
        name: str = "forward",
        cache: BoundCache | None = None,
        *,
        fused: bool = True,
        device: mx.Device | None = None,
        constants: Constants | None = None,
    ) -> None:
        self.where = f"{pte.path.name}: {shown(name)}"
        self.under_way: Execution | None = None
        self._cache = cache
        self.device = mx.default_device() if device is None else device
        if not mx.is_available(self.device):
            raise DelegateError(f"{self.where} is to run on {self.device}, which MLX does not have here. Use mx.cpu.")
        method = find_method(pte, name)
        delegate, arguments = self._only_delegate(method)
        shared = Constants(pte) if constants is None else constants
        self._graph = shared.once((name, "graph"), lambda: parse_mlx_payload(delegate.payload))
        self._bind_signature(method, arguments)
        tidied()
        with mx.stream(self.device):
            self._load(shared, name, fused)

    def _load(self, shared: Constants, name: str, fused: bool) -> None:
        graph = self._graph
        metal.refuse_elsewhere(graph, self.where)
        attend = UpdateAndAttend(self._cache, on_cpu=fused and self.device == mx.cpu)
        operators: dict[str, Operator] = {**OPERATORS, "UpdateAndAttendNode": attend}
        plan = plan_chain(graph, graph.main_chain, operators)
        prepare = partial(self._prepared, shared, operators, fused)
        self._fresh, constants, body = shared.once((name, fused, str(self.device)), prepare)
        self._buffers = self._fresh
        if body is None:
            self._run = self._node_by_node(plan, constants)
        else:
            line = Replayed if is_gpu(self.device) else StraightLine
            self._run = line(body, {**operators, **FUSED})

    def _prepared(
        self, shared: Constants, operators: dict[str, Operator], fused: bool
    ) -> tuple[list[mx.array], list[mx.array], Body | None]:
        """What no call changes: fresh buffers, constants, and the body that is made of them where there is one."""
        fresh, constants = self._initial(shared, operators)
        body = body_of(self._graph, constants, self._output_slots) if fused else None
        if body is None:
            return fresh, constants, None
        # The body holds those of the constants that it reads, and nothing else does.
        constants.clear()
        on_gpu = is_gpu(self.device)
        body = fused_body(body, operators, on_gpu=on_gpu)
        return fresh, [], joined(body) if on_gpu else row_by_row(body)

    def _initial(self, shared: Constants, operators: dict[str, Operator]) -> tuple[list[mx.array], list[mx.array]]:
        """Mutable buffers and constants after the init chain, evaluated."""
        graph = self._graph
        slots = Slots(graph.num_tensors, graph.num_values)
        slots.tensors[: graph.num_constant_tensors] = shared.of(graph, self.where)
        slots.tensors[graph.mutable_tids.start : graph.mutable_tids.stop] = self._zeros()
        if graph.init_chain is not None:
            for call in plan_chain(graph, graph.init_chain, operators, init=True):
                call(slots)
        constants = slots.tensors[: graph.num_constant_tensors]
        fresh = slots.tensors[graph.mutable_tids.start : graph.mutable_tids.stop]
        self.evaluated(mx.eval, constants, fresh)
        return fresh, constants

    def __call__(self, *arrays: Array) -> list[mx.array]:
        """One execution, of MLX, numpy or torch arrays; outputs have the method's dtypes.

        Nothing is converted to another dtype: int64 token ids and positions go in as they are.
        """
        return self.begin(*(to_mlx(array, f"{self.where}: input {i}") for i, array in enumerate(arrays))).finish()

    def begin(self, *arrays: mx.array) -> Execution:
        """One execution, recorded and neither computed nor committed. An open one is abandoned."""
        tidied()
        if self.under_way is not None:
            self.under_way.abandon()
        self._check_inputs(arrays)
        given = {slot.idx: array for slot, array in zip(self._input_slots, arrays, strict=True) if slot is not None}
        inputs = [given.get(tid) for tid in self._graph.input_tids]
        try:
            with mx.stream(self.device):
                results = self._run(*inputs, *self._buffers)
                outputs = [self._output(array, i) for i, array in enumerate(results[: len(self.outputs)])]
        except BaseException:
            self.end(None)
            raise
        self.under_way = Execution(self, outputs, results[len(self.outputs) :])
        return self.under_way

    def end(self, buffers: list[mx.array] | None) -> None:
        """No call is under way any more. Without the buffers it leaves, none of it counts."""
        self.under_way = None
        if buffers is not None:
            self._buffers = buffers
        if self._cache is not None:
            self._cache.abandon_step() if buffers is None else self._cache.commit_step()

    @property
    def has_buffers(self) -> bool:
        """Whether the graph itself keeps something from one call to the next."""
        return bool(self._graph.mutable_tids)

    @property
    def uses_cache(self) -> bool:
        """Whether the graph keeps something in a bound cache."""
        return any(node.name == "UpdateAndAttendNode" for chain in self._graph.chains for node in chain)

    @property
    def buffer_bytes(self) -> int:
        """What the mutable buffers take once they have been written."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def reset(self) -> None:
        """Forgets what the mutable buffers hold. A bound cache is its owner's to reset."""
        self._buffers = self._fresh

    def evaluated(self, evaluate: Callable[..., None], *arrays: Sequence[mx.array]) -> None:
        """MLX computes only now: what it has no kernel for shows here."""
        try:
            evaluate(*arrays)
        except FAILURES as error:
            raise DelegateError(f"{self.where} failed on {self.device}: {error}") from error

    def _node_by_node(self, plan: list[Call], constants: list[mx.array]) -> Callable[..., list[Any]]:
        """Inputs and buffers to outputs and buffers, by the graph as it is written."""
        graph = self._graph
        num_inputs = graph.num_input_tensors
        results = [slot.idx for slot in self._output_slots] + list(graph.mutable_tids)

        def run(*arrays: mx.array | None) -> list[Any]:
            slots = Slots(0, graph.num_values)
            made = [None] * graph.num_output_tensors, [None] * graph.num_temp_tensors
            slots.tensors = [*constants, *arrays[:num_inputs], *made[0], *arrays[num_inputs:], *made[1]]
            for call in plan:
                call(slots)
            return [slots.tensors[tid] for tid in results]

        return run

    def _zeros(self) -> list[mx.array]:
        """What the mutable buffers begin as, whatever they held when the model was exported, as on the device."""
        buffers = []
        for tid in self._graph.mutable_tids:
            meta = self._graph.meta(tid)
            shape = [dim.value for dim in meta.shape] if meta else [None]
            if meta is None or None in shape:
                raise DelegateError(f"{self.where}: mutable buffer {tid} has no static shape. The file is damaged.")
            sizes = tuple(size for size in shape if size is not None)
            dtype = dtypes.of_name(meta.dtype, f"{self.where}: mutable buffer {tid}")
            check_allocation(f"{self.where}: mutable buffer {tid}", sizes, dtype)
            # One zero seen everywhere takes no memory, and a call that writes makes a buffer of its own.
            buffers.append(mx.broadcast_to(mx.zeros((), dtype), sizes))
        return buffers

    def _only_delegate(self, method: Method) -> tuple[Delegate, tuple[int, ...]]:
        """The delegate that is the whole body of the method, and the values that it is handed."""
        if method.is_constant:
            raise DelegateError(f"{self.where} has nothing to execute: it publishes a value, which the program holds.")
        calls = method.instructions
        if len(calls) != 1 or calls[0].kind != "delegate_call" or len(method.delegates) != 1:
            left_out = sorted({shown(call.operator or call.kind) for call in calls if call.kind != "delegate_call"})
            raise DelegateError(
                f"{self.where} has {len(method.delegates)} delegates and operators outside them "
                f"({', '.join(left_out) or 'none'}); expected one MLX delegate and nothing else."
            )
        if method.delegates[0].id != BACKEND_ID:
            raise DelegateError(f"{self.where} is delegated to {shown(method.delegates[0].id)}; expected {BACKEND_ID}.")
        return method.delegates[0], calls[0].args

    def _bind_signature(self, method: Method, arguments: tuple[int, ...]) -> None:
        """Which slot each of the method's inputs and outputs has.

        The delegate is handed indices into the method's values, first its inputs, then its outputs, in an order of its
        own and not that of the method's signature.
        """
        graph = self._graph
        if len(arguments) != len(graph.input_map) + len(graph.output_map):
            raise DelegateError(
                f"{self.where} hands {len(arguments)} values to a delegate of {len(graph.input_map)} inputs and "
                f"{len(graph.output_map)} outputs. The file is damaged."
            )
        given, made = arguments[: len(graph.input_map)], arguments[len(graph.input_map) :]
        unseen = not set(given) <= set(method.input_ids) or not set(method.output_ids) <= set(made)
        if unseen or len(set(given)) < len(given):
            raise DelegateError(f"{self.where} has inputs or outputs its delegate does not see. The file is damaged.")
        self.inputs = tuple(self._tensor(value) for value in method.inputs)
        self.outputs = tuple(self._tensor(value) for value in method.outputs)
        slots = dict(zip(given, graph.input_map, strict=True))
        # An input that the model does not use is not handed on.
        self._input_slots = tuple(slots.get(value) for value in method.input_ids)
        self._output_slots = tuple(graph.output_map[made.index(value)] for value in method.output_ids)
        for slot in (*slots.values(), *self._output_slots):
            if slot.kind != "tensor":
                raise DelegateError(f"{self.where} takes or returns a plain {slot.kind}; this executor passes tensors.")
        if sorted(slot.idx for slot in slots.values()) != list(graph.input_tids):
            raise DelegateError(
                f"{self.where} does not hand its delegate each of its {graph.num_input_tensors} inputs. "
                "The file is damaged."
            )

    def _tensor(self, value: object) -> TensorValue:
        if not isinstance(value, TensorValue):
            raise DelegateError(f"{self.where} takes or returns a {type(value).__name__}; expected tensors.")
        return value

    def _check_inputs(self, arrays: tuple[mx.array, ...]) -> None:
        """ExecuTorch's own rules: dtype and rank as declared, sizes equal to a static one, within a dynamic one."""
        if len(arrays) != len(self.inputs):
            raise DelegateError(f"{self.where} takes {len(self.inputs)} inputs; {len(arrays)} were given.")
        for index, (array, declared) in enumerate(zip(arrays, self.inputs, strict=True)):
            fits = len(array.shape) == len(declared.sizes) and all(
                size <= bound if declared.dynamic else size == bound
                for size, bound in zip(array.shape, declared.sizes, strict=True)
            )
            if not fits or array.dtype != dtypes.of_name(declared.dtype, f"{self.where}: input {index}"):
                at_most = "at most " if declared.dynamic else ""
                raise DelegateError(
                    f"{self.where}: input {index} is {list(array.shape)} of {array.dtype}; expected {at_most}"
                    f"{list(declared.sizes)} of {declared.dtype}."
                )

    def _output(self, array: mx.array | None, index: int) -> mx.array:
        declared = self.outputs[index]
        if array is None:
            raise DelegateError(f"{self.where}: output {index} was never written. The file is damaged.")
        fits = array.ndim == len(declared.sizes) and all(
            size <= bound for size, bound in zip(array.shape, declared.sizes, strict=True)
        )
        if not fits:
            raise DelegateError(
                f"{self.where}: output {index} has shape {list(array.shape)}; expected at most {list(declared.sizes)}."
            )
        return array.astype(dtypes.of_name(declared.dtype, f"{self.where}: output {index}"))
