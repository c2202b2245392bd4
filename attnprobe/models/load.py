"""Loading a pretrained model: by short name, folder, hub id, or as objects already in memory.

Everything that transformers may do quietly (start a head with random weights, fall back to another attention function) is an error
here, raised before anything is measured.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnprobe.errors import AttnprobeError, EnvironmentFailure, InputError, explain, near_names
from attnprobe.models.model import Model
from attnprobe.models.sources import DEFAULT_MODEL, first_line, hub_answers, locate

HEADS = {
    "masked-lm": "AutoModelForMaskedLM",
    "causal-lm": "AutoModelForCausalLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
}
"""Task heads by name; `head=None` loads the bare model."""

ATTENTION = ("sdpa", "eager")
"""Attention functions that show which keys they hide."""

_POOLER = re.compile(r"(^|\.)pooler\.(dense\.)?(weight|bias)$")


def load(
    model: str | os.PathLike[str] | tuple[Any, Any] | Model = DEFAULT_MODEL,
    *,
    head: str | None = None,
    attn: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Model:
    """Load a pretrained model and its tokenizer, ready to be captured.

    `model` is a short name (`minilm`, the embedded BERT), a folder, a hub id, or a pair `(module, tokenizer)` already in memory
    (the tokenizer may be None; no option goes with it). `head` names a task head of `HEADS`; None loads the bare model. `attn`
    is `sdpa`, `eager` or None (the library's default); `dtype` is a torch dtype's name or None (as stored); `device` is `cpu`
    (the default), `cuda`, `mps` or `auto`.

    Weights come from safetensors where there are any; `.bin` files are read with `weights_only=True`. Code from the hub never
    runs unless `trust_remote_code` is set.

    Raises `InputError` for an unknown model, a folder without a model, weights that are not numbers, a head whose weights are not
    in the checkpoint, a dtype that the device has not, or an attention function the family refuses; `EnvironmentFailure` where the hub cannot be reached.

    >>> load("minilm").family
    'bert'
    """
    if isinstance(model, (Model, tuple)):
        given = {"head": head, "attn": attn, "dtype": dtype, "device": device, "revision": revision}
        _refuse_options({**given, "trust_remote_code": trust_remote_code or None})
        return model if isinstance(model, Model) else _from_memory(model)
    chosen_device = device_of(device or "cpu")
    options = _options(attn, dtype, revision, trust_remote_code)
    _refuse_unknown("head", head, HEADS)
    name = os.fspath(model)
    source = locate(name, revision)
    options["local_files_only"] = isinstance(source, str) and not hub_answers()
    module = _read_module(source, name, head, options)
    _refuse_broken_weights(module, name)
    _refuse_float64(module, chosen_device)
    tokenizer, reason = _read_tokenizer(source, options)
    module = module.to(chosen_device).eval()
    return Model(module, tokenizer, name, head, source if isinstance(source, Path) else None, reason)


def _refuse_options(options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InputError(
            explain(
                f"`{given[0]}` cannot be set on a model in memory",
                remedy="Set it on the module yourself first, as with `module.set_attn_implementation(...)` or `module.to(...)`",
            )
        )


def _refuse_unknown(what: str, name: str | None, known: Any) -> None:
    if name is not None and name not in known:
        raise InputError(f"unknown {what} {name!r}; {near_names(name, known)}.")


def _options(attn: str | None, dtype: str | None, revision: str | None, trusted: bool) -> dict[str, Any]:
    """What is passed on to `from_pretrained`."""
    dtypes = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
    _refuse_unknown("attention function", attn, ATTENTION)
    _refuse_unknown("dtype", dtype, dtypes)
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trusted}
    if attn is not None:
        options["attn_implementation"] = attn
    if dtype is not None:
        options["dtype"] = dtypes[dtype]
    return options


def _from_memory(pair: tuple[Any, Any]) -> Model:
    module = pair[0] if pair else None
    if len(pair) != 2 or not isinstance(module, nn.Module) or not hasattr(module, "config"):
        got = f"({', '.join(type(part).__name__ for part in pair)})"
        expected = "(transformers model, tokenizer or None)"
        raise InputError(explain("cannot use these objects as a model", expected=expected, got=got))
    name = str(getattr(module.config, "name_or_path", "") or type(module).__name__)
    _refuse_broken_weights(module, name)
    return Model(module, pair[1], name, no_tokenizer="" if pair[1] is not None else "none was given")


def device_of(name: str) -> torch.device:
    """The device of that name, `auto` being the best there is; raises `InputError` for what is unknown or not here."""
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if counts[kind]))
    kind, _, place = name.partition(":")
    if kind not in counts or (":" in name and not place.isdecimal()):
        expected = " | ".join([*counts, "auto", "cuda:1"])
        raise InputError(explain("unknown device", expected=expected, got=repr(name)))
    if int(place or 0) >= counts[kind]:
        remedy = "Use `cpu`, or `auto` to take what there is"
        raise InputError(explain(f"the device {name!r} is not available here", remedy=remedy))
    return torch.device(name)


def _refuse_float64(module: nn.Module, device: torch.device) -> None:
    if device.type == "mps" and any(weight.dtype == torch.float64 for weight in module.parameters()):
        what, remedy = "MPS has no float64, which the weights are in", "Use dtype='float32', or the CPU"
        raise InputError(explain(what, expected="float32, bfloat16 or float16", got="float64", remedy=remedy))


def _read_module(source: Path | str, name: str, head: str | None, options: dict[str, Any]) -> nn.Module:
    import transformers

    auto = getattr(transformers, HEADS[head] if head else "AutoModel")
    try:
        with _quiet_transformers():
            module, info = auto.from_pretrained(str(source), output_loading_info=True, **options)
    except Exception as error:
        raise _loading_error(error, name, options.get("attn_implementation")) from error
    _refuse_missing_weights(info, name, head)
    asked, effective = options.get("attn_implementation"), getattr(module.config, "_attn_implementation", None)
    if asked is not None and effective != asked:
        what = f"{name} does not run with the attention function that was asked for"
        raise InputError(explain(what, expected=asked, got=str(effective), remedy="Leave `attn` out"))
    return module


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Loading draws a bar for every file and prints a table of missing weights, which are an error of ours anyway."""
    from transformers.utils import logging

    bar, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _refuse_missing_weights(info: dict[str, Any], name: str, head: str | None) -> None:
    """Refuse a model part of which would start with random weights; no attention of a bare model depends on its pooler."""
    missing = [key for key in info.get("missing_keys", ()) if head or not _POOLER.search(key)]
    if not missing:
        return
    part = f"its {head} head" if head else "part of the model"
    raise InputError(
        explain(
            f"{name} has no weights for {part}, which would start at random",
            expected="every weight in the checkpoint",
            got=f"{len(missing)} missing, such as {sorted(missing)[0]}",
            remedy="Load it without `head`, or choose a checkpoint that has one"
            if head
            else "Choose a complete checkpoint",
        )
    )


_UNKNOWN = {"RepositoryNotFoundError", "GatedRepoError", "RevisionNotFoundError", "HFValidationError"}
_UNREACHABLE = {
    "LocalEntryNotFoundError",
    "OfflineModeIsEnabled",
    "ConnectError",
    "ConnectTimeout",
    "ConnectionError",
    "ProxyError",
}


def _loading_error(error: Exception, name: str, attn: str | None) -> AttnprobeError:
    """One of our errors for what transformers raised, by what lies at the bottom of its chain of causes."""
    names, told = {type(link).__name__ for link in _causes(error)}, first_line(error)
    if names & _UNKNOWN:
        what, remedy = f"no such model on the hub: {name!r}", "Check the id, or log in if it is private"
        return InputError(explain(what, got=told, remedy=remedy))
    if names & _UNREACHABLE or "couldn't connect" in told:
        return EnvironmentFailure(
            explain(
                f"cannot fetch {name!r}",
                got="the hub cannot be reached, and the model is not in the local cache",
                remedy="Check the network, or give a folder; `minilm` needs no network",
            )
        )
    if "trust_remote_code" in str(error):
        remedy = "Read that code, then pass trust_remote_code=True if you trust it"
        return InputError(explain(f"{name} asks to run code of its own", remedy=remedy))
    if attn is not None and "attention implementation" in str(error):
        remedy = f"Use attn={next(other for other in ATTENTION if other != attn)!r}"
        return InputError(explain(f"the family of {name} refuses the attention function {attn!r}", remedy=remedy))
    if "ignore_mismatched_sizes" in str(error):
        expected, remedy = (
            "weights of the sizes that its config.json names",
            "Choose a checkpoint whose files belong together",
        )
        return InputError(
            explain(f"cannot load the model {name!r}", expected=expected, got="other sizes", remedy=remedy)
        )
    return InputError(explain(f"cannot load the model {name!r}", expected="a transformers checkpoint", got=told))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


_WHERE = ("revision", "trust_remote_code", "local_files_only")


def _read_tokenizer(source: Path | str, options: dict[str, Any]) -> tuple[Any | None, str]:
    """The checkpoint's tokenizer, or None and why; token ids can be captured all the same."""
    from transformers import AutoTokenizer

    try:
        with _quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(str(source), **{key: options[key] for key in _WHERE})
    except Exception as error:  # the tokenizers library raises bare Exceptions
        return None, first_line(error)
    if (
        len(tokenizer) - len(set(tokenizer.all_special_ids)) < 2
    ):  # transformers makes an empty one of a configuration alone
        return None, "the checkpoint has no tokenizer files"
    return tokenizer, ""


def _refuse_broken_weights(module: nn.Module, name: str) -> None:
    for key, weight in module.named_parameters():
        if weight.is_meta or not weight.is_floating_point():
            continue
        total = weight.detach().sum(dtype=torch.float32)  # one reduction; not finite if any element is not
        if not torch.isfinite(total) and not torch.isfinite(weight.detach()).all():
            what, expected = f"the weights of {name} are not all numbers", "finite values"
            raise InputError(explain(what, where=key, expected=expected, got="NaN or infinity"))
