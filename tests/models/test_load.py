"""Loading: every way in, and every way it must refuse, with the words the user sees."""

import json
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnprobe.errors import EnvironmentFailure, InputError
from attnprobe.models import sources
from attnprobe.models.capture import capture
from attnprobe.models.load import HEADS, Model, load
from tests.tiny import TINY, build, byte_tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """saved(family) -> folder with a tiny model of that family as `save_pretrained` writes it, made once."""
    from transformers.utils import logging

    folders = {}
    logging.disable_progress_bar()

    def folder_of(family, **options):
        key = (family, *options.items())
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp(family)
            build(family, **options).save_pretrained(folders[key])
        return folders[key]

    yield folder_of
    logging.enable_progress_bar()


@pytest.fixture
def bert_copy(saved, tmp_path):
    """A folder with a tiny BERT and a tokenizer, to be spoilt."""
    shutil.copytree(saved("bert"), tmp_path / "bert")
    byte_tokenizer().save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def same_weights(a, b):
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def test_the_embedded_bert():
    model = load()
    assert (model.name, model.family, model.dtype, str(model.device)) == ("minilm", "bert", "float32", "cpu")
    assert model.attn_implementation == "sdpa"
    assert model.sha256 == sources.MINILM_SHA256
    assert model.max_length == 512
    assert not any(module.training for module in model.module.modules())


def test_a_folder_by_name_or_path(saved, bert_copy):
    for given in (bert_copy, str(bert_copy)):
        model = load(given)
        assert same_weights(model.module, build("bert"))
        assert len(model.tokenizer("abc")["input_ids"]) == 5
        assert model.source == bert_copy
        assert capture(model, "abc").layer(1).q.shape == (1, 3, 5, 10)


def test_objects_in_memory():
    module, tokenizer = build("bert"), byte_tokenizer()
    model = load((module, tokenizer))
    assert model.module is module
    assert model.tokenizer is tokenizer
    assert load(model) is model
    assert "BertModel" in repr(model)
    assert len(repr(model)) < 300


@pytest.mark.parametrize(
    ("option", "value"),
    [("head", "masked-lm"), ("attn", "sdpa"), ("dtype", "float64"), ("device", "cpu"), ("trust_remote_code", True)],
)
def test_options_that_cannot_be_followed_are_refused(option, value):
    module = build("bert")
    for given in ((module, None), load((module, None))):
        with pytest.raises(InputError, match=f"`{option}` cannot be set on a model in memory"):
            load(given, **{option: value})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("pair", [(3, None), (), (torch.nn.Linear(2, 3), None), (1, 2, 3)])
def test_objects_that_are_no_model(pair):
    with pytest.raises(InputError, match=r"cannot use these objects as a model: expected \(transformers model"):
        load(pair)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("mini-lm", ["unknown model", "'mini-lm'", "Near names: minilm"]),
        ("bret-base-uncased", ["unknown model", "owner/name"]),
        ("", ["no such model", "expected an existing folder"]),
        ("./gone", ["no such model at './gone'", "expected an existing folder"]),
        ("/gone/away", ["no such model"]),
        ("a/b/c", ["no such model"]),
    ],
)
def test_unknown_models(name, parts):
    with pytest.raises(InputError) as refused:
        load(name)
    assert all(part in str(refused.value) for part in parts), str(refused.value)


def test_the_old_names_without_an_owner_are_known():
    for name in ("bert-base-uncased", "gpt2", "distilgpt2", "distilbert-base-uncased", "t5-small", "roberta-base"):
        assert sources.locate(name, None) == name


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(
        InputError, match=rf"no model in this folder at {re.escape(str(tmp_path))}: expected a config.json"
    ):
        load(tmp_path)


def test_a_file_instead_of_a_folder(bert_copy):
    with pytest.raises(InputError, match=r"cannot load a model from a file at .*model.safetensors: expected a folder"):
        load(bert_copy / "model.safetensors")


def test_a_folder_without_weights(bert_copy):
    (bert_copy / "model.safetensors").unlink()
    with pytest.raises(
        InputError, match=r"cannot load the model .*expected a transformers checkpoint, got .*model.safetensors"
    ):
        load(bert_copy)


@pytest.mark.parametrize("config", ["{}", '{"model_type": "no-such-family"}', "not json"])
def test_not_a_transformer(bert_copy, config):
    (bert_copy / "config.json").write_text(config)
    with pytest.raises(InputError, match="expected a transformers checkpoint"):
        load(bert_copy)


