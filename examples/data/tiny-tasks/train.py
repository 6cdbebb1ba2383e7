#!/usr/bin/env python3
"""Train a small byte-level, Llama-style language model that reads King James text and answers questions about
ordinary sentences planted in it, and measure how much of the KV cache it needs for that.

    bible gen1:1-rev22:21 > kjv.txt                                # Debian package bible-kjv
    python3 train.py --text kjv.txt --out .                        # train; --resume checkpoint.pt goes on
    python3 train.py --text kjv.txt --write-tasks tasks.jsonl      # contexts, questions, answers
    python3 train.py --evaluate . --tasks tasks.jsonl              # exact answers per task

Needs torch and numpy. Everything from Romans on is held out, and so is a fifth of all words that are planted.
"""

import argparse, hashlib, io, json, math, os, pathlib, random, re, struct, sys, time
sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("train.py")

import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F

CFG = dict(vocab=256, dim=240, layers=4, heads=8, kv_heads=4, head_dim=32, ffn=512, base=1e7, eps=1e-5)
# From which share of the training on: length, batch, share of samples with running text, most facts in one world, and
# share of samples that look like the tasks. In the last phase, half of the steps are as in the one before.
PHASES = [
    (0.0, 256, 8, 0.1, 4, 0.0),
    (0.08, 256, 8, 0.5, 5, 0.0),
    (0.22, 512, 4, 0.6, 8, 0.1),
    (0.35, 1024, 4, 0.7, 16, 0.3),
    (0.6, 2048, 2, 0.8, 24, 0.4),
]
ANSWER, VERSE, UNKNOWN = 8.0, 3.0, 0.05  # loss weights: of an answer, of a verse's rest, of what cannot be known yet

NUMBER_NAMES = (
    "Abner Baruch Caleb Dinah Esther Festus Gideon Hannah Ishmael Jethro Keturah Lazarus Miriam Nathan Obadiah "
    "Philemon "
    "Rachel Samson Thomas Uriah Vashti Zadok Boaz Cyrus Elijah Joab Leah Mordecai Naomi Silas Titus Zilpah"
).split()
PLACES = (
    "river fountain gate wall hill valley forest vineyard threshingfloor well bridge tower market garden temple "
    "harbour desert "
    "brook cave field orchard lake mountain quarry stable meadow sea palace prison pool road barn mill winepress "
    "sheepfold "
    "granary marsh ditch pasture cliff ford spring shore tent altar oak cedar figtree furnace court street camp "
    "village city "
    "haven rock pillar porch threshold pit tomb sepulchre synagogue treasury armoury wilderness causeway hedge "
    "storehouse"
).split()
THINGS = (
    "basket lamp sword shield spear bow crown ring robe girdle staff rod pot pitcher bowl cup cake loaf fish lamb "
    "kid dove "
    "bottle book roll harp trumpet pipe timbrel drum bell candlestick censer chain bracelet necklace jewel pearl "
    "stone brick "
    "beam board nail hammer saw file sickle plow yoke whip bridle saddle cord rope net hook line sail mast bundle "
    "sack purse "
    "bag chest coffer box vessel dish platter spoon knife fork razor mirror comb veil cloak coat mantle shoe sandal "
    "belt "
    "helmet breastplate banner tent curtain pillow bed table stool footstool ladder lock key door wheel cart saucer "
    "kettle "
    "pan sieve measure balance weight letter seal signet tablet scroll pen parchment map fig pomegranate melon "
    "cucumber "
    "raisin cluster branch palm thorn thistle lily rose reed feather fleece skin horn tooth bone shell candle torch "
    "firebrand coal jar ladle trowel"
).split()
KINDS = (
    "red white black green small great little long broken golden silver wooden brazen bitter sweet heavy light new "
    "clean "
    "costly precious plain round square hollow smooth rough dry wet torn sharp blunt bright dark fair fine hidden "
    "painted "
    "polished scarlet purple blue yellow tall narrow broad strong weak worn goodly crooked straight soft hard holy "
    "common "
    "royal rusty shining spotted striped thin thick twisted wide"
).split()
ROLES = (
    "potter shepherd widow scribe baker butler captain centurion merchant carpenter smith mason weaver tanner fisher "
    "hunter "
    "sower reaper thresher ploughman vinedresser gardener porter doorkeeper watchman jailer physician midwife nurse "
    "maiden "
    "bride bridegroom beggar leper stranger traveller pilgrim hireling steward treasurer cupbearer singer trumpeter "
    "harper "
    "dancer prophet prophetess priest elder judge governor soldier archer horseman spearman messenger cook butcher "
    "fuller "
    "goldsmith founder miller sailor pilot rower orphan virgin bondman handmaid eunuch sorcerer magician dreamer "
    "counsellor "
    "lawyer publican robber thief spy herdman swineherd woodcutter waterdrawer tentmaker"
).split()
TASKS = ("dwelt", "had", "servant", "verse", "number")
MORE_TASKS = ("list", "counted", "chain")  # training has nothing like them
ORDINALS = ("first", "second", "third", "fourth", "fifth")
STARTS = "b c d f g h j k l m n p r s t v w z bl br ch cl cr dr fl gl gr pl pr sc sh sp st th tr qu ph".split()
rng = random.Random(1234)


# --- words ---------------------------------------------------------------------------------------------------


def held_out_word(word):
    return hashlib.md5(word.encode()).digest()[0] < 51  # a fifth


def names_in(text):
    found = {}
    for w in re.findall(r"[a-z,] ([A-Z][a-z]{3,8})\b", text.decode("ascii", "ignore")):
        found[w] = found.get(w, 0) + 1
    common = {w.capitalize() for w in re.findall(r"\b[a-z]{4,9}\b", text.decode("ascii", "ignore"))}
    return sorted(w for w, n in found.items() if n >= 2 and w not in common)


