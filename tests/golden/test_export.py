"""What comes in goes out: directories of every layout and dtype are read, and written so that Transformers reads them."""

import json
import unittest

import torch
import transformers
from harness import GoldenTest
from models import ARCHITECTURES, ROPE, VOCABULARY, load_model, make_config, save_model
from reference import batch_loss, random_documents, save_tokens, train

LENGTH = 33


class ExportTest(GoldenTest):
    def round_trip(self, model, ranks=1, documents=None):
        """One step with a learning rate of zero; what was exported."""
        documents = documents or random_documents([LENGTH], VOCABULARY)
        tokens = save_tokens(self.folder / "tokens.safetensors", documents)
        return self.train(model, tokens, LENGTH, 1, lr=0.0, ranks=ranks, sequence_parallel_size=ranks)

    def assert_same_weights(self, directory, expected):
        found = load_model(directory).state_dict()
        self.assertEqual(found.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(found[name], tensor), name)


class RoundTrip(ExportTest):
    def test_weights_and_config_come_back_equal(self):
        cases = [(architecture, "default", tied) for architecture in ARCHITECTURES for tied in (False, True)]
        cases += [("llama", rope, False) for rope in ROPE if rope != "default"]
        for number, (architecture, rope, tied) in enumerate(cases):
            with self.subTest(architecture=architecture, rope=rope, tied=tied):
                config = make_config(architecture, rope, tie_word_embeddings=tied)
                model = save_model(self.folder / "model", config)
                exported = self.round_trip(model, ranks=1 + number % 2).model
                self.assert_same_weights(exported, load_model(model).state_dict())
                before, after = (transformers.AutoConfig.from_pretrained(path).to_dict() for path in (model, exported))
                for config_dict in (before, after):
                    config_dict.pop("_name_or_path", None)
                    config_dict.pop("transformers_version", None)
                self.assertEqual(after, before)

    def test_model_from_scratch(self):
        """A configuration in run.json: what is exported is a complete directory, and seeds decide the weights."""
        fields = dict(model_type="llama", vocab_size=VOCABULARY, hidden_size=64, intermediate_size=112,
                      num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5)
        documents = random_documents([LENGTH], VOCABULARY)
        tokens = save_tokens(self.folder / "tokens.safetensors", documents)
        weights = []
        for ranks, seed in ((1, 3), (2, 3), (1, 4)):
            ours = self.train(fields, tokens, LENGTH, 1, lr=0.0, ranks=ranks, sequence_parallel_size=ranks, seed=seed)
            model = load_model(ours.model)
            self.assertIsInstance(model, transformers.LlamaForCausalLM)
            self.assert_close(ours.column("loss"), [batch_loss(model, documents).item()], 1e-4, "loss")
            weights.append(model.state_dict())
        matrix = "model.layers.0.mlp.up_proj.weight"
        self.assertAlmostEqual(weights[0][matrix].std().item(), 0.02, delta=0.002)
        self.assertTrue(torch.equal(weights[0]["model.norm.weight"], torch.ones(64)))
        for name, tensor in weights[0].items():
            self.assertTrue(torch.equal(weights[1][name], tensor), f"{name} depends on the number of ranks")
        self.assertFalse(torch.equal(weights[2][matrix], weights[0][matrix]))


class Layouts(ExportTest):
    def test_dtypes(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            with self.subTest(dtype=dtype):
                documents = random_documents([LENGTH], VOCABULARY)
                model = save_model(self.folder / "model", make_config("qwen2"), dtype=dtype)
                reference = load_model(model)
                ours = self.round_trip(model, ranks=2, documents=documents)
                self.assert_close(ours.column("loss"), [batch_loss(reference, documents).item()], 1e-4, "loss")
                self.assert_same_weights(ours.model, reference.state_dict())

    def test_sharded_index(self):
        model = save_model(self.folder / "model", make_config("qwen3"), max_shard_size="60KB")
        self.assertGreater(len(list(model.glob("model-*.safetensors"))), 2)
        self.assert_same_weights(self.round_trip(model, ranks=2).model, load_model(model).state_dict())

    def test_older_form_of_config(self):
        """`rope_scaling` beside `rope_theta`, `torch_dtype`, no `head_dim`: as written before rope_parameters."""
        for rope in ("llama3", "linear", "yarn", "dynamic"):
            with self.subTest(rope=rope):
                model = save_model(self.folder / "model", make_config("llama", rope))
                path = model / "config.json"
                config = json.loads(path.read_text())
                scaling = config.pop("rope_parameters")
                config["rope_theta"] = scaling.pop("rope_theta")
                if rope == "linear":
                    scaling["type"] = scaling.pop("rope_type")
                config["rope_scaling"] = scaling
                config["torch_dtype"] = config.pop("dtype")
                config.pop("head_dim", None)
                path.write_text(json.dumps(config))

                documents = random_documents([LENGTH], VOCABULARY)
                expected = batch_loss(load_model(model), documents).item()
                ours = self.round_trip(model, documents=documents)
                self.assert_close(ours.column("loss"), [expected], 1e-4, "loss")
                self.assert_close([batch_loss(load_model(ours.model), documents).item()], [expected], 1e-6, "exported")

    def test_trained_further_by_transformers(self):
        """An export is a starting point like any other: two steps here, then two by a plain loop with new moments."""
        documents = random_documents([LENGTH] * 4, VOCABULARY)
        tokens = save_tokens(self.folder / "tokens.safetensors", documents[:2])
        model = save_model(self.folder / "model", make_config("llama", tie_word_embeddings=True))
        reference = load_model(model)
        first, _ = train(reference, [[d] for d in documents[:2]], 1e-3, 1e-4)
        ours = self.train(model, tokens, LENGTH, 2, lr=1e-3, eps=1e-4)
        self.assert_close(ours.column("loss"), first, 1e-4, "loss")
        losses, _ = train(reference, [[d] for d in documents[2:]], 1e-3, 1e-4)
        again, _ = train(load_model(ours.model), [[d] for d in documents[2:]], 1e-3, 1e-4)
        self.assert_close(again, losses, 1e-4, "loss")


if __name__ == "__main__":
    unittest.main()
