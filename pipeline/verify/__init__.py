"""Does a ``.pte`` publish the truth? Its constant methods against their schema, each other, its graph and a manifest.

Knows the runner's contract and what each published value claims about ``forward``; ``pipeline.evidence`` gathers what
the file shows. Runs nothing. What a file cannot show is not checked: windows leave no trace in a graph, the logits
mode none beyond the logits' shape, and K/V shapes are compared where they follow from the graph (``Evidence.summary``
says when some do not).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline import schema
from pipeline.evidence import BACKEND, DTYPES, MODES, Evidence, GraphFacts, QuantizedFormat, heads_and_dim
from pipeline.pte import PteFile, TensorValue, Value, dtypes
from pipeline.pte.flatbuffer import quoted
from pipeline.spec import BuildSpec, WeightFormat

SCHEMA = "constant-methods"
_PER_CACHE = ("get_kv_heads", "get_head_dims", "get_windows")
_ROWS_OF = {"full": "token", "selected": "selected row"}
_OLDER_NAMES = {"get_max_ctx_len": "get_max_context_len", "get_prefill_chunk_size": "get_max_seq_len"}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something untrue or missing. ``rule`` is a key of ``RULES``; ``message`` is for a person."""

    rule: str
    message: str


def verify(pte: PteFile, asked: BuildSpec | None = None) -> list[Finding]:
    """Everything a runner would be told wrongly, in the order of ``RULES``; empty when the file holds."""
    return check(Evidence.of(pte), asked)


def check(evidence: Evidence, asked: BuildSpec | None = None) -> list[Finding]:
    """The same for evidence already gathered. A value that breaks the schema is left out of later comparisons."""
    broken = _broken_schema(evidence.constants)
    sound = {name: value for name, value in evidence.constants.items() if name not in broken}
    texts = [("published", text) for text in broken.values()]
    for rule, find in RULES.items():
        texts += [(rule, text) for text in find(_Case(sound, evidence, asked))]
    return [Finding(rule, f"{evidence.where}: {text}. Rebuild the artifact.") for rule, text in texts]


def _broken_schema(constants: Mapping[str, Any]) -> dict[str, str]:
    """Method name to what is wrong with it, in the schema's order."""
    # Imported here: it takes longer than reading a file does.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    rules = schema.load(SCHEMA)
    # JSON Schema counts 512.0 as an integer; a Double is not an Int to a runner.
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    wrong = set()
    strict: Any = extend(Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]
    for error in strict(rules).iter_errors(dict(constants)):
        wrong.add(error.absolute_path[0] if error.absolute_path else None)
    broken = {}
    for name, rule in rules["properties"].items():
        if name in wrong:
            broken[name] = f"{name} is {_shown(constants[name])}; expected {rule['x-expected']}"
        elif name in rules["required"] and name not in constants:
            broken[name] = f"{name} is missing; expected {rule['x-expected']}"
    return broken


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return f"a tensor of {value['dtype']} {value['sizes']} with {_cut(value['values'])}"
    return _cut(value)


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


@dataclass(frozen=True)
class _Case:
    """What a rule looks at: published values that satisfy the schema, the evidence, and what was asked for."""

    published: Mapping[str, Any]
    evidence: Evidence
    asked: BuildSpec | None

    def entries(self, name: str) -> Sequence[int] | None:
        tensor = self.published.get(name)
        return None if tensor is None else tensor["values"]

    @property
    def graph(self) -> GraphFacts | None:
        return self.evidence.forward.graph if self.evidence.forward else None

    @property
    def mode(self) -> str | None:
        return MODES.get(self.published.get("get_logits_to_keep_mode", -1))

    @property
    def dtype(self) -> str | None:
        return DTYPES.get(self.published.get("get_activation_dtype", -1))


def _lengths(case: _Case) -> Iterator[str]:
    num_caches = case.published.get("get_n_caches")
    for name in _PER_CACHE:
        entries = case.entries(name)
        if num_caches is not None and entries is not None and len(entries) != num_caches:
            yield f"{name} has {len(entries)} entries but get_n_caches is {num_caches}; they describe the same caches"


def _older_names(case: _Case) -> Iterator[str]:
    for old, new in _OLDER_NAMES.items():
        values = [case.published.get(name) for name in (old, new)]
        if None not in values and values[0] != values[1]:
            yield f"{old} is {values[0]} but {new} is {values[1]}; they are two names of one value"


