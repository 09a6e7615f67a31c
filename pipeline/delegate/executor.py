"""A method of a ``.pte`` whose whole body is one MLX delegate, ready to be called with arrays.

Knows the container, the graph and the cache's interface; does not know language models.
"""

from __future__ import annotations

import mlx.core as mx

from pipeline.delegate import dtypes
from pipeline.delegate.ops import OPERATORS, metal
from pipeline.delegate.ops.attention import Cache, UpdateAndAttend
from pipeline.delegate.ops.creation import check_allocation
from pipeline.delegate.plan import FAILURES, Operator, Slots, plan_chain
from pipeline.errors import DelegateError
from pipeline.pte import Delegate, Method, PteFile, Slot, TensorValue, parse_mlx_payload

BACKEND_ID = "MLXBackend"


class MlxMethod:
    """Call it with one array per input; it returns one array per output, evaluated.

    What the graph keeps from one call to the next is in mutable buffers of this object's own, or in the bound cache; a
    call that fails leaves both as they were. Raises DelegateError for inputs of another number, dtype or
    shape than the method declares, and CacheError when the cache refuses the step.
    """

    def __init__(self, pte: PteFile, name: str = "forward", cache: Cache | None = None) -> None:
        self.where = f"{pte.path.name}: {name}"
        self._cache = cache
        method = pte.program.methods.get(name)
        if method is None:
            raise DelegateError(f"{pte.path.name} has no method '{name}'; it has {', '.join(pte.program.methods)}.")
        delegate, arguments = self._only_delegate(method)
        self._graph = graph = parse_mlx_payload(delegate.payload)
        self._bind_signature(method, arguments)
        metal.refuse_elsewhere(graph, self.where)
        self._slots = Slots(graph.num_tensors, graph.num_values)
        self._load_constants(pte)
        self._slots.tensors[graph.mutable_tids.start : graph.mutable_tids.stop] = self._zeros()
        operators: dict[str, Operator] = {**OPERATORS, "UpdateAndAttendNode": UpdateAndAttend(cache)}
        if graph.init_chain is not None:
            for call in plan_chain(graph, graph.init_chain, operators, init=True):
                call(self._slots)
        self._constants = self._slots.tensors[: graph.num_constant_tensors]
        self._fresh = self._buffers = self._buffers_in_slots()
        self._evaluate(self._constants, self._buffers)
        self._plan = plan_chain(graph, graph.main_chain, operators)

    def __call__(self, *arrays: mx.array) -> list[mx.array]:
        """One execution. int64 token ids and positions go in as they are; outputs have the method's dtypes."""
        self._check_inputs(arrays)
        graph, slots = self._graph, self._slots
        between = graph.mutable_tids.start - graph.num_constant_tensors
        slots.tensors = [*self._constants, *[None] * between, *self._buffers, *[None] * graph.num_temp_tensors]
        for slot, array in zip(self._input_slots, arrays, strict=True):
            if slot is not None:
                slots.tensors[slot.idx] = array
        try:
            for call in self._plan:
                call(slots)
            outputs = [self._output(slots.tensors[slot.idx], i) for i, slot in enumerate(self._output_slots)]
            buffers = self._buffers_in_slots()
            self._evaluate(outputs, buffers)
        except BaseException:
            if self._cache is not None:
                self._cache.abandon_step()
            raise
        finally:
            slots.tensors = []
        self._buffers = buffers
        if self._cache is not None:
            self._cache.commit_step()
        return outputs

    def reset(self) -> None:
        """Forgets what the mutable buffers hold. A bound cache is its owner's to reset."""
        self._buffers = self._fresh

    def _evaluate(self, *arrays: list[mx.array]) -> None:
        """MLX computes only now: what it has no kernel for shows here."""
        try:
            mx.eval(*arrays)
        except FAILURES as error:
            raise DelegateError(f"{self.where} failed on {mx.default_device()}: {error}") from error

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
            buffers.append(mx.zeros(sizes, dtype))
        return buffers

    def _buffers_in_slots(self) -> list[mx.array]:
        return self._slots.tensors[self._graph.mutable_tids.start : self._graph.mutable_tids.stop]

    def _only_delegate(self, method: Method) -> tuple[Delegate, tuple[int, ...]]:
        """The delegate that is the whole body of the method, and the values that it is handed."""
        calls = method.instructions
        if len(calls) != 1 or calls[0].kind != "delegate_call" or len(method.delegates) != 1:
            left_out = sorted({call.operator or call.kind for call in calls if call.kind != "delegate_call"})
            raise DelegateError(
                f"{self.where} has {len(method.delegates)} delegates and operators outside them "
                f"({', '.join(left_out) or 'none'}); expected one MLX delegate and nothing else."
            )
        if method.delegates[0].id != BACKEND_ID:
            raise DelegateError(f"{self.where} is delegated to {method.delegates[0].id}; expected {BACKEND_ID}.")
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

    def _load_constants(self, pte: PteFile) -> None:
        graph = self._graph
        for tid in graph.constant_tids:
            key, meta = graph.names.get(Slot("tensor", tid)), graph.meta(tid)
            if key is None or meta is None:
                raise DelegateError(f"{self.where}: constant {tid} has no name or no shape. The file is damaged.")
            what = f"{self.where}: constant '{key}'"
            if key not in pte.named_data:
                raise DelegateError(f"{what} is not among the file's named data. The file is damaged.")
            shape = [dim.value for dim in meta.shape]
            if None in shape:
                raise DelegateError(f"{what} has a dynamic shape; a constant's is static. The file is damaged.")
            self._slots.tensors[tid] = dtypes.array_from_bytes(
                pte.named_data[key], tuple(size for size in shape if size is not None), meta.dtype, what
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
