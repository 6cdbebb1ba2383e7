"""Holds kvmeld against NVIDIA's kvpress on the demo's model: the entries kept, then what the model still recalls.

    python3 benchmarks/peer/kvpress_side_by_side.py [--program build/peer/benchmarks/kvmeld_kept_sets] [--seeds 1,2]

Both sides get the same bytes: the contexts are those of the demo's needle task, and kvmeld_kept_sets writes them.
Without kvpress it says so and exits with 77. A method that both have is one row of SHARED, one that runs as a press
alone a row of PRESSES, one that only kvmeld has a row of OURS. With the Python package kvmeld some policies run as
presses, too.
"""
import argparse
import collections
import dataclasses
import functools
import json
import logging
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import types
import typing

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # all files are local
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("kvpress_side_by_side.py")

try:
    import kvpress
    import tokenizers
    import torch
    import transformers
    from transformers.models.llama.modeling_llama import rotate_half
except ImportError:
    print("#" * 88, "# NOTHING WAS MEASURED: there is no kvpress here (pip install kvpress==0.5.5 torch numpy).",
          "#" * 88, sep="\n", file=sys.stderr)
    sys.exit(77)

try:
    from kvmeld.kvpress import MeldPress
except ImportError:
    MeldPress = None
    print("MeldPress is left out: the Python package kvmeld is not installed (pip install .)", file=sys.stderr)

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIE = 1e-4  # scores that are closer, relative to the larger one, are equal but for rounding
CHUNK = 20  # of ChunkKV
MELD_POLICIES = ["leverage_dropkv", "leverage", "dropkv", "keydiff", "snapkv"] if MeldPress else []  # those that only evict
REPLAY = list(b"\n\nRepeat the previous context exactly.\n")  # what KVzip puts before a second reading


def kept_of(share, n, layers=1):
    """The entries that kvpress keeps of n; its ratio is what goes."""
    return kvpress.utils.compute_n_kept(n, 1 - share)


def kept_in_chunks(share, n, layers=1):
    """ChunkKV of kvpress counts chunks. The last one, which may be shorter, lies in SnapKV's window and stays."""
    chunks = kvpress.utils.compute_n_kept(-(-n // CHUNK), 1 - share)
    return (chunks - 1) * CHUNK + (n % CHUNK or CHUNK)


def kept_by_pyramid(share, n, layers):
    """A number for each layer."""
    press, config = kvpress.PyramidKVPress(1 - share), types.SimpleNamespace(num_hidden_layers=layers)
    return [press.get_layer_budget(types.SimpleNamespace(config=config, layer_idx=i), n) for i in range(layers)]


@dataclasses.dataclass
class Method:
    name: str
    press: typing.Callable | None = None  # kvpress's method for a ratio removed
    ours: str | None = None  # kvmeld's method, as kvmeld_kept_sets knows it
    note: str = ""  # what was set in kvmeld's preset, so that both mean the same
    entries: typing.Callable = kept_of  # what kvmeld keeps for a share
    competes: str = "track"  # whose entries compete for the budget: those of a track, of a layer, or all
    exactly: bool = False  # kvpress's ratio is such that both keep the same number
    rank: typing.Callable = lambda scores: scores  # what is ranked, of the scores of a layer [heads][entries]


def rank_of_chunks(scores):
    """The mean of each chunk over all heads, for each of its entries."""
    summed = scores.sum(0)
    means = torch.cat([chunk.mean().expand(len(chunk)) for chunk in summed.split(CHUNK)])
    return means.expand_as(scores)


def snap(ratio):
    return kvpress.SnapKVPress(ratio)


class EvenCompactor(kvpress.CompactorPress):
    """kvpress's Compactor, changed where it differs from kvmeld's. Leverage counts the first and last tokens too. Logits
    are divided by sqrt(head_dim). The last chunk is not padded. Each head is standardised by itself."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        n, first = keys.shape[-2], self.sink_size_start
        keys_before = kvpress.utils.get_prerope_key_states(module, hidden_states)
        leverage = self._leverage_press.compute_leverage_scores(keys_before, self.sketch_dimension)
        cos, sin = (x.unsqueeze(1) for x in kwargs["position_embeddings"])
        queries = kvpress.utils.get_prerope_query_states(module, hidden_states)
        queries = (queries * cos + rotate_half(queries) * sin) / math.sqrt(queries.shape[-1])
        group = queries.shape[1] // keys.shape[1]
        attention = torch.zeros(keys.shape[:-1])
        for a in range(first, n, self.chunk_size):
            b = min(n, a + self.chunk_size)
            seen = self._non_causal_press.non_causal_chunked_attn(
                queries[:, :, a:b], keys[:, :, a:b].repeat_interleave(group, 1), b - a)
            attention[..., a:b] = seen.unflatten(1, (-1, group)).mean(2)
        attention[..., first:] = torch.nn.functional.avg_pool1d(
            (attention * values.norm(dim=-1))[..., first:], 3, 1, 1)
        removed = 1 - kvpress.utils.compute_n_kept(n, self.compression_ratio) / n
        out = removed * torch.stack([standard(x) for x in leverage[0]])[None]
        out += torch.stack([standard(x) for x in attention[0]])[None]
        out[..., :first] = out[..., n - self.sink_size_end:] = out.max()
        return out


def standard(scores):
    return (scores - scores.mean()) / scores.std().clamp_min(1e-6)


SHARED = [
    Method("StreamingLLM", kvpress.StreamingLLMPress, "streaming_llm", "nothing; both keep 4 sinks"),
    Method("SnapKV", snap, "kvpress_snapkv",
           "64 queries; pooling over 5, pooling_mode::zero_padded; recents at most the budget"),
    Method("AdaKV SnapKV", lambda r: kvpress.AdaKVPress(snap(r)), "kvpress_adakv_snapkv",
           "as SnapKV; budgets over(budget_scope::layer, 0.2)", competes="layer"),
    Method("ChunkKV", lambda r: kvpress.ChunkKVPress(snap(r), CHUNK), "kvpress_chunkkv",
           "over SnapKV as above; plan_scope::layer; as many entries as kvpress's whole chunks have",
           entries=kept_in_chunks, rank=rank_of_chunks),
    Method("TOVA", kvpress.TOVAPress, "kvpress_tova", "plan_scope::layer"),
    Method("Knorm", kvpress.KnormPress, "knorm", "nothing"),
    Method("KeyDiff", kvpress.KeyDiffPress, "kvpress_keydiff", "no sinks, no recents"),
    Method("LagKV", kvpress.LagKVPress, "lagkv", "nothing; both keep 4 sinks and rank in chunks of 128"),
    Method("ExpectedAttention", kvpress.ExpectedAttentionPress, "kvpress_expected", "no recents"),
    Method("AdaKV ExpectedAttention", lambda r: kvpress.AdaKVPress(kvpress.ExpectedAttentionPress(r, epsilon=1e-2)),
           "kvpress_adakv_expected", "no recents; epsilon 0.01; budgets over(budget_scope::layer, 0.2)",
           competes="layer"),
    Method("PyramidKV", kvpress.PyramidKVPress, "kvpress_pyramidkv", "as SnapKV; kvpress's budgets of layers",
           entries=kept_by_pyramid),
    Method("CriticalKV SnapKV", lambda r: kvpress.CriticalKVPress(snap(r)), "kvpress_criticalkv",
           "over SnapKV as above; the model's W_O"),
    Method("KVzip", kvpress.KVzipPress, "kvpress_kvzip",
           "no recents; budgets over(budget_scope::all_layers, 0); the words of kvpress before the second reading",
           competes="all", exactly=True),
    Method("KVzip+", lambda r: kvpress.KVzipPress(r, kvzip_plus_normalization=True), "kvpress_kvzip_plus",
           "as KVzip; the model's W_O; weights 1 / the norms of the hidden states", competes="all", exactly=True),
    Method("Compactor", kvpress.CompactorPress, "compactor recents=4|25%", "nothing"),
    Method("Compactor as kvmeld computes it", EvenCompactor, "compactor recents=4|25% ridge=0.000001",
           "ridge 0.000001"),
]
PRESSES = [
    Method("CriticalAdaKV SnapKV", lambda r: kvpress.CriticalAdaKVPress(snap(r))),
    *(Method(f"MeldPress {policy}", functools.partial(MeldPress, policy))
      for policy in MELD_POLICIES),  # kvmeld's, by the Python package, in kvpress's own loop
]
OURS = [
    Method("leverage_dropkv", ours="leverage_dropkv"),
    Method("leverage_dropkv all layers", ours="leverage_dropkv_shared"),
    Method("Attention Matching", ours="attention_matching"),
    Method("Attention Matching all layers", ours="attention_matching_shared"),
    Method("leverage", ours="leverage"),
    Method("leverage merging", ours="leverage_merging"),
    Method("CriticalKV SnapKV 32", ours="criticalkv"),
    Method("KeyDiff with sinks and recents", ours="keydiff"),
    Method("KeyDiff merging", ours="keydiff_merging"),
]


# ---- kvmeld ----------------------------------------------------------------------------------------------------


def later_tasks(o, folder):
    """A file of the tasks without the first o.skip contexts of each."""
    found, path, out = {}, os.path.join(folder, "tasks.jsonl"), []
    with open(o.tasks, encoding="utf-8") as file:
        for line in file:
            asked = json.loads(line)
            if len(asked["context"].encode()) != o.context:
                continue
            contexts = found.setdefault(asked["task"], {})
            if contexts.setdefault(asked["context"], len(contexts)) >= o.skip:
                out.append(line)
    _program.write_file(path, "".join(out))
    return path


def run_kvmeld(o, shares):
    runs = [{"method": "full", "entries": [o.context]}]
    for m in SHARED + OURS:
        if m.ours and wanted(m, o):
            entries = [m.entries(share, o.context, o.layers) for share in shares]
            runs.append({"method": m.ours, "entries": entries, "kept": m.press is not None})
    job = {"model": o.model, "context": o.context, "needles": o.needles, "contexts": o.contexts, "seeds": o.seeds,
           "replay": REPLAY, "runs": runs}
    with tempfile.TemporaryDirectory() as folder:
        job["tasks"] = later_tasks(o, folder) if o.tasks else ""
        asked, written = os.path.join(folder, "job.json"), os.path.join(folder, "out.json")
        _program.write_file(asked, json.dumps(job))
        subprocess.run([o.program, asked, written], check=True)
        with open(written, encoding="utf-8") as file:
            return json.load(file)["contexts"]


# ---- kvpress ---------------------------------------------------------------------------------------------------


def rotate_exactly(model):
    """Angles in double, as the demo's engine has them. Those of Transformers are float32: off by up to 6e-5 at position
    1,000, which changes attention scores by up to a thousandth."""
    def forward(x, position_ids):
        half = model.config.head_dim // 2
        speeds = float(theta) ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = position_ids[..., None].double() * speeds
        return tuple(torch.cat((f(angles), f(angles)), -1).to(x.dtype) for f in (torch.cos, torch.sin))
    theta = json.loads((pathlib.Path(model.config.name_or_path) / "config.json").read_text())["rope_theta"]
    model.model.rotary_emb.forward = forward


def with_tokenizer(model, folder):
    """KVzip loads a tokenizer from the model's folder. The tokens of this model are the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # these are their own symbols (GPT-2)
    others = [byte for byte in range(256) if byte not in printable]
    symbols = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    bytewise = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=symbols, merges=[]))
    bytewise.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=bytewise, chat_template="{{ messages[0]['content'] + '\n' }}").save_pretrained(folder)
    model.config.save_pretrained(folder)
    model.config.name_or_path = folder
    if transformers.AutoTokenizer.from_pretrained(folder).encode("So \n") != list(b"So \n"):
        raise RuntimeError("the tokenizer for KVzip does not give bytes")


