"""Students' code is judged exactly: right answers pass, typical wrong ones get a sentence."""

import pytest
from tests.needs import needs

from labkit.exercises import code_checks as checks

needs("torch", "the code checks compare tensors")


def cat(parts, dim=0):
    """`torch.cat`; torch is not imported while tests are collected."""
    import torch

    return torch.cat(parts, dim=dim)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Nobody waits long for a message that never comes."""
    monkeypatch.setattr(checks, "PATIENCE_S", 0.2)


def naive(tensor, rank, world, send, receive):
    for other in range(world):
        if other != rank:
            send(other, tensor)
    return tensor + sum(receive(other) for other in range(world) if other != rank)


def ring(tensor, rank, world, send, receive):
    pad = -len(tensor) % world
    chunks = list(cat([tensor, tensor.new_zeros(pad)]).chunk(world))
    for step in range(world - 1):
        send((rank + 1) % world, chunks[(rank - step) % world])
        chunks[(rank - step - 1) % world] = chunks[(rank - step - 1) % world] + receive(
            (rank - 1) % world
        )
    for step in range(world - 1):
        send((rank + 1) % world, chunks[(rank + 1 - step) % world])
        chunks[(rank - step) % world] = receive((rank - 1) % world)
    return cat(chunks)[: len(tensor)]


def forgets_itself(tensor, rank, world, send, receive):
    return naive(tensor, rank, world, send, receive) - tensor


def waits_for_ever(tensor, rank, world, send, receive):
    return receive((rank + 1) % world) if world > 1 else tensor


def has_a_bug(tensor, rank, world, send, receive):
    return tensor.nonsense


def test_a_naive_all_reduce_is_right_but_no_ring():
    """It gives the sum, and sends more than a ring may."""
    assert checks.check_all_reduce(naive).right
    judged = checks.check_all_reduce(naive, ring=True)
    assert not judged.right
    assert "with 3 ranks: one sends 192 bytes; a ring sends 128" in judged.why


def test_a_ring_is_right():
    """Also for sizes that the ranks do not divide."""
    judged = checks.check_all_reduce(ring, ring=True)
    assert judged.right, judged.why


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (forgets_itself, "does not hold the sum"),
        (waits_for_ever, "sends nothing more"),
        (has_a_bug, "no attribute"),
    ],
)
def test_wrong_all_reduces_get_a_sentence(function, says):
    """Wrong sum, a deadlock, an exception: never a hang or a traceback."""
    judged = checks.check_all_reduce(function)
    assert not judged.right
    assert says in judged.why


def test_gradients_are_averaged_not_summed():
    """The mean passes; the sum and the first rank's alone do not."""
    assert checks.check_gradient_averaging(lambda parts: sum(parts) / len(parts)).right


@pytest.mark.parametrize(
    ("combine", "says"),
    [
        (sum, "it is the sum, and the loss is a mean"),
        (lambda parts: parts[-1], "one rank's own"),
        (lambda parts: sum(parts) / 2, "not always 2"),
        (lambda parts: sum(parts) * 0.3, "off by"),
        (lambda parts: "a mean", "return one tensor"),
        (lambda parts: None, "return one tensor"),
    ],
    ids=["sum", "own", "half", "other", "word", "nothing"],
)
def test_gradients_combined_otherwise_are_told_how(combine, says):
    """Added, one rank's own, and divided by the wrong number each have a name."""
    judged = checks.check_gradient_averaging(combine)
    assert not judged.right
    assert says in judged.why


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda tensor, *_: tensor, "with 2 ranks: rank 0 does not hold the sum: it still holds"),
        (lambda tensor, *_: None, "with 1 rank: rank 0 does not hold the sum: it returned nothing"),
        (
            lambda tensor, rank, world, *wires: naive(tensor, rank, world, *wires) / world,
            "the mean",
        ),
        (lambda tensor, *rest: naive(tensor, *rest) + tensor, "twice"),
        (forgets_itself, "missing from it"),
    ],
    ids=["own", "nothing", "mean", "twice", "missing"],
)
def test_what_is_no_sum_is_told_what_it_is(function, says):
    """Its own tensor, the mean, the others' sum."""
    assert says in checks.check_all_reduce(function).why


