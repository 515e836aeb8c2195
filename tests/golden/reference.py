"""What training should give: token files, and a plain PyTorch loop over a Transformers model in one process."""

import torch
from safetensors.torch import save_file


def random_documents(lengths, vocabulary, seed=7):
    """Documents of the given lengths. Tokens repeat and follow each other, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    documents = []
    for length in lengths:
        noise = torch.randint(0, vocabulary, (length,), generator=generator)
        walk = torch.cumsum(torch.randint(1, 4, (length,), generator=generator), 0) % vocabulary
        documents.append(torch.where(torch.rand(length, generator=generator) < 0.3, noise, walk))
    return documents


def save_tokens(path, documents, dtype=torch.int32, loss_masks=None):
    starts = torch.tensor([0] + [len(document) for document in documents[:-1]]).cumsum(0)
    tensors = {"tokens": torch.cat(documents).to(dtype), "document_starts": starts}
    if loss_masks is not None:
        tensors["loss_mask"] = torch.cat(loss_masks).to(torch.uint8)
    save_file(tensors, path)
    return path


def make_optimizer(model, lr, eps, betas=(0.9, 0.95), weight_decay=0.1):
    """AdamW that decays matrices and leaves norms and biases alone."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps)


def document_loss(model, document, mask=None, terms=None):
    """Sum of the token losses of one document by itself, and how many tokens were predicted. `terms` as the option
    `loss`: its label_smoothing is torch's."""
    terms = terms or {}
    labels = document.clone()
    if mask is not None:
        labels[mask == 0] = -100
    logits = model(input_ids=document[None]).logits[0, :-1].float()
    if cap := terms.get("logit_soft_cap", 0):
        logits = cap * torch.tanh(logits / cap)
    loss = torch.nn.functional.cross_entropy(logits, labels[1:], ignore_index=-100, reduction="sum",
                                             label_smoothing=terms.get("label_smoothing", 0.0))
    targets = labels[1:] != -100
    return loss + terms.get("z_loss", 0) * logits.logsumexp(-1)[targets].square().sum(), int(targets.sum())


def batch_loss(model, batch, terms=None):
    """Mean over all tokens of a batch: documents, or pairs of a document and its loss mask."""
    parts = [document_loss(model, *(entry if isinstance(entry, tuple) else (entry,)), terms=terms) for entry in batch]
    return sum(loss for loss, _ in parts) / max(sum(count for _, count in parts), 1)


def train(model, batches, lr, eps, clipping=1.0, terms=None):
    """One optimizer step a batch. Returns the losses and the gradient norms before clipping."""
    optimizer = make_optimizer(model, lr, eps)
    model.train()
    losses, norms = [], []
    for batch in batches:
        loss = batch_loss(model, batch, terms)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clipping).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms
