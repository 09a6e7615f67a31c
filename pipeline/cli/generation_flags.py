"""Flags that ``pte run`` and ``pte chat`` have in common, and what they choose. Loads no library to be parsed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.arguments import artifact
from pipeline.errors import CacheError, DependencyError, SamplingError, UsageError

if TYPE_CHECKING:
    from pipeline.runtime.sampling import Sampling
    from pipeline.session.opened import Choices

# Those that the extras "run" and "serve" bring; what else is missing is a broken installation, and shows as that.
LIBRARIES = {
    "mlx",
    "numpy",
    "tokenizers",
    "jinja2",
    "sentencepiece",
    "tiktoken",
    "starlette",
    "uvicorn",
    "anyio",
    "h11",
}

TEMPLATES = ("model", "llama3", "gemma", "gemma4", "chatml", "none")
STORAGES = ("fp32", "fp16", "bf16", "q8", "q4")


def add_to(parser: argparse.ArgumentParser, max_new_tokens: int) -> None:
    """Adds the artifact and all flags but those of one verb alone."""
    add_artifact(parser)
    parser.add_argument("--system", metavar="TEXT", help="what the system says first")
    parser.add_argument(
        "--max-new-tokens",
        type=whole(0),
        default=max_new_tokens,
        metavar="N",
        help="most tokens of an answer (default: %(default)s)",
    )
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end an answer before this text; may be repeated"
    )
    add_sampling(parser, "greedy unless a temperature is given")
    add_cache(parser)


def add_artifact(parser: argparse.ArgumentParser) -> None:
    """Adds what is opened, with what, and where."""
    parser.add_argument("artifact", type=artifact, metavar="BUNDLE_OR_PTE", help="a bundle's directory, or a .pte")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="PATH",
        help="a directory or file: tokenizer.json, tiktoken or SentencePiece (default: beside the .pte)",
    )
    parser.add_argument(
        "--chat", choices=TEMPLATES, default="model", help="chat template (default: the model's own, if it has one)"
    )
    parser.add_argument("--device", choices=("cpu", "gpu"), help="where MLX computes (default: MLX's own choice)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no reports on standard error")


def add_sampling(parser: argparse.ArgumentParser, description: str) -> None:
    """Adds how tokens are chosen."""
    sampling = parser.add_argument_group("sampling", description)
    for name, kind, default, help_text in (
        ("temperature", float, 0.0, "0 is greedy"),
        ("top-k", int, 0, "keep the K likeliest tokens; 0 is off"),
        ("top-p", float, 1.0, "keep the likeliest tokens that have P together; 1 is off"),
        ("min-p", float, 0.0, "keep tokens of at least P times the likeliest's probability; 0 is off"),
        ("repetition-penalty", float, 1.0, "above 1 discourages tokens that were there; 1 is off"),
        ("seed", int, None, "draw alike every time"),
    ):
        sampling.add_argument(f"--{name}", type=kind, default=default, metavar=name[-1].upper(), help=help_text)


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Adds what may be chosen about the cache."""
    cache = parser.add_argument_group("off-graph KV cache", "what is left out is the artifact's own")
    cache.add_argument("--kv-max-capacity", type=whole(1), metavar="N", help="most tokens that it may hold")
    cache.add_argument(
        "--kv-initial-capacity",
        type=whole(0),
        metavar="N",
        help="tokens it has room for at first; it grows by doubling",
    )
    cache.add_argument("--kv-storage-dtype", choices=STORAGES, help="how K and V are stored")
    cache.add_argument(
        "--kv-windows",
        type=_windows,
        default=(),
        metavar="W,W,…",
        help="impose these windows, repeated over the layers; 0 is all history",
    )


def choices(args: argparse.Namespace) -> Choices:
    """What is chosen about the artifact."""
    from pipeline.runtime.policy import CachePolicy
    from pipeline.session.opened import Choices

    given = {
        "capacity": args.kv_max_capacity,
        "initial_capacity": args.kv_initial_capacity,
        "storage": args.kv_storage_dtype,
        "windows": args.kv_windows or None,
    }
    return Choices(
        tokenizer=args.tokenizer,
        chat=None if args.chat == "model" else args.chat,
        policy=CachePolicy(**{name: value for name, value in given.items() if value is not None}),
        device=args.device,
    )


def sampling(args: argparse.Namespace) -> Sampling:
    """Raises UsageError for a setting out of its range."""
    from pipeline.runtime.sampling import Sampling

    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    try:
        return Sampling(**{name: getattr(args, name) for name in names})
    except SamplingError as error:
        raise UsageError(str(error)) from error


@contextmanager
def libraries(extra: str = "run") -> Iterator[None]:
    """Raises DependencyError, which says what to install, where a library is missing that the extra brings."""
    try:
        yield
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        verb = {"run": "decode"}.get(extra, extra)
        if missing not in LIBRARIES:
            raise
        raise DependencyError(
            f"{missing} cannot be imported ({error}); expected the libraries that {verb} a .pte. Install them: pip "
            f"install 'pte-pipeline[{extra}]'."
        ) from error


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Reads a whole number that is in these bounds."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            expected = f"of {least} or more" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number {expected}")
        return value

    return read


def _windows(text: str) -> tuple[int, ...]:
    from pipeline.runtime.policy import parse_windows

    try:
        return parse_windows(text)
    except CacheError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
