"""Every block of the READMEs runs; the two say the same."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(name):
    return BLOCK.findall((ROOT / name).read_text(encoding="utf-8"))


def test_the_blocks_run_in_order_as_printed(tmp_path):
    """Shell blocks through the shell, Python blocks in one interpreter each; installing is what the gate itself does."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    ran = 0
    for language, text in blocks("README.md"):
        if "pip install" in text:
            continue
        command = (
            ["bash", "-euo", "pipefail", "-c", text]
            if language == "sh"
            else [sys.executable, "-W", "error", "-c", text]
        )
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        ran += 1
    assert ran >= 4
    for made in ("first.html", "study.nc", "page.html", "compared.html", "capture.safetensors"):
        assert (tmp_path / made).stat().st_size > 10_000


def test_the_two_commands_are_one_line_each():
    lines = [line for _, text in blocks("README.md") for line in text.splitlines() if "pip install" in line]
    assert len(lines) == 2
    assert all("-c constraints.txt" in line and "&&" in line for line in lines)


def test_the_chinese_readme_has_the_same_blocks():
    def code(name):
        return [re.sub(r"\s*#.*", "", text) for _, text in blocks(name)]

    assert code("README.zh.md") == code("README.md")


@pytest.mark.parametrize("name", ["README.md", "README.zh.md", "CONTRIBUTING.md"])
def test_local_links_exist(name):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target
