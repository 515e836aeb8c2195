"""Packed documents against the same documents run one by one in Transformers."""

import unittest

import torch
from harness import GoldenTest
from models import VOCABULARY, load_model, make_config, save_model
from reference import batch_loss, random_documents, save_tokens, train

LENGTH = 40
# Rows that any packing in the order of the file makes: each row is full, or what follows does not fit into it.
# 90 tokens are cut into pieces of 40, 40 and 10, and each piece counts as a document.
ROWS = [[7, 20, 9], [15, 25], [40], [1, 39], [40], [40], [10, 3, 2, 1]]
DOCUMENTS = [7, 20, 9, 15, 25, 40, 1, 39, 90, 3, 2, 1]


class Packing(GoldenTest):
    def setUp(self):
        super().setUp()
        self.documents = random_documents(DOCUMENTS, VOCABULARY)
        # What is left of the last row is padding; the next epoch begins with a new row.
        stream = torch.cat(self.documents)
        generator = torch.Generator().manual_seed(3)
        self.masks = [(torch.rand(len(d), generator=generator) < 0.6).to(torch.uint8) for d in self.documents]
        self.masks[3][:] = 0  # a document that teaches nothing, at the head of a row
        mask_stream = torch.cat(self.masks)
        lengths = [length for row in ROWS for length in row]
        self.rows, self.masked_rows = [], []
        pieces = iter(zip(stream.split(lengths), mask_stream.split(lengths)))
        for row in ROWS:
            here = [next(pieces) for _ in row]
            self.rows.append([piece for piece, _ in here])
            self.masked_rows.append(here)

    def check(self, config, ranks, batches, masked=False, dtype=torch.int32, **options):
        model = save_model(self.folder / "model", config)
        tokens = save_tokens(self.folder / "tokens.safetensors", self.documents, dtype, self.masks if masked else None)
        ours = self.train(model, tokens, LENGTH, len(batches), ranks=ranks,
                          **{"sequence_parallel_size": ranks, **options})
        losses, norms = train(load_model(model), batches, 3e-3, 1e-8)
        self.assert_close(ours.column("loss"), losses, 1e-4, "loss")
        self.assert_close(ours.column("grad_norm"), norms, 1e-3 * max(norms), "grad_norm")

    def test_architectures(self):
        for architecture in ("llama", "mistral", "qwen3"):
            for ranks in (1, 2):
                with self.subTest(architecture=architecture, ranks=ranks):
                    self.check(make_config(architecture), ranks, self.rows)

    def test_loss_mask(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.check(make_config("llama"), ranks, self.masked_rows, masked=True)

    def test_tokens_of_other_integers(self):
        for dtype in (torch.uint16, torch.uint32, torch.int64):
            with self.subTest(dtype=dtype):
                self.check(make_config("llama"), 1, self.rows[:2], dtype=dtype)

    def test_a_step_of_several_rows_weighs_tokens_alike(self):
        """Over data parallel ranks, micro-batches and accumulation: one mean over all real tokens of the step."""
        steps = [sum(self.masked_rows[step * 2:step * 2 + 2], []) for step in range(3)]
        for ranks, options in ((2, {"sequence_parallel_size": 1}), (1, {"gradient_accumulation_steps": 2}),
                               (2, {"train_micro_batch_size_per_gpu": 2})):
            with self.subTest(ranks=ranks, **options):
                self.check(make_config("qwen2"), ranks, steps, masked=True, **options)

    def test_next_epoch_begins_anew(self):
        self.check(make_config("llama"), 1, self.rows + self.rows[:2])

    def test_reference_weighs_tokens(self):
        """The mean over tokens is not the mean over documents here: a wrong weighting would show."""
        model = load_model(save_model(self.folder / "model", make_config("llama")))
        with torch.no_grad():
            together = batch_loss(model, self.rows[0]).item()
            apart = [batch_loss(model, [document]).item() for document in self.rows[0]]
        self.assertGreater(abs(together - sum(apart) / len(apart)), 1e-3)


if __name__ == "__main__":
    unittest.main()
