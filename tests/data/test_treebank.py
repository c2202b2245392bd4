"""The bundled treebank: the official validator, its text, its size, what it is promised to hold, and the counts that its README tells."""

import re
import subprocess
import sys
from collections import Counter

import pytest

from attnprobe.data.catalogue import BUNDLED_FILE
from attnprobe.text.batching import split_of_sentence
from attnprobe.text.conllu import read_conllu
from attnprobe.text.entities import chains_of

FOLDER = BUNDLED_FILE.parent
RAW = BUNDLED_FILE.read_text(encoding="utf-8")
README = (FOLDER / "README.md").read_text(encoding="utf-8")
GENRES = ("news", "dialogue", "story", "howto", "letter", "science")
VALIDATE = "import sys; from udtools.cli import main; sys.exit(main())"


@pytest.fixture(scope="module")
def sentences():
    return list(read_conllu(BUNDLED_FILE))


@pytest.fixture(scope="module")
def chains(sentences):
    return chains_of(sentences)


def blocks():
    """Comments and rows of each sentence, read here again without the package's reader."""
    for block in RAW.strip("\n").split("\n\n"):
        lines = block.split("\n")
        comments = dict(line[2:].split(" = ", 1) for line in lines if line.startswith("# ") and " = " in line)
        yield comments, [line.split("\t") for line in lines if not line.startswith("#")]


def rebuilt(rows):
    """Running text out of surface tokens: a range stands for its words."""
    text, covered = "", 0
    for row in rows:
        first, _, last = row[0].partition("-")
        if int(first) > covered:
            text += row[1] + ("" if "SpaceAfter=No" in row[9].split("|") else " ")
            covered = int(last or first)
    return text.removesuffix(" ")


def table(first):
    """Rows of the README's table whose first column has this heading, as {name: (numbers)}."""
    found = re.search(rf"^\| {first} \|.*\n\|---.*\n((?:\|.*\n)+)", README, re.MULTILINE)
    assert found, first
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in found[1].splitlines()]
    return {name: tuple(int(number.replace(",", "")) for number in numbers) for name, *numbers in rows}


def size(sentences):
    return len({sentence.document for sentence in sentences}), len(sentences), sum(map(len, sentences))


def labels(sentences, split=None):
    """How often each relation occurs, in all or in one half."""
    kept = [sentence for sentence in sentences if split is None or split_of_sentence(sentence) == split]
    return Counter(label for sentence in kept for label in sentence.deprels)


