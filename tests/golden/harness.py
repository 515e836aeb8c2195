"""Runs build/bin/trireme as a user would. The program's path is the environment variable TRIREME, set by ctest."""

import json
import os
import subprocess
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(os.environ.get("TRIREME", ROOT / "build" / "bin" / "trireme"))
TIME_LIMIT = 120  # seconds for one run of the program: it is a matter of one


@dataclass
class Run:
    metrics: list  # one dictionary a step
    model: Path  # the exported Hugging Face directory

    def column(self, name):
        return [line[name] for line in self.metrics]


def start(*arguments):
    """Runs the program to its end and returns its completed process; it must not be ended by a signal."""
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=TIME_LIMIT)
    if done.returncode < 0 or done.returncode > 2:
        raise AssertionError(f"trireme ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done


class GoldenTest(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="trireme-golden-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write_options(self, model, tokens, sequence_length, steps, lr=3e-3, eps=1e-8, **more):
        """A run.json with the options that all golden runs share; its path. The model is a directory or a config."""
        options = {
            "model": {"config": model} if isinstance(model, dict) else {"path": str(model)},
            "data": {"path": str(tokens), "sequence_length": sequence_length, "shuffle": False},
            "steps": steps,
            "output": str(self.folder / "run"),
            "gradient_clipping": 1.0,
            # All of these small models would be small enough to be replicated.
            "zero_optimization": {"stage3_param_persistence_threshold": 0},
            "optimizer": {"type": "AdamW",
                          "params": {"lr": lr, "betas": [0.9, 0.95], "eps": eps, "weight_decay": 0.1}},
            **more,
        }
        path = self.folder / "run.json"
        path.write_text(json.dumps(options))
        return path

    def train(self, *arguments, ranks=1, **options):
        """Trains with the options (see `write_options`) on so many local ranks and returns what came out."""
        path = self.write_options(*arguments, **options)
        done = start("train", path, *(["--ranks", ranks] if ranks > 1 else []))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        output = self.folder / "run"
        lines = (output / "metrics.jsonl").read_text().splitlines()
        return Run([json.loads(line) for line in lines], output / "model")

    def assert_close(self, found, expected, tolerance, what):
        self.assertEqual(len(found), len(expected), what)
        for step, (a, b) in enumerate(zip(found, expected)):
            self.assertLessEqual(abs(a - b), tolerance, f"{what}, step {step}: {found}, expected {expected}")
