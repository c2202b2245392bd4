"""Head importance by rescaling weights of the module itself, one head and one sentence at a time; nothing of attnprobe is used.

A gate on a head's context is a factor on its slice of the output projection, so that gates, their slopes (by differences) and ablations can
be had without touching the forward pass. Michel et al. 2019 for the loss; the rest from the definitions.
"""

from contextlib import contextmanager

import torch

OUTPUT = {
    "bert": "encoder.layer.{}.attention.output.dense",
    "gpt2": "h.{}.attn.c_proj",
    "llama": "layers.{}.self_attn.o_proj",
    "bloom": "h.{}.self_attention.dense",
}
QUERY = {"bert": "encoder.layer.{}.attention.self.query"}
VALUE = {"bert": "encoder.layer.{}.attention.self.value"}


def projection(module, family, layer, table=OUTPUT):
    return module.base_model.get_submodule(table[family].format(layer))


def slice_of(module, family, layer, head, size):
    """View of the head's slice of the output projection: columns of a Linear, rows of GPT-2's Conv1D."""
    weight = projection(module, family, layer).weight.data
    rows = slice(head * size, (head + 1) * size)
    return weight[rows] if family == "gpt2" else weight[:, rows]


@contextmanager
def gated(module, family, layer, head, size, factor):
    part = slice_of(module, family, layer, head, size)
    kept = part.clone()
    part.mul_(factor)
    try:
        yield
    finally:
        part.copy_(kept)


@contextmanager
def put(module, family, layer, head, size, vector):
    """The head's context replaced by one vector everywhere: its slice zeroed, what the vector would give added to the bias."""
    linear = projection(module, family, layer)
    part = slice_of(module, family, layer, head, size)
    bias, added = linear.bias.data.clone(), vector @ part if family == "gpt2" else part @ vector
    linear.bias.data += added
    try:
        with gated(module, family, layer, head, size, 0.0):
            yield
    finally:
        linear.bias.data.copy_(bias)


@contextmanager
def levelled(module, family, layer, head, size):
    """Scores of the head all 0: its query projection zeroed, so that every visible key gets the same weight."""
    linear = projection(module, family, layer, QUERY)
    rows = slice(head * size, (head + 1) * size)
    kept = linear.weight.data.clone(), linear.bias.data.clone()
    linear.weight.data[rows] = 0.0
    linear.bias.data[rows] = 0.0
    try:
        yield
    finally:
        linear.weight.data.copy_(kept[0])
        linear.bias.data.copy_(kept[1])


def contexts(module, family, layer, inputs):
    """What enters the output projection, [batch token heads * size]."""
    seen = []
    handle = projection(module, family, layer).register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    try:
        with torch.no_grad():
            module(**inputs)
    finally:
        handle.remove()
    return seen[0]


def states(module, ids):
    with torch.no_grad():
        return module.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0].double()


def turned(before, after):
    """Mean over tokens of 1 - cosine."""
    total = 0.0
    for a, b in zip(before, after, strict=True):
        total += 1 - float(a @ b) / float(a.norm() * b.norm())
    return total / len(before)


def loss(module, ids, pairs):
    """Mean of -log p(target at place) over (place, target)."""
    with torch.no_grad():
        logits = module(input_ids=torch.tensor([ids])).logits[0].double()
    total = 0.0
    for place, target in pairs:
        total += float(torch.logsumexp(logits[place], 0) - logits[place, target])
    return total / len(pairs)


def slope(value, gate, step=1e-4):
    """Central difference at gate 1 of a function of the gated model."""
    ends = []
    for factor in (1 + step, 1 - step):
        with gate(factor):
            ends.append(value())
    return (ends[0] - ends[1]) / (2 * step)


def bend(value, gate, step=1e-3):
    """Second central difference at gate 1 of a function that is 0 there."""
    ends = []
    for factor in (1 + step, 1 - step):
        with gate(factor):
            ends.append(value())
    return sum(ends) / step**2
