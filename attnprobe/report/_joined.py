"""One page of several studies of one model: groups that a first study lacks are taken from the others."""

from __future__ import annotations

from collections.abc import Iterable

import xarray as xr

from attnprobe.errors import InputError, explain
from attnprobe.records import Study


def join(study: Study, others: Iterable[Study]) -> Study:
    """The study with the groups it lacks, from others of the same weights: probes or importance that were run by themselves.

    What the study has stays as it is. Raises `InputError` for a study of other weights: its numbers belong to other heads.
    """
    groups = {group: study.tree[group] for group in study.groups}
    for other in others:
        names = [one.attributes.get("model_sha256") for one in (study, other)]
        if names[0] is None or names[0] != names[1]:
            got = " and ".join(str(one.attributes.get("model", "?")) for one in (study, other))
            remedy = "Run both on the same model"
            raise InputError(
                explain("cannot join these studies", expected="the same weights (model_sha256)", got=got, remedy=remedy)
            )
        groups |= {group: other.tree[group] for group in other.groups if group not in groups}
    root = xr.Dataset(attrs=dict(study.attributes))
    tree = xr.DataTree(root)
    for group, node in groups.items():
        tree[group] = node.copy()
    return Study(tree)
