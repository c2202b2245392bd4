"""Methods, caveats and citations in plain words: each paragraph is there because of what was run, or of what was not."""

from __future__ import annotations

import re
from typing import Any

from attnprobe.records import Study
from attnprobe.report._arena import parsed
from attnprobe.report._payload import dataset_of
from attnprobe.report._tables import ENOUGH_UNKNOWN, unknown_share
from attnprobe.report._words import Words, count, percent

REFERENCES = {
    "vaswani2017": "Vaswani, A., Shazeer, N., Parmar, N., Uszkoreit, J., Jones, L., Gomez, A. N., Kaiser, Ł., Polosukhin, I. (2017). Attention Is All You Need. NeurIPS.",
    "clark2019": "Clark, K., Khandelwal, U., Levy, O., Manning, C. D. (2019). What Does BERT Look At? An Analysis of BERT's Attention. BlackboxNLP, ACL Anthology W19-4828.",
    "voita2019": "Voita, E., Talbot, D., Moiseev, F., Sennrich, R., Titov, I. (2019). Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy Lifting, the Rest Can Be Pruned. ACL, ACL Anthology P19-1580.",
    "vig2019": "Vig, J., Belinkov, Y. (2019). Analyzing the Structure of Attention in a Transformer Language Model. BlackboxNLP, ACL Anthology W19-4808.",
    "jain2019": "Jain, S., Wallace, B. C. (2019). Attention is not Explanation. NAACL, ACL Anthology N19-1357.",
    "wiegreffe2019": "Wiegreffe, S., Pinter, Y. (2019). Attention is not not Explanation. EMNLP, ACL Anthology D19-1002.",
    "kobayashi2020": "Kobayashi, G., Kuribayashi, T., Yokoi, S., Inui, K. (2020). Attention is Not Only a Weight: Analyzing Transformers with Vector Norms. EMNLP, ACL Anthology 2020.emnlp-main.574.",
    "htut2019": "Htut, P. M., Phang, J., Bordia, S., Bowman, S. R. (2019). Do Attention Heads in BERT Track Syntactic Dependencies? arXiv:1911.12246.",
    "demarneffe2021": "de Marneffe, M.-C., Manning, C. D., Nivre, J., Zeman, D. (2021). Universal Dependencies. Computational Linguistics 47(2).",
    "holm1979": "Holm, S. (1979). A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6(2).",
    "wilson1927": "Wilson, E. B. (1927). Probable Inference, the Law of Succession, and Statistical Inference. Journal of the American Statistical Association 22(158).",
    "michel2019": "Michel, P., Levy, O., Neubig, G. (2019). Are Sixteen Heads Really Better than One? NeurIPS.",
    "hewitt2019": "Hewitt, J., Liang, P. (2019). Designing and Interpreting Probes with Control Tasks. EMNLP, ACL Anthology D19-1275.",
}
NUMBER = re.compile(r"\d+(?:\.\d+)?")
OPTIONAL = ("controls", "importance", "probes", "profiles", "use", "histograms", "trees", "patterns", "clusters")
"""Analyses that a study may or may not hold; the page says which are missing and why."""

Item = dict[str, str]


def methods(study: Study, data: dict[str, Any], badge: dict[str, Any], words: Words) -> list[Item]:
    """How the numbers came about, one paragraph for each part of the study."""
    attributes = study.attributes
    keys = ("dtype", "device", "attn_implementation")
    items = [
        _item("capture", words, **{key: attributes.get(key, "?") for key in keys}),
        _item(f"verify.{badge['status']}", words),
    ]
    dropped = parsed(attributes.get("sentences_dropped"), {})
    total = sum(dropped.values()) if isinstance(dropped, dict) else 0
    corpus = {"kept": count(attributes.get("sentences_kept")), "documents": count(attributes.get("documents"))}
    items.append(_item("corpus", words, **corpus, tokens=count(attributes.get("tokens")), dropped=count(total)))
    cluster = parsed(attributes.get("plan"), {}).get("cluster", "document")
    items.append(_item("splits", words, cluster=words.get(f"cluster.{cluster}", str(cluster))))
    items.append(_item("intervals", words, cluster=words.get(f"cluster.{cluster}", str(cluster))))
    if any(measure["group"] == "metrics" for measure in data["measures"]):
        items.append(_item("metrics", words))
    if data["relations"] is not None:
        margin, minimum = data["relations"]["margin"], data["relations"]["minimum_n"]
        items += [_item("relations", words), _item("baseline", words)]
        items.append(_item("test", words, margin=percent(margin, 0), minimum=minimum))
    if data["labels"] is not None:
        items.append(_item("labels", words))
    if data["profiles"] is not None:
        items.append(_item("profiles", words))
    if data["examples"]:
        items.append(_item("examples", words, n=len(data["examples"])))
    return items


