"""A llama-server over HTTP: one that runs somewhere, or one that the package xllamacpp starts here."""

import json
import urllib.error
import urllib.request


class Server:
    """Talks to the server at `url`, which keeps saved slots in `folder`."""

    def __init__(self, url, folder):
        self.url, self.folder = url.rstrip("/"), folder

    @classmethod
    def start(cls, gguf, folder, context, kind="f16", flash=True, threads=1):
        """A server of this process, on a port of its own of the loopback interface."""
        import xllamacpp

        p = xllamacpp.CommonParams()
        p.model.path, p.slot_save_path = str(gguf), f"{folder}/"
        p.hostnames, p.port = ["127.0.0.1"], 0
        p.n_ctx, p.n_parallel, p.n_gpu_layers = context, 1, 0
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
        p.warmup, p.verbosity = False, -1
        p.cache_type_k = p.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{kind.upper()}")
        flash_types = xllamacpp.llama_flash_attn_type
        p.flash_attn_type = (
            flash_types.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else flash_types.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        running = xllamacpp.Server(p)
        out = cls(running.listening_address, folder)
        out.running = running
        return out

    def post(self, path, body):
        """The answer, and its status."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer), answer.status
        except urllib.error.HTTPError as problem:
            return problem.read().decode(errors="replace"), problem.code

    def good(self, path, body):
        answer, status = self.post(path, body)
        if status != 200:
            raise RuntimeError(f"{path}: status {status}: {answer}")
        return answer

    def tokens(self, text, special=False):
        return self.good("/tokenize", {"content": text, "add_special": special, "parse_special": False})["tokens"]

    def ask(self, prompt, slot=0, cached=True, likely=100):
        """The likeliest next tokens, [(token, log probability)], and how many tokens of the prompt were not computed again."""
        body = {"prompt": prompt, "n_predict": 1, "n_probs": likely, "temperature": 0.0, "cache_prompt": cached, "id_slot": slot}
        answer = self.good("/completion", body)
        top = answer["completion_probabilities"][0]["top_logprobs"]
        return [(each["id"], each["logprob"]) for each in top], answer["timings"]["cache_n"]

    def save(self, name, slot=0):
        return self.good(f"/slots/{slot}?action=save", {"filename": name})["n_saved"]

    def restore(self, name, slot=0):
        return self.good(f"/slots/{slot}?action=restore", {"filename": name})["n_restored"]

    def erase(self, slot=0):
        self.good(f"/slots/{slot}?action=erase", {})
