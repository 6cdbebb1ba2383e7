"""What a model still knows of a text after kvmeld_slot shrank its slot: your model, on a llama-server (docs/engines/llama_cpp.md).

    pip install xllamacpp                       # starts the server; or --url and --slots of one that runs with --slot-save-path
    python3 slot_trial.py model.gguf text.txt build/demo/examples/engines/llama_cpp/kvmeld_slot --budgets 0.5,0.25

Facts are put between the lines of passages of the text. After each shrinking the server restores the slot, and the model is
given the beginning of each fact again. "facts": all tokens of the rest are the likeliest ones; "tokens": these one by one;
"nats": the mean surprise at them. `--numbers` asks for five digits each, for models that know no facts.
"""

import argparse
import pathlib
import random
import re
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "python" / "kvmeld"))
import _program  # noqa: E402  (of the Python package, which need not be installed)

sys.path.pop()
_program.start("slot_trial.py")

from llama_server import Server  # noqa: E402

FACTS = [  # what is asked for is behind the bar
    "The caretaker keeps the spare key under the| blue flowerpot.",
    "My aunt Helen moved after the war to| Lisbon.",
    "The ferry to the island leaves from| pier seven.",
    "Doctor Marsh is allergic to| walnuts.",
    "The library closes early on| Wednesdays.",
    "The name of the miller's dog is| Barnaby.",
    "The repair of the clock cost| forty dollars.",
    "The treasure was buried behind the| old chapel.",
    "The train conductor collects| antique maps.",
    "Grandmother's secret ingredient is| ground cardamom.",
    "The password of the harbour office is| silver heron.",
    "The painter lost his hat in the| canal.",
    "The new teacher comes from| Norway.",
    "On Mondays the bakery on the corner sells| rye bread.",
    "Captain Doyle's ship is called the| Northern Star.",
    "The winning ticket had the number| 4817.",
]
NAMES = ["Abner", "Dinah", "Ethan", "Jairus", "Keziah", "Lamech", "Naomi", "Tobiah"]


def numbers(rng):
    return [f"The secret number of {name} is |{rng.randrange(10**5):05}." for name in NAMES]


def passages(text, args):
    """[(passage with facts, [(beginning, rest)])]"""
    rng = random.Random(5)
    for i in range(args.contexts):
        at = (len(text) - args.length) * i // max(1, args.contexts - 1)
        lines = text[at : at + args.length].split("\n")[1:-1]
        facts = rng.sample(numbers(rng) if args.numbers else FACTS, args.facts)
        for place, fact in enumerate(facts, 1):
            lines.insert(place * len(lines) // (len(facts) + 1), fact.replace("|", ""))
        yield "\n".join(lines) + "\n", [tuple(fact.rstrip(".").split("|")) for fact in facts]


def recall(server, read, facts, sums):
    """Adds facts, tokens and nats to `sums`."""
    for beginning, rest in facts:
        question, whole = server.tokens(f"\n{beginning}"), server.tokens(f"\n{beginning}{rest}")
        first = next(i for i in range(len(whole)) if i >= len(question) or question[i] != whole[i])
        right = 0
        for i in range(first, len(whole)):
            likely, _ = server.ask(read + whole[:i])
            right += likely[0][0] == whole[i]
            sums["nats"] -= dict(likely).get(whole[i], likely[-1][1])
        sums["asked"] += len(whole) - first
        sums["right"] += right
        sums["facts"] += right == len(whole) - first


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf")
    parser.add_argument("text", type=pathlib.Path, help="passages of it are read")
    parser.add_argument("program", help="kvmeld_slot")
    parser.add_argument("--url", help="of a llama-server with this model; without it one is started here")
    parser.add_argument("--slots", type=pathlib.Path, help="with --url: the server's --slot-save-path")
    parser.add_argument("--cache", default="f16", help="without --url: type of the cache [f16]")
    parser.add_argument("--threads", type=int, default=1, help="without --url: of the server [1]")
    parser.add_argument("--contexts", type=int, default=4, help="passages [4]")
    parser.add_argument("--length", type=int, default=5600, help="characters of a passage [5600]")
    parser.add_argument("--facts", type=int, default=8, help="facts in a passage [8]")
    parser.add_argument("--numbers", action="store_true")
    parser.add_argument("--policies", default="streaming_llm,knorm,lagkv,keydiff,leverage,leverage_merging,keydiff_merging,chelsea")
    parser.add_argument("--budgets", default="0.5,0.25")
    parser.add_argument("--learned", help="what python -m kvmeld.learn wrote of the model; adds the policy learned_leverage")
    parser.add_argument("--tail", help="of kvmeld_slot")
    args = parser.parse_args()
    names = args.policies.split(",") + (["learned_leverage"] if args.learned else [])
    policies = [None] + [(p, b) for b in args.budgets.split(",") for p in dict.fromkeys(names)]
    sums = [dict.fromkeys(("facts", "asked", "right", "nats", "bytes"), 0) for _ in policies]

    with tempfile.TemporaryDirectory() as name:
        folder = args.slots or pathlib.Path(name)
        if args.url:
            server = Server(args.url, folder)
        else:
            server = Server.start(args.gguf, folder, args.length + 512, args.cache, threads=args.threads)
        contexts = list(passages(args.text.read_text(errors="replace"), args))
        for number, (passage, facts) in enumerate(contexts, 1):
            print(f"\rpassage {number} of {len(contexts)}", end="", flush=True)
            read = server.tokens(passage, special=True)
            server.erase()
            server.ask(read)
            server.save("full.bin")
            for policy, to in zip(policies, sums):
                now = "full.bin"
                if policy:
                    now = "short.bin"
                    command = [args.program, "--in", folder / "full.bin", "--out", folder / now, "--gguf", args.gguf]
                    command += ["--policy", policy[0], "--budget", policy[1]] + (["--tail", args.tail] if args.tail else [])
                    command += ["--learned", args.learned] if policy[0].startswith("learned") and args.learned else []
                    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                if server.restore(now) != len(read):
                    raise RuntimeError("the server restored another number of tokens")
                to["bytes"] += (folder / now).stat().st_size
                recall(server, read, facts, to)
        for left in ("full.bin", "short.bin"):
            (folder / left).unlink(missing_ok=True)

    print("\r| policy | cells | MB | facts | tokens | nats |\n|---|---|---|---|---|---|")
    for policy, each in zip(policies, sums):
        name, budget = policy or ("full", "1")
        print(
            f"| {re.sub(' .*', '', name)} | {float(budget):.0%} | {each['bytes'] / len(contexts) / 1e6:.2f}"
            f" | {each['facts']} of {len(contexts) * args.facts} | {each['right'] / each['asked']:.1%}"
            f" | {each['nats'] / each['asked']:.2f} |"
        )


main()