class Words:
    """The words that may be planted: those of training, or those held out."""

    def __init__(self, names, held):
        pick = lambda words: [w for w in dict.fromkeys(words) if held_out_word(w) == held]
        self.names, self.places, self.things, self.kinds, self.roles = map(pick, (names, PLACES, THINGS, KINDS, ROLES))
        # Share of words that mean nothing. They can only be copied; of a quarter the model still guessed first letters.
        self.invented = 0.0 if held else 0.6

    def some(self, words, n, capital=False):
        out = []
        while len(out) < n:
            if rng.random() < self.invented:
                some_syllables = (rng.choice(STARTS) + rng.choice("aeiou") for _ in range(rng.choice([1, 2, 2, 3])))
                w = rng.choice(["", "", "", "a", "e", "i", "o", "u"]) + "".join(some_syllables)
                w += rng.choice(["", "", "n", "r", "th", "l", "m", "ck", "s", "ed"])
                w = w.capitalize() if capital else w
            else:
                w = rng.choice(words)
            if w not in out:
                out.append(w)
        return out

    def somewhere(self, n):
        """Places, such as 'gate' and 'broken gate'."""
        out = []
        while len(out) < n:
            where = self.some(self.places, 1)[0]
            where = where if rng.random() < 0.6 else self.some(self.kinds, 1)[0] + " " + where
            if where not in out:
                out.append(where)
        return out

    def people(self, n):
        """Names, or roles such as 'the potter', or both."""
        kind = rng.random()
        if n == 1:
            return self.some(self.names, 1, True) if kind < 0.5 else ["the " + self.some(self.roles, 1)[0]]
        if kind < 0.35:
            return self.some(self.names, n, True)
        if kind < 0.8:
            return ["the " + w for w in self.some(self.roles, n)]
        k = n // 2
        return rng.sample(
            p := self.some(self.names, n - k, True) + ["the " + w for w in self.some(self.roles, k)], len(p)
        )


# --- statements and questions ----------------------------------------------------------------------------------
# A statement is a list of parts (text, weight in the loss). A question is (task, question, answer).


def upper(s):
    return s[0].upper() + s[1:]


def lead(s):
    word = rng.choice(["And ", "And ", "Now ", "Then ", "So ", ""])
    return word + s if word else upper(s)


