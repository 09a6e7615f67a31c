"""The history is what the template says of the transcript, however it came to be; and no more is fed than must be."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pipeline.text.chat import Chat
from pipeline.text.conversation import Conversation, Feed
from pipeline.text.template import ChatTemplate
from tests.text.made import Made, opened

EACH = "<bos>{% for m in messages %}<|im_start|>{{ m.role }}\n"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TEMPLATES = {
    "nothing is written anew": EACH + "{{ m.content }}<|im_end|>\n{% endfor %}" + PROMPT,
    "answers are trimmed": EACH + "{{ m.content | trim }}<|im_end|>\n{% endfor %}" + PROMPT,
    "earlier reasoning is dropped": EACH
    + "{{ m.content if loop.last or m.role == 'user' else m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    + PROMPT,
    "the last message alone counts": "<bos>{{ messages[-1].content }}<|im_end|>",
    "a question decides how the past is written": EACH
    + "{{ m.content | trim if messages[-1].content == 'user' else m.content }}<|im_end|>\n{% endfor %}"
    + PROMPT,
    "no piece ends a turn": "<bos>{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:",
    "the number of turns comes first": "<bos>{{ messages | length }}"
    + EACH[5:]
    + "{{ m.content }}<|im_end|>{% endfor %}",
}
TOKENIZERS = ["byte-level", "byte-fallback", "sentencepiece"]


def chat(made: Made, template: str | None) -> Chat:
    source = None if template is None else TEMPLATES[template]
    if "tokenizer.model" in {file.name for file in made.directory.iterdir()} and source is not None:
        source = source.replace("<|im_start|>", "<start_of_turn>").replace("<|im_end|>", "<end_of_turn>")
    return Chat(opened(made.directory), None if source is None else ChatTemplate(source, "here"))


def answer(of: Chat, text: str, *, closed: bool = True) -> list[int]:
    ids = of.tokenizer.encode_on(text)
    return [*ids, of.turn_end] if closed and of.turn_end is not None else ids


def by_bytes(of: Chat, text: str) -> list[int]:
    """Tokens that no tokenizer would choose for the text, as a model may."""
    found = [of.tokenizer.encode_on(character) for character in text]
    return [token for ids in found for token in ids] + answer(of, "")


def history(conversation: Conversation, feed: Feed) -> list[int]:
    return [*conversation.tokens[: feed.keep], *feed.tokens]


def shown(of: Chat, ids: list[int]) -> str:
    """The text of a history; SentencePiece decodes a control piece to nothing."""
    return of.tokenizer.decode(ids).replace("<bos>", "")


def said(of: Chat, conversation: Conversation, question: str) -> str:
    messages = [*conversation.messages, {"role": "user", "content": question}]
    assert of.template is not None
    return of.template.render(messages, generation_prompt=True).replace("<bos>", "")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_turn_feeds_what_follows_the_answer_and_nothing_twice(made: Callable[[str], Made], name: str) -> None:
    with_template = chat(made(name), "nothing is written anew")
    conversation = Conversation(with_template, system="Be kind.")
    first = conversation.ask("Hi")
    assert first.keep == 0
    assert first.tokens == with_template.prompt(
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    )
    conversation.commit(first, answer(with_template, "The capital is Paris."))
    second = conversation.ask("And of Poland?")
    assert second.keep == len(conversation.tokens)
    assert history(conversation, second) == with_template.prompt(
        [*conversation.messages, {"role": "user", "content": "And of Poland?"}]
    )
    assert conversation.messages[2] == {"role": "assistant", "content": "The capital is Paris."}
    bos = with_template.tokenizer.specials["<bos>"]
    assert history(conversation, second).count(bos) == 1


@pytest.mark.parametrize("name", TOKENIZERS)
def test_an_answer_that_ended_on_its_budget_is_closed_by_the_next_turn(made: Callable[[str], Made], name: str) -> None:
    with_template = chat(made(name), "nothing is written anew")
    conversation = Conversation(with_template)
    conversation.commit(conversation.ask("Hi"), answer(with_template, "The capital is", closed=False))
    feed = conversation.ask("Go on")
    assert feed.keep == len(conversation.tokens)
    assert feed.tokens[0] == with_template.turn_end
    assert shown(with_template, history(conversation, feed)) == said(with_template, conversation, "Go on")


def test_an_answer_written_anew_is_fed_again_from_where_it_differs(made: Callable[[str], Made]) -> None:
    with_template = chat(made("byte-level"), "answers are trimmed")
    conversation = Conversation(with_template)
    first = conversation.ask("Hi")
    conversation.commit(first, answer(with_template, "The capital is Paris. \n\n"))
    before = len(conversation.tokens)
    second = conversation.ask("And?")
    assert len(first.tokens) < second.keep < before
    assert shown(with_template, history(conversation, second)) == said(with_template, conversation, "And?")
    # What was said is unchanged: the template alone trims.
    assert conversation.messages[1]["content"] == "The capital is Paris. \n\n"


def test_an_answer_that_a_stop_string_cut_is_what_the_user_saw(made: Callable[[str], Made]) -> None:
    with_template = chat(made("byte-level"), "nothing is written anew")
    conversation = Conversation(with_template)
    conversation.commit(conversation.ask("Hi"), answer(with_template, "Paris. User:", closed=False), "Paris.")
    feed = conversation.ask("And?")
    assert conversation.messages[1]["content"] == "Paris."
    assert shown(with_template, history(conversation, feed)) == said(with_template, conversation, "And?")
    assert feed.keep < len(conversation.tokens)


def test_a_message_with_markup_stays_text_in_later_turns(made: Callable[[str], Made]) -> None:
    with_template = chat(made("byte-level"), "nothing is written anew")
    conversation = Conversation(with_template)
    conversation.commit(conversation.ask("<|im_end|>"), answer(with_template, "What?"))
    feed = conversation.ask("<|im_end|> again")
    assert feed.keep == len(conversation.tokens)
    # Two questions and an answer have ended.
    assert history(conversation, feed).count(with_template.turn_end or -1) == 3


def test_without_a_template_texts_go_on_where_the_last_ended(made: Callable[[str], Made]) -> None:
    plain = chat(made("sentencepiece"), None)
    conversation = Conversation(plain)
    first = conversation.ask("The capital")
    assert first.tokens == [plain.tokenizer.bos_id, *plain.tokenizer.encode("The capital")]
    conversation.commit(first, answer(plain, " of"))
    second = conversation.ask(" France")
    assert second.keep == len(conversation.tokens)
    assert plain.tokenizer.decode(history(conversation, second)) == "The capital of France"
    assert plain.tokenizer.bos_id not in second.tokens
    assert conversation.undo() == 0
    assert conversation.tokens == []


@pytest.mark.parametrize("template", TEMPLATES)
def test_undone_turns_leave_no_trace(made: Callable[[str], Made], template: str) -> None:
    with_template = chat(made("byte-level"), template)
    conversation, straight = Conversation(with_template), Conversation(with_template)
    for each in (conversation, straight):
        each.commit(each.ask("Hi"), by_bytes(with_template, "<think>hm</think>Hello, "))
    conversation.commit(conversation.ask("user"), answer(with_template, "Paris"))
    conversation.commit(conversation.ask("Why?"), answer(with_template, "Because", closed=False))
    lengths = [conversation.undo(), conversation.undo()]
    assert lengths == sorted(lengths, reverse=True)
    assert len(conversation.tokens) == lengths[-1]
    assert conversation.messages == straight.messages
    again, expected = conversation.ask("How?"), straight.ask("How?")
    assert shown(with_template, history(conversation, again)) == said(with_template, straight, "How?")
    if straight.ask("user").keep == len(straight.tokens):
        # Nothing but the turn itself was taken back: the answer is still as the model chose it.
        assert history(conversation, again) == history(straight, expected)
    assert conversation.num_turns == 1
    assert conversation.undo() == 0
    assert conversation.undo() is None


def test_tokens_taken_back_shorten_the_answer_and_then_the_question(made: Callable[[str], Made]) -> None:
    with_template = chat(made("byte-level"), "nothing is written anew")
    conversation = Conversation(with_template)
    first = conversation.ask("Hi")
    ids = answer(with_template, "The capital 東")
    conversation.commit(first, ids)
    conversation.rewind(len(conversation.tokens) + 3)
    assert len(conversation.tokens) == len(first.tokens) + len(ids)
    # Half a character is left, which no message can hold: it is fed again without.
    conversation.rewind(len(conversation.tokens) - 2)
    assert conversation.messages[1]["content"] == "The capital "
    feed = conversation.ask("And?")
    assert shown(with_template, history(conversation, feed)) == said(with_template, conversation, "And?")
    conversation.rewind(len(first.tokens) + 1)
    assert conversation.messages[1]["content"] == with_template.tokenizer.decode(ids[:1])
    assert conversation.ask("And?").keep == len(first.tokens) + 1
    conversation.rewind(len(first.tokens) - 1)
    assert (conversation.messages, conversation.num_turns) == ([], 0)
    assert history(conversation, conversation.ask("Hi")) == first.tokens
    conversation.rewind(0)
    assert conversation.ask("Hi") == first


def test_taking_back_a_question_leaves_the_answer_before_it_as_the_model_chose_it(made: Callable[[str], Made]) -> None:
    with_template = chat(made("byte-level"), "nothing is written anew")
    conversation = Conversation(with_template)
    conversation.commit(conversation.ask("Hi"), by_bytes(with_template, "The capital is Paris."))
    length = len(conversation.tokens)
    conversation.commit(conversation.ask("What?"), answer(with_template, "Yes"))
    conversation.rewind(length)
    assert conversation.ask("Why?").keep == length
    assert conversation.num_turns == 1


def test_tokens_taken_back_from_a_past_written_anew_cut_what_is_left_of_it(made: Callable[[str], Made]) -> None:
    with_template = chat(made("byte-level"), "earlier reasoning is dropped")
    conversation = Conversation(with_template)
    first = conversation.ask("Hi")
    conversation.commit(first, answer(with_template, "The <think>x</think>Yes"))
    second = conversation.ask("What?")
    assert second.keep < len(conversation.tokens)
    conversation.commit(second, answer(with_template, "Paris"))
    # The second question is gone, and of what came before nothing is, though its tokens are.
    conversation.rewind(second.keep)
    assert conversation.messages[1:] == [{"role": "assistant", "content": "The <think>x</think>Yes"}]
    again = conversation.ask("What?")
    assert history(conversation, again) == history(conversation, second)
    conversation.commit(again, answer(with_template, "Paris"))
    counted = Conversation(chat(made("byte-level"), "the number of turns comes first"))
    for question in ("Hi", "What?"):
        counted.commit(counted.ask(question), answer(with_template, "Yes"))
    counted.rewind(counted.ask("Why?").keep)
    assert [message["content"] for message in counted.messages] == ["Hi", "Yes"]


def test_a_prompt_that_the_cache_holds_whole_is_fed_its_last_token_again(made: Callable[[str], Made]) -> None:
    with_template = chat(made("byte-level"), "the last message alone counts")
    conversation = Conversation(with_template)
    first = conversation.ask("Hi")
    conversation.commit(first, answer(with_template, "Yes"))
    again = conversation.ask("Hi")
    assert (again.keep, again.tokens) == (len(first.tokens) - 1, first.tokens[-1:])


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_whatever_happens_the_history_is_the_transcript(made: Callable[[str], Made], name: str, template: str) -> None:
    with_template = chat(made(name), template)
    texts = ["Hi ", " What is the capital?", "<think>x</think> Paris\n", "東京", "<|im_end|>", "user"]
    for seed in range(60):
        chance = random.Random(seed)
        conversation = Conversation(with_template, chance.choice([None, "Be kind."]))
        for _ in range(12):
            action = chance.random()
            if action < 0.15:
                conversation.undo()
            elif action < 0.35:
                conversation.rewind(chance.randint(0, len(conversation.tokens)))
            elif action < 0.4:
                conversation.reset()
            question = chance.choice(texts)
            feed = conversation.ask(question)
            assert feed.tokens
            assert feed.keep <= len(conversation.tokens)
            assert shown(with_template, history(conversation, feed)) == said(with_template, conversation, question)
            if chance.random() < 0.8:
                reply = answer(with_template, chance.choice(texts), closed=chance.random() < 0.7)
                conversation.commit(feed, reply[: chance.randint(1, len(reply))])
                assert conversation.tokens[: feed.keep + len(feed.tokens)][feed.keep :] == feed.tokens
