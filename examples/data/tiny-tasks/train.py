#!/usr/bin/env python3
"""Train a small byte-level, Llama-style language model that reads King James text and answers questions about
ordinary sentences planted in it, and measure how much of the KV cache it needs for that.

    bible gen1:1-rev22:21 > kjv.txt                                            # Debian package bible-kjv
    python3 train.py --text kjv.txt --init ../tiny-kjv --out .   # train; --resume goes on
    python3 train.py --text kjv.txt --write-tasks tasks.jsonl                  # contexts, questions, answers
    python3 train.py --evaluate . --tasks tasks.jsonl                          # exact answers per task

Needs torch and numpy. Everything from Romans on is held out, and so is a fifth of all words that are planted.
"""
import argparse, hashlib, json, math, os, random, re, struct, time
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F

CFG = dict(vocab=256, dim=256, layers=4, heads=12, kv_heads=6, head_dim=32, ffn=640, base=10000.0, eps=1e-5)
PHASES = [(0.0, 256, 8), (0.50, 512, 4), (0.72, 1024, 2), (0.97, 2048, 1)]        # (share of all bytes, length, batch)
ANSWER, UNKNOWN = 6.0, 0.05            # loss weights: of an answer, of what nobody can know before it is said

NUMBER_NAMES = ("Abner Baruch Caleb Dinah Esther Festus Gideon Hannah Ishmael Jethro Keturah Lazarus Miriam Nathan Obadiah Philemon "
                "Rachel Samson Thomas Uriah Vashti Zadok Boaz Cyrus Elijah Joab Leah Mordecai Naomi Silas Titus Zilpah").split()
PLACES = ("river fountain gate wall hill valley forest vineyard threshingfloor well bridge tower market garden temple harbour desert "
          "brook cave field orchard lake mountain quarry stable meadow sea palace prison pool road barn mill winepress sheepfold "
          "granary marsh ditch pasture cliff ford spring shore tent altar oak cedar figtree furnace court street camp village city "
          "haven rock pillar porch threshold pit tomb sepulchre synagogue treasury armoury wilderness causeway hedge storehouse").split()
THINGS = ("basket lamp sword shield spear bow crown ring robe girdle staff rod pot pitcher bowl cup cake loaf fish lamb kid dove "
          "bottle book roll harp trumpet pipe timbrel drum bell candlestick censer chain bracelet necklace jewel pearl stone brick "
          "beam board nail hammer saw file sickle plow yoke whip bridle saddle cord rope net hook line sail mast bundle sack purse "
          "bag chest coffer box vessel dish platter spoon knife fork razor mirror comb veil cloak coat mantle shoe sandal belt "
          "helmet breastplate banner tent curtain pillow bed table stool footstool ladder lock key door wheel cart saucer kettle "
          "pan sieve measure balance weight letter seal signet tablet scroll pen parchment map fig pomegranate melon cucumber "
          "raisin cluster branch palm thorn thistle lily rose reed feather fleece skin horn tooth bone shell candle torch "
          "firebrand coal jar ladle trowel").split()
KINDS = ("red white black green small great little long broken golden silver wooden brazen bitter sweet heavy light new clean "
         "costly precious plain round square hollow smooth rough dry wet torn sharp blunt bright dark fair fine hidden painted "
         "polished scarlet purple blue yellow tall narrow broad strong weak worn goodly crooked straight soft hard holy common "
         "royal rusty shining spotted striped thin thick twisted wide").split()
ROLES = ("potter shepherd widow scribe baker butler captain centurion merchant carpenter smith mason weaver tanner fisher hunter "
         "sower reaper thresher ploughman vinedresser gardener porter doorkeeper watchman jailer physician midwife nurse maiden "
         "bride bridegroom beggar leper stranger traveller pilgrim hireling steward treasurer cupbearer singer trumpeter harper "
         "dancer prophet prophetess priest elder judge governor soldier archer horseman spearman messenger cook butcher fuller "
         "goldsmith founder miller sailor pilot rower orphan virgin bondman handmaid eunuch sorcerer magician dreamer counsellor "
         "lawyer publican robber thief spy herdman swineherd woodcutter waterdrawer tentmaker").split()
ORDER = "first second third fourth fifth".split()
TASKS = ("dwelt", "carried", "list", "servant", "servant2", "verse", "number")
rng = random.Random(1234)


# --- words ---------------------------------------------------------------------------------------------------

