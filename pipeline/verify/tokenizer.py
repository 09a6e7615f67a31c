"""PTE5xx: what is published against the tokenizer that goes with the artifact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.pte.flatbuffer import quoted
from pipeline.verify.case import Case
from pipeline.verify.contracts import cut
from pipeline.verify.findings import Pair
from pipeline.verify.rules import ERROR, NOTE, WARNING, Broken, rule

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|end_of_turn|>", "<|eot|>")
"""Tokens that end a turn and nothing else, in the templates of the families that have them."""

PADDING = 1024
"""By this much a vocabulary is padded, at most, to a size that suits the hardware."""

RIGHT_TOKENIZER = "Use the tokenizer that belongs to the model"
SOURCES = {
    "generation_config": "the generation config",
    "config": "the configuration",
    "tokenizer": "the tokenizer",
    "chat_template": "the chat template",
}


@rule(
    "PTE501",
    "tokenizer-unreadable",
    ERROR,
    Pair.PUBLISHED_TOKENIZER,
    "A file of the tokenizer is damaged, or does not exist.",
    "Copy the tokenizer's files again",
)
def _unreadable(case: Case) -> Iterator[Broken]:
    if case.tokenizer_problem is not None:
        problem = case.tokenizer_problem
        yield Broken(problem.file, f"{problem.file} {problem.what}")


@rule(
    "PTE502",
    "vocabulary-too-narrow",
    ERROR,
    Pair.PUBLISHED_TOKENIZER,
    "The tokenizer's own vocabulary goes beyond the published one.",
    RIGHT_TOKENIZER,
)
def _too_narrow(case: Case) -> Iterator[Broken]:
    vocab = _vocabulary(case)
    if case.tokenizer is not None and vocab is not None and case.tokenizer.last_own >= vocab:
        last = case.tokenizer.last_own
        text = f"the tokenizer's vocabulary goes up to {last} but {_width(case)}; a text may have any of its ids"
        yield Broken("get_vocab_size", text)


@rule(
    "PTE503",
    "added-tokens-beyond",
    WARNING,
    Pair.PUBLISHED_TOKENIZER,
    "Added tokens of the tokenizer lie beyond the published vocabulary.",
    "See to it that no prompt has them",
)
def _added_beyond(case: Case) -> Iterator[Broken]:
    vocab = _vocabulary(case)
    if case.tokenizer is not None and vocab is not None:
        beyond = sorted((token, text) for text, token in case.tokenizer.added.items() if token >= vocab)
        if beyond:
            listed = ", ".join(f"{quoted(text)} ({token})" for token, text in beyond[:3])
            more = f" and {len(beyond) - 3} more" if len(beyond) > 3 else ""
            yield Broken("get_vocab_size", f"the tokenizer adds {listed}{more} but {_width(case)}")


@rule(
    "PTE504",
    "vocabulary-padded",
    NOTE,
    Pair.PUBLISHED_TOKENIZER,
    "The published vocabulary is somewhat wider than the tokenizer's: padding.",
    "Nothing to do",
)
def _padded(case: Case) -> Iterator[Broken]:
    spare = _spare(case)
    if case.tokenizer is not None and 0 < spare <= PADDING:
        yield Broken("get_vocab_size", f"{_width(case)} and the tokenizer's last id is {case.tokenizer.largest}")


@rule(
    "PTE505",
    "vocabulary-too-wide",
    WARNING,
    Pair.PUBLISHED_TOKENIZER,
    "The published vocabulary is much wider than the tokenizer's, as with another model's tokenizer.",
    RIGHT_TOKENIZER,
)
def _too_wide(case: Case) -> Iterator[Broken]:
    if case.tokenizer is not None and _spare(case) > PADDING:
        text = f"{_width(case)} but the tokenizer's last id is {case.tokenizer.largest}; expected at most {PADDING}"
        yield Broken("get_vocab_size", f"{text} more, for padding")


@rule(
    "PTE506",
    "token-unknown",
    WARNING,
    Pair.PUBLISHED_TOKENIZER,
    "A published start or end of text is no token of the tokenizer.",
)
def _unknown(case: Case) -> Iterator[Broken]:
    for name, ids in (("get_eos_ids", case.stop_ids or ()), ("get_bos_id", _bos(case))):
        unknown = [token for token in ids if case.tokenizer is not None and token not in case.tokenizer.ids]
        if unknown and (name != "get_eos_ids" or len(unknown) < len(ids)):
            yield Broken(name, f"{name} has {cut(unknown)}, and the tokenizer has no such token")


@rule(
    "PTE507",
    "never-stops",
    ERROR,
    Pair.PUBLISHED_TOKENIZER,
    "None of the published ends of text is a token of the tokenizer.",
)
def _never_stops(case: Case) -> Iterator[Broken]:
    ids = case.stop_ids
    if ids and case.tokenizer is not None and case.tokenizer.ids.isdisjoint(ids):
        text = f"get_eos_ids has {cut(ids)}, and the tokenizer has no such token; expected ids that end a generation"
        yield Broken("get_eos_ids", text)


@rule(
    "PTE508",
    "turn-end-missing",
    ERROR,
    Pair.PUBLISHED_TOKENIZER,
    "The ends of text that a runner stops at lack one that the model's own files name.",
    "Publish it in get_eos_ids, which replaces the tokenizer's own",
)
def _turn_end(case: Case) -> Iterator[Broken]:
    """A runner without ``get_eos_ids`` stops at the tokenizer's own end."""
    ends = _ends(case)
    stops = case.stop_ids if "get_eos_ids" in case.evidence.constants else ends.get(SOURCES["tokenizer"])
    if stops is None:
        return
    for source, ids in ends.items():
        missing = [token for token in ids if token not in stops]
        if missing:
            where = "get_eos_ids has" if case.stop_ids is not None else "get_eos_ids is missing and a runner stops at"
            text = f"{where} {cut(list(stops))} but {source} ends a text with {cut(missing)}"
            yield Broken("get_eos_ids", f"{text}; expected every end of text, or a generation goes on past it")


@rule(
    "PTE509",
    "template-turn-end",
    WARNING,
    Pair.PUBLISHED_TOKENIZER,
    "The chat template ends turns with a token that a runner does not stop at.",
    "Publish it in get_eos_ids",
)
def _template(case: Case) -> Iterator[Broken]:
    if case.tokenizer is None or case.stop_ids is None:
        return
    told_of = {*case.stop_ids, *(token for ids in _ends(case).values() for token in ids)}
    for text in TURN_ENDS:
        token = case.tokenizer.added.get(text)
        if token is not None and text in case.tokenizer.template and token not in told_of:
            told = f"the chat template has {text} ({token}) but get_eos_ids has {cut(list(case.stop_ids))}"
            yield Broken("get_eos_ids", f"{told}; expected the end of a turn among them")


@rule(
    "PTE510",
    "start-differs",
    WARNING,
    Pair.PUBLISHED_TOKENIZER,
    "The published start of text is another than the tokenizer's.",
)
def _start(case: Case) -> Iterator[Broken]:
    for token in _bos(case):
        own = case.tokenizer.bos if case.tokenizer is not None else None
        if own is not None and own != token:
            yield Broken("get_bos_id", f"get_bos_id is {token} but the tokenizer opens a text with {own}")


@rule(
    "PTE511",
    "start-unpublished",
    NOTE,
    Pair.PUBLISHED_TOKENIZER,
    "The tokenizer has a start of text and none is published.",
    "Publish get_bos_id, if the model was trained with it",
)
def _unpublished_start(case: Case) -> Iterator[Broken]:
    if case.tokenizer is not None and case.tokenizer.bos is not None and "get_bos_id" not in case.evidence.constants:
        yield Broken("get_bos_id", f"the tokenizer opens a text with {case.tokenizer.bos} and get_bos_id is missing")


@rule(
    "PTE512",
    "named-token-unknown",
    WARNING,
    Pair.PUBLISHED_TOKENIZER,
    "The tokenizer's settings name a start or an end of text that its vocabulary has not.",
    RIGHT_TOKENIZER,
)
def _named(case: Case) -> Iterator[Broken]:
    for role, token in (case.tokenizer.unknown if case.tokenizer is not None else {}).items():
        text = f"tokenizer_config.json names {quoted(token)} as {role}_token, and the tokenizer has no such token"
        yield Broken(f"{role}_token", text)


def _vocabulary(case: Case) -> int | None:
    """The published vocabulary, or that of the logits."""
    published: int | None = case.published.get("get_vocab_size")
    return case.logits_width if published is None else published


def _width(case: Case) -> str:
    published = case.published.get("get_vocab_size")
    return f"the logits are {case.logits_width} wide" if published is None else f"get_vocab_size is {published}"


def _spare(case: Case) -> int:
    """How many ids of the vocabulary come after the tokenizer's last."""
    vocab = _vocabulary(case)
    return 0 if vocab is None or case.tokenizer is None else vocab - 1 - case.tokenizer.largest


def _bos(case: Case) -> tuple[int, ...]:
    bos = case.published.get("get_bos_id")
    return () if bos is None else (bos,)


def _ends(case: Case) -> Mapping[str, tuple[int, ...]]:
    """Every end of text that the model's files name, by where: as the build recorded them, and as they lie there."""
    recorded = case.bundle.ends if case.bundle is not None else {}
    ends = {SOURCES.get(source) or quoted(source): ids for source, ids in recorded.items()}
    return {**ends, **(case.tokenizer.ends if case.tokenizer is not None else {})}
