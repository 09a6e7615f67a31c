"""What a run cost, in the words of the C++ runner (run_llm_hf), so that scripts that read its output read ours."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from pipeline.runtime.decoder import Decoder
from pipeline.runtime.generate import Generation
from pipeline.session.opened import Opened

MIB = 1 << 20

KV_DTYPES = {"fp32": "Float(fp32)", "fp16": "Half(fp16)", "bf16": "BFloat16"}


def cache_summary(decoder: Decoder) -> list[str]:
    """The cache's shape, as it was chosen."""
    plan = decoder.plan
    if plan is None:
        return [f"[cache] in-graph | capacity={decoder.capacity} max_write={decoder.max_write}"]
    name = KV_DTYPES.get(plan.storage.name, plan.storage.name)
    rings = "".join(f" + {number} ring(window {window})" for window, number in plan.rings.items())
    return [
        f"[cache] off-graph seq | capacity={plan.capacity} initial={plan.initial_capacity} kv_dtype={name} "
        f"max_write={plan.max_write}",
        f"        {len(plan.caches)} layers: {plan.num_flat} flat{rings}",
    ]


def cache_facts(decoder: Decoder) -> dict[str, Any]:
    """The same, for programs."""
    facts: dict[str, Any] = {
        "placement": "in_graph" if decoder.plan is None else "off_graph",
        "capacity": decoder.capacity,
        "max_write": decoder.max_write,
        "length": decoder.position,
        "bytes": decoder.cache_bytes,
    }
    if decoder.plan is not None:
        plan = decoder.plan
        facts |= {
            "initial_capacity": plan.initial_capacity,
            "storage": plan.storage.name,
            "windows": [cache.window for cache in plan.caches],
        }
    return facts


def loaded(opened: Opened) -> str:
    return f"[mem]   after load  : {opened.memory / MIB:.1f} MiB"


def footprint(opened: Opened, when: str, length: int) -> list[str]:
    """``when`` is of 13 characters: the colons of these lines are below each other."""
    capacity, memory = opened.decoder.capacity, mx.get_active_memory()
    return [
        f"[cache] {when}: {length} / {capacity} tokens ({100 * length / capacity:.1f}%)",
        f"[mem]   {when}: {memory / MIB:.1f} MiB (+{(memory - opened.memory) / MIB:.1f} MiB since load)",
    ]


def memory(opened: Opened) -> dict[str, int]:
    """What MLX has allocated, in bytes."""
    return {"after_load": opened.memory, "now": mx.get_active_memory()}


def stats(opened: Opened, generation: Generation) -> dict[str, Any]:
    """The fields of the C++ runner's report: times in milliseconds since the epoch, rates in tokens a second.

    A rate is left out where its time is nothing. ``aggregate_sampling_time_ms`` is what recording choices took: they
    are computed together with the model.
    """
    timings = generation.timings
    since_epoch = time.time() - time.perf_counter()

    def ms(moment: float) -> int:
        return round((since_epoch + moment) * 1000)

    new_prompt = len(generation.prompt) - generation.num_reused
    found: dict[str, Any] = {
        "prompt_tokens": new_prompt,
        "generated_tokens": len(generation.tokens),
        "model_load_start_ms": ms(opened.load_start),
        "model_load_end_ms": ms(opened.load_end),
        "inference_start_ms": ms(timings.start),
        "inference_end_ms": ms(timings.end),
        "prompt_eval_end_ms": ms(timings.prompt_end),
        "first_token_ms": ms(timings.prompt_end),
        "aggregate_sampling_time_ms": round(timings.sampling * 1000),
    }
    for name, number, seconds in (
        ("prefill_token_per_sec", new_prompt, timings.prompt_end - timings.start),
        ("decode_token_per_sec", len(generation.tokens), timings.end - timings.prompt_end),
    ):
        if seconds > 0:
            found[name] = round(number / seconds, 3)
    return found | {"SCALING_FACTOR_UNITS_PER_SECOND": 1000}


def lines(opened: Opened, generation: Generation) -> Iterator[str]:
    """The report: one line for programs, then some for people."""
    found = stats(opened, generation)
    timings = generation.timings
    yield f"PyTorchObserver {json.dumps(found)}"
    yield f"[load]    {opened.load_end - opened.load_start:.2f} s"
    first = timings.prompt_end - timings.start
    reused = f" ({generation.num_reused} more were in the cache)" if generation.num_reused else ""
    yield (
        f"[prefill] {found['prompt_tokens']} tokens{reused} in {first:.2f} s"
        f"{_rate(found, 'prefill_token_per_sec')}; time to first token {first:.2f} s"
    )
    decode = timings.end - timings.prompt_end
    yield f"[decode]  {len(generation.tokens)} tokens in {decode:.2f} s{_rate(found, 'decode_token_per_sec')}"


def _rate(found: dict[str, Any], name: str) -> str:
    return f", {found[name]:.1f} tokens/s" if name in found else ""
