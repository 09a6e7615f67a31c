"""PTE3xx: what is published against ``forward``: its signature, and its one delegate's graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.evidence import BACKEND, DTYPES, heads_and_dim
from pipeline.pte import TensorValue, Value, dtypes
from pipeline.pte.flatbuffer import quoted
from pipeline.verify.case import Case
from pipeline.verify.contracts import cut
from pipeline.verify.findings import Pair
from pipeline.verify.rules import ERROR, NOTE, WARNING, Broken, rule

FORWARD = "forward"
_FLOATS = {"float16", "bfloat16", "float32"}
_ROWS_OF = {"full": "token", "selected": "selected row"}


@rule("PTE301", "forward-absent", ERROR, Pair.PUBLISHED_GRAPH, "There is no method 'forward', which a runner calls.")
def _forward(case: Case) -> Iterator[Broken]:
    if case.forward is None:
        methods = ", ".join(map(quoted, case.evidence.methods)) or "none"
        yield Broken(FORWARD, f"there is no method 'forward'; it has {cut_text(methods)}")


@rule(
    "PTE302",
    "one-delegate",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "A graph with its cache outside calls another number of delegates than one, or another backend's.",
)
def _one_delegate(case: Case) -> Iterator[Broken]:
    if case.forward is not None and case.caches_outside and case.forward.delegates != (BACKEND,):
        yield Broken(FORWARD, f"forward calls {_calls(case.forward.delegates)}; expected exactly one {BACKEND}")


@rule(
    "PTE303",
    "undelegated-operators",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "A graph with its cache outside leaves operators to be run outside its delegate.",
)
def _undelegated(case: Case) -> Iterator[Broken]:
    if case.forward is not None and case.caches_outside and case.forward.others:
        listed = _counted(case.forward.others)
        text = f"forward leaves {listed} outside its delegate; expected one {BACKEND} and nothing else"
        yield Broken(FORWARD, text)


@rule(
    "PTE304",
    "delegate-arguments",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "The delegate is passed another number of values than its graph takes and returns.",
)
def _arguments(case: Case) -> Iterator[Broken]:
    forward, graph = case.forward, case.graph
    if forward is not None and graph is not None and graph.num_slots != forward.num_delegate_args:
        yield Broken(
            FORWARD,
            f"forward passes {forward.num_delegate_args} values to its delegate but the graph takes and returns "
            f"{graph.num_slots}; they are bound in order",
        )


@rule(
    "PTE305",
    "number-of-inputs",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "forward takes another number of inputs than its logits mode and its cache ask for.",
)
def _inputs(case: Case) -> Iterator[Broken]:
    if case.forward is None:
        return
    num_inputs = len(case.forward.inputs)
    if case.mode == "selected":
        expected, why, number = "tokens, positions and a selector", "for selected logits", 3
    elif case.mode is None and case.published.get("use_kv_cache", True) in (False, 0):
        expected, why, number = "tokens alone", "for a graph that keeps no KV cache", 1
    else:
        expected, why, number = "tokens and positions", f"for {case.mode} logits" if case.mode else "", 2
    if num_inputs != number:
        yield Broken(FORWARD, f"forward takes {num_inputs} inputs; expected {expected} {why}".rstrip())


@rule(
    "PTE306",
    "input-kinds",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "An input of forward is no int64 tensor of the shape that a runner feeds.",
)
def _input_kinds(case: Case) -> Iterator[Broken]:
    inputs = case.forward.inputs if case.forward else ()
    told = (("tokens are", "int64 [1, T]", 2), ("positions are", "int64 [T]", 1), ("selector is", "int64 [rows]", 1))
    for value, (what, expected, rank) in zip(inputs, told, strict=False):
        if not (isinstance(value, TensorValue) and value.dtype == "int64" and len(value.sizes) == rank):
            yield Broken(FORWARD, f"forward's {what} {_described(value)}; expected {expected}")
            return
    tokens = inputs[0] if inputs else None
    if isinstance(tokens, TensorValue) and tokens.sizes[0] != 1:
        yield Broken(FORWARD, f"forward's tokens are {_described(tokens)}; expected int64 [1, T]")
    if case.signature is None:
        return
    tokens, positions, _ = case.signature
    # A graph that keeps its cache may be told where a step starts instead.
    starts_alone = positions.sizes == (1,) and not case.caches_outside
    if positions.sizes[0] != tokens.sizes[1] and not starts_alone:
        text = f"forward's positions are {_described(positions)} and its tokens {_described(tokens)}; expected one each"
        yield Broken(FORWARD, text)


@rule(
    "PTE307",
    "step-bound",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "forward was traced for another largest step than is published.",
)
def _step_bound(case: Case) -> Iterator[Broken]:
    if case.signature is not None and case.step is not None and case.signature[0].sizes[1] != case.step:
        bound, name = case.signature[0].sizes[1], case.name_of("get_max_seq_len")
        yield Broken(name, f"forward takes up to {bound} tokens but {name} is {case.step}; they bound the same step")


@rule(
    "PTE308",
    "single-token-step",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "forward does not admit a step of one token, and decoding feeds one at a time.",
)
def _single_token(case: Case) -> Iterator[Broken]:
    if case.signature is None:
        return
    tokens, positions, _ = case.signature
    if tokens.sizes[1] > 1 and not (tokens.dynamic and (positions.dynamic or positions.sizes == (1,))):
        text = f"forward takes exactly {tokens.sizes[1]} tokens; expected any number up to that, as decoding feeds one"
        yield Broken(FORWARD, f"{text} at a time")


@rule(
    "PTE309",
    "selector-rows",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "forward's selector must name more than one row, and decoding selects one.",
)
def _selector(case: Case) -> Iterator[Broken]:
    for selector in case.signature[2] if case.signature else ():
        if selector.sizes[0] > 1 and not selector.dynamic:
            yield Broken(
                FORWARD,
                f"forward's selector names exactly {selector.sizes[0]} rows; expected any number up to that, as "
                "decoding selects one",
            )


@rule("PTE310", "logits-shape", ERROR, Pair.PUBLISHED_GRAPH, "forward does not return logits alone, in rows.")
def _logits_shape(case: Case) -> Iterator[Broken]:
    if case.forward is None or case.logits is not None:
        return
    outputs = case.forward.outputs
    if len(outputs) != 1:
        yield Broken(FORWARD, f"forward returns {len(outputs)} values; expected logits alone")
    else:
        yield Broken(FORWARD, f"forward returns {_described(outputs[0])}; expected logits [1, rows, vocab]")


@rule(
    "PTE311",
    "logits-dtype",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "forward returns logits of a dtype that is neither float32 nor the activation dtype.",
)
def _logits_dtype(case: Case) -> Iterator[Broken]:
    logits = case.logits
    if logits is None:
        return
    own = dtypes.BY_CODE[case.published["get_activation_dtype"]].name if case.dtype else None
    if logits.dtype not in ({"float32", own} if own else _FLOATS):
        expected = f"float32 or the activation dtype, {case.dtype}" if own else "float16, bfloat16 or float32"
        yield Broken(FORWARD, f"forward returns {_described(logits)}; expected {expected}")


@rule(
    "PTE312",
    "vocabulary-width",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "The logits of forward are not as wide as the published vocabulary.",
)
def _width(case: Case) -> Iterator[Broken]:
    logits, vocab = case.logits, case.published.get("get_vocab_size")
    if logits is not None and vocab is not None and logits.sizes[-1] != vocab:
        yield Broken(
            "get_vocab_size",
            f"forward returns logits {logits.sizes[-1]} wide but get_vocab_size is {vocab}; they count the same tokens",
        )


@rule(
    "PTE313",
    "logits-rows",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "forward returns other rows of logits than its published mode says.",
)
def _rows(case: Case) -> Iterator[Broken]:
    logits, forward = case.logits, case.forward
    if logits is None or forward is None:
        return
    rows = logits.sizes[1] if len(logits.sizes) == 3 else 1
    tokens = forward.inputs[0] if forward.inputs else None
    bound = tokens.sizes[-1] if isinstance(tokens, TensorValue) and tokens.sizes else None
    selector = forward.inputs[2] if len(forward.inputs) > 2 else None
    selected = selector.sizes[0] if isinstance(selector, TensorValue) and len(selector.sizes) == 1 else None
    expected = {"last": 1, "full": bound, "selected": selected}.get(case.mode or "")
    if expected is not None and rows != expected:
        text = f"forward returns up to {rows} rows of logits; expected {expected} for {case.mode} logits"
        yield Broken("get_logits_to_keep_mode", text)
    elif rows > 1 and not logits.dynamic and not _is_fixed(tokens):
        text = (
            f"forward returns exactly {rows} rows of logits; expected any number up to that, as a step may be shorter"
        )
        yield Broken(FORWARD, text)
    of = case.graph.rows_of if case.graph else None
    if case.mode is not None and of is not None and of != _ROWS_OF.get(case.mode):
        wanted = f"each {_ROWS_OF[case.mode]}" if case.mode in _ROWS_OF else "the last token alone"
        text = f"the graph computes logits of each {of}; expected those of {wanted} for {case.mode} logits"
        yield Broken("get_logits_to_keep_mode", text)


@rule(
    "PTE314",
    "computed-logits",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "The graph computes logits of another shape than forward returns.",
)
def _computed_logits(case: Case) -> Iterator[Broken]:
    logits = case.logits
    computed = case.graph.logits if case.graph else None
    if logits is None or not computed:
        return
    width, rows = computed[-1], computed[1] if len(computed) == 3 else None
    if isinstance(width, int) and width != logits.sizes[-1]:
        text = f"the graph computes logits {width} wide but forward returns {logits.sizes[-1]}"
        yield Broken(FORWARD, f"{text}; they are the same tensor")
    if isinstance(rows, int) and len(logits.sizes) == 3 and rows != logits.sizes[1]:
        text = f"the graph computes {rows} rows of logits but forward returns {logits.sizes[1]}"
        yield Broken(FORWARD, f"{text}; they are the same tensor")


@rule(
    "PTE315",
    "cache-ids",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "The graph attends to a cache that is not published, or never to one that is.",
)
def _cache_ids(case: Case) -> Iterator[Broken]:
    num_caches = case.published.get("get_n_caches")
    if case.graph is None or num_caches is None:
        return
    written = {attend.layer_id for attend in case.graph.attends if attend.layer_id is not None}
    beyond = sorted(cache for cache in written if not 0 <= cache < num_caches)
    if beyond:
        text = f"the graph attends to caches {cut(beyond)} but get_n_caches is {num_caches}; ids run from 0"
        yield Broken("get_n_caches", text)
    # Counted, not listed in full: the number a damaged file publishes may be anything.
    num_missing = num_caches - (len(written) - len(beyond))
    if num_missing:
        first = next(cache for cache in range(num_caches) if cache not in written)
        yield Broken(
            "get_n_caches",
            f"the graph never attends to cache {first}{f' and {num_missing - 1} more' if num_missing > 1 else ''} "
            f"but get_n_caches is {num_caches}; expected every cache at least once",
        )


@rule(
    "PTE316",
    "attention-arguments",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "A call of attention does not say which cache it writes, or how its scores are scaled.",
)
def _attention_arguments(case: Case) -> Iterator[Broken]:
    attends = case.graph.attends if case.graph else ()
    if any(attend.layer_id is None for attend in attends):
        yield Broken(FORWARD, "an UpdateAndAttendNode has no layer_id; expected the id of its cache")
    if any(attend.scale is None for attend in attends):
        yield Broken(FORWARD, "an UpdateAndAttendNode has no scale; expected what its scores are multiplied by")


@rule(
    "PTE317",
    "cache-geometry",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "A cache is given keys or values of other heads than are published for it.",
)
def _geometry(case: Case) -> Iterator[Broken]:
    for cache, heads, dim, key, value, _ in _attended(case):
        for what, found in (("keys", key), ("values", value)):
            if found is not None and found != (heads, dim):
                yield Broken(
                    "get_kv_heads" if found[0] != heads else "get_head_dims",
                    f"cache {cache} is given {what} of {found[0]} heads of {found[1]} but get_kv_heads and "
                    f"get_head_dims say {heads} heads of {dim}",
                )


@rule(
    "PTE318",
    "query-heads",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "A cache is asked by queries that its published heads cannot serve.",
)
def _query_heads(case: Case) -> Iterator[Broken]:
    for cache, heads, dim, _, _, query in _attended(case):
        if query is not None and (query[1] != dim or query[0] % heads):
            yield Broken(
                "get_head_dims" if query[1] != dim else "get_kv_heads",
                f"cache {cache} is asked by {query[0]} heads of {query[1]} but get_kv_heads and get_head_dims say "
                f"{heads} heads of {dim}; expected a multiple of heads and the same size",
            )


@rule(
    "PTE319",
    "activation-dtype",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "The graph computes in another dtype than is published.",
)
def _activation_dtype(case: Case) -> Iterator[Broken]:
    code = case.published.get("get_activation_dtype")
    if case.graph is None or code is None:
        return
    known = {attend.out_dtype for attend in case.graph.attends} - {None}
    others = known - {code}
    if others:
        names = ", ".join(sorted(DTYPES.get(other or 0, str(other)) for other in others))
        text = f"the graph attends in {names} but get_activation_dtype is {code} ({case.dtype})"
        yield Broken("get_activation_dtype", text)
    if not known and case.graph.float_dtypes and dtypes.BY_CODE[code].name not in case.graph.float_dtypes:
        held = ", ".join(sorted(case.graph.float_dtypes))
        text = f"the graph's constants are {held} but get_activation_dtype is {code} ({case.dtype})"
        yield Broken("get_activation_dtype", text)


@rule(
    "PTE320",
    "state-in-graph",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "A graph with its cache outside keeps state of its own, which a runner cannot rewind.",
)
def _state(case: Case) -> Iterator[Broken]:
    if case.graph is not None and case.caches_outside and case.graph.num_mutable_buffers:
        yield Broken(
            FORWARD,
            f"the graph keeps {case.graph.num_mutable_buffers} mutable buffers; expected none, as a runner rewinds "
            "its caches and could not rewind them",
        )


@rule(
    "PTE321",
    "caches-unpublished",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "The graph attends over caches outside of it, and nothing is published to build them from.",
    "Publish get_n_caches, get_kv_heads, get_head_dims and get_windows",
)
def _unpublished(case: Case) -> Iterator[Broken]:
    if case.graph is not None and case.graph.attends and not case.caches_outside:
        caches = {attend.layer_id for attend in case.graph.attends}
        text = f"the graph attends to {len(caches)} caches outside of it and no cache is published"
        yield Broken(FORWARD, f"{text}; expected their number, heads, head sizes and windows")


@rule(
    "PTE322",
    "operators-outside",
    NOTE,
    Pair.PUBLISHED_GRAPH,
    "Operators are run outside of delegates, by kernels that the runner has to bring.",
    "Nothing to do, if the runner is linked with their kernels",
)
def _outside(case: Case) -> Iterator[Broken]:
    if case.forward is not None and not case.caches_outside and case.forward.others:
        num = sum(case.forward.others.values())
        text = f"forward runs {num} instructions outside of its {len(case.forward.delegates)} delegates"
        yield Broken(FORWARD, f"{text}: {_counted(case.forward.others)}")


@rule(
    "PTE323",
    "prefill-bound",
    WARNING,
    Pair.PUBLISHED_GRAPH,
    "A prompt's longest chunk, by the published step, is longer than forward admits.",
    "Publish the bound of forward's tokens as get_max_seq_len",
)
def _prefill_bound(case: Case) -> Iterator[Broken]:
    if case.signature is None or case.step is None or not case.signature[0].dynamic:
        return
    bound, name = case.signature[0].sizes[1], case.name_of("get_max_seq_len")
    if bound < case.step:
        text = f"forward takes up to {bound} tokens but {name} is {case.step}; a runner that does not know the bound"
        yield Broken(name, f"{text} feeds a long prompt in steps that are refused")


@rule(
    "PTE324",
    "dynamic-shape",
    ERROR,
    Pair.PUBLISHED_GRAPH,
    "A dynamic shape is published and forward takes a fixed number of tokens.",
)
def _dynamic_shape(case: Case) -> Iterator[Broken]:
    if case.signature is None or case.published.get("enable_dynamic_shape", 0) not in (True, 1):
        return
    tokens = case.signature[0]
    if not tokens.dynamic:
        text = f"enable_dynamic_shape is true but forward takes exactly {tokens.sizes[1]} tokens"
        yield Broken("enable_dynamic_shape", f"{text}; a runner feeds prompts in longer steps")


def _is_fixed(tokens: Value | None) -> bool:
    """Whether a step is always of the same number of tokens, which other rules judge."""
    return isinstance(tokens, TensorValue) and not tokens.dynamic


_Heads = tuple[int, int] | None


def _attended(case: Case) -> Iterator[tuple[int, int, int, _Heads, _Heads, _Heads]]:
    """Each call of attention to a published cache: id, heads, head_dim; then those of its keys, values and queries."""
    heads, dims = case.entries("get_kv_heads"), case.entries("get_head_dims")
    if case.graph is None or heads is None or dims is None:
        return
    for attend in case.graph.attends:
        cache = attend.layer_id
        if cache is not None and 0 <= cache < min(len(heads), len(dims)):
            shapes = map(heads_and_dim, (attend.key, attend.value, attend.query))
            yield (cache, heads[cache], dims[cache], *shapes)  # type: ignore[misc]


def _calls(delegates: tuple[str, ...]) -> str:
    if len(delegates) > 3:
        counts = {name: delegates.count(name) for name in sorted(set(delegates))}
        return cut_text(", ".join(f"{quoted(name)} ({count} times)" for name, count in counts.items()))
    return ", ".join(map(quoted, delegates)) or "no delegate"


def _counted(others: Mapping[str, int]) -> str:
    return cut_text(", ".join(f"{quoted(name)} ({count})" for name, count in sorted(others.items())))


def cut_text(text: str, limit: int = 400) -> str:
    """A list out of a file, cut where it is long."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def _described(value: Value) -> str:
    if isinstance(value, TensorValue):
        return f"{value.dtype} {list(value.sizes)}"
    kind = type(value).__name__.removesuffix("Value").lower()
    return f"{'an' if kind == 'int' else 'a'} {kind}"