def _bounds(case: _Case) -> Iterator[str]:
    step, context = case.published.get("get_max_seq_len"), case.published.get("get_max_context_len")
    if step is None:
        return
    if context is not None and step > context:
        yield f"get_max_seq_len is {step} but get_max_context_len is {context}; a step must fit the context"
    windows = [window for window in case.entries("get_windows") or () if window > 0]
    if windows and step > min(windows):
        yield f"get_max_seq_len is {step} but get_windows has {min(windows)}; a step must fit the narrowest window"


def _token_ids(case: _Case) -> Iterator[str]:
    vocab = case.published.get("get_vocab_size")
    for name in ("get_eos_ids", "get_bos_id"):
        ids = case.published.get(name, [])
        for token in [ids] if isinstance(ids, int) else ids:
            if vocab is not None and token >= vocab:
                yield f"{name} has {token} but get_vocab_size is {vocab}; a token id must be below it"


def _one_delegate(case: _Case) -> Iterator[str]:
    forward = case.evidence.forward
    if forward is None:
        yield f"there is no method 'forward'; it has {', '.join(map(quoted, case.evidence.methods)) or 'none'}"
        return
    if forward.delegates != (BACKEND,):
        calls = ", ".join(map(quoted, forward.delegates)) or "no delegate"
        yield f"forward calls {calls}; expected exactly one {BACKEND}"
    if forward.others:
        listed = ", ".join(f"{quoted(name)} ({count})" for name, count in sorted(forward.others.items()))
        yield f"forward leaves {listed} outside its delegate; expected one {BACKEND} and nothing else"
    if forward.graph and forward.graph.num_slots != forward.num_delegate_args:
        yield (
            f"forward passes {forward.num_delegate_args} values to its delegate but the graph takes and returns "
            f"{forward.graph.num_slots}; they are bound in order"
        )


def _inputs(case: _Case) -> Iterator[str]:
    forward = case.evidence.forward
    if forward is None:
        return
    num_inputs = 3 if case.mode == "selected" else 2
    if case.mode is not None and len(forward.inputs) != num_inputs:
        expected = "tokens, positions and a selector" if num_inputs == 3 else "tokens and positions"
        yield f"forward takes {len(forward.inputs)} inputs; expected {expected} for {case.mode} logits"
    if len(forward.inputs) < 2:
        return
    tokens, positions, *selectors = forward.inputs
    for what, value, expected, rank in (
        ("tokens are", tokens, "int64 [1, T]", 2),
        ("positions are", positions, "int64 [T]", 1),
        *(("selector is", value, "int64 [rows]", 1) for value in selectors[:1]),
    ):
        if not (isinstance(value, TensorValue) and value.dtype == "int64" and len(value.sizes) == rank):
            yield f"forward's {what} {_described(value)}; expected {expected}"
            return
    assert isinstance(tokens, TensorValue) and isinstance(positions, TensorValue)  # noqa: PT018
    if tokens.sizes[0] != 1:
        yield f"forward's tokens are {_described(tokens)}; expected int64 [1, T]"
    if positions.sizes[0] != tokens.sizes[1]:
        yield f"forward's positions are {_described(positions)} and its tokens {_described(tokens)}; expected one each"
    yield from _step_bound(case, tokens, positions)
    for selector in selectors[:1]:
        assert isinstance(selector, TensorValue)
        if selector.sizes[0] > 1 and not selector.dynamic:
            yield (
                f"forward's selector names exactly {selector.sizes[0]} rows; expected any number up to that, as "
                "decoding selects one"
            )


def _step_bound(case: _Case, tokens: TensorValue, positions: TensorValue) -> Iterator[str]:
    bound = tokens.sizes[1]
    step = case.published.get("get_max_seq_len")
    if step is not None and bound != step:
        yield f"forward takes up to {bound} tokens but get_max_seq_len is {step}; they bound the same step"
    if bound > 1 and not (tokens.dynamic and positions.dynamic):
        yield f"forward takes exactly {bound} tokens; expected any number up to that, as decoding feeds one at a time"