class World:
    """About n facts of a few tasks, of people who are not mixed up. `state` says one; `ask` asks for one that was said."""

    def __init__(self, words, tasks, n, source=""):
        self.words, self.source, self.open, self.known, self.value, self.times = words, source, [], [], {}, {}
        tasks = list(dict.fromkeys(tasks))
        share = max(1, n // max(1, len(tasks)))
        for t in tasks:
            if t == "dwelt":
                self.open += [(t, where) for where in words.some(words.places, share)]
            elif t == "had":
                self.open += [(t, who) for who in words.people(share)]
            elif t == "number":
                self.open += [(t, who) for who in rng.sample(NUMBER_NAMES, min(share, 30))]
            elif t == "servant":
                chains, names = [], words.some(words.names, 2 * share, True)
                while share > 0:  # chains of one or two: Caleb's servant may have a servant
                    k = rng.choice([1, 1, 2]) if share > 1 else 1
                    chains.append(names[: k + 1])
                    names = names[k + 1 :]
                    share -= k
                self.open += [(t, (c[i], c[i + 1])) for c in chains for i in range(len(c) - 1)]
                share = max(1, n // len(tasks))
            elif t == "other":  # only in training: the same thing in many other words
                self.form = random_form(words)
                self.open += [(t, who) for who in words.some(self.form[4], share, self.form[5])]
            else:
                self.open += [(t, i) for i in range(min(share, 6))]
        rng.shuffle(self.open)

    def state(self, again=0.0):
        """A new statement, or, with probability `again`, one about somebody who moved or took another thing."""
        w, moved = self.words, [k for k in self.known if k[0] in ("dwelt", "had")]
        if moved and (not self.open or rng.random() < again):
            key = rng.choice(moved)
        elif self.open:
            key = self.open.pop()
            self.known.append(key)
        else:
            return []
        t, who = key
        if t == "number":
            self.value[key] = f"{rng.randrange(100000):05d}"
            return [(f"\nThe secret number of {who} is ", 0.3), (self.value[key], UNKNOWN, (id(self), key)), (".\n", 1)]
        if t == "dwelt":
            v = self.value[key] = w.people(1)[0]
            return [(" " + lead(f"by the {who} dwelt "), 0.3), (v, UNKNOWN, (id(self), key)), (".", 1)]
        if t == "had":
            v = self.value[key] = w.some(w.kinds, 1)[0] + " " + w.some(w.things, 1)[0]
            return [(" " + lead(f"{who} had a "), 0.3), (v, UNKNOWN, (id(self), key)), (".", 1)]
        if t == "list":
            v = self.value[key] = w.some(w.things, 1)[0]
            return [(" " + lead(f"the {who} gift was a "), 0.3), (v, UNKNOWN, (id(self), key)), (".", 1)]
        if t == "servant":
            self.value[key] = who[1]
            return [(" " + lead(f"the servant of {who[0]} was "), 0.3), (who[1], UNKNOWN, (id(self), key)), (".", 1)]
        if t == "verse":
            v = self.value[key] = piece_of(self.source)
            return [(f"\n  {rng.randrange(1, 60)} ", 0.3), (v, 0.5, (id(self), key))]
        before, between, values, capital, _, _ = self.form
        v = self.value[key] = w.some(values, 1, capital)[0]
        return [(before + who + between, 0.3), (v, UNKNOWN, (id(self), key)), (".", 1)]

    def question(self, key):
        """The question (task, question, answer) that a known key answers now."""
        t, who = key
        v = self.value[key]
        if t == "number":
            return t, f"\nThe secret number of {who} is ", v
        if t == "dwelt":
            return t, f"\nBehold, by the {who} dwelt ", v
        if t == "had":
            return t, f"\nBehold, {who} had a ", v
        if t == "servant":
            return t, f"\nBehold, the servant of {who[0]} was ", v
        if t == "list":
            return t, f"\nBehold, the {who} gift was a ", v
        if t == "verse":
            cut = first_words(v)
            return t, "\nBehold, it is written, " + v[:cut], v[cut:]
        return t, self.form[0] + who + self.form[1], v

    def ask(self):
        """The parts of a question and its answer: one of those least asked so far."""
        qs = [self.question(k) + ((id(self), k),) for k in self.known]
        if not qs:
            return []
        rng.shuffle(qs)
        q = min(qs, key=lambda q: self.times.get(q[1], 0))
        self.times[q[1]] = self.times.get(q[1], 0) + 1
        return [(q[1], 0.3), (q[2], VERSE if q[0] == "verse" else ANSWER, q[3]), (".", 1)]


def random_form(words):
    """(before, between, values, capital values, keys, capital keys) of statements: ' gotu NAME zen the VALUE.'"""
    kind = lambda: rng.choice([(words.names, True), (words.roles, False), (words.places, False), (words.things, False)])
    keys, values = kind(), kind()
    filler = " ".join(
        words.some(["the", "of", "in", "was", "is", "a", "with", "saw", "gave", "unto"], rng.choice([0, 1, 1, 2, 3]))
    )
    between = rng.choice([" ", " ", ", ", ": ", "=", " - "]) + (filler + " " if filler else "")
    return rng.choice([" ", "\n", " the ", " And ", "\nBehold, "]), between, values[0], values[1], keys[0], keys[1]


def piece_of(source):
    """The beginning of a verse, or of any words."""
    for _ in range(20):
        at = source.find("\n  ", rng.randrange(0, len(source) - 400))
        at = source.find(" ", at + 3) + 1
        end = min((e for e in (source.find("\n", at), source.find("\n\n", at)) if e > 0), default=at)
        if 40 <= end - at <= 90 and "\n" not in source[at:end]:
            return source[at:end]
    return "In the beginning God created the heaven and the earth."


def first_words(v):
    cuts = [m.end() for m in re.finditer(" ", v[: len(v) - 14]) if m.end() >= 10]
    return rng.choice(cuts[:4]) if cuts else 10


# --- training samples --------------------------------------------------------------------------------------------

MIX = dict(dwelt=1.0, had=1.0, servant=1.0, number=0.6, verse=1.0, other=0.7)


def flat(parts, length):
    """Bytes, their weights, and for each byte of an answer where it was stated (-1 for the others)."""
    out = "".join(p[0] for p in parts).encode("ascii", "replace")
    weight = np.empty(len(out), np.float32)
    source = np.full(len(out), -1)
    at, said = 0, {}
    for text, w, *key in parts:
        end = at + len(text)
        weight[at:end] = w
        if key and w in (ANSWER, VERSE):
            source[at:end] = np.arange(
                said[key[0]] - len(text), said[key[0]]
            )  # an answer is the end of what was stated
        elif key:
            said[key[0]] = end
        at = end
    return out[: length + 1], weight[: length + 1], source[: length + 1]


def sample(length, source, words, share, most):
    """Worlds of statements and questions, with pieces of running text between them: `share` of all bytes."""
    parts, size, pos = [], 0, rng.randrange(0, len(source) - 4 * length - 400)
    while size <= length:
        n = rng.randint(1 if share > 0.5 else 2, max(2, min(most, round(length * (1 - share) / 60))))
        tasks = rng.choices(list(MIX), weights=MIX.values(), k=rng.choice([1, 1, 1, 2, 3]))
        world = World(words, tasks, n, source)
        n = len(world.open)
        asks = max(2, round(n * rng.uniform(0.7, 2.5)))
        order = ["s"] * n + ["a"] * asks
        if rng.random() < 0.6:
            at = rng.randrange(1, n + 1)
            rest = order[at:]
            rng.shuffle(rest)
            order = order[:at] + rest
        room = share / max(0.03, 1 - share) * (n * 40 + asks * 42)
        gaps = [rng.random() ** 3 for _ in order]
        if share == 0:
            gaps = [0] * len(order)
        room /= max(1e-6, sum(gaps))
        for what, gap in zip(order, gaps):
            fresh = []
            if (gap := int(gap * room)) > 8:
                found = END.search(source, pos + gap) if what == "s" else SPACE.search(source, pos + gap)
                end = min(found.start() if found else pos + gap, pos + gap + 80)
                fresh.append((source[pos:end], 1.0))
                pos = end
                if pos > len(source) - 2 * length - 400:
                    pos = rng.randrange(0, len(source) // 2)
            fresh += world.state(0.15) if what == "s" else world.ask()
            parts += fresh
            size += sum(len(p[0]) for p in fresh)
    return flat(parts, length)


END, SPACE = re.compile(r"(?<=[.:;,])(?=[ \n])"), re.compile(r"(?=[ \n])")


def like_task(length, source, words):
    """A context of one of the tasks, of training's text and words, and its questions."""
    task = rng.choice(["dwelt", "had", "servant", "number", "verse"])
    crowd = rng.randint(5, length // 80) if task != "verse" and rng.random() < 0.3 else 0
    context, questions = task_context(task, length - rng.randint(90, 200), source, words, crowd)
    parts = [(context, 1.0)]
    text, weight, at = flat(parts, length)
    for _, question, answer in questions:
        stem = question.removeprefix("\nBehold, ").removeprefix("it is written, ")[1:] + answer
        stated = context.rfind(stem) + len(stem) - len(answer)
        text += (question + answer + ".").encode("ascii", "replace")
        heavy = VERSE if task == "verse" else ANSWER
        weight = np.concatenate([weight, np.full(len(question), 0.3), np.full(len(answer), heavy), [1.0]])
        at = np.concatenate([at, np.full(len(question), -1), np.arange(stated, stated + len(answer)), [-1]])
    rest = length + 1 - len(text)
    if rest > 0:  # running text again
        more = source[(begin := rng.randrange(0, len(source) - length)) : begin + rest]
        text += more.encode("ascii", "replace")
        weight, at = np.concatenate([weight, np.ones(rest)]), np.concatenate([at, np.full(rest, -1)])
    return text[: length + 1], weight[: length + 1].astype(np.float32), at[: length + 1]


def batch(size, length, source, words, text, most, like=0.0):
    """text: the share of samples that are mostly running text; like: of those that look like the tasks."""
    made = []
    for _ in range(size):
        if rng.random() < like:
            made.append(like_task(length, source, words))
            continue
        share = rng.uniform(0.4, 0.95) if rng.random() < text else rng.choice([0, 0, 0.2])
        made.append(sample(length, source, words, share, most))
    x, w, source = (
        torch.from_numpy(np.stack(a)) for a in zip(*((np.frombuffer(s, np.uint8), w, at) for s, w, at in made))
    )
    x = x.long()
    return x[:, :-1], x[:, 1:], w[:, 1:], source[:, 1:]


VERSE_BEGINS = re.compile(r"(?<=\n)  \d+ (?=[A-Z])")


def verse_question(text, end):
    """First words of a verse that lies in text[:end], and the words that follow: (task, question, answer)."""
    starts = [m.end() for m in VERSE_BEGINS.finditer(text, 0, end) if m.end() + 80 < end]
    rng.shuffle(starts)
    for at in starts:
        cuts = [m.end() for m in re.finditer(r"[ \n]", text[at : at + 200])]
        first = [c for c in cuts if 14 <= c <= 40]
        if not first:
            continue
        n = first[0]
        last = [c for c in cuts if c >= n + 14]
        if not last or at + last[0] > end or text.count(text[at : at + n].rstrip()) > 1:
            continue
        stop = text.find("\n\n", at, at + last[0])
        if stop >= 0:
            continue
        return "verse", "\nBehold, it is written, " + text[at : at + n], text[at + n : at + last[0] - 1]
    return None


def boundaries(text):
    return [m.end() for m in re.finditer(r"[.:;](?=[ \n])", text)]


# --- the tasks that judge ----------------------------------------------------------------------------------------


def task_context(task, length, source, words, crowd=0):
    """A context of held-out text with statements of one task, crowd or about five, and questions."""
    while True:
        start = source.find("\n", rng.randrange(0, len(source) - length - 400)) + 1
        body = source[start : start + length + 200]
        if task == "verse":
            context = body[:length]
            qs = [q for q in (verse_question(context, int(length * x)) for x in (0.35, 0.6, 0.85)) if q]
            qs = list({q[1]: q for q in qs}.values())
            if qs:
                return context, qs
            continue
        world = World(words, [], 1)
        said, asked = [], None
        wanted = crowd or 4
        moves = (4 if crowd else 1) if task in ("dwelt", "had") else 0
        count = wanted - moves if crowd else wanted
        if task == "dwelt":
            world.open = [
                (task, where) for where in (words.somewhere(count) if crowd else words.some(words.places, count))
            ]
        elif task == "had":
            some = ["the " + w for w in words.some(words.roles, min(count, 10))]
            world.open = [(task, who) for who in some + words.some(words.names, count - len(some), True)]
            rng.shuffle(world.open)
        elif task == "number":
            world.open = [(task, w) for w in rng.sample(NUMBER_NAMES, wanted)]
        elif task == "list":
            world.open = [(task, o) for o in reversed(ORDINALS)]  # `state` begins at the end
        elif task == "counted":
            gifts = words.some(words.things, 5)
            said = [[(f" Now the gifts were a {', a '.join(gifts[:4])} and a {gifts[4]}.", 1)]]
            asked = [(task, f"\nBehold, the {o} gift was a ", gift) for o, gift in zip(ORDINALS, gifts)]
        elif task == "chain":  # two chains of three
            n = words.some(words.names, 6, True)
            world.open = [("servant", pair) for pair in zip(n, n[1:]) if pair != (n[2], n[3])]
            rng.shuffle(world.open)
            ends = (n[0], n[2]), (n[3], n[5])
            asked = [(task, f"\nBehold, the servant of the servant of {a} was ", c) for a, c in ends]
        else:
            n = words.some(words.names, 2 * wanted, True)
            world.open = [(task, (n[2 * i], n[2 * i + 1])) for i in range(wanted)]
        while world.open:
            said.append(world.state(0.0))
        said += [world.state(0.0) for _ in range(moves)]
        said = ["".join(p[0] for p in x) for x in said]
        room = length - sum(map(len, said))
        ends = [e for e in boundaries(body[:room]) if e < room - 20]
        if not ends or room < 40:
            continue
        if crowd:
            places = sorted(rng.choice(ends) for _ in said)
        else:
            slots = [[e for e in ends if i <= e * len(said) / room < i + 1] for i in range(len(said))]
            if not all(slots):
                continue
            places = [rng.choice(x) for x in slots]
        context, pos = "", 0
        for x, at in zip(said, places):
            context += body[pos:at] + x
            pos = at
        qs = asked or [world.question(k) for k in world.known]
        return context + body[pos:room], rng.sample(qs, min(3, len(qs)))


def as_rows(context, qs):
    return [dict(task=t, context=context, question=q, answer=a) for t, q, a in qs]


def write_tasks(path, source, words, contexts, seed, tasks, crowded):
    """contexts per task, a fifth of them of 1,900 bytes; and 10 of 1,200 bytes, crowded with 24 statements."""
    rng.seed(seed)
    rows = []
    for task in tasks:
        for i in range(contexts):
            rows += as_rows(*task_context(task, 1900 if i % 5 == 4 else 1000, source, words))
    for task in crowded:
        for i in range(10):
            rows += [r | dict(task=task + "24") for r in as_rows(*task_context(task, 1200, source, words, 24))]
    _program.write_file(path, "".join(json.dumps(r) + "\n" for r in rows))


# --- the model -----------------------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(CFG["dim"]))

    def forward(self, x):
        return F.rms_norm(x, (CFG["dim"],), self.weight, CFG["eps"])


def causal_attention(q, k, v, block=128):
    """Attention in bfloat16 over the keys so far, a block of queries at a time: on a CPU faster than PyTorch's own."""
    B, H, T, d = q.shape
    K, g = k.shape[1], H // k.shape[1]
    block = max(block, T // 8)
    q = (q * d**-0.5).to(torch.bfloat16).reshape(B * K, g, T, d)
    k, v = (x.to(torch.bfloat16).reshape(B * K, T, d) for x in (k, v))
    future = torch.full((block, block), float("-inf"), dtype=torch.bfloat16).triu(1)
    out = []
    for at in range(0, T, block):
        end = min(at + block, T)
        n = end - at
        mask = torch.cat([torch.zeros(n, at, dtype=torch.bfloat16), future[:n, :n]], 1).repeat(g, 1)
        p = torch.baddbmm(mask, q[:, :, at:end].reshape(B * K, g * n, d), k[:, :end].mT).softmax(-1)
        out.append(torch.bmm(p, v[:, :end]).view(B * K, g, n, d))
    return torch.cat(out, 2).view(B, H, T, d)


def rotate(x, cos, sin):  # half-split pairing, as in Hugging Face Llama
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        d, h, k, f = CFG["dim"], CFG["heads"] * CFG["head_dim"], CFG["kv_heads"] * CFG["head_dim"], CFG["ffn"]
        lin = lambda i, o: nn.Linear(i, o, bias=False)
        self.n1, self.n2, self.q, self.k, self.v, self.o = (
            RMSNorm(),
            RMSNorm(),
            lin(d, h),
            lin(d, k),
            lin(d, k),
            lin(h, d),
        )
        self.gate, self.up, self.down = lin(d, f), lin(d, f), lin(f, d)

    def forward(self, x, cos, sin, past=None, mask=None):
        """past: K and V of earlier tokens; mask: added to the logits, for all tokens. Returns x, and K and V."""
        B, T, _ = x.shape
        split = lambda y: y.view(B, T, -1, CFG["head_dim"]).transpose(1, 2)
        h = self.n1(x)
        q, k, v = rotate(split(self.q(h)), cos, sin), rotate(split(self.k(h)), cos, sin), split(self.v(h))
        own = (k, v)
        self.q_seen = q
        if past is not None:
            k, v = (torch.cat([p.expand(B, -1, -1, -1), n], 2) for p, n in zip(past, own))
        if torch.is_autocast_enabled("cpu"):
            a = causal_attention(q, k, v)
        else:
            g = CFG["heads"] // CFG["kv_heads"]
            k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.o(a.transpose(1, 2).reshape(B, T, -1))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), own


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head, self.norm = (
            nn.Embedding(CFG["vocab"], CFG["dim"]),
            nn.Linear(CFG["dim"], CFG["vocab"], bias=False),
            RMSNorm(),
        )
        self.blocks = nn.ModuleList(Block() for _ in range(CFG["layers"]))
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(
                    p,
                    0,
                    (
                        0.02
                        if "embed" in name
                        else p.shape[1] ** -0.5 * (0.5 if name.endswith(("o.weight", "down.weight")) else 1)
                    ),
                )

    def forward(self, x, past=None, masks=None):
        """Logits, and K and V of each layer. past and masks: per layer, as in Block."""
        begin = past[0][0].shape[2] if past else 0
        at = torch.arange(begin, begin + x.shape[1], device=x.device)
        angle = at[:, None] * CFG["base"] ** (-torch.arange(0, CFG["head_dim"], 2, device=x.device) / CFG["head_dim"])
        h, kv, cos, sin = self.embed(x), [], angle.cos(), angle.sin()
        for i, b in enumerate(self.blocks):
            h, own = b(h, cos, sin, past[i] if past else None, masks[i] if masks else None)
            kv.append(own)
        return self.head(self.norm(h)), kv


def tensors_of(model):
    names = dict(
        n1="input_layernorm",
        n2="post_attention_layernorm",
        q="self_attn.q_proj",
        k="self_attn.k_proj",
        v="self_attn.v_proj",
        o="self_attn.o_proj",
        gate="mlp.gate_proj",
        up="mlp.up_proj",
        down="mlp.down_proj",
    )
    tensors = {
        "model.embed_tokens.weight": model.embed.weight,
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.head.weight,
    }
    for i, b in enumerate(model.blocks):
        tensors |= {f"model.layers.{i}.{long}.weight": getattr(b, short).weight for short, long in names.items()}
    return tensors


def save(model, folder):
    head, data = {"__metadata__": {"format": "pt"}}, b""
    for name, t in tensors_of(model).items():
        raw = t.detach().cpu().numpy().astype(np.float16)
        head[name] = {"dtype": "F16", "shape": list(raw.shape), "data_offsets": [len(data), len(data) + raw.nbytes]}
        data += raw.tobytes()
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path = os.path.join(folder, "model.safetensors")
    _program.write_file(path, struct.pack("<Q", len(text)) + text + data)
    config = dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=CFG["dim"],
        intermediate_size=CFG["ffn"],
        num_hidden_layers=CFG["layers"],
        num_attention_heads=CFG["heads"],
        num_key_value_heads=CFG["kv_heads"],
        head_dim=CFG["head_dim"],
        vocab_size=CFG["vocab"],
        hidden_act="silu",
        rms_norm_eps=CFG["eps"],
        rope_theta=CFG["base"],
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        attention_bias=False,
        torch_dtype="float16",
    )
    _program.write_file(os.path.join(folder, "config.json"), json.dumps(config, indent=2) + "\n")


def read_tensors(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        head, data = json.loads(f.read(size)), f.read()
    part = lambda of: np.frombuffer(data[of["data_offsets"][0] : of["data_offsets"][1]], np.float16).astype(np.float32)
    return {name: torch.from_numpy(part(of)).view(of["shape"]) for name, of in head.items() if name != "__metadata__"}


@torch.no_grad()
def load(model, folder):
    found = read_tensors(folder)
    for name, t in tensors_of(model).items():
        t.copy_(found[name])


# --- heads to begin with -----------------------------------------------------------------------------------------
# Copying is made of heads that look a fixed number of bytes back, and of heads that look for what followed
# the last bytes when they stood there before. Descent takes long to find them, so the first weights are such heads already.


@torch.no_grad()
def begin(model, tokens):
    """dims 0: a constant; 1-31: the byte's code; 32-207: codes (16 dims) of the eleven bytes before; 208-239: the next."""
    D, d, g = CFG["dim"], CFG["head_dim"], CFG["heads"] // CFG["kv_heads"]
    turn = CFG["base"] ** (-torch.arange(0, d, 2) / d)
    eye = torch.eye(D)
    block = lambda m: slice(1, 17) if m == 0 else slice(16 + 16 * m, 32 + 16 * m)
    e, x = model.embed.weight, None
    e.normal_(0, 0.02)
    e[:, 1:d] = 0.2 * torch.randn(CFG["vocab"], d - 1)
    e[:, 0] = 0.2
    model.head.weight.normal_(0, 0.01)
    model.head.weight[:, 209:240] = 0.7 * e[:, 1:d]
    at = torch.arange(tokens.shape[1])
    angle = at[:, None] * turn
    h = model.embed(tokens)

    def rows(head):
        return slice(head * d, head * d + d)

    def look_back(b, head, delta, sharp=30.0):  # q and k see the constant alone; RoPE does the rest
        one = 1 / x[..., 0].mean()
        share = torch.zeros(d // 2)
        share[:7] = torch.tensor([3.0, 2, 1, 1, 1, 1, 1]) / 10
        share = (share * sharp * math.sqrt(d)).sqrt()
        b.k.weight[rows(head // g)] = 0
        b.q.weight[rows(head)] = 0
        b.o.weight[:, rows(head)] = 0
        b.k.weight[rows(head // g), 0] = torch.cat([share, 0 * share]) * one
        b.q.weight[rows(head), 0] = torch.cat([share * (delta * turn).cos(), -share * (delta * turn).sin()]) * one

    for layer, b in enumerate(model.blocks):
        x, size = b.n1(h), h.pow(2).mean(-1).sqrt().mean()
        for w in (b.q, b.k, b.v, b.o, b.down):
            w.weight.mul_(0.3)
        b.down.weight[0] = 0
        if layer == 0:
            for head in range(CFG["heads"]):
                look_back(b, head, head + 1)
                b.v.weight[rows(head // g)][:16] = eye[block(0)]
                b.o.weight[block(head + 1), head * d : head * d + 16] = size * torch.eye(16)
        elif layer == 1:
            b.v.weight[rows(0)] = torch.cat([eye[block(1)], eye[block(2)]])
            look_back(b, 0, 8)
            b.o.weight[block(9), :16] = b.o.weight[block(10), 16:d] = size * torch.eye(16)
            look_back(b, 1, 9)
            b.o.weight[block(11), d + 16 : 2 * d] = size * torch.eye(16)
        else:
            for kv in range(CFG["kv_heads"]):
                slow = torch.cat([torch.arange(d // 2) >= 7] * 2).float()[:, None]
                key, queries = torch.zeros(d, D), [torch.zeros(d, D) for _ in range(g)]
                for m in range(11):
                    r = torch.randn(d, 16) * slow
                    key[:, block(m + 1)] = r
                    for i, q in enumerate(queries):
                        q[:, block(m)] = r * (1.0, 0.85**m)[i % 2]
                b.v.weight[rows(kv)] = eye[:d]
                b.v.weight[kv * d] = 0
                for w, to, scale in [(key, b.k.weight[rows(kv)], 1.0)] + [
                    (q, b.q.weight[rows(kv * g + i)], 3.0) for i, q in enumerate(queries)
                ]:
                    w[:, 0] -= (x @ w.T).mean((0, 1)) / x[..., 0].mean()  # no mean, by way of the constant
                    to.copy_(
                        scale
                        * w
                        / (slow.sum() / d * (x @ w.T)[..., slow[:, 0] > 0].pow(2).mean()).sqrt()
                        * (slow.sum() / d) ** 0.5
                    )
                for head in range(kv * g, kv * g + g):
                    b.o.weight[:, rows(head)] = 0
                    b.o.weight[209:240, head * d + 1 : head * d + d] = 0.5 * size * torch.eye(d - 1)
        b.o.weight[0] = 0
        h, _ = b(h, angle.cos(), angle.sin())


# --- evaluation ------------------------------------------------------------------------------------------------------

METHODS = ("full", "random", "recent", "outliers", "looked_at")


def chosen(keys, method, budget, generator, looks):
    """Which of keys [heads][tokens][dim] a method keeps: [heads][tokens]."""
    H, T, D = keys.shape
    keep = torch.zeros(H, T, dtype=torch.bool)
    if method == "full":
        return ~keep
    if method == "random":
        return keep.scatter_(1, torch.rand(H, T, generator=generator).topk(budget).indices, True)
    keep[:, :4] = True
    if method == "recent":
        keep[:, T - budget + 4 :] = True
        return keep
    keep[:, T - 32 :] = True
    if method == "outliers":
        x = (keys - keys.mean(1, keepdim=True)).double()
        gram = x.transpose(1, 2) @ x
        ridge = 0.1 * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(D, dtype=torch.double)
        score = (x @ torch.linalg.inv(gram + ridge) * x).sum(-1)
    else:
        score = looks.double()
    return keep.scatter_(1, score.masked_fill(keep, -1).topk(budget - 36).indices, True)


@torch.no_grad()
def looks_of(model, kv, tokens):
    """How much the question looks at each entry of the context, per layer [kv_heads][tokens]. Only an oracle knows."""
    h, T, n = model.embed(tokens), kv[0][0].shape[2], tokens.shape[1]
    out = []
    at = torch.arange(T, T + n)
    angle = at[:, None] * CFG["base"] ** (-torch.arange(0, CFG["head_dim"], 2) / CFG["head_dim"])
    g = CFG["heads"] // CFG["kv_heads"]
    mask = torch.cat([torch.zeros(n, T), torch.full((n, n), float("-inf")).triu(1)], 1)
    for b, past in zip(model.blocks, kv):
        q = rotate(b.q(b.n1(h)).view(1, n, -1, CFG["head_dim"]).transpose(1, 2), angle.cos(), angle.sin())
        h, own = b(h, angle.cos(), angle.sin(), past, mask)
        k = torch.cat([past[0], own[0]], 2).repeat_interleave(g, 1)
        p = (q @ k.transpose(-1, -2) * CFG["head_dim"] ** -0.5 + mask).softmax(-1)[0, :, :, :T]
        out.append(p.amax(1).view(CFG["kv_heads"], g, T).amax(1))
    return out


@torch.no_grad()
def evaluate(model, rows, methods, share=0.2):
    """Exact answers and right bytes per task and method: {task: {method: (exact, bytes, questions)}}."""
    out, context, kv, keep = {}, None, None, None
    generator = torch.Generator().manual_seed(5)
    g = CFG["heads"] // CFG["kv_heads"]
    encode = lambda s: torch.tensor(list(s.encode()))[None]
    for r in rows:
        if r["context"] != context:
            context = r["context"]
            _, kv = model(encode(context))
            T = kv[0][0].shape[2]
            keep = {
                m: [chosen(k[0], m, int(share * T), generator, None) for k, _ in kv]
                for m in methods
                if m != "looked_at"
            }
        q, a = encode(r["question"]), encode(r["answer"])
        x = torch.cat([q, a[:, :-1]], 1)
        n = x.shape[1]
        if "looked_at" in methods:
            looks = looks_of(model, kv, x)
            keep["looked_at"] = [chosen(k[0], "looked_at", int(share * T), None, s) for (k, _), s in zip(kv, looks)]
        own = torch.full((n, n), float("-inf")).triu(1).expand(len(methods), CFG["heads"], n, n)
        masks = []
        for layer in range(CFG["layers"]):
            past = torch.stack([keep[m][layer] for m in methods]).repeat_interleave(g, 1)
            past = torch.zeros(past.shape).masked_fill(~past, float("-inf"))[:, :, None].expand(-1, -1, n, -1)
            masks.append(torch.cat([past, own], 3))
        right = model(x.expand(len(methods), -1), kv, masks)[0][:, q.shape[1] - 1 :].argmax(-1) == a
        for m, ok in zip(methods, right):
            e, b, c = out.setdefault(r["task"], {}).get(m, (0, 0, 0))
            out[r["task"]][m] = (e + ok.all().item(), b + ok.float().mean().item(), c + 1)
    return {t: {m: (e / c, b / c, c) for m, (e, b, c) in of.items()} for t, of in out.items()}


def print_table(found, methods):
    print(f"{'task':10s}{'questions':>10s}" + "".join(f"{m:>18s}" for m in methods) + "     (exact, bytes)")
    for t, of in found.items():
        print(
            f"{t:10s}{of[methods[0]][2]:10d}" + "".join(f"{of[m][0]:11.2f}{of[m][1]:7.2f}" for m in methods), flush=True
        )


@torch.no_grad()
def bits_per_byte(model, source, length=512, rounds=8):
    loss = 0.0
    for i in range(rounds):
        at = (len(source) - length - 1) * i // rounds
        x = torch.tensor(list(source[at : at + length + 1].encode("ascii", "replace")))[None]
        loss += F.cross_entropy(model(x[:, :-1])[0][0], x[0, 1:]).item() / rounds
    return loss / math.log(2)


# --- training --------------------------------------------------------------------------------------------------------


class Muon:
    """Orthogonalised momentum for matrices (Jordan et al., 2024); Adam for the embedding, the output and the norms."""

    def __init__(self, model, rate):
        plain = lambda name, p: p.dim() == 2 and "embed" not in name and "head" not in name
        self.matrices, self.rate = [p for n, p in model.named_parameters() if plain(n, p)], rate
        others = [p for n, p in model.named_parameters() if not plain(n, p)]
        self.momentum = [torch.zeros_like(p) for p in self.matrices]
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)

    @torch.no_grad()
    def step(self, factor):
        self.adam.param_groups[0]["lr"] = factor * self.rate * 0.15
        self.adam.step()
        rate = factor * self.rate
        alike = {}
        for p, m in zip(self.matrices, self.momentum):
            m.lerp_(p.grad, 0.05)
            x = p.grad.lerp(m, 0.95)
            x = x.T if x.shape[0] > x.shape[1] else x
            alike.setdefault(x.shape, []).append((p, x / (x.norm() + 1e-7)))
        for group in alike.values():  # matrices of one shape together, in bfloat16: half the time
            x = torch.stack([x for _, x in group]).to(torch.bfloat16)
            for _ in range(5):
                a = torch.bmm(x, x.mT)
                x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
            for (p, _), u in zip(group, x.float()):
                u = u if u.shape == p.shape else u.T
                p.mul_(1 - 0.02 * rate).add_(u, alpha=-rate * max(1, p.shape[0] / p.shape[1]) ** 0.5)

    def state(self):
        return dict(adam=self.adam.state_dict(), momentum=self.momentum)

    def set_state(self, s):
        self.adam.load_state_dict(s["adam"])
        self.momentum = s["momentum"]


def missed(model, kv, source, heads=4):
    """-log of how much the first heads of the last two layers look at where an answer was stated, averaged over the
    bytes of all answers. Said in the loss, it teaches the heads where to look, which the answers alone teach slowly."""
    out, n = [], 0
    g = CFG["heads"] // CFG["kv_heads"]
    for i, of in enumerate(source):  # only the rows that answer, so that long sequences cost little
        at = (of >= 0).nonzero()[:, 0]
        n += len(at)
        for layer in (CFG["layers"] - 2, CFG["layers"] - 1):
            q = model.blocks[layer].q_seen[i, :heads, at].float()
            k = kv[layer][0][i].float().repeat_interleave(g, 0)[:heads]
            p = q @ k.mT * CFG["head_dim"] ** -0.5
            p = p.masked_fill(torch.arange(len(of)) > at[:, None], float("-inf")).log_softmax(-1)
            out.append(-p.gather(-1, of[at][None, :, None].expand(heads, -1, -1)).sum())
    return sum(out) / n / heads / 2


def train(a, text, held, words, unseen):
    torch.manual_seed(a.seed)
    rng.seed(9)
    model = Model()
    step, seen = 0, 0
    told = time.time()
    losses = []
    some = lambda length, contexts: [
        r
        for t in ("dwelt", "had", "servant", "verse", "number")
        for _ in range(contexts)
        for r in as_rows(*task_context(t, length, held, unseen))
    ]
    check = {1000: some(1000, 3), 1900: some(1900, 2)}
    rng.seed(a.seed)
    first = told
    os.makedirs(a.out, exist_ok=True)
    path = os.path.join(a.out, "checkpoint.pt")
    torch.set_flush_denormal(True)
    if not a.resume:
        begin(model, batch(16, 256, text, words, 0.3, 4)[0])
    opt = Muon(model, a.rate)
    if a.resume and os.path.isdir(a.resume):  # shipped weights: the optimizer begins anew
        load(model, a.resume)
        rng.seed(a.seed)
    elif a.resume:
        c = torch.load(a.resume, weights_only=True)
        model.load_state_dict(c["model"])
        opt.set_state(c["opt"])
        step, seen = c["step"], c["seen"]
        rng.seed(a.seed + step)

    def keep():
        checkpoint = io.BytesIO()
        torch.save(dict(model=model.state_dict(), opt=opt.state(), step=step, seen=seen), checkpoint)
        _program.write_file(path, checkpoint.getvalue())
        save(model, a.out)
        os.makedirs(old := os.path.join(a.out, f"step-{step}"), exist_ok=True)
        save(model, old)

    begun = seen / (1e6 * a.megabytes)
    while (
        done := max(seen / (1e6 * a.megabytes), begun + (1 - begun) * (time.time() - first) / 60 / a.minutes)
    ) < 1:
        phase = sum(a.from_share + (1 - a.from_share) * done >= p[0] for p in PHASES) - 1
        if phase == len(PHASES) - 1 and rng.random() < 0.5:
            phase -= 1
        length, size, share, most, like = PHASES[phase][1:]
        x, y, w, source = batch(size, length, text, words, share, most, like)
        with torch.autocast("cpu", torch.bfloat16):
            logits, kv = model(x)
        logits = logits.float()
        ce = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(w)
        loss = (ce * w).sum() / w.sum()
        look = missed(model, kv, source) if (source >= 0).any() else torch.zeros(())
        for p in model.parameters():
            p.grad = None
        (loss + a.look * look).backward()
        opt.step(min(1, (step + 1) / 50) * min(1, 0.02 + (1 - done) / 0.4))
        step += 1
        seen += x.numel()
        losses.append([ce.detach()[w == v].mean().item() for v in (ANSWER, VERSE, 1)] + [look.item()])
        if time.time() - told > 60 * a.tell_every:
            told = time.time()
            keep()
            bits = np.nanmean(losses[-40:], 0) / math.log(2)
            losses = []
            print(
                f"{done:4.0%} {(told - first) / 60:5.1f} min step {step} {seen / 1e6:5.2f} MB length {length} answers {bits[0]:.2f} "
                f"verses {bits[1]:.2f} text {bits[2]:.2f} looks {bits[3]:.2f} held-out {bits_per_byte(model, held):.2f} bits",
                flush=True,
            )
            for n, rows in check.items():
                found = evaluate(model, rows, ("full",))
                print(
                    f"  {n}: " + " ".join(f"{t} {of['full'][0]:.2f}/{of['full'][1]:.2f}" for t, of in found.items()),
                    flush=True,
                )
    keep()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--text", help="the plain King James text")
    p.add_argument("--out", default=".", help="folder for the model and checkpoint.pt")
    p.add_argument("--megabytes", type=float, default=10, help="text and tasks to read in all, over all resumed parts")
    p.add_argument("--minutes", type=float, default=1e9, help="end by this time too: the schedule goes by what is first")
    p.add_argument("--from-share", type=float, default=0, help="share of the phases to leave out at first")
    p.add_argument("--rate", type=float, default=0.02, help="highest learning rate")
    p.add_argument("--resume", help="checkpoint.pt to go on from, or a folder with weights")
    p.add_argument("--look", type=float, default=0.3, help="weight in the loss of where some heads look")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--tell-every", type=float, default=4, help="minutes between checkpoints and lines of progress")
    p.add_argument("--write-tasks", metavar="FILE", type=_program.output_path, help="write contexts, questions and answers, and stop")
    p.add_argument("--more", action="store_true", help="with --write-tasks: lists and chains, which training lacks")
    p.add_argument("--contexts", type=int, default=25, help="contexts per task for --write-tasks")
    p.add_argument("--tasks", default="tasks.jsonl", help="the file that --evaluate reads")
    p.add_argument("--evaluate", metavar="FOLDER", help="measure the model in this folder, and stop")
    p.add_argument("--share", type=float, default=0.2, help="share of the entries that --evaluate keeps")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    if a.evaluate:
        model = Model()
        load(model, a.evaluate)
        print_table(evaluate(model, [json.loads(l) for l in open(a.tasks)], METHODS, a.share), METHODS)
        return
    if not a.text:
        p.error("--text is needed")
    raw = open(a.text, "rb").read()
    raw = raw[raw.find(b"Genesis 1") :]
    cut = raw.find(b"\nRomans 1")
    names = names_in(raw)
    text, held = (t.decode("ascii", "replace") for t in (raw[:cut], raw[cut:]))
    if a.write_tasks:
        kinds = (MORE_TASKS, ()) if a.more else (TASKS, ("dwelt", "had", "servant", "number"))
        write_tasks(a.write_tasks, held, Words(names, True), a.contexts, 7, *kinds)
    else:
        train(a, text, held, Words(names, False), Words(names, True))


if __name__ == "__main__":
    main()