@pytest.mark.parametrize("more", [[], ["--coref"]], ids=["trees", "coreference"])
def test_the_official_validator_passes(more):
    command = [sys.executable, "-c", VALIDATE, "--lang", "en", "--level", "5", *more, str(BUNDLED_FILE)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert "*** PASSED ***" in told
    assert "ERROR" not in told


def test_text_rebuilt_from_the_trees_is_the_text(sentences):
    read = {sentence.id: sentence for sentence in sentences}
    assert len(read) == len(sentences)
    for comments, rows in blocks():
        assert rebuilt(rows) == comments["text"] == read.pop(comments["sent_id"]).text
    assert not read


def test_size_is_what_was_promised(sentences):
    documents, n, words = size(sentences)
    assert documents >= 60
    assert n >= 600
    assert words >= 8_000
    assert {sentence.document.partition("-")[0] for sentence in sentences} == set(GENRES)
    assert {len(sentence) for sentence in sentences} <= set(range(3, 46))


def test_common_relations_have_enough_cases(sentences):
    everywhere, report = labels(sentences), labels(sentences, "report")
    assert min(n for _, n in everywhere.most_common(20)) >= 100
    assert min(report[label] for label, _ in everywhere.most_common(12)) >= 100
    assert min(n for _, n in report.most_common(12)) >= 100


def test_chains_go_through_sentences_and_hold_one_type(sentences, chains):
    across = [chain for chain in chains.values() if len({place for place, _ in chain}) > 1]
    assert len(across) >= 200
    assert {document for document, _ in chains} == {sentence.document for sentence in sentences}
    for (document, cluster), chain in chains.items():
        assert len({mention.type for _, mention in chain}) == 1, (document, cluster)
        assert {sentences[place].document for place, _ in chain} == {document}
    assert len({cluster for _, cluster in chains}) == len(chains), "an entity's name is unique in the file"
    for place, sentence in enumerate(sentences):
        spans = Counter(mention.words for chain in chains.values() for at, mention in chain if at == place)
        assert all(n == 1 for n in spans.values()), sentence.id


def test_pronouns_that_are_mentions_have_an_antecedent_somewhere(sentences, chains):
    pronoun = {
        key
        for key, chain in chains.items()
        for place, mention in chain
        if sentences[place].xpos[mention.head] in ("PRP", "PRP$")
        and sentences[place].feats[mention.head].get("Person") == "3"
    }
    alone = [key for key in pronoun if len(chains[key]) == 1]
    assert len(alone) <= len(pronoun) / 20, sorted(alone)


def test_arguments_are_words_of_their_sentence(sentences):
    predicates = 0
    for sentence in sentences:
        for place, misc in enumerate(sentence.misc):
            roles = {role: int(word) for role, word in misc.items() if role.startswith("ARG")}
            assert all(re.fullmatch(r"ARG[0-4]", role) for role in roles), sentence.id
            assert all(1 <= word <= len(sentence) and word != place + 1 for word in roles.values()), sentence.id
            assert len(set(roles.values())) == len(roles), sentence.id
            predicates += bool(roles)
    assert predicates >= 200


def test_readme_tells_the_size(sentences):
    by_split = {split: [s for s in sentences if split_of_sentence(s) == split] for split in ("select", "report")}
    by_genre = {genre: [s for s in sentences if s.document.startswith(f"{genre}-")] for genre in GENRES}
    found = {name: size(group) for name, group in {**by_genre, "all": sentences, **by_split}.items()}
    assert table("genre") == found
    lengths = [len(sentence) for sentence in sentences]
    assert f"Sentences have {min(lengths)} to {max(lengths)} words" in README


def test_readme_tells_the_relations(sentences):
    everywhere, report = labels(sentences), labels(sentences, "report")
    assert table("relation") == {label: (n, report[label]) for label, n in everywhere.items()}


def test_readme_tells_entities_chains_and_predicates(sentences, chains):
    mentions = Counter(mention.type for chain in chains.values() for _, mention in chain)
    entities = Counter(chain[0][1].type for chain in chains.values())
    chained = Counter(chain[0][1].type for chain in chains.values() if len(chain) > 1)
    found = {kind: (mentions[kind], entities[kind], chained[kind]) for kind in mentions}
    assert table("type") == {**found, "all": (mentions.total(), entities.total(), chained.total())}
    across = sum(len({place for place, _ in chain}) > 1 for chain in chains.values())
    longest = max(map(len, chains.values()))
    assert f"{across} chains go through more than one sentence; the longest has {longest} mentions" in README
    tags = Counter(sentences[place].upos[mention.head] for chain in chains.values() for place, mention in chain)
    rest = mentions.total() - tags["PRON"] - tags["PROPN"]
    assert f"{tags['PRON']:,} are pronouns, {tags['PROPN']:,} names and {rest:,} other noun phrases" in README
    roles = Counter(role for sentence in sentences for misc in sentence.misc for role in misc if role.startswith("ARG"))
    predicates = sum(any(key.startswith("ARG") for key in misc) for sentence in sentences for misc in sentence.misc)
    assert f"\n{predicates:,} words carry arguments" in README
    assert ", ".join(f"{role} {n:,}" for role, n in sorted(roles.items())) + "." in README


def test_licence_lies_beside_the_file():
    licence = (FOLDER / "LICENSE").read_text(encoding="utf-8")
    for text in (licence, README):
        assert "CC BY 4.0" in text
        assert "https://creativecommons.org/licenses/by/4.0/" in text