def _logits(case: _Case) -> Iterator[str]:
    forward = case.evidence.forward
    if forward is None:
        return
    if len(forward.outputs) != 1:
        yield f"forward returns {len(forward.outputs)} values; expected logits alone"
        return
    (logits,) = forward.outputs
    if not isinstance(logits, TensorValue) or len(logits.sizes) != 3 or logits.sizes[0] != 1:
        yield f"forward returns {_described(logits)}; expected logits [1, rows, vocab]"
        return
    allowed = {"float32", _dtype_name(case.published.get("get_activation_dtype"))} - {None}
    if logits.dtype not in (allowed if case.dtype else {"float16", "bfloat16", "float32"}):
        yield f"forward returns {_described(logits)}; expected float32 or the activation dtype, {case.dtype}"
    _, rows, width = logits.sizes
    vocab = case.published.get("get_vocab_size")
    if vocab is not None and width != vocab:
        yield f"forward returns logits {width} wide but get_vocab_size is {vocab}; they count the same tokens"
    tokens = forward.inputs[0] if forward.inputs else None
    bound = tokens.sizes[-1] if isinstance(tokens, TensorValue) and tokens.sizes else None
    selector = forward.inputs[2] if len(forward.inputs) > 2 else None
    selected = selector.sizes[0] if isinstance(selector, TensorValue) and len(selector.sizes) == 1 else None
    expected = {"last": 1, "full": bound, "selected": selected}.get(case.mode or "")
    if expected is not None and rows != expected:
        yield f"forward returns up to {rows} rows of logits; expected {expected} for {case.mode} logits"
    elif rows > 1 and not logits.dynamic:
        yield f"forward returns exactly {rows} rows of logits; expected any number up to that, as a step may be shorter"
    if case.graph is not None:
        yield from _computed_logits(case.graph, case.mode, rows, width)


def _computed_logits(graph: GraphFacts, mode: str | None, rows: int, width: int) -> Iterator[str]:
    computed = graph.logits or ()
    if computed and isinstance(computed[-1], int) and computed[-1] != width:
        yield f"the graph computes logits {computed[-1]} wide but forward returns {width}; they are the same tensor"
    if len(computed) == 3 and isinstance(computed[1], int) and computed[1] != rows:
        yield f"the graph computes {computed[1]} rows of logits but forward returns {rows}; they are the same tensor"
    if mode is not None and graph.rows_of is not None and graph.rows_of != _ROWS_OF.get(mode):
        wanted = f"each {_ROWS_OF[mode]}" if mode in _ROWS_OF else "the last token alone"
        yield f"the graph computes logits of each {graph.rows_of}; expected those of {wanted} for {mode} logits"


def _described(value: Value) -> str:
    if isinstance(value, TensorValue):
        return f"{value.dtype} {list(value.sizes)}"
    return f"a {type(value).__name__.removesuffix('Value').lower()}"


def _dtype_name(code: int | None) -> str | None:
    return None if code is None else dtypes.BY_CODE[code].name


def _cache_ids(case: _Case) -> Iterator[str]:
    num_caches = case.published.get("get_n_caches")
    if case.graph is None:
        return
    if any(attend.layer_id is None for attend in case.graph.attends):
        yield "an UpdateAndAttendNode has no layer_id; expected the id of its cache"
    if any(attend.scale is None for attend in case.graph.attends):
        yield "an UpdateAndAttendNode has no scale; expected what its scores are multiplied by"
    if num_caches is None:
        return
    written = {attend.layer_id for attend in case.graph.attends} - {None}
    beyond = sorted(cache for cache in written if cache is not None and not 0 <= cache < num_caches)
    if beyond:
        yield f"the graph attends to caches {_cut(beyond)} but get_n_caches is {num_caches}; ids run from 0"
    # Counted, not listed in full: the number a damaged file publishes may be anything.
    num_missing = num_caches - (len(written) - len(beyond))
    if num_missing:
        first = next(cache for cache in range(num_caches) if cache not in written)
        yield (
            f"the graph never attends to cache {first}{f' and {num_missing - 1} more' if num_missing > 1 else ''} "
            f"but get_n_caches is {num_caches}; expected every cache at least once"
        )


def _geometry(case: _Case) -> Iterator[str]:
    heads, dims = case.entries("get_kv_heads"), case.entries("get_head_dims")
    if case.graph is None or heads is None or dims is None:
        return
    for attend in case.graph.attends:
        cache = attend.layer_id
        if cache is None or not 0 <= cache < min(len(heads), len(dims)):
            continue
        for what, shape in (("keys", attend.key), ("values", attend.value)):
            found = heads_and_dim(shape)
            if found is not None and found != (heads[cache], dims[cache]):
                yield (
                    f"cache {cache} is given {what} of {found[0]} heads of {found[1]} but get_kv_heads and "
                    f"get_head_dims say {heads[cache]} heads of {dims[cache]}"
                )
        query = heads_and_dim(attend.query)
        if query is not None and (query[1] != dims[cache] or query[0] % heads[cache]):
            yield (
                f"cache {cache} is asked by {query[0]} heads of {query[1]} but get_kv_heads and get_head_dims say "
                f"{heads[cache]} heads of {dims[cache]}; expected a multiple of heads and the same size"
            )