@dataclasses.dataclass
class Compressed:
    """A cache behind a press, and what is known about it."""
    cache: transformers.DynamicCache
    lengths: list  # of the layers, in memory
    kept: list  # [layer][head], positions
    scores: list  # of the innermost press, per layer [heads][entries]; empty where it has none
    seconds: float  # of the hooks, and of what happens after the prompt
    position: int


def innermost(press):
    while getattr(press, "press", None) is not None:
        press = press.press
    return press


def tap(press, log):
    """Has a press write its scores and the time of its hooks to `log`. Masking presses change scores in place."""
    scorer = press if isinstance(press, kvpress.CriticalKVPress) else innermost(press)
    hook = press.forward_hook
    if isinstance(scorer, kvpress.KVzipPress):
        finish = scorer.compress_post

        def logged_finish(model):
            finish(model)
            log["scores"] += [layer[0].clone() for layer in scorer.score_val]
        scorer.compress_post = logged_finish
    elif hasattr(scorer, "score"):
        score = scorer.score

        def logged_score(*arguments, **named):
            out = score(*arguments, **named)
            log["scores"].append(out[0].clone())
            return out
        scorer.score = logged_score

    def timed_hook(*arguments, **named):
        begin = time.process_time()
        out = hook(*arguments, **named)
        log["seconds"] += time.process_time() - begin
        return out
    press.forward_hook = timed_hook


