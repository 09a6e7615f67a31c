"""Decodes ``model.pte`` and holds it against its own model.

For each prompt, through the model's chat template, the artifact decodes greedily. Then the finished text is given to
Transformers' eager model, in float32 and in the artifact's dtype, and every row of logits that the artifact produced is
compared with the row at the same position. So token equality and closeness are judged on the same prefix, and no error
can hide behind an earlier one. The text is fed a second time in small chunks (and once more beyond the narrowest
window, where there is one), so that history crosses chunk boundaries. An artifact whose rows of logits are selected is
asked there for all of a chunk's rows, the last one first, and for its first row alone, in turns; while it decodes it is
asked for the last row, as a runner asks.

Tolerance. Logits are compared after subtracting their mean (softmax ignores it), as the Euclidean distance divided
by the reference's norm: 0 is equal, 1 is unrelated. A bf16 or fp16 model is itself some distance d from its float32
self, by rounding alone; the artifact rounds the same values in another order, so it too should be about d from
float32, and the two are then at most 2d apart by the triangle inequality. That is the bound: SLACK (2) times the
largest d over the positions of the text. It measures itself on each model instead of guessing. In float32 d is 0,
so the bound is FLOOR: 1e-4, two orders above the rounding of 30 layers (about 1e-6) and four below what a lost
token of history costs. A model that is itself further than COARSE from its float32 self is refused: no bound would
mean anything.

A quantized model is compared with itself: the reference computes with the very numbers that its weights were rounded
to. How far those took it from the unquantized model is reported, and not judged.

A greedy token may differ from the reference's only where the reference itself nearly ties: where its two logits are
closer, in units of the row's standard deviation, than the bound. In float32 that admits nothing but exact ties.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import SmokeError
from pipeline.spec import SmokeSpec

REPORT = "smoke.json"

SLACK = 2.0
FLOOR = {"fp32": 1e-4, "fp16": 1e-3, "bf16": 4e-3}
COARSE = 0.25

NUM_CHUNKS = 3
"""Into how many chunks the second feeding cuts a text."""

BEYOND_WINDOW = 8
"""Single-token steps after a ring layer has wrapped."""


@dataclass
class Feeding:
    """A text as the artifact was fed it: the logits it gave, and after which positions."""

    ids: list[int]
    rows: list[int] = field(default_factory=list)
    logits: list[Any] = field(default_factory=list)

    def add(self, positions: Sequence[int], logits: Any) -> None:
        """Logits [rows, vocab] as the artifact gave them, after these positions."""
        self.rows += positions
        self.logits += list(_float32(logits))


@dataclass
class Answer:
    """One prompt's greedy decode."""

    name: str
    expect: str
    prompt: list[int]
    generated: list[int]
    text: str
    feedings: list[Feeding]


