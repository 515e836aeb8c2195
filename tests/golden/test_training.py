"""Losses, gradient norms and trained weights against a plain PyTorch loop, for each architecture and RoPE type."""

import unittest

import torch
import transformers
from harness import GoldenTest
from models import ARCHITECTURES, ROPE, VOCABULARY, load_model, make_config, make_model, save_model
from reference import batch_loss, random_documents, save_tokens, train

STEPS = 5


class TrainingTest(GoldenTest):
    def check(self, config, length, ranks, lr=3e-3, eps=1e-8, rows=1, weights_tolerance=None, **options):
        """Trains on rows that are one document each, both ways, `rows` of them a step."""
        with self.subTest(model=config.model_type, rope=config.rope_parameters["rope_type"],
                          tied=config.tie_word_embeddings, length=length, ranks=ranks, **options):
            model = save_model(self.folder / "model", config)
            documents = random_documents([length] * STEPS * rows, config.vocab_size)
            tokens = save_tokens(self.folder / "tokens.safetensors", documents)
            ours = self.train(model, tokens, length, STEPS, lr, eps, ranks=ranks,
                              **{"sequence_parallel_size": ranks, **options})

            reference = load_model(model)
            batches = [documents[step * rows:(step + 1) * rows] for step in range(STEPS)]
            losses, norms = train(reference, batches, lr, eps, terms=options.get("loss"))
            self.assertEqual(ours.column("step"), list(range(1, STEPS + 1)))
            self.assertEqual(ours.column("lr"), [lr] * STEPS)
            self.assert_close(ours.column("loss"), losses, 1e-4, "loss")
            # AdamW magnifies rounding where gradients are near zero, unless eps is larger than they are.
            self.assert_close(ours.column("grad_norm"), norms, (1e-3 if eps < 1e-6 else 2e-5) * max(norms), "grad_norm")
            if weights_tolerance is not None:
                self.check_weights(ours.model, reference, weights_tolerance)

    def check_weights(self, directory, reference, tolerance):
        trained = load_model(directory).state_dict()
        for name, expected in reference.state_dict().items():
            difference = (trained[name] - expected).abs().max().item()
            self.assertLessEqual(difference, tolerance, name)


class Architectures(TrainingTest):
    def check_architecture(self, architecture):
        for tied in (False, True):
            for ranks in (1, 2):
                # An odd length: with two ranks the slices are unequal, or padded.
                self.check(make_config(architecture, tie_word_embeddings=tied), 47, ranks, eps=1e-4,
                           weights_tolerance=5e-5)

    def test_llama(self):
        self.check_architecture("llama")

    def test_mistral(self):
        self.check_architecture("mistral")

    def test_qwen2(self):
        self.check_architecture("qwen2")

    def test_qwen3(self):
        self.check_architecture("qwen3")

    def test_every_architecture_is_tested(self):
        for architecture in ARCHITECTURES:
            self.assertTrue(hasattr(self, f"test_{architecture}"))

    def test_sliding_window_on_some_layers(self):
        for architecture in ("qwen2", "qwen3"):
            config = make_config(architecture, num_hidden_layers=3, use_sliding_window=True, sliding_window=16,
                                 max_window_layers=1)
            self.assertEqual(config.layer_types, ["full_attention", "sliding_attention", "sliding_attention"])
            self.check(config, 48, 2)


class Rope(TrainingTest):
    def check_rope(self, rope):
        for ranks in (1, 2):
            self.check(make_config("llama", rope), 48, ranks)

    def test_default(self):
        self.check_rope("default")

    def test_linear(self):
        self.check_rope("linear")

    def test_dynamic(self):
        self.check_rope("dynamic")

    def test_llama3(self):
        self.check_rope("llama3")

    def test_yarn(self):
        self.check_rope("yarn")

    def test_every_type_is_tested_and_matters(self):
        """With the same base frequency and no scaling the loss is another: a type cannot be taken for default."""
        document = random_documents([48], VOCABULARY)
        for rope in ROPE:
            self.assertTrue(hasattr(self, f"test_{rope}"))
            if rope == "default":
                continue
            plain = make_config("llama")
            plain.rope_parameters["rope_theta"] = ROPE[rope]["rope_theta"]
            with torch.no_grad():
                losses = [batch_loss(make_model(config), document).item()
                          for config in (plain, make_config("llama", rope))]
            self.assertGreater(abs(losses[0] - losses[1]), 1e-3, rope)


class Layouts(TrainingTest):
    """The same losses, however the work is divided."""

    def test_multi_head_and_multi_query(self):
        for kv_heads in (4, 1):
            self.check(make_config("llama", num_key_value_heads=kv_heads), 48, 2)

    def test_zero_stages(self):
        for stage in (0, 1, 2):
            self.check(make_config("llama"), 48, 2, zero_optimization={"stage": stage})

    def test_small_parameters_replicated_and_states_on_disk(self):
        disk = {"device": "nvme", "nvme_path": str(self.folder)}
        for threshold in (0, 100, 100000):
            self.check(make_config("llama"), 48, 2, zero_optimization={
                "stage3_param_persistence_threshold": threshold, "offload_param": disk, "offload_optimizer": disk})

    def test_checkpointing_policies_and_tiles(self):
        for policy in ("none", "layer", "keep_attention"):
            self.check(make_config("qwen2"), 48, 2, activation_checkpointing={"policy": policy})
        self.check(make_config("llama"), 48, 2, tiling={"mlp": 3, "loss": 5})
        self.check(make_config("llama"), 48, 1, tiling={"mlp": "off", "loss": "off"})

    def test_terms_of_the_loss(self):
        self.check(make_config("llama"), 47, 2, eps=1e-4, weights_tolerance=5e-5,
                   loss={"z_loss": 0.05, "label_smoothing": 0.1, "logit_soft_cap": 2})

    def test_data_parallel_micro_batches_and_accumulation(self):
        self.check(make_config("llama"), 48, 2, rows=2, sequence_parallel_size=1)
        self.check(make_config("llama"), 48, 1, rows=2, train_micro_batch_size_per_gpu=2)
        self.check(make_config("mistral"), 47, 2, rows=4, train_micro_batch_size_per_gpu=2,
                   gradient_accumulation_steps=2, train_batch_size=4, eps=1e-4, weights_tolerance=5e-5)

    def test_bf16_stays_near(self):
        """Half the digits: a coarse look at the whole path of bf16 weights with fp32 masters."""
        config = make_config("llama", initializer_range=0.05)
        model = save_model(self.folder / "model", config)
        documents = random_documents([48] * STEPS, VOCABULARY)
        tokens = save_tokens(self.folder / "tokens.safetensors", documents)
        losses, _ = train(load_model(model), [[document] for document in documents], 3e-3, 1e-8)
        for ranks in (1, 2):
            ours = self.train(model, tokens, 48, STEPS, ranks=ranks, sequence_parallel_size=ranks,
                              bf16={"enabled": True})
            self.assert_close(ours.column("loss"), losses, 2e-2, "loss")
            exported = transformers.AutoConfig.from_pretrained(ours.model)
            self.assertEqual(exported.dtype, torch.bfloat16)


if __name__ == "__main__":
    unittest.main()
