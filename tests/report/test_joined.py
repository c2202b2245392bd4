"""Studies of one model joined for one page."""

import numpy as np
import pytest
import xarray as xr

from attnprobe.errors import InputError
from attnprobe.records import Study
from attnprobe.report._joined import join
from tests.report.test_page_studies import ATTRIBUTES, extras, whole


def part(**attributes):
    probes = extras().tree["probes"].to_dataset()
    other = whole().tree["metrics"].to_dataset() * 0
    return Study(
        xr.DataTree.from_dict(
            {"/": xr.Dataset(attrs={**ATTRIBUTES, **attributes}), "/probes": probes, "/metrics": other}
        )
    )


def test_what_is_lacking_is_added_and_nothing_else_changes():
    found = join(whole(), [part()])
    assert found.groups == [*whole().groups, "probes"]
    xr.testing.assert_identical(found["probes"], extras()["probes"])
    for group in whole().groups:
        if group != "examples":
            xr.testing.assert_identical(found[group], whole()[group])
    np.testing.assert_array_equal(found["examples/e0"]["pattern"], whole()["examples/e0"]["pattern"])
    assert found.attributes == whole().attributes


def test_another_models_numbers_are_refused():
    with pytest.raises(InputError, match="cannot join these studies.*same weights.*got tiny and other.*same model"):
        join(whole(), [part(model="other", model_sha256="ef" * 32)])
    with pytest.raises(InputError, match="same weights"):
        join(Study(xr.DataTree()), [Study(xr.DataTree())])
