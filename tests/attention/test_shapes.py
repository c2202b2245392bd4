import torch

from attnprobe.attention import describe
from tests.attention.calls import make_call, padding_bias


def table(call):
    return {line.split()[0]: line for line in describe(call).splitlines()[2:]}


def test_the_table_shows_every_shape(draw):
    call = make_call(draw(2, 6, 5, 11), draw(2, 6, 7, 11), draw(2, 6, 7, 13), scale=0.25)
    text = describe(call)
    assert text.splitlines()[0] == "layer 0, encoder attention 0, eager, torch.float64"
    rows = table(call)
    assert list(rows) == ["query", "key", "value", "scores", "weights", "context", "output"]
    shapes = {
        "query": "2 x 6 x 5 x 11",
        "key": "2 x 6 x 7 x 11",
        "value": "2 x 6 x 7 x 13",
        "scores": "2 x 6 x 5 x 7",
        "weights": "2 x 6 x 5 x 7",
        "context": "2 x 6 x 5 x 13",
        "output": "2 x 5 x 78",
    }
    for name, shape in shapes.items():
        assert f"  {shape}  " in rows[name]
    assert "q @ k^T * 0.25; added: nothing" in rows["scores"]
    assert "softmax over keys" in rows["weights"]


def test_the_table_says_what_a_family_has_besides(draw):
    bias = padding_bias([7, 3], 7, torch.float64)
    call = make_call(draw(2, 6, 5, 11), draw(2, 2, 7, 11), draw(2, 2, 7, 13), bias=bias, softcap=50.0, sinks=draw(6))
    rows = table(call)
    assert rows["key"].endswith("k, each shared by 3 heads")
    assert "50 * tanh(" in rows["scores"]
    assert rows["scores"].endswith("added: mask and position bias")
    assert "a sink per head" in rows["weights"]


def test_columns_line_up(draw):
    call = make_call(draw(2, 6, 5, 11), draw(2, 6, 7, 11), draw(2, 6, 7, 13))
    lines = describe(call).splitlines()[1:]
    start = lines[0].index("shape")
    assert all(line[start - 2 : start] == "  " and line[start] != " " for line in lines)