def run(
    spec: SmokeSpec,
    artifact: Path,
    snapshot: Path,
    out: Path,
    stage: Callable[[str], None],
    quantized: Path | None = None,
) -> None:
    """Writes ``out/smoke.json``. ``quantized`` holds the quantize step's weights, of a model that is quantized.

    Raises SmokeError when an answer lacks the expected text, a token differs from the reference's, or logits are
    further from the reference than rounding explains.
    """
    stage("importing")
    from pipeline.model.checkpoint import load_config, load_tokenizer
    from pipeline.model.reference import ReferenceModel
    from pipeline.pte import PteFile
    from pipeline.runtime.decoder import Decoder

    tokenizer = load_tokenizer(snapshot)
    config = load_config(snapshot)
    stage("decoding")
    with PteFile.open(artifact) as pte:
        decoder = Decoder(pte)
        answers = [_decode(decoder, tokenizer, prompt) for prompt in spec.prompts]
        _feed_beyond_windows(decoder, answers[0], getattr(config, "sliding_window", None))
        dtype = decoder.contract.dtype
        del decoder
    feedings = [feeding for answer in answers for feeding in answer.feedings]
    stage("comparing")
    exact = _rows(ReferenceModel(snapshot, "fp32", quantized), feedings)
    rounded = exact if dtype == "fp32" else _rows(ReferenceModel(snapshot, dtype, quantized), feedings)
    report = _judge(answers, dtype, exact, rounded)
    if quantized is not None:
        report["quantization"] = _cost(exact, _rows(ReferenceModel(snapshot, "fp32"), feedings))
    (out / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def summary(report: Mapping[str, Any]) -> list[str]:
    """What was answered and, for a quantized model, how far it is from the unquantized one."""
    lines = [f"  {prompt['name']}: {prompt['text']!r}" for prompt in report["prompts"]]
    cost = report.get("quantization")
    if cost:
        lines.append(
            f"  quantization moves the logits by {cost['mean_distance']:.2g} on average, {cost['max_distance']:.2g} at "
            f"most, and {cost['tokens_changed']} of {cost['logits_rows']} greedy tokens"
        )
    return lines


def _cost(quantized: Sequence[Any], unquantized: Sequence[Any]) -> dict[str, Any]:
    """What quantization did to the model, whatever the artifact: both in float32, after the same texts."""
    import numpy as np

    after, before = np.concatenate(quantized), np.concatenate(unquantized)
    apart = distances(after, before)
    return {
        "logits_rows": len(after),
        "mean_distance": float(apart.mean()),
        "max_distance": float(apart.max()),
        "tokens_changed": int((after.argmax(-1) != before.argmax(-1)).sum()),
    }


def _rows(model: Any, feedings: Sequence[Feeding]) -> list[Any]:
    return [model.logits(feeding.ids, feeding.rows) for feeding in feedings]


def _decode(decoder: Any, tokenizer: Any, prompt: Any) -> Answer:
    ids = _prompt_ids(tokenizer, prompt.user)
    room = decoder.contract.max_context_len - len(ids)
    if room < prompt.max_new_tokens:
        remedy = f"lower max_new_tokens to {room}" if room > 0 else "raise max_context_len"
        raise SmokeError(
            f"smoke '{prompt.name}': {len(ids)} prompt tokens and {prompt.max_new_tokens} new ones exceed the context "
            f"of {decoder.contract.max_context_len}. Shorten the prompt, or {remedy}."
        )
    decoder.clear()
    decoded = Feeding(ids=ids)
    generated = [token for token, _ in decoder.greedy(ids, prompt.max_new_tokens, decoded.add)]
    decoded.ids = ids + generated
    chunk = min(decoder.contract.max_seq_len, -(-len(decoded.ids) // NUM_CHUNKS))
    return Answer(
        name=prompt.name,
        expect=prompt.expect,
        prompt=ids,
        generated=generated,
        text=tokenizer.decode(generated, skip_special_tokens=True),
        feedings=[decoded, _fed(decoder, decoded.ids, chunk)],
    )


def _prompt_ids(tokenizer: Any, user: str) -> list[int]:
    messages = [{"role": "user", "content": user}]
    try:
        if tokenizer.chat_template is None:
            encoded = tokenizer(user)
        else:
            encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    except Exception as error:
        # A template is a program that comes with the model; it can fail in any way, or refuse by raising. A tokenizer
        # without an unknown token fails on what it has no token for.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        if tokenizer.chat_template is None:
            raise SmokeError(
                f"the model's tokenizer cannot read the prompt {user!r}: {reason}. Put it in words that it has."
            ) from error
        raise SmokeError(
            f"the tokenizer's chat template fails on a user's turn: {reason}. Correct the model's chat_template."
        ) from error
    return list(encoded["input_ids"])


def _fed(decoder: Any, ids: list[int], chunk: int) -> Feeding:
    """A new text in chunks; rows of logits that can be selected are not the ones that decoding selects."""
    decoder.clear()
    feeding = Feeding(ids=ids)
    for index, start in enumerate(range(0, len(ids), chunk)):
        step = ids[start : start + chunk]
        selected = None
        if decoder.contract.logits == "selected":
            selected = [0] if index % 2 else range(len(step))[::-1]
        feeding.add(*decoder.step(step, selected))
    return feeding


def _feed_beyond_windows(decoder: Any, answer: Answer, declared: int | None) -> None:
    """Repeats the first text until the narrowest ring has wrapped, then goes on token by token.

    ``declared`` is the window in the model's configuration: an artifact that publishes a wider one, or none, is wrong
    only beyond it.
    """
    windows = [cache.window for cache in decoder.contract.caches if cache.window]
    # A declared window that no text outgrows is none.
    windows += [declared] if declared and declared < decoder.contract.max_context_len else []
    if not windows:
        return
    chunk = decoder.contract.max_seq_len
    length = min(min(windows) + chunk + BEYOND_WINDOW, decoder.contract.max_context_len)
    text = answer.feedings[0].ids
    ids = (text * -(-length // len(text)))[:length]
    feeding = _fed(decoder, ids[:-BEYOND_WINDOW], chunk)
    for token in ids[-BEYOND_WINDOW:]:
        feeding.add(*decoder.step([token]))
    feeding.ids = ids
    answer.feedings.append(feeding)


def _float32(logits: Any) -> Any:
    import mlx.core as mx
    import numpy as np

    return np.array(logits.astype(mx.float32))


def _judge(answers: Sequence[Answer], dtype: str, exact: Sequence[Any], rounded: Sequence[Any]) -> dict[str, Any]:
    import numpy as np

    if not all(np.isfinite(rows).all() for rows in exact):
        raise SmokeError(
            "the model's own float32 logits are not finite numbers; expected finite ones. Its weights are damaged, or "
            "were when it was saved: check the checkpoint."
        )
    rounding = max(float(distances(r, e).max()) for r, e in zip(rounded, exact, strict=True))
    if not rounding <= COARSE:
        raise SmokeError(
            f"the model's own {dtype} logits are {rounding:.3g} from its float32 logits (relative); expected at most "
            f"{COARSE}. This dtype is too coarse for the model: choose fp32, or bf16 in place of fp16."
        )
    bound = max(FLOOR[dtype], SLACK * rounding)
    reports = []
    pairs = iter(zip(exact, rounded, strict=True))
    for answer in answers:
        compared = [next(pairs) for _ in answer.feedings]
        reports.append(_judge_answer(answer, compared, bound))
    return {
        "dtype": dtype,
        "tolerance": {"bound": bound, "floor": FLOOR[dtype], "slack": SLACK, "model_rounding": rounding},
        "prompts": reports,
    }


def _judge_answer(answer: Answer, compared: Sequence[tuple[Any, Any]], bound: float) -> dict[str, Any]:
    import numpy as np

    where = f"smoke '{answer.name}'"
    worst = 0.0
    for feeding, (_, rounded) in zip(answer.feedings, compared, strict=True):
        apart = distances(feeding.logits, rounded)
        beyond = np.flatnonzero(~(apart <= bound))
        if len(beyond):
            at = min(map(int, beyond), key=lambda row: feeding.rows[row])
            raise SmokeError(
                f"{where}: decoded {answer.text!r}; logits first differ from the model's own at token "
                f"{feeding.rows[at]}: {apart[at]:.3g} apart (relative); expected at most {bound:.3g}. The artifact "
                "does not compute its model."
            )
        worst = max(worst, float(apart.max()))
    near_ties = _compare_tokens(answer, compared[0][0], bound)
    if answer.expect not in answer.text:
        raise SmokeError(
            f"{where}: decoded {answer.text!r}; expected it to contain {answer.expect!r}. The artifact computes "
            "what its model computes: the model answers so, or max_new_tokens is too small."
        )
    return {
        "name": answer.name,
        "text": answer.text,
        "expected": answer.expect,
        "prompt_tokens": len(answer.prompt),
        "generated": answer.generated,
        "near_ties": near_ties,
        "logits_rows": sum(len(feeding.rows) for feeding in answer.feedings),
        "logits_distance": worst,
    }


def _compare_tokens(answer: Answer, exact: Any, bound: float) -> list[dict[str, Any]]:
    """Each generated token against the float32 reference's choice; what differs only in a near tie is returned."""
    ties = []
    # Rows of the prompt come first.
    for index, (token, row) in enumerate(zip(answer.generated, exact[-len(answer.generated) :], strict=True)):
        best = int(row.argmax())
        if token == best:
            continue
        margin = float((row[best] - row[token]) / row.std())
        if margin > bound:
            raise SmokeError(
                f"smoke '{answer.name}': decoded {answer.text!r}; token {index} of the answer is {token}, the "
                f"model's own is {best}, which it prefers by {margin:.3g} standard deviations; expected the same token."
            )
        ties.append({"index": index, "token": token, "reference": best, "margin": margin})
    return ties


def distances(actual: Any, reference: Any) -> Any:
    """Relative distance of each row, means removed: |a - r| / |r|. Not-a-number for a row with one or an infinity."""
    import numpy as np

    # One row at a time: with full logits there are as many as tokens, each as wide as the vocabulary.
    apart = np.empty(len(actual))
    # An infinity becomes not-a-number too, and no bound holds that.
    with np.errstate(invalid="ignore", divide="ignore"):
        for index, (a, r) in enumerate(zip(actual, reference, strict=True)):
            a, r = np.asarray(a, np.float64), np.asarray(r, np.float64)
            r = r - r.mean()
            difference = np.linalg.norm(a - a.mean() - r)
            # All logits of a token may be equal, as of one that is embedded as zero.
            apart[index] = difference / np.linalg.norm(r) if difference else 0.0
    return apart