def read(model, tokens, press=None):
    """Reads a context and compresses it."""
    cache, log = transformers.DynamicCache(), {"scores": [], "seconds": 0.0}
    ids = torch.tensor([tokens])
    for layer in model.model.layers:
        layer.self_attn.masked_key_indices = None
    if press is None:
        out = model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits[0, -1]
    else:
        torch.manual_seed(0)  # Compactor sketches
        tap(press, log)
        with press(model):
            out = model.model(input_ids=ids, past_key_values=cache)
            hooks, end = log["seconds"], time.process_time()
        log["seconds"] = hooks + time.process_time() - end  # KVzip's hooks run there
    return cache, out, log


def kept_rows(model, full, cache):
    """[layer][head], the positions of the rows that attention sees, found by their bits in the full cache."""
    kept = []
    for whole, part, layer in zip(full.layers, cache.layers, model.model.layers):
        masked = getattr(layer.self_attn, "masked_key_indices", None)
        heads = []
        for head in range(whole.keys.shape[1]):
            both = [torch.cat((x.keys[0, head], x.values[0, head]), -1).numpy() for x in (whole, part)]
            place = {row.tobytes(): i for i, row in enumerate(both[0])}
            positions = {place[row.tobytes()] for row in both[1]}
            if masked is not None:
                positions -= set(masked[2][masked[1] == head].tolist())
            heads.append(sorted(positions))
        kept.append(heads)
    return kept


def compress(model, tokens, full, press):
    cache, _, log = read(model, tokens, press)
    return Compressed(cache, [layer.keys.shape[2] for layer in cache.layers], kept_rows(model, full, cache),
                      log["scores"], log["seconds"], len(tokens))


def go_on(model, c, tokens, logits_to_keep=1):
    """Logits after tokens that follow what `c` has read. The next call goes on behind them."""
    # Transformers makes one mask for all layers, so layers of several lengths read one token at a time.
    step = len(tokens) if len(set(c.lengths)) == 1 else 1
    rows = []
    for i in range(0, len(tokens), step):
        part = tokens[i:i + step]
        places = torch.arange(c.position, c.position + len(part))[None]
        rows.append(model(input_ids=torch.tensor([part]), past_key_values=c.cache, position_ids=places).logits[0])
        c.position += len(part)
    return torch.cat(rows)[-logits_to_keep:]


def forget(c, position):
    for layer, length in zip(c.cache.layers, c.lengths):
        layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]
    c.position = position


