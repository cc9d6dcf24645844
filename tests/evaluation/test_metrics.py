"""The four metrics: worked examples, a slow twin, ties, ragged input, errors, the bootstrap and the random row."""

import math

import numpy as np
import pytest

from lrpx.errors import InputError, NonFiniteError
from lrpx.evaluation.metrics import bootstrap, random_baseline, score


def slow_score(relevance, ground_truth, k):
    """The definitions, read aloud."""
    tokens = range(len(relevance))

    def rank(t):
        return sum(1 for u in tokens if relevance[u] >= relevance[t])

    best = min(rank(t) for t in ground_truth)
    positive = [max(r, 0.0) for r in relevance]
    agree = [t for t in tokens if (relevance[t] > 0) == (t in ground_truth)]
    return {
        "pg": 1.0 if best <= k else 0.0,
        "mrr": 1.0 / best,
        "rma": sum(positive[t] for t in ground_truth) / sum(positive) if sum(positive) > 0 else 0.0,
        "pta": len(agree) / len(relevance),
    }


@pytest.mark.parametrize(
    ("relevance", "truth", "pg", "mrr", "rma", "pta"),
    [
        ([0.1, 0.9, -0.4, 0.5], [1], 1, 1, 0.6, 0.5),  # best token; two others are positive
        ([0.1, 0.2, -0.4, 0.5], [1], 1, 1 / 2, 0.25, 0.5),  # second best
        ([0.3, 0.2, -0.4, 0.5], [1], 0, 1 / 3, 0.2, 0.25 + 0.25),  # third: outside the top two
        ([0.3, 0.2, -0.4, 0.5], [1, 3], 1, 1, 0.7, 0.75),  # the better of two ground-truth tokens counts
        ([-1.0, -2.0, -3.0], [2], 0, 1 / 3, 0, 2 / 3),  # nothing positive: no mass
        ([0.0, 0.0, 0.0, 0.0], [1], 0, 1 / 4, 0, 3 / 4),  # constant: ranks last, zero is not positive
        ([7.0, 7.0, 7.0, 7.0], [1], 0, 1 / 4, 1 / 4, 1 / 4),  # constant and positive
        ([5.0, 5.0, 1.0], [0], 1, 1 / 2, 5 / 11, 1 / 3),  # a tie counts against: rank 2
        ([5.0, 5.0, 5.0, 1.0], [0], 0, 1 / 3, 5 / 16, 1 / 4),  # three-way tie: outside the top two
        ([5.0, 5.0, 1.0], [0, 1], 1, 1 / 2, 10 / 11, 2 / 3),  # and also between ground-truth tokens
        ([2.0], [0], 1, 1, 1, 1),
    ],
)
def test_worked_by_hand(relevance, truth, pg, mrr, rma, pta):
    scores = score([relevance], [truth])
    np.testing.assert_allclose([scores.pg[0], scores.mrr[0], scores.rma[0], scores.pta[0]], [pg, mrr, rma, pta])


def ragged(seed, samples=200):
    """Samples of 1 to 40 tokens; every third one on a coarse grid, so that there are ties and exact zeros."""
    rng = np.random.default_rng(seed)
    relevances, truths = [], []
    for n in range(samples):
        length = int(rng.integers(1, 41))
        relevance = rng.normal(size=length)
        relevances.append(np.round(relevance) if n % 3 == 0 else relevance)
        truths.append(np.sort(rng.choice(length, size=int(rng.integers(1, min(length, 4) + 1)), replace=False)))
    return relevances, truths


@pytest.mark.parametrize("k", [1, 2, 5])
def test_agrees_with_the_slow_twin(k):
    relevances, truths = ragged(seed=k)
    scores = score(relevances, truths, k=k)
    twin = [slow_score(r.tolist(), t.tolist(), k) for r, t in zip(relevances, truths, strict=True)]
    for name in ("pg", "mrr", "rma", "pta"):
        np.testing.assert_allclose(getattr(scores, name), [s[name] for s in twin], rtol=1e-12, err_msg=name)
    assert list(scores.to_dict()) == [f"pg{k}", "mrr", "rma", "pta"]


def test_a_batch_is_its_samples_one_by_one():
    relevances, truths = ragged(seed=3, samples=50)
    together = score(relevances, truths)
    for n, (r, t) in enumerate(zip(relevances, truths, strict=True)):
        alone = score([r], [t])
        assert [alone.pg[0], alone.mrr[0], alone.rma[0], alone.pta[0]] == [
            together.pg[n],
            together.mrr[n],
            together.rma[n],
            together.pta[n],
        ]


def test_boolean_ground_truth_and_padless_2d_input_are_the_same():
    relevances = np.random.default_rng(0).normal(size=(6, 9))
    positions = [[n, n + 1] for n in range(6)]
    masks = np.zeros((6, 9), dtype=bool)
    for n, p in enumerate(positions):
        masks[n, p] = True
    for a, b in zip(
        score(relevances, positions).to_dict().values(), score(relevances, masks).to_dict().values(), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e300])
def test_scale_does_not_matter(scale):
    """Relevance of any size scores the same, also where the plain sum would overflow or vanish."""
    relevances = [np.array([4.0, 2.0, -1.0, 4.0, 3.0]), np.array([1.0, 5.0, 4.0])]
    plain, scaled = score(relevances, [[0], [2]]), score([r * scale for r in relevances], [[0], [2]])
    for name, values in plain.to_dict().items():
        np.testing.assert_allclose(scaled.to_dict()[name], values, rtol=1e-2 if scale < 1e-300 else 1e-12)


