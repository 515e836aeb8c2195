"""Runs of `trireme train` and `trireme plan`, for benches: options in, what they report out."""

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TRIREME = Path(os.environ.get("BUILD", ROOT / "build")) / "bin" / "trireme"
MIB = 1 << 20


def llama(hidden, inner, layers, vocabulary, *, head_size=64, kv_heads=None, **fields):
    """The fields of a config.json; `fields` come on top: another model_type, say."""
    heads = hidden // head_size
    return {"model_type": "llama", "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": inner,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads or heads,
            "head_dim": head_size, "max_position_embeddings": 1 << 20, "eos_token_id": 256, **fields}


class Bench:
    """A folder with a token file, one document of at least so many tokens, and runs in it."""

    def __init__(self, folder, tokens=280_000):
        self.folder = Path(folder)
        self.tokens = self.folder / "tokens.safetensors"
        text = self.folder / "text.txt"
        page = (ROOT / "README.md").read_bytes()
        text.write_bytes(page * (tokens // len(page) + 1))
        self._run(["prepare", text, "--output", self.tokens])

    def options(self, config, sequence, steps, **groups):
        """The content of a run.json; `groups` are further keys of it."""
        return {"model": {"config": config},
                "data": {"path": str(self.tokens), "sequence_length": sequence, "shuffle": False},
                "steps": steps, "output": str(self.folder / "out"), **groups}

    def train(self, options, ranks, *, timeline=None, prefix=()):
        """The lines of metrics.jsonl, of ranks with one thread each."""
        self._run(["train", self._file(options), "--ranks", ranks, *(["--timeline", timeline] if timeline else [])], prefix)
        return [json.loads(line) for line in (self.folder / "out" / "metrics.jsonl").read_text().splitlines()]

    def plan(self, options, ranks, *arguments):
        """What `trireme plan` says of them."""
        return json.loads(self._run(["plan", self._file(options), "--ranks", ranks, "--json", *arguments]))

    def _file(self, options):
        path = self.folder / "run.json"
        path.write_text(json.dumps(options))
        return path

    def _run(self, arguments, prefix=()):
        done = subprocess.run([*prefix, TRIREME, *map(str, arguments)], env={**os.environ, "OMP_NUM_THREADS": "1"},
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        return done.stdout
