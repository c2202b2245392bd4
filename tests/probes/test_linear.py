"""The batched fit: scikit-learn's optimum, one head at a time, with the penalty chosen on held-out words."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from attnprobe.errors import InputError
from attnprobe.probes import linear, softmax
from attnprobe.probes.linear import Scaler, fit
from attnprobe.probes.softmax import Words, log_losses, loss_and_gradient, predictions
from attnprobe.probes.solver import minimise
from tests.oracles import probe_softmax

HEADS, N, DIM, CLASSES = 3, 211, 7, 5


@pytest.fixture(scope="module")
def words():
    """Classes that lie apart along known directions, with much noise; head 2 has collinear features, one that does not vary."""
    generator = torch.Generator().manual_seed(11)
    y = torch.randint(CLASSES, (N,), generator=generator)
    y[:2] = 4  # a rare class, the others not
    y[2:] = y[2:] % 4
    centres = torch.randn(HEADS, CLASSES, DIM, generator=generator)
    x = centres[:, y] + torch.randn(HEADS, N, DIM, generator=generator)
    x[2, :, 1] = 3 * x[2, :, 0] + 1e-3 * x[2, :, 1]
    x[2, :, 2] = 13.0
    return Words(Scaler.of(x)(x), y, CLASSES)


def test_loss_and_gradient_are_those_of_the_definition(words):
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(HEADS, CLASSES, DIM + 1, generator=generator, dtype=torch.float64)
    exact = Words(words.x.double(), words.y, CLASSES)
    values, gradient = loss_and_gradient(exact, weights, torch.arange(HEADS))
    for head in range(HEADS):
        expected = probe_softmax.losses(words.x[head].double().numpy(), words.y.numpy(), weights[head].numpy())
        assert values[head] == pytest.approx(expected.mean(), rel=1e-12)
        np.testing.assert_allclose(log_losses(exact, weights)[head], expected, rtol=1e-10)
    step = torch.randn(weights.shape, generator=generator, dtype=torch.float64)
    ahead, _ = loss_and_gradient(exact, weights + 1e-5 * step, torch.arange(HEADS))
    behind, _ = loss_and_gradient(exact, weights - 1e-5 * step, torch.arange(HEADS))
    np.testing.assert_allclose((ahead - behind) / 2e-5, (gradient * step).sum((1, 2)), rtol=1e-7)


def test_blocks_and_weights_change_nothing_but_what_they_should(words, monkeypatch):
    weights = torch.randn(HEADS, CLASSES, DIM + 1, generator=torch.Generator().manual_seed(2))
    whole = loss_and_gradient(words, weights, torch.arange(HEADS))
    monkeypatch.setattr(softmax, "BLOCK_ELEMENTS", 3)
    monkeypatch.setattr(softmax, "SMALLEST_BLOCK", 17)
    cut = loss_and_gradient(words, weights, torch.arange(HEADS))
    torch.testing.assert_close(cut[0], whole[0])
    torch.testing.assert_close(cut[1], whole[1])
    # a word that counts twice is a word that is there twice
    weight = torch.ones(N)
    weight[:13] = 2
    twice = words.take(torch.cat([torch.arange(N), torch.arange(13)]))
    counted = words.take(torch.arange(N), weight)
    torch.testing.assert_close(
        loss_and_gradient(counted, weights, torch.arange(HEADS))[1],
        loss_and_gradient(twice, weights, torch.arange(HEADS))[1],
    )


def test_the_curvature_is_symmetric_and_positive(words):
    generator = torch.Generator().manual_seed(4)
    weights = torch.randn(HEADS, CLASSES, DIM + 1, generator=generator)  # not 0: there all classes have their mean at 0
    curvature = softmax.Preconditioner(words, weights, torch.arange(HEADS), 0.01)
    a, b = (torch.randn(HEADS, CLASSES, DIM + 1, generator=generator) for _ in range(2))
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)  # as every gradient of this loss
    torch.testing.assert_close((a * curvature(b)).sum((1, 2)), (b * curvature(a)).sum((1, 2)), rtol=1e-4, atol=1e-4)
    assert ((a * curvature(a)).sum((1, 2)) > 0).all()


@pytest.mark.parametrize("penalty", [0.1, 3.0, 300.0])
def test_the_optimum_is_that_of_scikit_learn(words, penalty):
    found = fit(words, penalties=(penalty,))
    assert found.converged.all()
    for head in range(HEADS):
        x, y = words.x[head].double().numpy(), words.y.numpy()
        exact = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10_000).fit(x, y)
        best = probe_softmax.objective(x, y, np.column_stack([exact.coef_, exact.intercept_]), penalty)
        ours = probe_softmax.objective(x, y, found.weights[head].double().numpy(), penalty)
        assert best * (1 - 1e-9) <= ours <= best * (1 + 1e-4)
        assert found.loss[head] == pytest.approx(best, rel=1e-3)
        assert (found.predict(words)[head].numpy() == exact.predict(x)).mean() > 0.99


@pytest.mark.parametrize("task", ["upos", "deprel", "position"])
def test_the_optimum_is_that_of_scikit_learn_on_a_real_model(real_vectors, some_sentences, task):
    from attnprobe.probes.tasks import choose_tasks, label

    labelled = label(choose_tasks([task])[0], some_sentences)
    rows = real_vectors.rows.find(labelled.sentence, labelled.query)
    classes, y, counts = np.unique(labelled.labels, return_inverse=True, return_counts=True)
    kept = counts[y] > 3
    classes, y = np.unique(y[kept], return_inverse=True)
    heads = [1, 3, 4, 6, 8, 9]
    x = torch.from_numpy(real_vectors.heads("context", 2)[rows[kept]][:, heads]).transpose(0, 1).contiguous()
    words = Words(Scaler.of(x)(x), torch.from_numpy(y), len(classes))
    train, rest = words.take(torch.arange(0, 3000)), words.take(torch.arange(3000, len(words)))
    found = fit(train, penalties=(100.0,))
    for head in range(len(heads)):
        x, y = train.x[head].double().numpy(), train.y.numpy()
        exact = LogisticRegression(C=0.01, tol=1e-7, max_iter=10_000).fit(x, y)
        best = probe_softmax.objective(x, y, np.column_stack([exact.coef_, exact.intercept_]), 100.0)
        assert probe_softmax.objective(x, y, found.weights[head].double().numpy(), 100.0) <= best * (1 + 1e-4)
        expected = exact.score(rest.x[head].numpy(), rest.y.numpy())
        ours = (found.predict(rest)[head] == rest.y).double().mean().item()
        assert abs(ours - expected) <= 0.003


def test_most_steps_are_taken_on_a_sample_that_keeps_rare_classes(words):
    y = torch.cat([torch.zeros(9000), torch.ones(700), torch.full((5,), 2.0)]).long()
    x = torch.randn(1, len(y), 3, generator=torch.Generator().manual_seed(0))
    sample = linear._sample(Words(x, y, 3))
    counts = torch.bincount(sample.y, minlength=3)
    assert len(sample) < 0.2 * len(y)
    assert counts[2] >= 4
    assert counts[1] / counts[0] > 700 / 9000
    weights = torch.zeros(3).index_add_(0, sample.y, sample.weight)
    torch.testing.assert_close(weights, torch.bincount(y) / len(y), rtol=1e-5, atol=1e-6)


def test_with_a_sample_the_optimum_is_still_that_of_all_words(monkeypatch):
    generator = torch.Generator().manual_seed(6)
    y = torch.randint(4, (1013,), generator=generator)
    y[:7] = 4
    x = torch.randn(2, 5, 11, generator=generator)[:, y] + 1.5 * torch.randn(2, len(y), 11, generator=generator)
    words = Words(Scaler.of(x)(x), y, 5)
    without = fit(words, penalties=(1.0,), gap=1e-9)
    monkeypatch.setattr(linear, "SMALLEST_SAMPLE", 131)
    assert len(linear._sample(words)) < 140
    sampled = fit(words, penalties=(10.0, 1.0), held_out=words)
    assert (sampled.penalty == 1.0).all()  # the words themselves are held out: the weakest penalty fits them best
    torch.testing.assert_close(sampled.loss, without.loss, rtol=1e-4, atol=0)


def test_heads_do_not_depend_on_each_other(words):
    together = fit(words, penalties=(30.0, 3.0, 0.3), held_out=words.take(torch.arange(50)))
    for head in range(HEADS):
        alone = Words(words.x[head : head + 1].clone(), words.y, CLASSES)
        held = Words(words.x[head : head + 1, :50].clone(), words.y[:50], CLASSES)
        single = fit(alone, penalties=(30.0, 3.0, 0.3), held_out=held)
        assert torch.equal(single.weights[0], together.weights[head])
        assert single.penalty[0] == together.penalty[head]


def test_larger_heads_do_not_depend_on_each_other_either():
    """Sizes at which products and eigenvectors of a batch have other bits than those of its members."""
    generator = torch.Generator().manual_seed(13)
    x, y = torch.randn(3, 307, 32, generator=generator), torch.arange(307) % 17
    together = fit(Words(x, y, 17), penalties=(3.0,))
    for head in range(3):
        alone = fit(Words(x[head : head + 1].clone(), y, 17), penalties=(3.0,))
        assert torch.equal(alone.weights[0], together.weights[head])


def test_the_step_that_ends_a_search_is_taken():
    """On a parabola with its exact curvature one step is the whole way, so even a search that ends at once ends at the minimum."""
    target = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(3))

    class Exact:
        def __call__(self, gradient):
            return gradient.clone()

        def keep(self, which):
            pass

    def parabola(points, which):
        away = points - target[which]
        return 1 + 0.5 * away.square().sum((1, 2)).double(), away

    found = minimise(parabola, torch.zeros(2, 3, 5), Exact(), gap=1e9, max_passes=7)
    assert found.passes.tolist() == [1, 1]
    torch.testing.assert_close(found.point, target)


def test_all_heads_at_once_as_on_a_gpu_give_the_same_numbers(words, monkeypatch):
    held = words.take(torch.arange(50))
    expected = fit(words, penalties=(30.0, 3.0), held_out=held)
    monkeypatch.setattr(softmax, "one_at_a_time", lambda x: False)
    found = fit(words, penalties=(30.0, 3.0), held_out=held)
    torch.testing.assert_close(found.weights, expected.weights, rtol=0.02, atol=0.02)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-5, atol=0)
    assert torch.equal(found.penalty, expected.penalty)
    assert torch.equal(found.predict(held), expected.predict(held))


@pytest.mark.gpu
def test_a_gpu_gives_the_same_numbers(words):
    device = "cuda" if torch.cuda.is_available() else "mps"
    moved = Words(words.x.to(device), words.y.to(device), CLASSES)
    expected, found = (fit(given, penalties=(3.0,)) for given in (words, moved))
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-4, atol=0)
    same = found.predict(moved).cpu() == expected.predict(words)
    assert same.double().mean() > 0.99


def test_every_heads_vectors_start_aligned():
    """211 * 7 float32 numbers are no multiple of 64 bytes: without room between heads, products would depend on a head's place."""
    x = torch.randn(HEADS, N, DIM)
    found = Words(x, torch.zeros(N, dtype=torch.int64), 2).x
    assert torch.equal(found, x)
    assert [found[head].data_ptr() % softmax.ALIGNMENT for head in range(HEADS)] == [0] * HEADS
    assert softmax.aligned(found).data_ptr() == found.data_ptr()  # copied once only