def test_mean_over_chosen_samples():
    scores = score([[1.0, 2.0], [2.0, 1.0], [2.0, 1.0]], [[0], [0], [0]])
    assert scores.mean()["mrr"] == pytest.approx((0.5 + 1 + 1) / 3)
    assert scores.mean(np.array([True, False, True]))["mrr"] == 0.75
    assert len(scores) == 3
    with pytest.raises(InputError, match="none of 3 samples is left"):
        scores.mean(np.zeros(3, bool))
    with pytest.raises(InputError, match="one boolean for each of 3 samples"):
        scores.mean(np.array([0, 2]))


def test_no_samples_give_empty_arrays_and_no_mean():
    scores = score([], [])
    assert len(scores) == 0
    with pytest.raises(InputError, match="none of 0 samples"):
        scores.mean()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_relevance_names_sample_and_token(value):
    with pytest.raises(NonFiniteError, match=r"sample 1 is (nan|inf|-inf) at token 2"):
        score([[1.0, 2.0], [0.0, 1.0, value, 3.0]], [[0], [0]])


@pytest.mark.parametrize(
    ("relevances", "truths", "message"),
    [
        ([[1.0]], [], "1 relevances and 0 ground truths"),
        ([[1.0], []], [[0], [0]], r"sample 1 has shape \(0,\)"),
        ([[[1.0, 2.0]]], [[0]], r"sample 0 has shape \(1, 2\)"),
        ([["a", "b"]], [[0]], "sample 0 is not an array of numbers"),
        ([[1.0, 2.0]], [[]], "ground truth of sample 0 is empty"),
        ([[1.0, 2.0]], [np.zeros(2, bool)], "ground truth of sample 0 is empty"),
        ([[1.0, 2.0]], [[2]], r"sample 0 is \[2\]: positions lie between 0 and 1"),
        ([[1.0, 2.0]], [[-1]], r"sample 0 is \[-1\]"),
        ([[1.0, 2.0]], [[0.5]], "holds float64"),
        ([[1.0, 2.0]], [np.ones(3, bool)], r"boolean of shape \(3,\) for 2 tokens"),
    ],
)
def test_input_that_does_not_fit(relevances, truths, message):
    with pytest.raises(InputError, match=message):
        score(relevances, truths)


@pytest.mark.parametrize("k", [0, -1, 1.5])
def test_k_is_a_positive_whole_number(k):
    with pytest.raises(InputError, match="whole number of tokens"):
        score([[1.0]], [[0]], k=k)


def test_bootstrap_interval():
    values = np.random.default_rng(0).binomial(1, 0.7, size=400).astype(float)
    mean, low, high = bootstrap(values, n=2000, seed=1)
    spread = 1.96 * values.std() / math.sqrt(len(values))  # the normal approximation
    assert mean == values.mean()
    assert low == pytest.approx(mean - spread, abs=0.01)
    assert high == pytest.approx(mean + spread, abs=0.01)
    assert bootstrap(values, n=2000, seed=1) == (mean, low, high)
    assert bootstrap(values, n=2000, seed=2) != (mean, low, high)
    narrow = bootstrap(values, n=2000, seed=1, level=0.5)
    assert low < narrow.low < mean < narrow.high < high


def test_bootstrap_of_several_metrics_resamples_them_together():
    values = np.random.default_rng(0).random((50, 3))
    together = bootstrap(values, n=200)
    for column in range(3):
        alone = bootstrap(values[:, column], n=200)
        np.testing.assert_allclose([together.mean[column], together.low[column], together.high[column]], alone)


def test_bootstrap_of_a_constant_has_no_width():
    assert bootstrap([0.25] * 7) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize(
    ("values", "options", "error"),
    [
        ([], {}, InputError),
        ([1.0], {"n": 0}, InputError),
        ([1.0], {"level": 1.0}, InputError),
        ([1.0, math.nan], {}, NonFiniteError),
    ],
)
def test_bootstrap_refuses(values, options, error):
    with pytest.raises(error):
        bootstrap(values, **options)


def test_random_row_is_what_chance_gives():
    """One ground-truth token among T: PG2 = 2/T, MRR = H_T/T, RMA = 1/T (where mass exists), PTA = 1/2."""
    length = 8
    row = random_baseline([[3]] * 4000, [length] * 4000, seeds=5)
    assert row.mean["pg2"] == pytest.approx(2 / length, abs=0.01)
    assert row.mean["mrr"] == pytest.approx(sum(1 / t for t in range(1, length + 1)) / length, abs=0.01)
    assert row.mean["rma"] == pytest.approx((1 - 2.0**-length) / length, abs=0.01)
    assert row.mean["pta"] == pytest.approx(0.5, abs=0.01)
    assert row.std["pg2"] == pytest.approx(math.sqrt(0.25 * 0.75 / 4000), rel=0.7)
    assert row.runs["mrr"].shape == (5,)
    assert row.mean["mrr"] == pytest.approx(row.runs["mrr"].mean())


def test_random_row_is_score_on_uniform_draws():
    """The shortcut scores exactly what ``score`` does."""
    lengths, truths = [4, 9, 2], [[1], [0, 8], [1]]
    row = random_baseline(truths, lengths, seeds=2)
    for seed in range(2):
        flat = np.random.default_rng(seed).uniform(-1, 1, size=15)
        means = score(np.split(flat, [4, 13]), truths).mean()
        assert {name: values[seed] for name, values in row.runs.items()} == means
    assert random_baseline(truths, lengths, seeds=1).std["pta"] == 0.0


@pytest.mark.parametrize(("truths", "lengths", "seeds"), [([[0]], [3, 4], 1), ([], [], 1), ([[0]], [3], 0)])
def test_random_row_refuses(truths, lengths, seeds):
    with pytest.raises(InputError, match="at least one of each"):
        random_baseline(truths, lengths, seeds=seeds)
