"""Data parallelism by hand: the right ways pass, and each typical mistake gets its sentence."""

import pytest
from tests.needs import needs

from labkit.exercises import code_checks
from labkit.exercises.ddp_checks import check_buckets, check_sync

needs("torch", "the checks compare tensors")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Every message here comes; on a slow machine it may come late."""
    monkeypatch.setattr(code_checks, "PATIENCE_S", 60.0)


def flat(gradients, world, all_reduce, *, mean=True, turned=False, shaped=True):
    import torch

    order = gradients[::-1] if turned else gradients
    total = all_reduce(torch.cat([one.flatten() for one in order]))() / (world if mean else 1)
    parts = total.split([one.numel() for one in gradients])
    return [
        part.view(one.shape) if shaped else part for part, one in zip(parts, gradients, strict=True)
    ]


def alone(gradients, world, all_reduce):
    return [all_reduce(one)() / world for one in gradients]


def test_the_right_ways_pass():
    """Each gradient by itself, and all of them in one."""
    assert check_sync(alone).right
    assert check_sync(flat, flat=True).right


@pytest.mark.parametrize(
    ("wrong", "is_flat", "said"),
    [
        (alone, True, "where 1 should be made"),
        (flat, False, "where 6 should be made"),
        (lambda *given: flat(*given, mean=False), True, "sum, not their mean"),
        (lambda *given: flat(*given, shaped=False), True, "must have the shape"),
        (lambda *given: flat(*given, turned=True), True, "not the mean"),
        (lambda gradients, *_: gradients, False, "nothing was sent"),
        (lambda *_: None, True, "nothing was sent"),
    ],
)
def test_a_wrong_sync_is_named(wrong, is_flat, said):
    """The sentence says what is wrong with it."""
    verdict = check_sync(wrong, flat=is_flat)
    assert not verdict.right
    assert said in verdict.why


class OwnBuckets:
    """The right one, each rule open to one mistake."""

    is_late, waits, forgets, sums, fills = False, False, False, False, True

    def __init__(self, world, all_reduce, most):
        self.world, self.all_reduce, self.most = world, all_reduce, most
        self.filling, self.sent = [], []

    def ready(self, number, gradient):
        self.filling.append((number, gradient))
        is_full = sum(one.numel() for _, one in self.filling) >= self.most
        if (is_full or not self.fills) and not self.is_late:
            self.leave()

    def leave(self):
        import torch

        wait = self.all_reduce(torch.cat([one.flatten() for _, one in self.filling]))
        if self.waits:
            wait()
        self.sent.append((wait, self.filling))
        self.filling = []

    def finish(self):
        if self.filling and not self.forgets:
            self.leave()
        found = dict(self.filling)
        for wait, bucket in self.sent:
            parts = (wait() / (1 if self.sums else self.world)).split(
                [g.numel() for _, g in bucket]
            )
            found.update({n: p.view(g.shape) for p, (n, g) in zip(parts, bucket, strict=True)})
        return found


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ({"is_late": True}, "nothing was sent before finish"),
        ({"waits": True}, "ready waits"),
        ({"forgets": True}, "not all gradients were sent"),
        ({"sums": True}, "sum, not their mean"),
        ({"fills": False}, "every gradient went alone"),
    ],
)
def test_a_wrong_bucket_is_named(mistake, said):
    """Without the mistake the same class passes, so that it is the mistake that fails."""
    assert check_buckets(OwnBuckets).right
    verdict = check_buckets(type("Wrong", (OwnBuckets,), mistake))
    assert not verdict.right
    assert said in verdict.why