def test_a_fit_takes_one_thread_and_gives_the_others_back(words, monkeypatch):
    seen = []

    def watched(*given):
        seen.append(torch.get_num_threads())
        return minimise_as_it_is(*given[:3], gap=1e-3, max_passes=3)

    minimise_as_it_is = linear.minimise
    monkeypatch.setattr(linear, "minimise", lambda *given, **options: watched(*given))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fit(words, penalties=(3.0,))
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_same_fit_twice_is_the_same_bits(words):
    first, second = (fit(words, penalties=(3.0,)) for _ in range(2))
    assert torch.equal(first.weights, second.weights)


def test_the_penalty_with_the_least_loss_on_held_out_words_is_taken():
    """Two informative features among many that are noise: too weak a penalty learns the noise, too strong a one nothing."""
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(1, 600, 67, generator=generator)
    y = (x[0, :, 0] + x[0, :, 1] + 0.7 * torch.randn(600, generator=generator) > 0).long()
    words = Words(x, y, 2)
    train, held = words.take(torch.arange(150)), words.take(torch.arange(150, 600))
    penalties = (1e5, 1e3, 30.0, 1.0, 1e-3)
    losses = [log_losses(held, fit(train, penalties=(p,)).weights).mean().item() for p in penalties]
    best = penalties[int(np.argmin(losses))]
    assert best not in (penalties[0], penalties[-1])
    chosen = fit(train, penalties=penalties, held_out=held)
    assert chosen.penalty[0] == best
    assert chosen.held_out[0] == pytest.approx(min(losses), rel=1e-3)


