"""Broken model directories and data are refused: exit code 2, a message that names the fault, and no crash."""

import json
import struct
import unittest

import torch
from harness import GoldenTest, start
from models import VOCABULARY, make_config, save_model
from reference import random_documents, save_tokens
from safetensors.torch import load_file, save_file

LENGTH = 32
SOME = "model.layers.1.mlp.up_proj.weight"


class Refusals(GoldenTest):
    def setUp(self):
        super().setUp()
        self.model = save_model(self.folder / "model", make_config("llama"))
        self.weights = self.model / "model.safetensors"
        self.tokens = save_tokens(self.folder / "tokens.safetensors", random_documents([LENGTH], VOCABULARY))

    def assert_refused(self, *named, ranks=(1, 2), **options):
        """One rank and two: the error appears once, names what is wrong, and nothing is left in the output."""
        path = self.write_options(self.model, self.tokens, LENGTH, 1, **options)
        for count in ranks:
            done = start("train", path, *(["--ranks", count] if count > 1 else []))
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            for word in named:
                self.assertIn(word, done.stderr)
            first = next(word for word in named)
            lines = [line for line in done.stderr.splitlines() if first in line]
            self.assertEqual(len(lines), 1, f"said {len(lines)} times:\n{done.stderr}")
            self.assertFalse((self.folder / "run" / "model").exists())

    def change_config(self, **changes):
        path = self.model / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def change_weights(self, change):
        tensors = load_file(self.weights)
        change(tensors)
        save_file(tensors, self.weights)


class Weights(Refusals):
    def test_missing_tensor(self):
        self.change_weights(lambda tensors: tensors.pop(SOME))
        self.assert_refused(SOME)

    def test_shape_that_contradicts_the_config(self):
        self.change_weights(lambda tensors: tensors.update({SOME: torch.zeros(111, 64)}))
        self.assert_refused(SOME, "111", "112")

    def test_config_that_contradicts_the_shapes(self):
        self.change_config(vocab_size=VOCABULARY + 1)
        self.assert_refused("model.embed_tokens.weight", "97", "98")

    def test_truncated_file(self):
        data = self.weights.read_bytes()
        for size in (0, 5, 8, 100, len(data) // 2, len(data) - 1):
            with self.subTest(size=size):
                self.weights.write_bytes(data[:size])
                self.assert_refused("model.safetensors", ranks=(1,))
        self.assert_refused("model.safetensors")

    def test_header_length_of_a_billion(self):
        data = self.weights.read_bytes()
        for length in (10**9, 2**63, 2**64 - 1):
            with self.subTest(length=length):
                self.weights.write_bytes(struct.pack("<Q", length) + data[8:])
                self.assert_refused("model.safetensors", ranks=(1,))

    def test_integer_weights(self):
        self.change_weights(lambda tensors: tensors.update({SOME: torch.zeros(112, 64, dtype=torch.int32)}))
        self.assert_refused(SOME, "I32", ranks=(1,))

    def test_index_that_names_a_missing_file(self):
        save_model(self.folder / "sharded", make_config("llama"), max_shard_size="60KB")
        self.model = self.folder / "sharded"
        gone = sorted(self.model.glob("model-*.safetensors"))[1]
        gone.unlink()
        self.assert_refused(gone.name)

    def test_no_weights_and_no_directory(self):
        self.weights.unlink()
        self.assert_refused("model.safetensors")
        self.model = self.folder / "nowhere"
        self.assert_refused("nowhere")


class Configs(Refusals):
    def test_what_is_not_supported_is_refused_by_name(self):
        for changes, named in (
            ({"hidden_act": "gelu"}, ("hidden_act", "gelu")),
            ({"model_type": "gpt2"}, ("gpt2",)),
            ({"attention_bias": True}, ("attention_bias",)),
            ({"mlp_bias": True}, ("mlp_bias",)),
            ({"attention_dropout": 0.1}, ("attention_dropout",)),
            ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}}, ("longrope",)),
            ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, ("factor",)),
            ({"num_key_value_heads": 3}, ("num_key_value_heads", "3")),
            ({"hidden_size": -64}, ("hidden_size",)),
            ({"hidden_size": "64"}, ("hidden_size",)),
            ({"quantization_config": {"quant_method": "gptq"}}, ("quantization_config",)),
        ):
            with self.subTest(**changes):
                before = (self.model / "config.json").read_text()
                self.change_config(**changes)
                self.assert_refused(*named, ranks=(1,))
                (self.model / "config.json").write_text(before)

    def test_broken_json(self):
        for text in ("", "{", "[1, 2]", "[" * 100000):
            with self.subTest(text=text[:10]):
                (self.model / "config.json").write_text(text)
                self.assert_refused("config.json", ranks=(1,))


class Data(Refusals):
    def test_token_beyond_the_vocabulary(self):
        for token in (VOCABULARY, -1):
            with self.subTest(token=token):
                document = random_documents([LENGTH], VOCABULARY)[0]
                document[5] = token
                save_tokens(self.tokens, [document])
                self.assert_refused("tokens.safetensors", str(token))

    def test_broken_token_files(self):
        tokens = torch.zeros(LENGTH, dtype=torch.int32)
        starts = torch.zeros(1, dtype=torch.int64)
        for tensors, named in (
            ({"document_starts": starts}, "tokens"),
            ({"tokens": tokens}, "document_starts"),
            ({"tokens": tokens, "document_starts": starts + 1}, "document_starts"),
            ({"tokens": tokens, "document_starts": torch.tensor([0, 9, 9])}, "document_starts"),
            ({"tokens": tokens, "document_starts": torch.tensor([0, LENGTH])}, "document_starts"),
            ({"tokens": tokens.float(), "document_starts": starts}, "F32"),
            ({"tokens": tokens, "document_starts": starts, "loss_mask": torch.ones(3, dtype=torch.uint8)}, "loss_mask"),
        ):
            with self.subTest(named=named):
                save_file(tensors, self.tokens)
                self.assert_refused("tokens.safetensors", named, ranks=(1,))

    def test_truncated_and_missing(self):
        self.tokens.write_bytes(self.tokens.read_bytes()[:-10])
        self.assert_refused("tokens.safetensors")
        self.tokens.unlink()
        self.assert_refused("tokens.safetensors")


if __name__ == "__main__":
    unittest.main()
