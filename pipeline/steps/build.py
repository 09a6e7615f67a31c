"""A snapshot becomes ``model.pte``: load, rehearse, export, prove, lower, write.

``report.json`` is what there is to say about it. Nothing in it is wrong with the artifact; what would be is refused. It
tells where each end of text is named, what each layer's attention is like, and what is odd about the checkpoint, in
sentences. Verification holds the artifact to it.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.errors import ExportError
from pipeline.model import attention, checkpoint, metadata, suitability, vocabulary
from pipeline.spec import BuildSpec

ARTIFACT = "model.pte"
REPORT = "report.json"


def run(
    spec: BuildSpec, snapshot: Path, out: Path, stage: Callable[[str], None], quantized: Path | None = None
) -> None:
    """Writes ``out/model.pte`` and ``out/report.json``.

    ``quantized`` holds the quantize step's weights, of a model that is quantized.

    Raises ExportError when the model cannot be exported and stay right, LowerError when it does not become one
    delegate.
    """
    stage("importing")
    _calm_garbage_collector()
    # What the configuration alone can tell is told before executorch's imports, which take longest.
    config = checkpoint.load_config(snapshot)
    suitability.refuse_unsuitable(config, max_context_len=spec.max_context_len)
    _check_context(config, spec)
    from pipeline.model.export import export_forward
    from pipeline.model.geometry import attention_calls, caches_of, within_context
    from pipeline.model.lower import lower_to_mlx, write
    from pipeline.model.proof import prove, real_tokens
    from pipeline.model.quantization import give
    from pipeline.model.rehearsal import rehearse

    attention.register()
    stage("loading")
    tokenizer = checkpoint.load_tokenizer(snapshot)
    model = checkpoint.load_model(snapshot, spec.dtype, attention.IMPLEMENTATION)
    ends = vocabulary.ends_of_text(model, tokenizer)
    if not ends.ids:
        raise ExportError(
            "neither the generation config, the configuration, the tokenizer nor its chat template names an "
            "end-of-text token; a runner would never stop. Add eos_token_id to the model's generation_config.json."
        )
    stage("rehearsing")
    calls = attention_calls(model)
    caches = caches_of(calls, model)
    _check_windows([cache.window for cache in caches], spec)
    rehearse(model, caches, max_context_len=spec.max_context_len)
    if quantized is not None:
        give(model, quantized)
    stage("exporting")
    program = export_forward(model, spec.max_seq_len, spec.logits)
    width = _logits_width(program)
    notes = [*ends.notes, *vocabulary.disagreements(model, tokenizer, ends, width)]
    constants = metadata.constant_methods(
        spec,
        within_context(caches, spec.max_context_len),
        vocab_size=width,
        eos_ids=ends.ids,
        bos_id=vocabulary.start_of_text(model, tokenizer),
    )
    stage("proving")
    proof = prove(
        program,
        model,
        caches,
        real=real_tokens(tokenizer),
        max_seq_len=spec.max_seq_len,
        max_context_len=spec.max_context_len,
    )
    stage("lowering")
    lowered = lower_to_mlx(program, constants)
    stage("writing")
    write(lowered, out / ARTIFACT)
    report = {
        "end_of_text": dict(ends.sources),
        "attention": [_recorded(index, call) for index, call in enumerate(calls)],
        "proof": str(proof),
        "notes": notes,
    }
    (out / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _recorded(index: int, call: attention.AttentionCall) -> dict[str, int]:
    """A call of attention, for whoever holds the artifact to it; a layer without a number is known by its call's."""
    return {
        "layer": index if call.layer is None else call.layer,
        "cache": call.cache_id,
        "num_kv_heads": call.num_kv_heads,
        "head_dim": call.head_dim,
        "window": call.window,
    }


def _check_context(config: Any, spec: BuildSpec) -> None:
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and spec.max_context_len > limit:
        raise ExportError(
            f"max_context_len is {spec.max_context_len}; the model was made for at most {limit} positions "
            f"(max_position_embeddings). Lower max_context_len to {limit}."
        )


def _check_windows(windows: list[int], spec: BuildSpec) -> None:
    narrowest = min((window for window in windows if window), default=None)
    if narrowest is not None and spec.max_seq_len > narrowest:
        raise ExportError(
            f"max_seq_len is {spec.max_seq_len}; the model's narrowest attention window is {narrowest}, and a step may "
            f"not be longer. Lower max_seq_len to {narrowest}."
        )


def _logits_width(program: Any) -> int:
    (output,) = program.graph.output_node().args[0]
    return int(output.meta["val"].shape[-1])


def _calm_garbage_collector() -> None:
    """Graph passes allocate millions of long-lived objects; scanning them again and again finds nothing to free."""
    gc.set_threshold(200_000, 20, 100)