def question(model, c, context):
    """What the demo asks: the planted numbers, and the text that follows."""
    start, out = c.position, collections.Counter()
    told = context["continuation"]
    if told:
        logits = go_on(model, c, told[:-1], len(told) - 1).double().log_softmax(-1)
        out["bits"] = -logits.gather(1, torch.tensor(told[1:])[:, None]).sum().item() / math.log(2)
        out["predicted"] = len(told) - 1
        forget(c, start)
    for needle in context["needles"]:
        answer, following = [], needle["question"]
        for _ in needle["answer"]:
            following = [go_on(model, c, following)[-1].argmax().item()]
            answer += following
        forget(c, start)
        right = sum(x == ord(y) for x, y in zip(answer, needle["answer"]))
        out.update(digits=len(answer), right=right, numbers=1, exact=int(right == len(answer)))
    return out


# ---- both ------------------------------------------------------------------------------------------------------


def hold_models(model, context, full, logits):
    """Largest differences of the two models' logits, keys and values, relative to the largest of them."""
    def apart(ours, theirs):
        return ((torch.tensor(ours).view(theirs.shape) - theirs).abs().max() / theirs.abs().max()).item()
    found = {"logits": apart(context["logits"], logits)}
    for what in ("keys", "values"):
        if what not in context:
            continue
        theirs = torch.stack([getattr(layer, what)[0].transpose(0, 1) for layer in full.layers])
        found[what] = apart(context[what], theirs)
    return found


def spread_of(scores):
    if not len(scores):
        return 0.0
    return ((scores.max() - scores.min()) / scores.abs().max().clamp(min=1e-30)).item()


def compare(method, ours, c):
    """Tracks that keep the same entries, entries that differ, and how far apart their scores are."""
    out = collections.Counter()
    groups = collections.defaultdict(list)  # of tracks that compete: the scores of entries on one side alone
    for layer, (mine, theirs) in enumerate(zip(ours, c.kept)):
        ranked = method.rank(c.scores[layer])
        for head, (a, b) in enumerate(zip(mine, theirs)):
            apart = sorted(set(a) ^ set(b))
            group = {"track": (layer, head), "layer": layer, "all": 0}[method.competes]
            if len(a) == len(b):  # ties within the head, at the share that it keeps in any case
                group = (layer, head) if spread_of(ranked[head, apart]) <= TIE else group
            groups[group].append(ranked[head, apart])
            out["tracks"] += 1
            out["equal"] += not apart
            out["kept"] += len(b)
            out["lengths"] += len(a) != len(b)
    for group in groups.values():
        scores = torch.cat(group)
        spread = spread_of(scores)
        out["differ"] += len(scores)
        out["tied"] += len(scores) if spread <= TIE else 0
        out["spread"] = max(out["spread"], spread)
    return out


def wanted(method, o):
    return not o.methods or method.name in o.methods


