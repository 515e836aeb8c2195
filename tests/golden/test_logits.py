"""Logits against Transformers, for configurations that differ in what they compute."""

import os
import subprocess
import unittest

import torch
from harness import TIME_LIMIT, GoldenTest
from models import ARCHITECTURES, ROPE, VOCABULARY, load_model, make_config, save_model
from safetensors.torch import load_file, save_file

PROGRAM = os.environ["GOLDEN_LOGITS"]


class Logits(GoldenTest):
    def check(self, config, length=47, rows=2, ranks=1, dtype=torch.float32):
        model = save_model(self.folder / "model", config, dtype=dtype)
        generator = torch.Generator().manual_seed(5)
        tokens = torch.randint(0, VOCABULARY, (rows, length), generator=generator)
        files = self.folder / "tokens.safetensors", self.folder / "logits.safetensors"
        save_file({"tokens": tokens}, files[0])
        subprocess.run([PROGRAM, model, *files, str(ranks)], check=True, timeout=TIME_LIMIT)
        ours = load_file(files[1])["logits"]
        with torch.no_grad():
            expected = load_model(model)(input_ids=tokens).logits
        self.assertEqual(ours.shape, expected.shape)
        self.assertLessEqual((ours - expected).abs().max().item(), 1e-4)

    def test_architectures(self):
        for architecture in ARCHITECTURES:
            for tied in (False, True):
                for ranks in (1, 2, 3):
                    with self.subTest(architecture=architecture, tied=tied, ranks=ranks):
                        self.check(make_config(architecture, tie_word_embeddings=tied), ranks=ranks)

    def test_rope_types(self):
        for rope in ROPE:
            for length in (20, 47, 130):  # within the range and beyond it
                with self.subTest(rope=rope, length=length):
                    self.check(make_config("qwen3", rope), length, ranks=2)

    def test_details_of_yarn(self):
        for more in ({"beta_fast": 8.0, "beta_slow": 2.0}, {"attention_factor": 0.7}, {"truncate": False},
                     {"mscale": 0.8, "mscale_all_dim": 0.5}, {"mscale": 1.0}):
            with self.subTest(**more):
                config = make_config("llama", "yarn")
                config.rope_parameters.update(more)
                self.check(config)

    def test_sliding_windows(self):
        for window in (1, 5, 46, 47, 100, None):
            with self.subTest(window=window):
                self.check(make_config("mistral", sliding_window=window), ranks=2)

    def test_heads(self):
        for heads, kv_heads, ranks in ((4, 4, 2), (4, 1, 2), (6, 3, 2), (6, 2, 3), (4, 2, 4), (3, 1, 2)):
            with self.subTest(heads=heads, kv_heads=kv_heads, ranks=ranks):
                self.check(make_config("qwen3", num_attention_heads=heads, num_key_value_heads=kv_heads), ranks=ranks)

    def test_lengths(self):
        for length in (1, 2, 3, 64):
            with self.subTest(length=length):
                self.check(make_config("llama"), length, rows=1, ranks=2)

    def test_dtypes_of_the_file(self):
        for dtype in (torch.bfloat16, torch.float16):
            with self.subTest(dtype=dtype):
                self.check(make_config("qwen2"), dtype=dtype)


if __name__ == "__main__":
    unittest.main()
