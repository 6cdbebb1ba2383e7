"""What a model reads and is asked: passages of prose with facts in ordinary words between them, and questions about these.

A context is tokens; so is a question, in the model's own chat template. Everything is drawn from a seed and the number of
the context, so that all policies answer the same questions, and a second run asks them again.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any, Sequence

__all__ = ["Context", "Dialogue", "Question", "contexts", "shipped_text"]

PEOPLE = (
    "Abigail Arthur Beatrice Clara Conrad Daisy Edgar Edith Felix Flora Gerald Harriet Hugo Irene Jasper Julia Leonard "
    "Lydia Martha Maurice Nora Oscar Pauline Rupert Sylvia Theodore Ursula Victor Walter Winifred"
).split()
THINGS = (
    "lantern,violin,brass key,umbrella,silver spoon,old map,red scarf,pocket watch,blue teapot,chess board,photo album,"
    "leather bag,wooden flute,sewing kit,garden shears,folding chair,oil lamp,telescope,ink bottle,straw hat"
).split(",")
PLACES = (
    "in the kitchen drawer,behind the old barn,under the stone bridge,on the top shelf,in the hollow tree,beside the piano,"
    "under the kitchen table,behind the green curtain,in the garden shed,on the window sill,in the cellar,next to the well,"
    "above the fireplace,in the attic,behind the bookcase,under the front stairs,in the boat house,near the chicken coop"
).split(",")
DISHES = (
    "pumpkin soup,apple pie,fried fish,mushroom stew,rice pudding,onion tart,roast duck,lentil salad,cheese omelette,"
    "potato cakes,plum jam,garlic bread,beef dumplings,carrot cake,pea soup,lemon chicken"
).split(",")
TRADES = (
    "baker,carpenter,nurse,sailor,tailor,teacher,farmer,painter,plumber,lawyer,miller,dentist,gardener,printer,butcher,pilot"
).split(",")
KINDS = "tall,old,young,quiet,blind,lame,merry,stern,tired,proud,clever,bald,shy,rich,poor,famous".split(",")

TASKS = ("where", "what", "who", "number")
READ_ON = 128  # tokens of the text behind a context that are read after it
STATED, ASKED = 3, 2  # facts of a kind in a context, and how many of them are asked for
COPIES, GIVEN, COPIED = 2, 8, 16  # sentences to continue in a context; tokens that are given of each, and asked for


def shipped_text() -> str:
    """Prose that Python itself carries: the pages of its language reference that help() shows."""
    from pydoc_data.topics import topics

    return "\n\n".join(page.strip() for _, page in sorted(topics.items()))


@dataclass
class Question:
    """A question, in tokens.

    ask: the question, up to where the model's answer begins.
    lead: the first tokens of the answer, which the model is given.
    answer: the tokens of the answer that count."""

    task: str
    ask: list[int]
    lead: list[int]
    answer: list[int]

    @property
    def question(self) -> list[int]:
        """All tokens between the context and what is asked for."""
        return self.ask + self.lead


@dataclass
class Context:
    """A text to read, and what is asked about it.

    tokens: the prompt up to the questions. Its first `opening` tokens open the dialogue.
    after: the tokens of the text behind the prompt.
    texts: the passages, with their facts. `between` stands between two of them.
    copies: the sentences of the text to continue."""

    number: int
    tokens: list[int]
    opening: int
    after: list[int]
    texts: list[str]
    between: str = "\n\n"
    questions: list[Question] = field(default_factory=list)
    copies: list[Question] = field(default_factory=list)


class Dialogue:
    """A model's chat template, cut where a text goes. Models without one get plain paragraphs."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        marks = [f"kvmeldmark{i}end" for i in range(3)]
        self.opening, self.reply, self.turn = tokenizer.bos_token or "", "\n\n", "\n\n"
        if getattr(tokenizer, "chat_template", None):
            said = [{"role": role, "content": mark} for role, mark in zip(("user", "assistant", "user"), marks)]
            whole = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
            parts = re.split("|".join(marks), whole)
            if len(parts) == 4:
                self.opening, _, self.turn, self.reply = parts

    def tokens(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def split(self, before: str, behind: str) -> tuple[list[int], list[int]]:
        """The tokens of two texts that are read as one. A token that would lie across belongs to the second."""
        first, whole = self.tokens(before), self.tokens(before + behind)
        same = 0
        while same < min(len(first), len(whole)) and first[same] == whole[same]:
            same += 1
        return whole[:same], whole[same:]

    def question(self, task: str, asked: str, lead: str, answer: str) -> Question:
        ask, rest = self.split(f"\n\n{asked}{self.reply}", f"{lead} {answer}")
        known, _ = self.split(f"\n\n{asked}{self.reply}{lead}", f" {answer}")
        given = len(known) - len(ask)
        return Question(task, ask, rest[:given], rest[given:])


def _facts(rng: random.Random) -> tuple[list[tuple[str, int]], list[tuple[str, str, str, str]]]:
    """Statements, each with its turn in the order of the context (0 to 99), and questions (task, question, lead, answer).

    A kind is stated of several people or things in one form, and some of them are asked for. In "who" each thing is with
    two people, one after the other, and the last statement holds."""
    people, things, places, dishes, trades, kinds = (
        rng.sample(words, len(words)) for words in (PEOPLE, THINGS, PLACES, DISHES, TRADES, KINDS))
    said: list[tuple[str, int]] = []
    asked: list[tuple[str, str, str, str]] = []
    turns = [rng.randrange(100) for _ in range(32)]
    for i in range(STATED):
        who, thing, place = people.pop(), things.pop(), places.pop()
        said.append((f"{who} keeps the {thing} {place}.", turns.pop()))
        asked.append(("where", f"Where does {who} keep the {thing}?", f"{who} keeps the {thing}", place))
        who, dish = people.pop(), dishes.pop()
        said.append((f"The favourite dish of {who} is {dish}.", turns.pop()))
        asked.append(("what", f"What is the favourite dish of {who}?", f"The favourite dish of {who} is", dish))
        who, digits = people.pop(), rng.randrange(10000, 100000)
        said.append((f"The secret number of {who} is {digits}.", turns.pop()))
        asked.append(("number", f"What is the secret number of {who}?", f"The secret number of {who} is", str(digits)))
        if i < ASKED:
            before, now = (f"{kinds.pop()} {trades.pop()}" for _ in range(2))
            thing = things.pop()
            early, late = sorted((turns.pop(), turns.pop()))
            said += [(f"The {thing} is with the {before} now.", early), (f"The {thing} is with the {now} now.", late)]
            asked.append(("who", f"Who has the {thing} now?", f"The {thing} is with the", now))
    rng.shuffle(asked)
    chosen = [q for task in TASKS for q in [q for q in asked if q[0] == task][:ASKED]]
    return said, chosen


def paragraphs_of(text: str, tokens: int) -> tuple[list[str], str]:
    """The paragraphs of a text, and what stands between them: an empty line. If most of the text is then in paragraphs that are
    longer than `tokens` tokens, as where there are no empty lines, its lines take their place; if those are too long, its
    sentences."""
    for cut, between in ((r"\n\s*\n", "\n\n"), (r"\n", "\n"), (r"(?<=[.!?])\s+", " ")):
        paragraphs = [p.strip("\n") for p in re.split(cut, text) if p.strip()]
        if sum(len(p) for p in paragraphs if len(p) > 4 * tokens) <= len(text) / 2:  # a token is about 4 characters
            break
    return paragraphs, between


def contexts(
    dialogue: Dialogue, text: str, count: int, tokens: int, seed: int, first: int = 0
) -> list[Context]:
    """`count` contexts of about `tokens` tokens, from number `first` on. They begin at equal distances in the text, each at
    a random paragraph of its stretch. Raises ValueError if the text is too short."""
    paragraphs, between = paragraphs_of(text, tokens)
    sizes = [len(ids) + 1 for ids in dialogue.tokenizer(paragraphs, add_special_tokens=False)["input_ids"]]
    need, total = tokens + READ_ON + 64, sum(sizes)
    if total < need + max(sizes, default=0):
        raise ValueError(f"the texts hold {total} tokens; they must hold more than {need + max(sizes, default=0)}, for"
                         f" contexts of {tokens} tokens and what follows them")
    starts, at = [], 0
    for i, size in enumerate(sizes):
        if at + need + size <= total:
            starts.append(i)
        at += size
    made = []
    for number in range(first, first + count):
        rng = random.Random(f"{seed} {number}")
        share = ((number * 0.6180339887) % 1 + rng.random() / 8) % 1  # stretches far from each other, for any count
        made.append(_context(dialogue, paragraphs, between, sizes, starts[int(share * len(starts))], tokens, rng, number))
    return made


def _context(dialogue: Dialogue, paragraphs: Sequence[str], between: str, sizes: Sequence[int], start: int, tokens: int,
             rng: random.Random, number: int) -> Context:
    said, asked = _facts(rng)
    facts = sum(len(dialogue.tokens(" " + statement)) for statement, _ in said)
    body, held, end = [], len(dialogue.tokens(dialogue.opening)) + facts, start
    while end < len(paragraphs) and (held + sizes[end] <= tokens or not body):
        body.append(paragraphs[end])
        held += sizes[end]
        end += 1
    whole = list(body)
    ends = [i for i, p in enumerate(body) if p.endswith((".", ":", "!", "?"))] or list(range(len(body)))
    for statement, turn in sorted(said, key=lambda s: s[1]):  # equal turns keep the order in which they were stated
        whole[ends[turn * len(ends) // 100]] += " " + statement
    prompt = dialogue.tokens(dialogue.opening + between.join(whole))
    after = dialogue.tokens(between + between.join(paragraphs[end : end + READ_ON]))[: READ_ON + 1]
    context = Context(number, prompt, len(dialogue.tokens(dialogue.opening)), after, whole, between)
    context.questions = [dialogue.question(*q) for q in asked]
    long = [p for p in body if len(dialogue.tokens(p)) > GIVEN + COPIED and len(p.split()) > 20]
    for p in rng.sample(long, min(COPIES, len(long))):
        asked_for = dialogue.question("copy", "Repeat, word for word, the paragraph of the text that begins as follows.",
                                      "", p.strip())
        known = asked_for.lead + asked_for.answer
        context.copies.append(Question("copy", asked_for.ask, known[:GIVEN], known[GIVEN : GIVEN + COPIED]))
    return context
