"""Several prompts at once, beside what the same program does with one: chunks of a prompt, and one prompt at a time.

    python benchmarks/batched.py model.pte

The ``.pte`` must give logits for several tokens of a step (``logits: selected`` or ``full``). All take steps by turns
in one process, over histories of as many tokens, and of each the best step counts:

- at once: ``--prompts`` random prompts are continued greedily, one token of each in a step;
- chunks: a prompt is fed in chunks of as many tokens, with logits of each of them, as those at once need;
- chunks, last: the same with logits of the last one only, which is what a prefill needs;
- one by one: one prompt is continued by as many tokens, the next step prepared while one is computed.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path

from pipeline.delegate.program import Program
from pipeline.runtime.batching import Batch, Job
from pipeline.runtime.decoder import Decoder
from pipeline.runtime.generate import Request
from pipeline.runtime.packed import PackedDecoder


class Nobody:
    """Listens to a text that matters to nobody."""

    def token(self, token: int) -> bool:
        return True

    def end(self, job: Job) -> None:
        if job.error is not None:
            raise job.error


def main() -> None:
    """Takes the steps and prints the rates."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("pte", type=Path)
    arguments.add_argument("--prompts", type=int, default=8)
    arguments.add_argument("--prompt-tokens", type=int, default=32)
    arguments.add_argument("--steps", type=int, default=10)
    args = arguments.parse_args()
    with Program.load(args.pte) as program:
        steps = _Steps(program, args.prompts, args.prompt_tokens, args.steps + 1)
        kinds: dict[str, Callable[[], None]] = {
            "at once": steps.at_once,
            "chunks": steps.chunk,
            "chunks, last": steps.chunk_with_last,
            "one by one": steps.one_by_one,
        }
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(args.steps):
            for kind, step in kinds.items():
                seconds[kind].append(_timed(step))
    rates = {kind: args.prompts / min(taken) for kind, taken in seconds.items()}
    for kind, rate in rates.items():
        print(f"{kind:14}{rate:9.1f} tokens/s   at once is {rates['at once'] / rate:.2f} x")


def _timed(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


class _Steps:
    """Each gives ``num`` tokens."""

    def __init__(self, program: Program, num: int, prompt_tokens: int, num_steps: int) -> None:
        draw = random.Random(0)
        self._num = num
        self._decoder, alone, packed = Decoder(program), Decoder(program), PackedDecoder(program, num_sequences=num)
        vocab = self._decoder.contract.vocab_size
        prompts = [[draw.randrange(vocab) for _ in range(prompt_tokens)] for _ in range(num)]
        self._ids = [token for prompt in prompts for token in prompt]
        for _ in self._decoder.prefill(self._ids):
            pass
        self._batch = Batch(packed, max_running=num)
        for prompt in prompts:
            self._batch.submit(Job(prompt, Request(max_new_tokens=num_steps + prompt_tokens), Nobody()))
        while self._batch.num_running < num or packed.table.used_end < len(self._ids):
            self._batch.step()
        *_, logits = alone.prefill(prompts[0])
        self._tokens = alone.decode(logits, num * num_steps)

    def at_once(self) -> None:
        self._batch.step()

    def chunk(self) -> None:
        selects = self._decoder.contract.logits == "selected"
        self._decoder.step(self._ids[: self._num], range(self._num) if selects else None)

    def chunk_with_last(self) -> None:
        self._decoder.step(self._ids[: self._num])
        self._decoder.rewind(self._decoder.position - self._num)

    def one_by_one(self) -> None:
        for _ in range(self._num):
            next(self._tokens)


if __name__ == "__main__":
    main()
