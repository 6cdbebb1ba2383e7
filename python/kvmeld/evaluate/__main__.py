"""The program: python -m kvmeld.evaluate"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
from typing import Any, Optional, Sequence

from kvmeld import _program
from kvmeld.cache import _SCOPES
from kvmeld.evaluate.formats import FORMATS
from kvmeld.evaluate.models import add_options, opened

POLICIES = [
    "kvzip@all_layers", "kvzip", "attention_matching@all_layers", "keydiff@all_layers", "leverage@one_plan", "streaming_llm", "compactor", "snapkv",
    "expected_attention", "dropkv", "chelsea", "kvmerger", "random",
]
LEARNED = "learned_centroids@all_layers"  # beside them, where weights were learned
FORMAT = 1


def _format(text: str) -> str:
    if text not in FORMATS:
        raise argparse.ArgumentTypeError(f"it is {text!r}; it must be one of {', '.join(FORMATS)}")
    return text


def _parser() -> argparse.ArgumentParser:
    from kvmeld.evaluate import __doc__ as about

    parser = argparse.ArgumentParser(prog="python -m kvmeld.evaluate", description=about, epilog="""A policy is a name of
        kvmeld.policies(), 'random', or a text of parts, such as 'score=key_difference select=top identify=chunked_bipartite
        merge=degree_weighted'. '@layer' or '@all_layers' behind it lets these tracks share a budget, '@one_plan' lets all heads
        keep the same tokens, as engines with one block table need it; 'NAME: TEXT' gives it a name in the table. A second start with the same --out goes on where the first one ended.""")
    add_options(parser, "prose to read, UTF-8 [the pages of Python's help()]")
    parser.add_argument("--policies", help=f"separated by commas [{','.join(POLICIES)}, and where scores were learned {LEARNED}]")
    parser.add_argument("--budgets", type=_program.listed(_program.number(1e-4, 1)), default=[0.5, 0.25, 0.12],
                        help="shares of the entries, separated by commas [0.5,0.25,0.12]")
    parser.add_argument("--rows", type=_program.listed(_format), metavar="FORMATS", help="round all rows at each compression to what"
                        " a format of fewer bits holds, and judge each policy so, with each of these formats, separated by commas:"
                        f" {', '.join(FORMATS)}. The rows of the full cache count 16 bits a number then [rows stay as they are]")
    parser.add_argument("--over", choices=_SCOPES, default="head", help="tracks that share a budget, for policies without @ [head]")
    parser.add_argument("--floor", type=_program.number(0, 1), default=0.0, help="the share of its own budget that a track"
                        " keeps, where budgets are shared [0]")
    parser.add_argument("--modes", default="prompt", help="separated by commas, of prompt, inside, parts, answer, turns [prompt]")
    parser.add_argument("--contexts", type=_program.whole(1, 100000), default=8, help="[8]")
    parser.add_argument("--first", type=_program.whole(0, 10**9), default=0, help="number of the first context [0]")
    parser.add_argument("--tokens", type=_program.whole(500, 1 << 22), default=1400, help="of a context [1400]")
    parser.add_argument("--seed", type=_program.whole(0, 2**63 - 1), default=1, help="[1]")
    parser.add_argument("--learned", metavar="FILE", help="what python -m kvmeld.learn has learned of the model, for policies"
                        " with learned scores [what comes with kvmeld, if it is of this model]")
    parser.add_argument("--kvpress", nargs="?", const="all", metavar="NAMES", help="judge presses of NVIDIA's kvpress as well: all"
                        " that need no download, or those of these names, separated by commas")
    parser.add_argument("--out", type=_program.output_path, help="rows, a line of JSON each; the next start goes on from there")
    parser.add_argument("--chart", type=_program.output_path, help="answers against bytes, as SVG")
    parser.add_argument("--json", type=_program.output_path, help="the table's figures with their intervals")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--export", metavar="FOLDER", help="write model and questions for kvmeld_demo --model FOLDER, and end")
    return parser


class Rows:
    """What was measured, in memory and in a file that a later start reads again."""

    def __init__(self, path: Optional[str], run: dict[str, Any]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._file: Optional[_program.Lines] = None
        if path is None:
            return
        kept = b""
        if os.path.exists(path):
            for number, line in enumerate(_program.read_file(path).split(b"\n"), 1):
                try:
                    row = json.loads(line)
                except ValueError:  # the last line of a start that was interrupted
                    break
                if number == 1 and row != run:
                    other = [name for name in run if row.get(name) != run[name]] if isinstance(row, dict) else ["format"]
                    raise ValueError(f"--out: {path} holds rows of another run ({', '.join(other)} differ); it must be a new file"
                                     " or one of this run")
                if number > 1:
                    self.rows.append(row)
                kept += line + b"\n"
        _program.write_file(path, kept or json.dumps(run) + "\n")
        self._file = _program.Lines(path)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if self._file is not None:
            self._file.add(json.dumps(row))

    def done(self, mode: str, context: int) -> set[tuple[str, str, float]]:
        from kvmeld.evaluate.report import key_of

        return {key_of(r) for r in self.rows if r["mode"] == mode and r["context"] == context}


def _cases(parser: argparse.ArgumentParser, o: argparse.Namespace, judge: Any) -> list[Any]:
    """What the policies and budgets of the command line ask for; refuses what cannot run before anything does."""
    from kvmeld.evaluate.judge import ONE_PLAN, Case

    cases, known = [], [*_SCOPES, ONE_PLAN]
    for text in o.policies.split(","):
        text = text.strip()
        name, _, parts = text.rpartition(": ")
        parts, _, over = parts.partition("@")
        over = over or o.over
        name = name or parts
        if over not in known:
            parser.error(f"argument --policies: '{text}' shares budgets over '{over}'; it must be one of {', '.join(known)}")
        if parts == "full":
            continue
        for budget, rows in itertools.product(o.budgets, o.rows or [None]):
            case = Case(name if rows is None else f"{rows} {name}", parts, over, budget, rows)
            try:
                judge.check(case, o.tokens)
            except (ValueError, RuntimeError) as problem:
                parser.error(f"argument --policies: '{text}' at {budget:g} of {o.tokens} tokens: {_program.sentence(problem)}")
            cases.append(case)
    return cases


def _bar(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc="caches measured", unit="", disable=None, smoothing=0.05)  # None: if stderr is no terminal


def _measured(o: argparse.Namespace, judge: Any, rows: Rows, contexts: Sequence[Any], modes: Sequence[str],
              cases: Sequence[Any], presses: Sequence[Any]) -> None:
    from kvmeld.evaluate.judge import FULL

    bar = _bar(len(contexts) * sum(len(_of(mode, cases, judge)) + 1 + (len(presses) if mode == "prompt" else 0) for mode in modes))
    for mode in modes:
        for context in contexts:
            done = rows.done(mode, context.number)
            todo = [c for c in _of(mode, cases, judge) if c.key not in done]
            more = [p for p in presses if mode == "prompt" and p.key not in done]
            if not todo and not more and FULL.key in done:
                bar.update(len(done))
                continue
            bar.update(max(0, len(done) - 1))  # the full cache is measured again: distributions are compared with it
            for case, measured in judge.rows(context, todo, mode, more):
                if case.key not in done:
                    rows.add({"mode": mode, "context": context.number, "policy": case.name, "parts": getattr(case, "policy", None),
                              "over": case.over, "budget": case.budget, **measured})
                    done.add(case.key)
                bar.set_postfix_str(f"{case.name} {case.budget:.0%}")
                bar.update()
    bar.close()


def _of(mode: str, cases: Sequence[Any], judge: Any) -> list[Any]:
    """The cases that a mode has: without a finished prompt there is no second reading."""
    if mode in ("prompt", "inside"):
        return list(cases)
    return [c for c in cases if not judge.needs_second_reading(c.policy)]


def main(arguments: Optional[Sequence[str]] = None) -> dict[str, dict[Any, dict[str, Any]]]:
    """Prints tables; returns what report.summarise makes of each mode."""
    parser = _parser()
    o = parser.parse_args(arguments)
    try:
        import torch
        import transformers
        import tqdm  # noqa: F401
    except ImportError as problem:
        raise ImportError(f"{_program.sentence(problem)}: pip install 'kvmeld[evaluate]'") from None
    from kvmeld import _model, learned as learned_scores
    from kvmeld.evaluate import report
    from kvmeld.evaluate.judge import FULL, MODES, Judge
    from kvmeld.evaluate.tasks import contexts, shipped_text

    modes = o.modes.split(",")
    for mode in modes:
        if mode not in MODES:
            parser.error(f"argument --modes: it is '{mode}'; it must be one of {', '.join(MODES)}")
    model, tokenizer, called, text = opened(parser, o)
    text = shipped_text() if text is None else text
    try:
        learned = None if o.learned is None else learned_scores.load(o.learned)
        judge = Judge(model, tokenizer, floor=o.floor, threads=o.threads, seed=o.seed, learned=learned,
                      bits=16 if o.rows else None)
        learned = judge.learned
        if o.policies is None:
            o.policies = ",".join(POLICIES + ([] if learned is None else [LEARNED]))
        read = contexts(judge.dialogue, text, o.contexts, o.tokens, o.seed, o.first)
    except (OSError, ValueError) as problem:
        parser.error(_program.sentence(problem))
    if o.export:
        from kvmeld.evaluate._export import export

        export(model, read, o.export, learned)
        print(f"written to {o.export}: kvmeld_demo --model {o.export}")
        return {}
    cases = _cases(parser, o, judge)
    presses: list[Any] = []
    if o.kvpress:
        from kvmeld.evaluate.presses import presses_of

        if judge.layers < model.config.get_text_config().num_hidden_layers:
            parser.error(f"argument --kvpress: {judge.layers} layers of {called} keep all tokens; it must be all of them, because"
                         " presses are measured there alone")
        try:
            presses = presses_of(o.budgets, o.kvpress)
        except ValueError as problem:
            parser.error(f"argument --kvpress: {problem}")
    run = {
        "kvmeld.evaluate": FORMAT, "model": called, "weights": _model.fingerprint(model), "dtype": o.dtype, "tokens": o.tokens,
        "seed": o.seed, "floor": o.floor, "text": hashlib.sha256(text.encode()).hexdigest(), "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if o.rows:
        run["bits"] = judge.bits
    if learned is not None:
        run["learned"] = hashlib.sha256(learned.weights.tobytes()).hexdigest()
    rows = Rows(o.out, run)
    named = {c.name: c.policy for c in cases}
    for row in rows.rows:
        if named.get(row["policy"], row["parts"]) != row["parts"]:
            raise ValueError(f"--policies: '{row['policy']}' is {named[row['policy']]!r}; it must be {row['parts']!r} as in {o.out},"
                             " or have another name")
    _measured(o, judge, rows, read, modes, cases, presses)

    numbers, wanted = {c.number for c in read}, {c.key for c in [FULL, *cases, *presses]}
    found = {}
    for mode in modes:
        chosen = [r for r in rows.rows if r["mode"] == mode and r["context"] in numbers
                  and report.key_of(r) in wanted]
        summary = found[mode] = report.summarise(chosen)
        print(f"{called}: {len(read)} contexts of {o.tokens} tokens, numbers {o.first} to {o.first + o.contexts - 1}, seed {o.seed}; {MODES[mode]}\n")
        print(report.markdown(summary) if o.markdown else report.table(summary))
        print(f"\n{report.verdict(summary)}\n")
    if o.chart:
        _program.write_file(o.chart, report.chart(found[modes[0]], f"{called}: {MODES[modes[0]]}"))
    if o.json:
        _program.write_file(o.json, json.dumps({"run": run, "modes": {
            mode: [{"policy": k[0], "over": k[1], "budget": k[2], **s} for k, s in summary.items()]
            for mode, summary in found.items()}}, indent=1) + "\n")
    return found


if __name__ == "__main__":
    _program.start("python -m kvmeld.evaluate")
    main()