def test_a_planted_direction_is_found_and_noise_is_not():
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(3, 500, DIM, generator=generator)
    y = (x[1, :, 3] > 0).long()
    found = fit(Words(x[:, :300], y[:300], 2), penalties=(0.01,))
    hits = (found.predict(Words(x[:, 300:], y[300:], 2)) == y[300:]).double().mean(1)
    assert hits[1] > 0.98
    assert (hits[[0, 2]] < 0.6).all()


def test_scaling_is_that_of_the_training_words_and_leaves_constants_alone():
    x = torch.tensor([[[1.0, 5.0], [3.0, 5.0]]])
    scaler = Scaler.of(x)
    assert scaler(x).tolist() == [[[-1.0, 0.0], [1.0, 0.0]]]
    assert scaler(torch.tensor([[[5.0, 6.0]]])).tolist() == [[[3.0, 1.0]]]


def test_equal_scores_give_the_lowest_class():
    words = Words(torch.zeros(1, 3, 2), torch.zeros(3, dtype=torch.int64), 3)
    weights = torch.tensor([[[0.0, 0.0, -1.0], [0.0, 0.0, 2.0], [0.0, 0.0, 2.0]]])
    assert predictions(words, weights).tolist() == [[1, 1, 1]]


@pytest.mark.parametrize(
    ("penalties", "y", "n_classes", "told"),
    [
        ((), [0, 1], 2, "positive numbers"),
        ((1.0, -1.0), [0, 1], 2, "positive numbers"),
        ((1.0, 2.0), [0, 1], 2, "held-out words"),
        ((1.0,), [0, 0], 1, "two classes"),
        ((1.0,), [0, 2], 3, "2 of 3"),
    ],
)
def test_what_cannot_be_fitted_says_why(penalties, y, n_classes, told):
    with pytest.raises(InputError, match=told):
        fit(Words(torch.randn(1, 2, 3), torch.tensor(y), n_classes), penalties=penalties)