def label_rules(study: Study, words: Words) -> list[Item]:
    """The rule of each label family, as the study itself states it."""
    if "labels" not in study:
        return []
    rules = parsed(dataset_of(study, "labels").attrs.get("rules"), {})
    rules = rules if isinstance(rules, dict) else {}
    return [
        {"title": words.get(f"family.{family}", str(family)), "text": _in_words(str(family), str(rule), words)}
        for family, rule in rules.items()
    ]


def _in_words(family: str, rule: str, words: Words) -> str:
    """A rule in the page's own words, with the study's numbers; as the study states it where they do not fit together."""
    numbers = NUMBER.findall(rule)
    text = words.get(f"rule.{family}")
    wanted = len(set(re.findall(r"\{\d\}", text)))
    return re.sub(r"\{(\d)\}", lambda place: numbers[int(place[1])], text) if text and wanted == len(numbers) else rule


def caveats(study: Study, data: dict[str, Any], badge: dict[str, Any], words: Words) -> list[Item]:
    """What the numbers do not say, gravest first."""
    keys: list[str] = []
    if badge["loud"]:
        keys.append("unverified")
    keys += ["importance" if "importance" not in study else "importance.measured"]
    keys += ["controls"] if "controls" not in study else []
    keys += ["corpus"]
    if data["relations"] is not None:
        keys += ["baseline", "treebank"]
    if data["labels"] is not None:
        keys += ["unlabelled"]
    if any(measure["name"] == "special_mass" for measure in data["measures"]):
        keys += ["sinks"]
    items = [_item(key, words, prefix="caveat") for key in keys]
    share = unknown_share(study)
    if share > ENOUGH_UNKNOWN:
        items.insert(1, _item("unknown", words, prefix="caveat", share=percent(share)))
    return items


def _item(key: str, words: Words, prefix: str = "method", **values: Any) -> Item:
    return {"title": words(f"{prefix}.{key}.title"), "text": words(f"{prefix}.{key}", **values)}


def missing_groups(study: Study, data: dict[str, Any], words: Words) -> list[Item]:
    """Each analysis that the study lacks, with the reason."""
    absent = [
        group for group in ("metrics", "labels", "relations", "best", "examples") if not _present(group, study, data)
    ]
    absent += [group for group in OPTIONAL if group not in study]
    items = [{"title": words(f"group.{group}"), "text": words(f"missing.{group}")} for group in absent]
    findings = [label for row in data["labels"] or [] for found in row for label in found["labels"]]
    if not any("causal" in label for label in findings):
        items.append({"title": words("group.causal"), "text": words("missing.causal")})
    for left in data["left_out"]:
        items.append({"title": left["name"], "text": words(f"missing.because.{left['reason']}")})
    return items


def _present(group: str, study: Study, data: dict[str, Any]) -> bool:
    found = {
        "labels": data["labels"] is not None,
        "relations": data["relations"] is not None,
        "examples": bool(data["examples"]),
    }
    return found.get(group, group in study)


def references(study: Study, data: dict[str, Any]) -> list[str]:
    """The works that this page leans on, by author."""
    used = {"vaswani2017", "clark2019", "voita2019", "jain2019", "wiegreffe2019", "kobayashi2020", "wilson1927"}
    if any(measure["name"] in ("distance", "signed_distance") for measure in data["measures"]):
        used.add("vig2019")
    if data["relations"] is not None:
        used |= {"htut2019", "demarneffe2021", "holm1979"}
    used |= {"michel2019"} if "importance" in study else set()
    used |= {"hewitt2019"} if "probes" in study else set()
    return sorted(REFERENCES[key] for key in used)