def _activation_dtype(case: _Case) -> Iterator[str]:
    code = case.published.get("get_activation_dtype")
    if case.graph is None or code is None:
        return
    others = {attend.out_dtype for attend in case.graph.attends} - {None, code}
    if others:
        names = ", ".join(sorted(DTYPES.get(other or 0, str(other)) for other in others))
        yield f"the graph attends in {names} but get_activation_dtype is {code} ({case.dtype})"
    known = {attend.out_dtype for attend in case.graph.attends} - {None}
    if not known and case.graph.float_dtypes and _dtype_name(code) not in case.graph.float_dtypes:
        held = ", ".join(sorted(case.graph.float_dtypes))
        yield f"the graph's constants are {held} but get_activation_dtype is {code} ({case.dtype})"


def _state(case: _Case) -> Iterator[str]:
    if case.graph is not None and case.graph.num_mutable_buffers:
        yield (
            f"the graph keeps {case.graph.num_mutable_buffers} mutable buffers; expected none, as a runner rewinds "
            "its caches and could not rewind them"
        )


def _data(case: _Case) -> Iterator[str]:
    if case.graph is not None:
        yield from case.graph.bad_constants


def _as_asked(case: _Case) -> Iterator[str]:
    asked = case.asked
    if asked is None:
        return
    for name, found, expected in (
        ("get_activation_dtype", case.dtype, asked.dtype),
        ("get_logits_to_keep_mode", case.mode, asked.logits),
        ("get_max_seq_len", case.published.get("get_max_seq_len"), asked.max_seq_len),
        ("get_max_context_len", case.published.get("get_max_context_len"), asked.max_context_len),
    ):
        if found is not None and found != expected:
            yield f"{name} says {found} but the manifest asks for {expected}"
    if case.graph is not None:
        yield from _weights_as_asked(case.graph, asked)


def _weights_as_asked(graph: GraphFacts, asked: BuildSpec) -> Iterator[str]:
    """Quantized linear layers and embeddings are there as asked for, and none otherwise.

    A head that is tied to the embedding multiplies by weights of the embedding's format.
    """
    linear, embedding = _in_mlx(asked.linear), _in_mlx(asked.embedding)
    for kind, form, held, own, admitted in (
        ("linear layers", asked.linear, graph.multiplied, linear, linear | embedding),
        ("embeddings", asked.embedding, graph.looked_up, embedding, embedding),
    ):
        for found in sorted(held - admitted):
            yield (
                f"the graph has {kind} with {found.mode} weights of {found.bits} bits in groups of {found.group_size} "
                f"but the manifest asks for {form if form.quantized else 'none that are quantized'}"
            )
        if form.quantized and not held & own:
            yield f"the graph has no {kind} as {form} but the manifest asks for them"


def _in_mlx(form: WeightFormat) -> frozenset[QuantizedFormat]:
    """What MLX makes of a format; a scale of a whole row is repeated for groups of the largest size that divides it."""
    if not form.quantized:
        return frozenset()
    mode, bits = {"4w": ("affine", 4), "8w": ("affine", 8), "nvfp4": ("nvfp4", 4), "mxfp8": ("mxfp8", 8)}[form.scheme]
    return frozenset(
        QuantizedFormat(mode, bits, size) for size in ((form.group_size,) if form.group_size else (32, 64, 128))
    )


RULES: dict[str, Callable[[_Case], Iterator[str]]] = {
    "lengths": _lengths,
    "older-names": _older_names,
    "bounds": _bounds,
    "token-ids": _token_ids,
    "one-delegate": _one_delegate,
    "inputs": _inputs,
    "logits": _logits,
    "cache-ids": _cache_ids,
    "geometry": _geometry,
    "activation-dtype": _activation_dtype,
    "state": _state,
    "data": _data,
    "as-asked": _as_asked,
}
"""The rules after ``published``, which is the schema's: name to what finds its violations."""