def test_a_ring_that_ends_half_way_is_told_how_much_is_finished():
    """The first loop leaves one finished chunk on each rank."""

    def half(tensor, rank, world, send, receive):
        chunks = list(tensor.clone().tensor_split(world))
        for step in range(world - 1):
            send((rank + 1) % world, chunks[(rank - step) % world])
            chunks[(rank - step - 1) % world] += receive((rank - 1) % world)
        return cat(chunks)

    assert "4 of its 8 numbers are finished" in checks.check_all_reduce(half, ring=True).why


def by_rows(x, weights, ranks):
    pairs = zip(x.chunk(ranks, 1), weights.chunk(ranks, 0), strict=True)
    return sum(part @ rows for part, rows in pairs)


def by_columns(x, weights, ranks):
    return cat([x @ columns for columns in weights.chunk(ranks, 1)], dim=1)


def transposed(x, weights, ranks):
    return cat([(columns.mT @ x.mT).mT for columns in weights.chunk(ranks, 1)], dim=1)


def test_split_products_are_exact():
    """Rows are added, columns stacked, as they are or transposed; the wrong way is noticed."""
    assert checks.check_split_matmul(transposed, by="columns").right
    assert checks.check_split_matmul(by_rows, by="rows").right
    unwritten = checks.check_split_matmul(lambda x, w, n: None, by="rows")
    assert "write the split by rows first" in unwritten.why
    assert checks.check_split_matmul(by_columns, by="columns").right
    stacked = checks.check_split_matmul(lambda x, w, n: cat([by_rows(x, w, n)] * 2), by="rows")
    assert not stacked.right


class DoublingScaler:
    def __init__(self, start=65536.0, factor=0.5):
        self.scale, self._factor, self._good = start, factor, 0

    def update(self, found_inf):
        if found_inf:
            self.scale, self._good = self.scale * self._factor, 0
            return False
        self._good += 1
        if self._good % 2000 == 0:
            self.scale *= 2
        return True


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: DoublingScaler(start=0.001), "small scale"),
        (lambda: DoublingScaler(factor=2.0), "must shrink"),
        (lambda: object(), "no attribute"),
    ],
)
def test_typical_wrong_scalers_are_explained(make, says):
    """The published sentence that has it backwards (E9), growth at infinities, no scaler at all."""
    judged = checks.check_loss_scaler(make)
    assert not judged.right
    assert says in judged.why


def other_factors(shrink, grow):
    class Odd(DoublingScaler):
        def update(self, found_inf):
            before, taken = self.scale, super().update(found_inf)
            changed = self.scale / before
            self.scale = before * (shrink if changed < 1 else grow if changed > 1 else 1)
            return taken

    return Odd


@pytest.mark.parametrize(
    ("make", "says"),
    [(other_factors(1e-3, 2), "must be halved"), (other_factors(0.5, 1.001), "double the scale")],
)
def test_a_scaler_with_other_factors_is_not_the_one_asked_for(make, says):
    """A thousandth at an inf, and a thousandth more at growth, are not the rules."""
    judged = checks.check_loss_scaler(make)
    assert not judged.right
    assert says in judged.why


def test_a_scaler_that_doubles_only_once_is_told_so():
    """Its count of good steps is compared and never set back."""

    class Once(DoublingScaler):
        def update(self, found_inf):
            if not found_inf and self._good >= 2000:
                return True
            return super().update(found_inf)

    judged = checks.check_loss_scaler(Once)
    assert not judged.right
    assert "doubling must start the count of good steps anew" in judged.why


def test_a_whole_product_is_no_split_one():
    """x @ w is the right number and splits nothing."""
    for by in ("rows", "columns"):
        judged = checks.check_split_matmul(lambda x, w, ranks: x @ w, by=by)
        assert not judged.right
        assert "each multiply by a part" in judged.why
    assert not checks.check_split_matmul(by_columns, by="rows").right


def test_a_dynamic_scaler_passes():
    """It backs off, skips, and grows again."""
    assert checks.check_loss_scaler(DoublingScaler).right