def held_out_word(word):
    return hashlib.md5(word.encode()).digest()[0] < 51            # a fifth


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
        self.invented = 0.0 if held else 0.2          # share of words that mean nothing: they can only be copied

    def some(self, words, n, capital=False):
        out = []
        while len(out) < n:
            if rng.random() < self.invented:
                w = "".join(rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") for _ in range(rng.choice([2, 2, 3])))
                w += rng.choice(["", "", "n", "r", "th", "l", "m"]); w = w.capitalize() if capital else w
            else:
                w = rng.choice(words)
            if w not in out:
                out.append(w)
        return out

    def people(self, n):
        """Names, or roles such as 'the potter', or both."""
        kind = rng.random()
        if kind < 0.35:
            return self.some(self.names, n, True)
        if kind < 0.8:
            return ["the " + w for w in self.some(self.roles, n)]
        k = n // 2
        return rng.sample(p := self.some(self.names, n - k, True) + ["the " + w for w in self.some(self.roles, k)], len(p))


# --- statements and questions ----------------------------------------------------------------------------------
# A fact is what is stated, as parts (text, weight), and the questions that it answers, as (task, question, answer).

def upper(s):
    return s[0].upper() + s[1:]


def lead(s):
    word = rng.choice(["And ", "And ", "Now ", "Then ", "So ", ""])
    return word + s if word else upper(s)


class World:
    """Facts of a few tasks about people who are not mixed up. `state` returns one statement; `ask` a question."""

    def __init__(self, words, tasks, most):
        self.words, self.open, self.known = words, [], []
        tasks = [t for t in tasks if t != "verse"]
        many = lambda: max(1, rng.randint(1, most))
        for t in tasks:
            if t in ("dwelt", "carried"):
                self.open += [(t, who) for who in words.people(max(2, many()))]
            elif t == "list":
                self.open += [(t, who) for who in words.some(words.names, rng.choice([1, 1, 2, min(3, most)]), True)]
            elif t == "number":
                self.open += [(t, who) for who in rng.sample(NUMBER_NAMES, many())]
            elif t in ("servant", "servant2"):
                chain = words.some(words.names, rng.choice([3, 3, 4]) if t == "servant2" else 2, True)
                chains = [chain]
                while sum(len(c) - 1 for c in chains) < many():
                    more = [w for w in words.some(words.names, rng.choice([2, 3]), True) if all(w not in c for c in chains)]
                    if len(more) > 1:
                        chains.append(more)
                self.open += [("servant", (c[i], c[i + 1])) for c in chains for i in range(len(c) - 1)]
        rng.shuffle(self.open)
        self.value, self.after, self.times = {}, {}, {}

    def state(self, again=0.0):
        """Parts of a new statement, or, with probability `again`, of one about somebody who moved or took another thing."""
        w, moved = self.words, [k for k in self.known if k[0] in ("dwelt", "carried")]
        if moved and (not self.open or rng.random() < again):
            key = rng.choice(moved)
        elif self.open:
            key = self.open.pop(); self.known.append(key)
        else:
            return None
        t, who = key
        if t == "number":
            self.value[key] = f"{rng.randrange(100000):05d}"
            return [(f"\nThe secret number of {who} is ", 1), (self.value[key], UNKNOWN), (".\n", 1)]
        if t == "dwelt":
            v = self.value[key] = w.some(w.places, 1)[0]
            return [(" " + lead(f"{who} dwelt by the "), 0.3), (v, UNKNOWN), (".", 1)]
        if t == "carried":
            v = self.value[key] = w.some(w.kinds, 1)[0] + " " + w.some(w.things, 1)[0]
            return [(" " + lead(f"{who} carried a "), 0.3), (v, UNKNOWN), (".", 1)]
        if t == "servant":
            self.value[key] = who[1]; self.after[who[0]] = who[1]
            return [(" " + lead(f"the servant of {who[0]} was "), 0.3), (who[1], UNKNOWN), (".", 1)]
        v = self.value[key] = w.some(w.things, rng.choice([3, 4, 4, 5]))
        out = [(" " + lead(f"the gifts of {who} were "), 0.3)]
        for i, x in enumerate(v):
            out += [(("" if i == 0 else " and " if i == len(v) - 1 else ", ") + "a ", 1), (x, UNKNOWN)]
        return out + [(".", 1)]

    def questions(self, key):
        """All questions (task, question, answer) that a known key answers now."""
        t, who = key; v = self.value[key]
        if t == "number":
            return [(t, f"\nThe secret number of {who} is ", v)]
        if t == "dwelt":
            return [(t, f"\nBehold, {who} dwelt by the ", v)]
        if t == "carried":
            return [(t, f"\nBehold, {who} carried a ", v)]
        if t == "servant":
            out = [(t, f"\nBehold, the servant of {who[0]} was ", v)]
            if v in self.after:
                out.append(("servant2", f"\nBehold, the servant of the servant of {who[0]} was ", self.after[v]))
            return out
        return [(t, f"\nBehold, the {ORDER[i]} of the gifts of {who} was a ", x) for i, x in enumerate(v)]

    def ask(self, wanted=None):
        qs = [q for k in self.known for q in self.questions(k) if wanted is None or q[0] in wanted]
        if not qs:
            return None
        rng.shuffle(qs); q = min(qs, key=lambda q: self.times.get(q[1], 0) - (q[0] == "servant2"))     # least asked so far
        self.times[q[1]] = self.times.get(q[1], 0) + 1
        return q


def asked(q):
    return [(q[1], 0.3), (q[2], ANSWER), (".", 2), ("\n", 1)]


def flat(parts, length):
    out = "".join(p for p, _ in parts).encode("ascii", "replace")[:length + 1]
    weight = np.concatenate([np.full(len(p), w, np.float32) for p, w in parts])[:length + 1]
    pad = length + 1 - len(out)
    return out + b"\n" * pad, np.concatenate([weight, np.zeros(pad, np.float32)])


# --- training samples --------------------------------------------------------------------------------------------

def some_tasks(n):
    return rng.choices(TASKS, weights=[1.3, 1.3, 0.3, 1.0, 0.2, 0.0, 0.4], k=n)


def dense_sample(length, words, most):
    """Only statements and questions, in worlds of growing size."""
    parts, size = [], 0
    while size <= length:
        world = World(words, set(some_tasks(rng.choice([1, 1, 2]))), most); rounds = rng.randint(3, 6) * max(2, len(world.open))
        rounds = min(rounds, 40); fresh = []
        for _ in range(rounds):
            s = world.state(0.1) if (rng.random() < 0.45 or not world.known) else None
            fresh += s or asked(world.ask())
        parts += fresh + [("\n", 1)]; size += sum(len(p) for p, _ in fresh)
    return flat(parts, length)


def copy_sample(length, source):
    """Random letters, or pieces of text, said again: each piece from its beginning, in any order."""
    if rng.random() < 0.4:
        period = rng.randrange(8, max(9, length // 3))
        part = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz0123456789 ") for _ in range(period))
        return flat([(part, UNKNOWN)] + [(part, 2.0)] * (length // period + 1), length)
    pieces, parts, size = [], [], 0
    while size <= length:
        if len(pieces) < 2 or (rng.random() < 0.35 and size < length * 0.6):
            at = source.find(" ", rng.randrange(0, len(source) - 200)) + 1; piece = source[at:source.find(" ", at + rng.randint(30, 90))]
            pieces.append(piece); parts += [("\n" + piece[:8], 0.2), (piece[8:], 0.5)]
        else:
            piece = rng.choice(pieces); parts += [("\n" + piece[:8], 0.2), (piece[8:], 3.0)]
        size += len(piece) + 1
    return flat(parts, length)


VERSE = re.compile(r"(?<=\n)  \d+ (?=[A-Z])")


def verse_question(text, end, short=False):
    """First words of a verse that lies in text[:end], and the words that follow: (task, question, answer)."""
    starts = [m.end() for m in VERSE.finditer(text, 0, end) if m.end() + 80 < end]
    rng.shuffle(starts)
    for at in starts:
        cuts = [m.end() for m in re.finditer(r"[ \n]", text[at:at + 200])]
        first = [c for c in cuts if 14 <= c <= 40]
        if not first:
            continue
        n = first[0] if short else rng.choice(first[:4])
        least = 14 if short else rng.randint(10, 90)
        last = [c for c in cuts if c >= n + least]
        if not last or at + last[0] > end or text.count(text[at:at + n].rstrip()) > 1:
            continue
        stop = text.find("\n\n", at, at + last[0])
        if stop >= 0:
            continue
        return "verse", "\nBehold, it is written, " + text[at:at + n], text[at + n:at + last[0] - 1]
    return None


def boundaries(text):
    return [m.end() for m in re.finditer(r"[.:;](?=[ \n])", text)]


def prose_sample(length, source, words, most):
    """Text with planted statements at ends of sentences, and questions at ends of lines, some at the end."""
    start = rng.randrange(0, len(source) - length - 2); body = source[start:start + length + 1]
    world = World(words, set(some_tasks(rng.choice([1, 1, 2, 2, 3]))), most)
    count = len(world.open); count += sum(1 for k in world.open if k[0] in ("dwelt", "carried") and rng.random() < 0.25)
    verses = rng.choice([0, 0, 1, 2, 3, 4]); asks = max(2, round(count * 1.2))
    room = length + 1 - 48 * asks - 45 * count - 90 * verses
    if room < length // 4:
        return dense_sample(length, words, most)
    ends = boundaries(body[:room]) or [room // 2]
    spots = sorted(rng.choice(ends) for _ in range(count))
    events = [(at, 0) for at in spots]
    tail = rng.random() < 0.6
    for _ in range(asks):
        at = room if tail and rng.random() < 0.6 else rng.uniform(spots[0] + 1, room)
        line = body.find("\n", int(at), room); events.append((line if line >= 0 else room, 1))
    for _ in range(verses):
        at = room if rng.random() < 0.6 else rng.uniform(room * 0.4, room)
        line = body.find("\n", int(at), room); events.append((line if line >= 0 else room, 2))
    rng.shuffle(events)
    parts, pos = [], 0
    for at, what in sorted(events, key=lambda e: (e[0], e[1] > 0)):
        parts.append((body[pos:at], 1.0)); pos = at
        if what == 0:
            s = world.state(0.25)
            parts += s or []
        elif what == 1 and (q := world.ask()):
            parts += asked(q)
        elif what == 2 and (q := verse_question(body, at)):
            parts += [(q[1], 0.3), (q[2], 3.0), ("\n", 0.3)]
    return flat(parts + [(body[pos:], 1.0)], length)


def batch(size, length, source, words, done):
    most = 2 + round(4 * min(1, done / 0.4)); dense = max(0.15, 0.65 - done); copy = max(0.03, 0.2 - 0.4 * done)
    xs, ws = [], []
    for _ in range(size):
        u = rng.random()
        if u < dense:
            x, w = dense_sample(length, words, most)
        elif u < dense + copy:
            x, w = copy_sample(length, source)
        else:
            x, w = prose_sample(length, source, words, most)
        xs.append(np.frombuffer(x, np.uint8)); ws.append(w)
    x, w = torch.from_numpy(np.stack(xs)).long(), torch.from_numpy(np.stack(ws))
    return x[:, :-1], x[:, 1:], w[:, 1:]


# --- the tasks that judge ----------------------------------------------------------------------------------------

def task_context(task, length, source, words):
    """A context of held-out text with statements of one task, and all its questions."""
    while True:
        start = source.find("\n", rng.randrange(0, len(source) - length - 400)) + 1; body = source[start:start + length + 200]
        if task == "verse":
            context = body[:length]
            qs = [q for q in (verse_question(context, int(length * x), True) for x in (0.35, 0.6, 0.85)) if q]
            qs = list({q[1]: q for q in qs}.values())
            if len(qs) == 3:
                return context, qs
            continue
        world = World(words, [task], 4); wanted = 5 if task in ("dwelt", "carried") else 2 if task == "list" else 4
        if task in ("dwelt", "carried"):
            world.open = [(task, "the " + w) for w in words.some(words.roles, 4)]
        elif task == "list":
            world.open = [(task, w) for w in words.some(words.names, 2, True)]
        elif task == "number":
            world.open = [(task, w) for w in rng.sample(NUMBER_NAMES, 4)]
        else:
            n = words.some(words.names, 6, True)
            world.open = [("servant", (n[i], n[i + 1])) for i in ((0, 1, 3, 4) if task == "servant2" else (0, 2, 3, 4))]
            rng.shuffle(world.open)
        said = []
        while len(said) < wanted:
            s = world.state(0.0)
            said.append("".join(p for p, _ in s))
        room = length - sum(map(len, said)); ends = [e for e in boundaries(body[:room]) if e < room - 60]
        share = [[e for e in ends if i <= e * wanted / room < i + 1] for i in range(wanted)]
        if not all(share):
            continue
        context, pos = "", 0
        for s, places in zip(said, share):
            at = rng.choice(places); context += body[pos:at] + s; pos = at
        qs = [q for k in world.known for q in world.questions(k) if q[0] == task]
        return context + body[pos:room], rng.sample(qs, min(3, len(qs)))


def write_tasks(path, source, words, contexts, seed):
    rng.seed(seed); rows = []
    for task in TASKS:
        for i in range(contexts):
            context, qs = task_context(task, 1900 if i % 5 == 4 else 1000, source, words)
            rows += [dict(task=t, context=context, question=q, answer=a) for t, q, a in qs]
    with open(path, "w") as f:
        for r in rows:
            f.write(json.dumps(r) + "\n")


# --- the model -----------------------------------------------------------------------------------------------------

class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__(); self.weight = nn.Parameter(torch.ones(CFG["dim"]))

    def forward(self, x):
        return F.rms_norm(x, (CFG["dim"],), self.weight, CFG["eps"])


def rotate(x, cos, sin):                                    # half-split pairing, as in Hugging Face Llama
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__(); d, h, k, f = CFG["dim"], CFG["heads"] * CFG["head_dim"], CFG["kv_heads"] * CFG["head_dim"], CFG["ffn"]
        lin = lambda i, o: nn.Linear(i, o, bias=False)
        self.n1, self.n2, self.q, self.k, self.v, self.o = RMSNorm(), RMSNorm(), lin(d, h), lin(d, k), lin(d, k), lin(h, d)
        self.gate, self.up, self.down = lin(d, f), lin(d, f), lin(f, d)

    def forward(self, x, cos, sin, past=None, mask=None):
        """past: K and V of earlier tokens; mask: added to the logits, for all tokens. Returns x, and K and V."""
        B, T, _ = x.shape; split = lambda y: y.view(B, T, -1, CFG["head_dim"]).transpose(1, 2); h = self.n1(x)
        q, k, v = rotate(split(self.q(h)), cos, sin), rotate(split(self.k(h)), cos, sin), split(self.v(h)); own = (k, v)
        if past is not None:
            k, v = (torch.cat([p.expand(B, -1, -1, -1), n], 2) for p, n in zip(past, own))
        g = CFG["heads"] // CFG["kv_heads"]; k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.o(a.transpose(1, 2).reshape(B, T, -1)); h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), own


class Model(nn.Module):
    def __init__(self):
        super().__init__(); self.embed = nn.Embedding(CFG["vocab"], CFG["dim"]); self.norm = RMSNorm()
        self.blocks = nn.ModuleList(Block() for _ in range(CFG["layers"]))
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02 if "embed" in name else p.shape[1] ** -0.5 * (0.5 if name.endswith(("o.weight", "down.weight")) else 1))

    def forward(self, x, past=None, masks=None):
        """Logits, and K and V of each layer. past and masks: per layer, as in Block."""
        begin = past[0][0].shape[2] if past else 0; at = torch.arange(begin, begin + x.shape[1], device=x.device)
        angle = at[:, None] * CFG["base"] ** (-torch.arange(0, CFG["head_dim"], 2, device=x.device) / CFG["head_dim"])
        h, kv, cos, sin = self.embed(x), [], angle.cos(), angle.sin()
        for i, b in enumerate(self.blocks):
            h, own = b(h, cos, sin, past[i] if past else None, masks[i] if masks else None); kv.append(own)
        return self.norm(h) @ self.embed.weight.t(), kv


def tensors_of(model):
    names = dict(n1="input_layernorm", n2="post_attention_layernorm", q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj",
                 o="self_attn.o_proj", gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj")
    tensors = {"model.embed_tokens.weight": model.embed.weight, "model.norm.weight": model.norm.weight}
    for i, b in enumerate(model.blocks):
        tensors |= {f"model.layers.{i}.{long}.weight": getattr(b, short).weight for short, long in names.items()}
    return tensors


def save(model, folder):
    head, data = {"__metadata__": {"format": "pt"}}, b""
    for name, t in tensors_of(model).items():
        raw = t.detach().cpu().numpy().astype(np.float16)
        head[name] = {"dtype": "F16", "shape": list(raw.shape), "data_offsets": [len(data), len(data) + raw.nbytes]}; data += raw.tobytes()
    text = json.dumps(head).encode(); text += b" " * (-len(text) % 8); path = os.path.join(folder, "model.safetensors")
    with open(path + ".part", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    os.replace(path + ".part", path)
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=CFG["dim"], intermediate_size=CFG["ffn"],
                  num_hidden_layers=CFG["layers"], num_attention_heads=CFG["heads"], num_key_value_heads=CFG["kv_heads"],
                  head_dim=CFG["head_dim"], vocab_size=CFG["vocab"], hidden_act="silu", rms_norm_eps=CFG["eps"], rope_theta=CFG["base"],
                  max_position_embeddings=2048, tie_word_embeddings=True, attention_bias=False, torch_dtype="float16")
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write(json.dumps(config, indent=2) + "\n")


def read_tensors(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]; head, data = json.loads(f.read(size)), f.read()
    part = lambda of: np.frombuffer(data[of["data_offsets"][0]:of["data_offsets"][1]], np.float16).astype(np.float32)
    return {name: torch.from_numpy(part(of)).view(of["shape"]) for name, of in head.items() if name != "__metadata__"}


@torch.no_grad()
def load(model, folder):
    found = read_tensors(folder)
    for name, t in tensors_of(model).items():
        t.copy_(found[name])


# --- heads to begin with -----------------------------------------------------------------------------------------------
# A model of fewer heads is widened. Its own heads stay as they are. The new ones begin as what copying is made of, which
# takes long to be found by descent alone: heads that look a fixed number of bytes back (layers 0 and 1), and heads that
# look for what followed the last bytes when they stood there before (layers 2 and 3).

def fit(x, y):
    """The W [outputs][inputs] with x W^T close to y: least squares with a ridge."""
    g = x.T @ x
    return torch.linalg.solve(g + 1e-3 * g.diagonal().mean() * torch.eye(len(g)), x.T @ y).T


@torch.no_grad()
def widen(model, folder, tokens, write=0.12, copy=0.2, sharp=60.0, match=26.0):
    found, d = read_tensors(folder), CFG["head_dim"]
    for name, t in tensors_of(model).items():
        old = found[name]
        if old.shape == t.shape:
            t.copy_(old)
        else:
            t.zero_(); t[:old.shape[0], :old.shape[1]] = old
            if "k_proj" in name:
                first = old.shape[0] // d                     # the first new KV head
    g = CFG["heads"] // CFG["kv_heads"]; kvs = range(first, CFG["kv_heads"]); skip = 24
    codes = torch.randn(CFG["vocab"], d); turn = CFG["base"] ** (-torch.arange(0, d, 2) / d); gap = math.sqrt(d)
    at = torch.arange(tokens.shape[1]); angle = at[:, None] * turn; h = model.embed(tokens); back = lambda j: tokens[:, skip - j:tokens.shape[1] - j].reshape(-1)
    directions = torch.linalg.qr(torch.randn(CFG["dim"], CFG["dim"]))[0]; used = 0
    for layer, b in enumerate(model.blocks):
        x = b.n1(h)[:, skip:].reshape(-1, CFG["dim"]); size = h[:, skip:].norm(dim=-1).mean()
        for kv in kvs:
            rows = slice(kv * d, kv * d + d)
            if layer < 2:
                one = fit(x, torch.ones(len(x), 1))[0]; pairs = (torch.arange(d // 2) < 5).float()
                b.k.weight[rows] = torch.cat([pairs, 0 * pairs])[:, None] * one
                v = fit(x, codes[back(0)]) if layer == 0 else torch.randn(d, CFG["dim"])
                b.v.weight[rows] = v / (x @ v.T).pow(2).mean().sqrt()
            else:
                low = torch.cat([torch.arange(d // 2) >= (9 if kv == first else 11)] * 2).float(); grams = torch.randn(4, CFG["vocab"], d) * low / low.sum().sqrt()
                grams -= grams[:, tokens.flatten()].mean(1, keepdim=True)
                key = sum(grams[j][back(1 + j)] for j in range(4)); b.k.weight[rows] = fit(x, key); b.v.weight[rows] = fit(x, codes[back(0)])
            for head in range(kv * g, kv * g + g):
                cols = slice(head * d, head * d + d); n = head - first * g
                if layer < 2:
                    delta = (1 + n) if layer == 0 else (5, 8, 11, 14)[n]
                    b.q.weight[cols] = sharp * torch.cat([pairs * (delta * turn).cos(), -pairs * (delta * turn).sin()])[:, None] * one
                    b.o.weight[:, cols] = write * size / gap * directions[:, used:used + d]; used += d
                    if used + d > CFG["dim"]:
                        used = 0
                else:
                    share = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.4, 1.2, 0.8, 0.4]][n % 2])
                    query = sum(share[j] * grams[j][back(j)] for j in range(4)); b.q.weight[cols] = fit(x, query) * match * gap / 4
                    e = model.embed.weight - model.embed.weight.mean(0); seen = torch.unique(tokens)
                    o = fit(codes[seen], e[seen]); b.o.weight[:, cols] = copy * o * size / (codes[seen] @ o.T).norm(dim=-1).mean() / 2
        h, _ = b(h, angle.cos(), angle.sin())


# --- evaluation ------------------------------------------------------------------------------------------------------

METHODS = ("full", "random", "recent", "outliers", "looked_at")


def chosen(keys, method, budget, generator, looks):
    """Which of keys [heads][tokens][dim] a method keeps: [heads][tokens]."""
    H, T, D = keys.shape; keep = torch.zeros(H, T, dtype=torch.bool)
    if method == "full":
        return ~keep
    if method == "random":
        return keep.scatter_(1, torch.rand(H, T, generator=generator).topk(budget).indices, True)
    keep[:, :4] = True
    if method == "recent":
        keep[:, T - budget + 4:] = True
        return keep
    keep[:, T - 32:] = True
    if method == "outliers":
        x = (keys - keys.mean(1, keepdim=True)).double(); gram = x.transpose(1, 2) @ x
        ridge = 0.1 * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(D, dtype=torch.double)
        score = (x @ torch.linalg.inv(gram + ridge) * x).sum(-1)
    else:
        score = looks.double()
    return keep.scatter_(1, score.masked_fill(keep, -1).topk(budget - 36).indices, True)


@torch.no_grad()
def looks_of(model, kv, tokens):
    """How much the question's tokens look at each entry of the context, per layer [kv_heads][tokens]. What only an oracle knows."""
    h, T, n = model.embed(tokens), kv[0][0].shape[2], tokens.shape[1]; out = []
    at = torch.arange(T, T + n); angle = at[:, None] * CFG["base"] ** (-torch.arange(0, CFG["head_dim"], 2) / CFG["head_dim"])
    g = CFG["heads"] // CFG["kv_heads"]; mask = torch.cat([torch.zeros(n, T), torch.full((n, n), float("-inf")).triu(1)], 1)
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
    out, context, kv, keep = {}, None, None, None; generator = torch.Generator().manual_seed(5); g = CFG["heads"] // CFG["kv_heads"]
    encode = lambda s: torch.tensor(list(s.encode()))[None]
    for r in rows:
        if r["context"] != context:
            context = r["context"]; _, kv = model(encode(context)); T = kv[0][0].shape[2]
            keep = {m: [chosen(k[0], m, int(share * T), generator, None) for k, _ in kv] for m in methods if m != "looked_at"}
        q, a = encode(r["question"]), encode(r["answer"]); x = torch.cat([q, a[:, :-1]], 1); n = x.shape[1]
        if "looked_at" in methods:
            looks = looks_of(model, kv, x); keep["looked_at"] = [chosen(k[0], "looked_at", int(share * T), None, s) for (k, _), s in zip(kv, looks)]
        own = torch.full((n, n), float("-inf")).triu(1).expand(len(methods), CFG["heads"], n, n); masks = []
        for layer in range(CFG["layers"]):
            past = torch.stack([keep[m][layer] for m in methods]).repeat_interleave(g, 1)
            past = torch.zeros(past.shape).masked_fill(~past, float("-inf"))[:, :, None].expand(-1, -1, n, -1)
            masks.append(torch.cat([past, own], 3))
        right = model(x.expand(len(methods), -1), kv, masks)[0][:, q.shape[1] - 1:].argmax(-1) == a
        for m, ok in zip(methods, right):
            e, b, c = out.setdefault(r["task"], {}).get(m, (0, 0, 0)); out[r["task"]][m] = (e + ok.all().item(), b + ok.float().mean().item(), c + 1)
    return {t: {m: (e / c, b / c, c) for m, (e, b, c) in of.items()} for t, of in out.items()}


def print_table(found, methods):
    print(f"{'task':10s}{'questions':>10s}" + "".join(f"{m:>18s}" for m in methods) + "     (exact, bytes)")
    for t, of in found.items():
        print(f"{t:10s}{of[methods[0]][2]:10d}" + "".join(f"{of[m][0]:11.2f}{of[m][1]:7.2f}" for m in methods), flush=True)


@torch.no_grad()
def bits_per_byte(model, source, length=512, rounds=8):
    loss = 0.0
    for i in range(rounds):
        at = (len(source) - length - 1) * i // rounds; x = torch.tensor(list(source[at:at + length + 1].encode("ascii", "replace")))[None]
        loss += F.cross_entropy(model(x[:, :-1])[0][0], x[0, 1:]).item() / rounds
    return loss / math.log(2)


# --- training --------------------------------------------------------------------------------------------------------

def train(a, text, held, words, rows):
    torch.manual_seed(a.seed); rng.seed(a.seed); model = Model(); spent, step, seen = 0.0, 0, 0
    os.makedirs(a.out, exist_ok=True); path = os.path.join(a.out, "checkpoint.pt")
    if a.init:
        widen(model, a.init, torch.cat([batch(8, 512, text, words, 0.3)[0] for _ in range(4)]))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.05)
    if a.resume:
        c = torch.load(a.resume, weights_only=True); model.load_state_dict(c["model"]); opt.load_state_dict(c["opt"])
        spent, step, seen = c["spent"], c["step"], c["seen"]; rng.seed(a.seed + step)
    short = [r for r in rows if len(r["context"]) < 1500]; short = [r for i, r in enumerate(short) if i // 3 % 5 == 0]
    last, saved, told, losses = time.time(), 0.0, time.time(), []
    while (done := seen / (1e6 * a.megabytes)) < 1:
        length, size = [(l, b) for s, l, b in PHASES if done >= s][-1]
        for g in opt.param_groups:
            g["lr"] = a.rate * min(1, (step + 1) / 60) * min(1, 0.03 + (1 - done) / 0.35)
        x, y, w = batch(size, length, text, words, done)
        ce = F.cross_entropy(model(x)[0].flatten(0, 1), y.flatten(), reduction="none").view_as(w); loss = (ce * w).sum() / w.sum()
        opt.zero_grad(set_to_none=True); loss.backward(); nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step()
        step += 1; seen += x.numel(); losses.append((ce.detach()[w == ANSWER].mean().item(), ce.detach()[w == 1].mean().item()))
        now = time.time(); spent += now - last; last = now
        if now - saved > 60 * a.save_every:
            saved = now; state = dict(model=model.state_dict(), opt=opt.state_dict(), spent=spent, step=step, seen=seen)
            torch.save(state, path + ".part"); os.replace(path + ".part", path); save(model, a.out)
        if now - told > 60 * a.tell_every:
            told = now; ans, prose = np.mean(losses, 0) / math.log(2); losses = []
            line = f"{done:4.0%} {spent / 60:5.1f} min step {step} {seen / 1e6:5.2f} MB length {length} answers {ans:.3f} text {prose:.3f} bits"
            found = evaluate(model, short, ("full",))
            print(line + f" held-out {bits_per_byte(model, held):.3f} | " + " ".join(f"{t} {of['full'][0]:.2f}/{of['full'][1]:.2f}" for t, of in found.items()), flush=True)
    torch.save(dict(model=model.state_dict(), opt=opt.state_dict(), spent=spent, step=step, seen=seen), path); save(model, a.out)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--text", help="the plain King James text")
    p.add_argument("--out", default=".", help="folder for the model and checkpoint.pt")
    p.add_argument("--megabytes", type=float, default=15, help="text and tasks to read in all, over all resumed parts")
    p.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    p.add_argument("--init", help="folder of a model with fewer heads to start from: ../tiny-kjv")
    p.add_argument("--resume", help="checkpoint.pt to go on from")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--save-every", type=float, default=3, help="minutes between checkpoints")
    p.add_argument("--tell-every", type=float, default=4, help="minutes between lines of progress")
    p.add_argument("--write-tasks", metavar="FILE", help="write contexts, questions and answers, and stop")
    p.add_argument("--contexts", type=int, default=25, help="contexts per task for --write-tasks")
    p.add_argument("--tasks", default="tasks.jsonl", help="the file that --evaluate and the lines of progress read")
    p.add_argument("--evaluate", metavar="FOLDER", help="measure the model in this folder, and stop")
    p.add_argument("--share", type=float, default=0.2, help="share of the entries that --evaluate keeps")
    a = p.parse_args(); torch.set_num_threads(a.threads)
    if a.evaluate:
        model = Model(); load(model, a.evaluate)
        print_table(evaluate(model, [json.loads(l) for l in open(a.tasks)], METHODS, a.share), METHODS)
        return
    if not a.text:
        p.error("--text is needed")
    raw = open(a.text, "rb").read(); raw = raw[raw.find(b"Genesis 1"):]; cut = raw.find(b"\nRomans 1"); names = names_in(raw)
    text, held = (t.decode("ascii", "replace") for t in (raw[:cut], raw[cut:]))
    if a.write_tasks:
        write_tasks(a.write_tasks, held, Words(names, True), a.contexts, 7)
    else:
        rows = [json.loads(l) for l in open(a.tasks)]
        train(a, text, held, Words(names, False), rows)


if __name__ == "__main__":
    main()
