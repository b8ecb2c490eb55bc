"""What a slice was used for since its server has had it."""

from miglab_jupyterlab.history import MOST, History


def lease(*slices: tuple[float | None, float | None]) -> dict[str, object]:
    return {"slices": [{"memory_used_mib": used, "activity_pct": pct} for used, pct in slices]}


def test_points_have_an_age_and_what_is_not_known_stays_unknown():
    """Memory is the sum, activity the mean; one slice that tells nothing makes neither zero."""
    history = History()
    history.add(100.0, lease((1000, 20.0), (500, 40.0)), runs=True)
    history.add(115.0, lease((1000, None), (None, 40.0)), runs=False)
    assert history.shown(120.0) == [[20, 1500, 30.0, True], [5, None, None, False]]


def test_a_long_lease_is_thinned_and_keeps_its_beginning():
    """However long it lasts, no more is told than can be drawn."""
    history = History()
    for at in range(5 * MOST):
        history.add(float(at), lease((at, None)), runs=False)
    shown = history.shown(5.0 * MOST)
    assert len(shown) <= MOST
    assert shown[0][1] == 0 and shown[-1][1] >= 5 * MOST - 2