def measure(o, shares):
    contexts = run_kvmeld(o, shares)
    model = transformers.LlamaForCausalLM.from_pretrained(o.model, dtype=torch.float32, attn_implementation="sdpa")
    model.eval()
    rotate_exactly(model)
    models, sets, quality, times = collections.Counter(), {}, {}, {}

    def add(side, method, share, found, task, seconds=0.0):
        into = quality.setdefault((side, method, share), collections.Counter())
        into.update(found)
        into.update({(what, task): found[what] for what in ("digits", "right", "numbers", "exact")})
        into["contexts"] += 1
        times.setdefault((side, method, share), []).append(seconds)

    names = {m.ours: m for m in SHARED + OURS if m.ours}
    row_bytes = 2 * model.config.head_dim * 2  # K and V, counted in half precision
    tracks = model.config.num_hidden_layers * model.config.num_key_value_heads
    with tempfile.TemporaryDirectory() as folder:
        with_tokenizer(model, folder)
        for number, context in enumerate(contexts):
            tokens, task = context["context"], context.get("task", "number")
            full, logits, _ = read(model, tokens)
            for what, difference in hold_models(model, context, full, logits).items():
                models[what] = max(models[what], difference)
            whole = Compressed(full, [len(tokens)] * len(full.layers), [], [], 0.0, len(tokens))
            add("kvpress", "full cache", 1.0, {"held": row_bytes * tracks * len(tokens), "seen": tracks * len(tokens),
                                               **question(model, whole, context)}, task)
            kept, at = {}, collections.Counter()
            for row in context["rows"]:
                found = {key: row[key] for key in ("bits", "predicted", "digits", "right", "numbers", "exact")}
                found.update(held=row_bytes * row["held"], seen=row["held"])
                if row["method"] == "full":
                    add("kvmeld", "full cache", 1.0, found, task)
                    continue
                method = names[row["method"]]
                share = shares[at[method.name]]  # a method's rows come in the order of the shares
                at[method.name] += 1
                add("kvmeld", method.name, share, found, task, (row["compress_ms"] + row["observe_ms"]) / 1e3)
                kept[method.name, share] = row.get("kept")
            for method in SHARED + PRESSES:
                for share in shares if wanted(method, o) else ():
                    ratio = 1 - share
                    if method.exactly:  # it rounds the number of all that go
                        ratio = 1 - (method.entries(share, o.context) - 1e-6) / o.context
                    c = compress(model, tokens, full, method.press(ratio))
                    if method.ours:
                        held = sets.setdefault((method.name, share), collections.Counter())
                        spread = held["spread"]
                        held.update(compare(method, kept[method.name, share], c))
                        held["spread"] = max(spread, held["spread"] - spread)
                    seen = sum(len(head) for layer in c.kept for head in layer)
                    found = {"held": row_bytes * model.config.num_key_value_heads * sum(c.lengths), "seen": seen}
                    try:
                        found.update(question(model, c, context))
                    except ValueError as problem:  # kvpress masks entries with keys that it does not always find
                        print(f"LEFT OUT: {method.name} of kvpress at {share:.0%}, context {number + 1}: {problem}",
                              file=sys.stderr)
                        continue
                    add("kvpress", method.name, share, found, task, c.seconds)
            print(f"kvpress: context {number + 1} of {len(contexts)}", file=sys.stderr, flush=True)
    n = tracks * o.context
    return models, sets, [figures(*key, x, n, times[key]) for key, x in quality.items()]


def print_table(head, rows):
    for row in [head, ["---"] * len(head), *rows]:
        print("| " + " | ".join(row) + " |")
    print()


def print_sets(sets, shares):
    rows = []
    for method in SHARED:
        found = [sets[method.name, share] for share in shares if (method.name, share) in sets]
        apart = [f" ({x['tied']}/{x['differ']})" if x["differ"] else "" for x in found]
        cells = [f"{x['equal']}/{x['tracks']}{ties}" for x, ties in zip(found, apart)]
        if cells:
            rows.append([method.name, *cells, method.note])
    if not rows:
        return
    print("Tracks that keep the same entries / tracks (in brackets: entries that only one side keeps, "
          "tied at the cut / all)\n")
    print_table(["method", *(f"{share:.0%}" for share in shares), "set in kvmeld's preset"], rows)


def figures(side, method, share, x, n, seconds):
    """Keys as in the report of the demo, where it has them. Recall is the mean over tasks."""
    tasks = [key[1] for key in x if isinstance(key, tuple) and key[0] == "numbers"]
    exact = {task: x["exact", task] / x["numbers", task] for task in tasks}
    right = statistics.mean(x["right", task] / x["digits", task] for task in tasks)
    return {"side": side, "method": method, "budget": share, "bits_per_byte": x["bits"] / max(x["predicted"], 1),
            "needle_accuracy": right, "needle_exact": statistics.mean(exact.values()), "task_exact": exact,
            "kept": x["seen"] / (x["contexts"] * n), "kv_bytes": x["held"] / x["contexts"],
            "compress_ms": 1e3 * statistics.median(seconds), "contexts": x["contexts"]}


def print_quality(rows, shares):
    """A line for each method of each side; memory and time are those of one of the shares."""
    tasks = list(rows[0]["task_exact"])
    by = {}
    for r in rows:
        by.setdefault((r["method"], r["side"]), {})[r["budget"]] = r
    middle = shares[len(shares) // 2]
    lines = []
    for (method, side), row in by.items():
        at = [row.get(share, row.get(1.0)) for share in shares]
        right = [(100 * x["needle_accuracy"], 100 * x["needle_exact"], x["bits_per_byte"]) for x in at]
        cells = [f"{digits:.1f} / {exact:.1f}" + (f" / {bits:.3f}" if len(tasks) == 1 else "")
                 for digits, exact, bits in right]
        one = row.get(middle, row.get(1.0))
        lines.append([method, side, *cells, f"{one['kv_bytes'] / 1024:.0f}", f"{one['compress_ms']:.1f}"])
    if len(tasks) > 1:
        print("Bytes / answers right in percent, asked after compression, means over " + ", ".join(tasks) + "\n")
    else:
        print("Digits / numbers right in percent, asked after compression / bits per byte of the text that follows\n")
    head = ["method", "side", *(f"{share:.0%}" for share in shares), f"KiB at {middle:.0%}", f"ms at {middle:.0%}"]
    print_table(head, lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(ROOT / "build/peer/benchmarks/kvmeld_kept_sets"))
    parser.add_argument("--model", default=str(ROOT / "examples/data/tiny-kjv"))
    parser.add_argument("--seeds", type=_program.listed(_program.whole(0, 2**64 - 1)), default="1", help="comma-separated")
    parser.add_argument("--tasks", default="", help="a file of tasks to ask instead of planted numbers")
    parser.add_argument("--contexts", type=_program.whole(1, 10000), default=4, help="of each seed, or of each task")
    parser.add_argument("--skip", type=_program.whole(0, 10000), default=0, help="contexts of each task to leave out, the first ones")
    parser.add_argument("--context", type=_program.whole(64, 1 << 20), default=1000, help="bytes; twice as many and 43 must be positions of the model")
    parser.add_argument("--needles", type=_program.whole(0, 32), default=4)
    parser.add_argument("--budgets", type=_program.listed(_program.number(1e-6, 1)), default="0.5,0.35,0.2,0.11,0.06", help="shares kept, comma-separated")
    parser.add_argument("--methods", default="", help="names in the table, comma-separated; all if none")
    parser.add_argument("--json", type=_program.output_path, help="also write the figures to this file")
    o = parser.parse_args()
    o.layers = json.loads((pathlib.Path(o.model) / "config.json").read_text())["num_hidden_layers"]
    o.methods = [name for name in o.methods.split(",") if name]
    known = [m.name for m in SHARED + PRESSES + OURS]
    if o.skip and not o.tasks:
        parser.error("--skip needs --tasks")
    for name in o.methods:
        if name not in known:
            parser.error(f"there is no method '{name}'; there are {', '.join(known)}")
    if not os.path.isfile(o.program):
        parser.error(f"there is no program {o.program}; build it (cmake --build ... --target kvmeld_kept_sets)")
    shares = o.budgets
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("kvpress").setLevel(logging.ERROR)  # KVzip's warning that it takes long, at every call
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    models, sets, rows = measure(o, shares)
    rows.sort(key=lambda row: ["full cache", *known].index(row["method"]))
    if o.json:
        found = {"context": o.context, "contexts": o.contexts, "needles": o.needles, "seeds": o.seeds,
                 "models": models, "rows": rows,
                 "sets": [{"method": m, "budget": s, **x} for (m, s), x in sets.items()]}
        _program.write_file(o.json, json.dumps(found, indent=1))
    print("Largest differences of the two models, relative to the largest number: "
          + ", ".join(f"{what} {x:.1e}" for what, x in models.items()) + "\n")
    print_sets(sets, shares)
    print_quality(rows, shares)
    return 0


if __name__ == "__main__":
    sys.exit(main())