def test_broken_weights_file(bert_copy):
    (bert_copy / "model.safetensors").write_bytes(b"\x00\x01 no safetensors")
    with pytest.raises(InputError, match="cannot load the model"):
        load(bert_copy)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers(bert_copy, value):
    weights = load_file(bert_copy / "model.safetensors")
    name = "encoder.layer.1.attention.self.key.weight"
    weights[name][3, 5] = value
    save_file(weights, bert_copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=rf"are not all numbers at {re.escape(name)}: expected finite values"):
        load(bert_copy)
    module = build("bert")
    module.pooler.dense.bias.data[2] = value
    with pytest.raises(InputError, match=r"are not all numbers at pooler.dense.bias"):
        load((module, None))


def test_large_finite_weights_are_numbers():
    """Their sum overflows; they do not."""
    module = build("bert")
    module.pooler.dense.weight.data.fill_(1e38)
    assert load((module, None)).family == "bert"


def test_bin_files_are_read_with_weights_only(bert_copy):
    weights = load_file(bert_copy / "model.safetensors")
    (bert_copy / "model.safetensors").unlink()
    torch.save(weights, bert_copy / "pytorch_model.bin")
    assert same_weights(load(bert_copy).module, build("bert"))


class Malicious:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def test_a_pickle_with_code_in_it_is_refused(bert_copy, tmp_path):
    trace = tmp_path / "was-here"
    (bert_copy / "model.safetensors").unlink()
    with (bert_copy / "pytorch_model.bin").open("wb") as stream:
        torch.save({"embeddings.word_embeddings.weight": Malicious(trace)}, stream)
    with pytest.raises(InputError, match="cannot load the model"):
        load(bert_copy)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Malicious(trace)))  # the same object does it, where it is let
    assert trace.exists()


def test_safetensors_are_taken_before_bin(bert_copy, tmp_path):
    torch.save({"x": Malicious(tmp_path / "was-here")}, bert_copy / "pytorch_model.bin")
    assert same_weights(load(bert_copy).module, build("bert"))
    assert not (tmp_path / "was-here").exists()


@pytest.fixture
def with_own_code(bert_copy, tmp_path):
    """A checkpoint that brings code, which makes a file when it is imported."""
    trace = tmp_path / "was-here"
    config = json.loads((bert_copy / "config.json").read_text())
    config |= {"model_type": "own-kind", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}}
    (bert_copy / "config.json").write_text(json.dumps(config))
    (bert_copy / "own.py").write_text(
        f"open({str(trace)!r}, 'w').close()\n"
        "from transformers import BertConfig, BertModel\n"
        "class OwnConfig(BertConfig):\n    model_type = 'own-kind'\n"
        "class OwnModel(BertModel):\n    config_class = OwnConfig\n"
    )
    return bert_copy, trace


