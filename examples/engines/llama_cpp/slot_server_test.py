"""What a llama-server answers from a slot that kvmeld_slot shrank, for every beginning that a prompt may share with it.

    pip install xllamacpp gguf numpy
    python3 slot_server_test.py examples/data/tiny-kjv build/demo/examples/engines/llama_cpp/kvmeld_slot

No request may fail. A prompt that goes on from the slot, or from within its tail, must be answered from the slot: whatever
the text was behind the place where the prompt differs, the answer must be the same. A prompt that differs earlier must be
answered as by a server that never saw the slot. Models with windows or recurrent layers go on from a checkpoint of the
server alone; where there is none in the tail, they, too, must answer as if there were no slot.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("slot_server_test.py")

try:
    import gguf  # noqa: F401, make_gguf.py needs it
    import xllamacpp  # noqa: F401
except ImportError as problem:
    print(f"skipped: {problem.name} is not here")
    sys.exit(77)

from llama_server import Server  # noqa: E402

HERE = pathlib.Path(__file__).parent
QUESTION = "~"  # in no text, so that a prompt differs just where it is put
failures = 0


def expect(good, what):
    global failures
    if not good:
        failures += 1
        if failures <= 20:
            print("FAILED:", what)


class Trial:
    def __init__(self, server, folder, program, model, plain=True):
        self.server, self.folder, self.program, self.model, self.plain = server, folder, program, model, plain
        self.clean = {}

    def read(self, text, name):
        self.server.erase()
        self.server.ask(text)
        expect(self.server.save(name) == len(text), f"{name}: tokens saved")

    def shrink(self, name, to, options):
        command = [self.program, "--in", self.folder / name, "--out", self.folder / to, "--gguf", self.model, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def from_slot(self, name, prompt):
        """The answer after the slot was restored; None and what was said if the server refuses."""
        self.server.restore(name)
        try:
            return self.server.ask(prompt)
        except RuntimeError as problem:
            return None, str(problem)

    def without(self, prompt):
        """The answer of a server that has computed nothing before."""
        if prompt not in self.clean:
            self.clean[prompt] = self.server.ask(prompt, cached=False)[0]
        return self.clean[prompt]

    def cuts(self, name, text, tail, others=(), step=1):
        """Every cut of a text whose slot is in `name`; `others`: the slots of texts that differ behind a place."""
        for left in range(len(text), -1, -step):
            for prompt in (text[:left] + QUESTION, text[:left]):
                if not prompt:
                    continue
                where = f"{name}, {left} of {len(text)} tokens{', nothing new' if prompt == text[:left] else ''}"
                shared = left - (prompt == text[:left])  # one token is always computed
                answer, cached = self.from_slot(name, prompt)
                expect(answer is not None, f"{where}: {cached}")
                if answer is None:
                    continue
                if not self.plain and cached:
                    expect(shared >= cached >= len(text) - tail, f"{where}: {cached} tokens of the slot used, outside of the tail")
                elif self.plain and shared >= len(text) - tail:
                    expect(cached == shared, f"{where}: {cached} tokens of the slot used, {shared} expected")
                else:
                    expect(cached == 0, f"{where}: {cached} tokens of the slot used, none expected")
                    expect(answer == self.without(prompt), f"{where}: not the answer of a server without the slot")
                for other, same in others:
                    if shared <= same:
                        expect(answer == self.from_slot(other, prompt)[0], f"{where}: {other} answers differently")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path, help="a model with a token per byte, for make_gguf.py; and heldout.txt")
    parser.add_argument("program", help="kvmeld_slot")
    parser.add_argument("--step", type=int, default=1, help="of the cuts")
    args = parser.parse_args()
    text = (args.folder / "heldout.txt").read_text(encoding="ascii").replace(QUESTION, " ")
    system, first, second, longer = text[:140], text[1000:1060], text[2000:2060], text[3000:3040]

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = folder / "model.gguf"
        subprocess.run([sys.executable, HERE / "make_gguf.py", args.folder, model], check=True)
        for kind, flash in (("f16", True), ("f16", False), ("q8_0", True)):
            server = Server.start(model, folder, 1024, kind, flash)
            trial = Trial(server, folder, args.program, model)
            # Two readers behind one text of the system.
            trial.read(system + first, "first")
            trial.read(system + second, "second")
            whole = kind == "f16" and flash
            for policy in ("leverage", "keydiff_merging", "streaming_llm") if whole else ("keydiff_merging",):
                for budget, tail in (("0.5", 80), ("0.3", 0), ("0.3", 1), ("0.25", None)):
                    options = ["--policy", policy, "--budget", budget] + (["--tail", str(tail)] if tail is not None else [])
                    kept = tail if tail is not None else int(float(budget) * 200) // 4
                    trial.shrink("first", "first_short", options)
                    trial.shrink("second", "second_short", options)
                    others = [("second_short", len(system))] if kept >= len(first) else []
                    trial.cuts("first_short", system + first, kept, others, args.step if whole else 7 * args.step)
            # A slot that was restored, went on, was saved and is shrunk again.
            trial.shrink("first", "short", ["--budget", "0.5", "--tail", "80"])
            server.restore("short")
            server.ask(system + first + longer)
            server.save("long")
            trial.shrink("long", "shorter", ["--budget", "0.4", "--tail", "50"])
            trial.cuts("shorter", system + first + longer, 50, step=3 * args.step)
            # A chat on a slot that is not restored in between: an answer is told again, then the second reader asks.
            server.restore("short")
            for prompt, shared in (
                (system + first + longer, 200),
                (system + first + QUESTION, 200),
                (system + first[:30] + QUESTION, 170),
                (system + second, 140),
                (system + first, 140),
            ):
                answer, cached = server.ask(prompt)
                expect(cached == shared, f"chat: {cached} tokens of the slot used, {shared} expected")
            server.ask(system[:50] + QUESTION)  # before the tail: nothing of the short slot is left
            answer, cached = server.ask(system + second + QUESTION)
            expect(cached == 50, f"chat: {cached} tokens of the slot used, 50 expected")
            # In two steps, so not to the last bit.
            exact = dict(trial.without(system + second + QUESTION))
            expect(all(abs(exact.get(t, p) - p) < 0.02 for t, p in answer[:5]), "chat: answered from what was dropped")
            print(f"{kind}{', flash attention' if flash else ''}: done", flush=True)
            del trial, server
        for architecture in ("gemma3", "lfm2"):
            model = folder / f"{architecture}.gguf"
            subprocess.run([sys.executable, HERE / "make_gguf.py", architecture, model], check=True)
            server = Server.start(model, folder, 1024)
            trial = Trial(server, folder, args.program, model, plain=False)
            trial.read(system + first, "first")
            trial.read(system + second, "second")
            blind = [args.program, "--in", folder / "first", "--out", folder / "short", "--kv-heads", "2"]
            said = subprocess.run(blind, capture_output=True, text=True).stderr
            expect("gguf" in said.lower(), f"{architecture}: without --gguf it says {said}")
            for policy, budget, tail in (("leverage", "0.5", 70), ("keydiff_merging", "0.3", 20), ("leverage", "0.3", 1)):
                options = ["--policy", policy, "--budget", budget, "--tail", str(tail)]
                trial.shrink("first", "first_short", options)
                trial.shrink("second", "second_short", options)
                others = [("second_short", len(system))] if tail >= len(first) else []
                trial.cuts("first_short", system + first, tail, others, 3 * args.step)
                used = trial.from_slot("first_short", system + first + QUESTION)[1]
                expect(tail < 5 or used >= len(system + first) - 5, f"{architecture}: goes on from {used} tokens")
            print(f"{architecture}: done", flush=True)
            del trial, server
    print(f"{failures} failures" if failures else "no request failed; no answer depends on text that the prompt does not have")
    sys.exit(1 if failures else 0)


main()
