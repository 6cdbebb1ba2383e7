"""Saved sequences of llama.cpp, shrunk by kvmeld_slot and read on in llama.cpp (docs/engines/llama_cpp.md).

    pip install llama-cpp-python
    python3 slot_trial.py tiny-kjv.gguf examples/data/tiny-kjv build/demo/examples/engines/llama_cpp/kvmeld_slot

Every line reads the text, saves its sequence, lets kvmeld_slot shrink the file, restores it in a new context and reads on.
"""

import argparse
import ctypes
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

import llama_cpp

TYPES = {"f16": llama_cpp.GGML_TYPE_F16, "f32": llama_cpp.GGML_TYPE_F32, "q8_0": llama_cpp.GGML_TYPE_Q8_0}
POLICIES = ("streaming_llm", "knorm", "keydiff", "keydiff_merging", "leverage", "leverage_merging")


class Session:
    """One sequence, number 0, in a context of its own."""

    def __init__(self, model, kind, flash, capacity):
        p = llama_cpp.llama_context_default_params()
        p.n_ctx = p.n_batch = p.n_ubatch = capacity
        p.n_threads = p.n_threads_batch = 2
        p.flash_attn_type = 1 if flash else 0
        p.type_k = p.type_v = TYPES[kind]
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.context = llama_cpp.llama_init_from_model(model, p)
        if not self.context:
            sys.exit("llama.cpp made no context")
        self.position = 0

    def close(self):
        llama_cpp.llama_free(self.context)

    def read(self, tokens):
        """Reads tokens; returns the logits of each, as lists."""
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self.position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1
        batch.n_tokens = len(tokens)
        failed = llama_cpp.llama_decode(self.context, batch)
        llama_cpp.llama_batch_free(batch)
        if failed:
            sys.exit(f"llama_decode failed with {failed}")
        self.position += len(tokens)
        return [llama_cpp.llama_get_logits_ith(self.context, i)[: self.vocab] for i in range(len(tokens))]

    def save(self, path, tokens):
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        if not llama_cpp.llama_state_seq_save_file(self.context, str(path).encode(), 0, array, len(tokens)):
            sys.exit("llama.cpp did not save the sequence")

    def load(self, path, capacity):
        array, count = (llama_cpp.llama_token * capacity)(), ctypes.c_size_t()
        if not llama_cpp.llama_state_seq_load_file(
            self.context, str(path).encode(), 0, array, capacity, ctypes.byref(count)
        ):
            sys.exit(f"llama.cpp did not restore {path}")
        self.position = count.value
        return list(array[: count.value])


def bits(logits, token):
    most = max(logits)
    return (most + math.log(sum(math.exp(x - most) for x in logits)) - logits[token]) / math.log(2)


def planted(text, rng, facts, digits=5):
    """The text with numbers told in it, and the questions."""
    names = ["Abner", "Dinah", "Ethan", "Jairus", "Keziah", "Lamech", "Naomi", "Tobiah"]
    rng.shuffle(names)
    out, asked, step = [], [], len(text) // facts
    for i in range(facts):
        number = "".join(rng.choice("0123456789") for _ in range(digits))
        out.append(text[i * step : (i + 1) * step].rsplit(b"\n", 1)[0])
        out.append(f"\nThe secret number of {names[i]} is {number}.\n".encode())
        asked.append((f"\nThe secret number of {names[i]} is ".encode(), number.encode()))
    return b"".join(out), asked


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf")
    parser.add_argument("folder", type=pathlib.Path, help="with config.json and heldout.txt")
    parser.add_argument("slot", help="the program kvmeld_slot")
    parser.add_argument("--contexts", type=int, default=4)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--budgets", default="0.5,0.2")
    args = parser.parse_args()

    @llama_cpp.llama_log_callback
    def quiet(level, text, data):
        if level == 4:
            sys.stderr.write(text.decode(errors="replace"))

    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(args.gguf.encode(), llama_cpp.llama_model_default_params())
    if not model:
        sys.exit("llama.cpp cannot load this model")
    heads = json.loads((args.folder / "config.json").read_text())["num_key_value_heads"]
    held_out = (args.folder / "heldout.txt").read_bytes()
    length, following, capacity = 1024, 128, 2048
    rng = random.Random(5)

    contexts = []
    for i in range(args.contexts):
        at = rng.randrange(len(held_out) - 2 * length)
        text, asked = planted(held_out[at : at + length - 128], rng, 4)
        contexts.append((text, held_out[at + length - 128 :][:following], asked))

    with tempfile.TemporaryDirectory() as folder:
        full, short = pathlib.Path(folder) / "full", pathlib.Path(folder) / "short"

        def line(kind, flash, policy, budget):
            cost, count, right, digits, size, entries = 0.0, 0, 0, 0, 0, 0
            for text, rest, asked in contexts:
                reader = Session(model, kind, flash, capacity)
                reader.read(text[:-1])
                reader.save(full, text[:-1])
                reader.close()
                if policy:
                    command = [args.slot, "--in", full, "--out", short, "--kv-heads", str(heads)]
                    command += ["--policy", policy, "--budget", str(budget)]
                    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                    entries = int(told.split("\n")[1].split(": ")[-1].split(" cells")[0])
                now = short if policy else full
                size = now.stat().st_size
                for extra, number in [(rest, None)] + asked:
                    s = Session(model, kind, flash, capacity)
                    if s.load(now, capacity) != list(text[:-1]):
                        sys.exit("llama.cpp restored other tokens")
                    read = text[-1:] + extra + (number or b"")
                    logits = s.read(read)
                    s.close()
                    if number is None:
                        cost += sum(bits(logits[i], read[i + 1]) for i in range(len(extra)))
                        count += len(extra)
                    else:
                        for i, digit in enumerate(number):
                            row = logits[len(extra) + i]
                            right += max(range(len(row)), key=row.__getitem__) == digit
                            digits += 1
            share = f"{100 * budget:.0f}%" if policy else "100%"
            print(
                f"{kind + (', flash' if flash else ''):12} {policy or 'full':18} {share:>5}"
                f" {entries or len(contexts[-1][0]) - 1:6} {size / 1e6:8.2f} {cost / count:10.4f} {100 * right / digits:8.1f}",
                flush=True,
            )

        print(f"{'cache':12} {'policy':18} {'share':>5} {'cells':>6} {'MB':>8} {'bits/byte':>10} {'digits %':>8}")
        for kind, flash in (("f16", False), ("f16", True), ("q8_0", True)):
            line(kind, flash, None, 1)
            for budget in map(float, args.budgets.split(",")):
                for policy in args.policies.split(","):
                    line(kind, flash, policy, budget)


main()