def test_code_of_a_checkpoint_runs_only_when_asked_for(with_own_code, monkeypatch, tmp_path):
    import transformers.dynamic_module_utils as modules

    folder, trace = with_own_code
    monkeypatch.setattr(modules, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    with pytest.raises(InputError, match=r"asks to run code of its own.*trust_remote_code=True if you trust it"):
        load(folder)
    assert not trace.exists()
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    assert load(folder, trust_remote_code=True).family == "own-kind"
    assert trace.exists()


def test_minilm_has_no_masked_language_model(capfd):
    with pytest.raises(InputError) as refused:
        load("minilm", head="masked-lm")
    told = str(refused.value)
    assert "minilm has no weights for its masked-lm head, which would start at random" in told
    assert "6 missing, such as cls.predictions.bias" in told
    assert "Load it without `head`" in told
    assert capfd.readouterr().err == ""  # transformers' own table would say it twice


@pytest.mark.parametrize(("family", "head"), [("bert", "masked-lm"), ("gpt2", "causal-lm"), ("t5", "seq2seq-lm")])
def test_a_head_that_is_there(saved, family, head):
    classes = {
        "masked-lm": "BertForMaskedLM",
        "causal-lm": "GPT2LMHeadModel",
        "seq2seq-lm": "T5ForConditionalGeneration",
    }
    model = load(saved(family, head=classes[head]), head=head)
    assert type(model.module).__name__ == classes[head]
    assert model.head == head
    assert model.module.get_output_embeddings() is not None
    assert load(saved(family, head=classes[head])).head is None


def test_a_missing_part_of_the_body_is_refused_and_a_missing_pooler_is_not(bert_copy):
    weights = load_file(bert_copy / "model.safetensors")
    fewer = {key: value for key, value in weights.items() if not key.startswith("pooler")}
    save_file(fewer, bert_copy / "model.safetensors", metadata={"format": "pt"})
    assert load(bert_copy).family == "bert"
    del fewer["encoder.layer.0.attention.self.query.weight"]
    save_file(fewer, bert_copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"no weights for part of the model.*1 missing, such as encoder.layer.0"):
        load(bert_copy)


def test_weights_of_another_size_are_refused(bert_copy):
    weights = load_file(bert_copy / "model.safetensors")
    weights["encoder.layer.0.attention.self.query.weight"] = weights["encoder.layer.0.attention.self.query.weight"][:20]
    save_file(
        {k: v.contiguous() for k, v in weights.items()}, bert_copy / "model.safetensors", metadata={"format": "pt"}
    )
    with pytest.raises(InputError, match=r"expected weights of the sizes that its config.json names, got other sizes"):
        load(bert_copy)


def test_heads_name_classes_that_exist():
    import transformers

    assert all(hasattr(transformers, name) for name in HEADS.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn": "egaer"}, r"unknown attention function 'egaer'; near names: eager"),
        ({"attn": "flash_attention_2"}, r"unknown attention function 'flash_attention_2'; known names: eager, sdpa"),
        ({"dtype": "float23"}, r"unknown dtype 'float23'; near names: .*float32"),
        ({"head": "maskedlm"}, r"unknown head 'maskedlm'; near names: masked-lm"),
        ({"device": "cdua"}, r"unknown device: expected cpu \| cuda \| mps \| auto .*got 'cdua'"),
        ({"device": "cuda:x"}, r"unknown device: .*got 'cuda:x'"),
        ({"device": "cpu:7"}, r"the device 'cpu:7' is not available here. Use `cpu`, or `auto`"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(InputError, match=message):
        load("minilm", **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there():
    with pytest.raises(InputError, match="the device 'cuda' is not available here"):
        load("minilm", device="cuda")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_dtypes(saved, dtype):
    assert load(saved("bert"), dtype=dtype).dtype == dtype


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_the_attention_function_is_the_one_asked_for(saved, attn):
    assert load(saved("bert"), attn=attn).attn_implementation == attn


@pytest.mark.parametrize("family", ["gemma2", "mpnet"])
def test_an_attention_function_the_family_refuses(saved, family):
    with pytest.raises(InputError, match=r"the family of .* refuses the attention function 'sdpa'. Use attn='eager'"):
        load(saved(family), attn="sdpa")


def test_an_attention_function_that_is_quietly_not_followed(saved, monkeypatch):
    """As deberta-v2 and falcon did in 5.x: a log line and another function."""
    from transformers import BertModel

    monkeypatch.setattr(BertModel, "_check_and_adjust_attn_implementation", lambda self, *_, **__: "sdpa")
    with pytest.raises(InputError, match=r"does not run with the attention function.*expected eager, got sdpa"):
        load(saved("bert"), attn="eager")


def test_no_tokenizer_leaves_token_ids(saved):
    model = load(saved("bert"))
    assert model.tokenizer is None
    with pytest.raises(
        InputError, match=r"has no tokenizer: got the checkpoint has no tokenizer files. Pass token ids"
    ):
        capture(model, "some text")
    assert capture(model, input_ids=[[11, 12, 13]]).layer(0).q.shape == (1, 3, 3, 10)


def test_a_broken_tokenizer_says_why(bert_copy):
    (bert_copy / "tokenizer.json").write_text('{"version": "1.0"}')
    model = load(bert_copy)
    assert model.tokenizer is None
    assert model.no_tokenizer
    with pytest.raises(InputError, match=r"has no tokenizer: got .+ Pass token ids"):
        capture(model, "some text")


@pytest.mark.parametrize("family", ["bert", "gpt2", "roberta", "t5", "llama"])
def test_an_empty_tokenizer_made_of_the_configuration_is_none(saved, family):
    assert load(saved(family)).tokenizer is None


@pytest.mark.parametrize("family", [name for name, tiny in TINY.items() if tiny.reads == "text"])
def test_the_longest_text_is_read_and_no_longer_one(family):
    """RoBERTa and its kin keep two positions for themselves, which no configuration says."""
    model = load((build(family), None))
    limit = model.max_length
    tiny = TINY[family]
    if limit is None:
        assert family in ("t5", "bloom", "xlnet", "mpt")  # positions by distance
        return
    ids = torch.full((1, limit), 17)
    more = {"decoder_input_ids": ids[:, :3]} if "decoder_start_token_id" in tiny.settings else {}
    with torch.no_grad():
        model.module(input_ids=ids, **more)
        if family in ("bert", "roberta", "camembert", "xlm-roberta", "electra", "gpt2", "mpnet", "distilbert", "opt"):
            with pytest.raises((IndexError, RuntimeError)):
                model.module(input_ids=torch.full((1, limit + 1), 17))


def test_the_limit_of_the_tokenizer_counts_too():
    assert load((build("bert"), byte_tokenizer(max_length=41))).max_length == 41
    assert load((build("bert"), byte_tokenizer(max_length=10**30))).max_length == 101


def test_the_hash_of_weights_depends_on_every_weight(saved):
    """By file where there is one, else by parameters, those without axes included."""
    assert load(saved("bert")).sha256 == sources.file_sha256(saved("bert") / "model.safetensors")
    module = build("bert")
    module.register_buffer("single", torch.tensor(3.0))
    before = load((module, None)).sha256
    assert load((module, None)).sha256 == before
    module.single += 1
    assert load((module, None)).sha256 != before


def test_wrong_weights_of_the_embedded_model_are_refused(monkeypatch):
    monkeypatch.setattr(sources, "MINILM_SHA256", "0" * 64)
    with pytest.raises(InputError, match=r"weights of minilm are not the ones.*expected sha256 0{64}, got 53aa51"):
        load("minilm")


def no_network(code, tmp_path):
    """Run code where every address leads to a port that nothing listens to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    closed = f"http://127.0.0.1:{port}"
    names = {"HF_ENDPOINT": closed, "HTTP_PROXY": closed, "HTTPS_PROXY": closed, "HF_HOME": str(tmp_path)}
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    return subprocess.run(
        [sys.executable, "-c", code], env={**environment, **names}, capture_output=True, text=True, timeout=120
    )


def test_no_network(tmp_path):
    code = (
        "from attnprobe.errors import EnvironmentFailure\nfrom attnprobe.models import sources\n"
        "from attnprobe.models.load import load\n"
        "try:\n    load('owner/no-such-model')\nexcept EnvironmentFailure as e:\n    print(e, e.exit_code)\n"
        "sources.MINILM_PACKAGE = 'no_such_package_here'\n"
        "try:\n    load('minilm')\nexcept EnvironmentFailure as e:\n    print(e, e.exit_code)\n"
    )
    done = no_network(code, tmp_path)
    first, second = done.stdout.splitlines()
    assert "cannot fetch 'owner/no-such-model': got the hub cannot be reached" in first, done.stderr
    assert "`minilm` needs no network. 3" in first
    assert "the embedded model is not installed, and the hub cannot be reached" in second
    assert "attnprobe[demo]" in second
    assert "Retry" not in done.stderr


def test_without_a_network_a_model_in_the_cache_is_loaded_at_once(tmp_path):
    """As the hub's own client lays it out: a snapshot, and the name that points to it. No file is asked for, let alone waited for."""
    commit = "a" * 40
    folder = tmp_path / "hub" / "models--owner--cached"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots").mkdir()
    (folder / "snapshots" / commit).symlink_to(sources.locate("minilm", None), target_is_directory=True)
    done = no_network("from attnprobe import load\nprint(load('owner/cached').tokenizer.tokenize('cats'))", tmp_path)
    assert done.stdout.strip() == "['cats']", done.stderr
    assert "Retry" not in done.stderr


@pytest.mark.network
def test_an_id_that_the_hub_does_not_have():
    with pytest.raises(InputError, match="no such model on the hub"):
        load("attnprobe-tests/no-such-model-at-all")


def test_offline_is_an_environment_failure(monkeypatch):
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentFailure, match="cannot fetch 'owner/no-such-model'"):
        load("owner/no-such-model")


def test_loading_leaves_the_logging_of_transformers_as_it_was():
    from transformers.utils import logging

    found = logging.get_verbosity()
    try:
        for level, show in ((logging.INFO, logging.enable_progress_bar), (found, logging.disable_progress_bar)):
            logging.set_verbosity(level)
            show()
            before = logging.get_verbosity(), logging.is_progress_bar_enabled()
            load("minilm")
            assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    finally:
        logging.set_verbosity(found)
        logging.enable_progress_bar()


def test_the_model_is_a_record():
    model = load((build("bert"), None))
    assert isinstance(model, Model)
    with pytest.raises(AttributeError):
        model.name = "other"


def test_the_embedded_model_asks_the_network_nothing(monkeypatch):
    """Not even where nothing says that there is none: an answer that never comes would hold up every start."""
    asked = []

    def refuse(*arguments, **_):
        asked.append(arguments)
        raise OSError("no network")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert load("minilm").tokenizer is not None
    assert not asked
