"""Running a model and taking its attention: `capture` keeps everything, `record` hands over each layer and keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnprobe.attention.call import AttentionCall
from attnprobe.attention.forward import pattern_of, scores_of
from attnprobe.errors import CaptureError, InputError, explain, near_names
from attnprobe.models.hooks import hooking
from attnprobe.models.inputs import Encoded, encode, from_model_inputs
from attnprobe.models.interface import recording
from attnprobe.models.load import Model, load
from attnprobe.models.recorder import Recorder
from attnprobe.records import PatternBlock, PatternView, Sentence

ROUTES = ("interface", "hooks")
DEFAULT_BUDGET = 4 * 2**30
"""Bytes that a capture may keep unless told otherwise."""


@dataclass(frozen=True)
class Capture:
    """All attention of one batch: one `AttentionCall` per module (and generation step), with the tokens they are about."""

    layers: tuple[AttentionCall, ...]
    encoded: Encoded
    model: str
    family: str
    dtype: str
    attn_implementation: str
    route: str = "interface"

    def layer(self, i: int) -> AttentionCall:
        """The attention of module `i` in execution order."""
        if not -len(self.layers) <= i < len(self.layers):
            raise InputError(explain(f"no layer {i}", expected=f"0 to {len(self.layers) - 1}"))
        return self.layers[i]

    @property
    def tokens(self) -> tuple[tuple[str, ...], ...]:
        """Tokens of each sequence, padding included."""
        return self.encoded.tokens

    @property
    def input_ids(self) -> Tensor | None:
        return self.encoded.inputs.get("input_ids")

    @property
    def attention_mask(self) -> Tensor | None:
        return self.encoded.inputs.get("attention_mask")

    def view(self, index: int = 0, *, neurons: bool = False) -> PatternView:
        """NumPy view of one sequence with padding cut off, for viewers; `neurons` adds q, k and scores."""
        encoded = self.encoded
        if not 0 <= index < encoded.batch_size:
            raise InputError(explain(f"no sequence {index} in this capture", expected=f"0 to {encoded.batch_size - 1}"))
        keep = encoded.real[index]
        target = encoded.target_real[index] if encoded.target_real is not None else keep
        blocks = tuple(_block(call, index, keep, target, neurons) for call in self.layers)
        return PatternView(
            model=self.model,
            blocks=blocks,
            tokens=tuple(token for token, kept in zip(encoded.tokens[index], keep.tolist(), strict=True) if kept),
            alignment=encoded.trimmed_alignment(index),
            words=encoded.words[index],
            special=encoded.special[index][keep].numpy(),
            target_tokens=encoded.target_tokens[index] if encoded.target_tokens else (),
            segments=tuple(encoded.segments[index][keep].tolist()) if encoded.segments is not None else (),
        )


def _block(call: AttentionCall, index: int, keep: Tensor, target: Tensor, neurons: bool) -> PatternBlock:
    """One sequence of a call. The real positions are known for prompt and source; generated ones are all real."""
    assert call.pattern is not None
    pattern = call.pattern[index].float().cpu()
    rows = _positions(target if call.kind in ("decoder", "cross") else keep, pattern.shape[1], last=call.step > 0)
    columns = _positions(target if call.kind == "decoder" else keep, pattern.shape[2], last=False)
    extra: dict[str, Any] = {}
    if neurons:
        k = call.k[index].float().cpu().repeat_interleave(call.groups, dim=0)
        extra = {
            "scores": scores_of(call)[index].float().cpu()[:, rows][:, :, columns].numpy(),
            "q": call.q[index].float().cpu()[:, rows].numpy(),
            "k": k[:, columns].numpy(),
            "scale": call.scale,
        }
    cut = pattern[:, rows][:, :, columns].numpy()
    return PatternBlock(call.layer, call.kind, call.index, call.step, cut, call.pattern_source or "model", **extra)


def _positions(keep: Tensor, length: int, *, last: bool) -> Tensor:
    """Indices of real positions along an axis of `length`, which is longer than `keep` after generation, shorter for one step."""
    if last or length < len(keep):
        return torch.arange(length)
    grown = torch.cat([keep.cpu(), torch.ones(length - len(keep), dtype=torch.bool)])
    return torch.nonzero(grown).squeeze(-1)


def capture(
    model: Model | str | tuple[Any, Any] | nn.Module,
    text: str | Sentence | Iterable[str | Sentence] | None = None,
    *,
    text_pair: str | None = None,
    route: str = "interface",
    pattern: bool = True,
    max_new_tokens: int | None = None,
    max_bytes: int = DEFAULT_BUDGET,
    **model_inputs: Any,
) -> Capture:
    """Run the model once and keep q, k, v, bias, pattern and context of every attention module.

    `text` is a text, a `Sentence` (its words are kept), or several of either (one padded batch); or pass the model's own inputs by name
    (`input_ids=...`, `pixel_values=...`). Where the model reports no pattern (sdpa), it is recomputed from the captured q and k and marked
    so. `max_new_tokens` generates greedily and keeps every step. `route` is `interface` (every family) or `hooks` (BERT-like).

    The model's outputs are the same bits as without capture; its configuration is not touched.

    Raises `CaptureError` in train mode, when nothing was captured, or when more than `max_bytes` would be kept; `InputError` for empty or
    too long texts.

    >>> from attnprobe import load
    >>> taken = capture(load("minilm"), "the cat sat")
    >>> len(taken.layers), tuple(taken.layer(0).q.shape)
    (6, (1, 12, 5, 32))
    """
    model = as_model(model)
    encoded = from_model_inputs(model, model_inputs) if text is None else encode(model, text, text_pair=text_pair)
    _refuse_over_budget(model, encoded, max_bytes)
    calls: list[AttentionCall] = []

    def keep(call: AttentionCall) -> None:
        if pattern and call.pattern is None:
            call = replace(call, pattern=pattern_of(call), pattern_source="recomputed")
        calls.append(call)

    run_forward(model, encoded, keep, route=route, max_new_tokens=max_new_tokens)
    return Capture(tuple(calls), encoded, model.name, model.family, model.dtype, model.attn_implementation, route)


def record(
    model: Model | str | tuple[Any, Any] | nn.Module,
    batches: Iterable[Mapping[str, Any]],
    each: Callable[[AttentionCall, Mapping[str, Any]], None],
    *,
    route: str = "interface",
) -> int:
    """Run the model over `batches` and call `each(call, batch)` for every attention module as it is computed; nothing is kept.

    A batch is a mapping of model inputs (`input_ids`, `attention_mask`, ...), as tensors or nested lists. Returns the number of batches run.
    Raises as `capture` does; an exception in `each` ends the run and leaves the model as it was.

    >>> from attnprobe import load
    >>> layers = []
    >>> record(load("minilm"), [{"input_ids": [[101, 1996, 4937, 102]]}], each=lambda call, batch: layers.append(call.layer))
    1
    >>> layers
    [0, 1, 2, 3, 4, 5]
    """
    model = as_model(model)
    done = 0
    for batch in batches:
        run_forward(model, from_model_inputs(model, batch, describe=False), lambda call, batch=batch: each(call, batch), route=route)  # type: ignore[misc]
        done += 1
    return done


def run_forward(
    model: Model,
    encoded: Encoded,
    each: Callable[[AttentionCall], None],
    *,
    route: str = "interface",
    max_new_tokens: int | None = None,
) -> None:
    """One forward pass (or a generation) with every attention call handed to `each`; raises where none came."""
    recorder = Recorder(model.module, each)
    with _listening(model, recorder, route), torch.no_grad():
        if max_new_tokens is None:
            model.backbone(**encoded.forward_inputs(model))
        else:
            _generate(model, encoded, recorder, max_new_tokens)
    _refuse_nothing(model, recorder)


def as_model(model: Model | str | tuple[Any, Any] | nn.Module) -> Model:
    """A `Model` from whatever a caller has: a name is loaded, a bare module is taken without a tokenizer. Refuses train mode."""
    if not isinstance(model, Model):
        model = load((model, None)) if isinstance(model, nn.Module) else load(model)
    training = next((name for name, module in model.module.named_modules() if module.training), None)
    if training is not None:
        raise CaptureError(
            explain(
                "cannot capture a model in train mode",
                where=training or "the model itself",
                expected="evaluation mode (dropout would falsify the weights)",
                remedy="Call `model.module.eval()` first",
            )
        )
    return model


def _listening(model: Model, recorder: Recorder, route: str) -> AbstractContextManager[None]:
    if route == "interface":
        return recording(recorder)
    if route == "hooks":
        return hooking(model.module, recorder)
    raise InputError(f"unknown route {route!r}; {near_names(route, ROUTES)}.")


@contextmanager
def _counting_steps(model: Model, recorder: Recorder) -> Iterator[None]:
    """During generation, each forward pass of the whole model is a step; what an encoder did before the first belongs to step 0."""
    passes = 0

    def before(_module: nn.Module, _inputs: Any) -> None:
        nonlocal passes
        if passes:
            recorder.next_pass(step=passes, skip_encoder=True)
        passes += 1

    handle = model.module.register_forward_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()


def _generate(model: Model, encoded: Encoded, recorder: Recorder, max_new_tokens: int) -> None:
    if not hasattr(model.module, "generate") or not getattr(model.module, "can_generate", lambda: False)():
        raise CaptureError(
            explain(f"{model.name} cannot generate", remedy="Load it with head='causal-lm' or head='seq2seq-lm'")
        )
    with _counting_steps(model, recorder):
        model.module.generate(  # type: ignore[operator]
            **encoded.inputs, max_new_tokens=max_new_tokens, min_new_tokens=max_new_tokens, do_sample=False, num_beams=1
        )


def _refuse_nothing(model: Model, recorder: Recorder) -> None:
    if recorder.seen == 0:
        raise CaptureError(
            explain(
                f"the forward pass of {model.name} ran, and no attention was captured",
                expected="at least one call through the attention-function interface",
                got=f"none (family {model.family!r}, {model.attn_implementation})",
                remedy="The family computes attention outside the interface, or its forward ran in another thread",
            )
        )


def _refuse_over_budget(model: Model, encoded: Encoded, max_bytes: int) -> None:
    needed = estimate_bytes(model, encoded.batch_size, encoded.length)
    if needed > max_bytes:
        raise CaptureError(
            explain(
                "this capture would keep too much",
                expected=f"at most {max_bytes / 2**30:.1f} GB",
                got=f"about {needed / 2**30:.1f} GB ({encoded.batch_size} x {encoded.length} tokens)",
                remedy="Capture fewer or shorter texts, use `record`, or raise `max_bytes`",
            )
        )


def estimate_bytes(model: Model, batch: int, length: int) -> int:
    """About how many bytes `capture` keeps: q, k, v, context and the pattern of every layer; 0 where the config does not say."""
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    layers = getattr(config, "num_hidden_layers", None) or 0
    heads = getattr(config, "num_attention_heads", None) or 0
    hidden = getattr(config, "hidden_size", None) or 0
    if not all(isinstance(value, int) for value in (layers, heads, hidden)):
        return 0
    element = next(model.module.parameters()).element_size()
    return layers * batch * length * (4 * hidden + heads * length) * element
