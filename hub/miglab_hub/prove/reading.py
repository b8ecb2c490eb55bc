"""Lines that read GPUs and change nothing: what they are, how they are, how quickly they answer."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from miglab_hub.prove.lines import CannotTry, LineAnswer
from miglab_hub.prove.trial import Trial
from miglab_pool.gpu.geometry import Geometry, Profile
from miglab_pool.gpu.proof_driver import CallTimes, error_name, simulated_geometry
from miglab_pool.gpu.readings import GpuError, GpuInfo

SHOWN = 3
SLOW_S = 1.0  # a create looks its GPU up a few times, and has gpus.change_s (60 s) for all of it


def check_gpus(trial: Trial) -> Iterator[LineAnswer]:
    """Check that every GPU answers, and no change of its MIG mode is pending."""
    infos = trial.infos.values()
    pending = [info for info in infos if info.mig != info.mig_pending]
    facts = [
        {
            "gpu": trial.label(info.uuid),
            "model": info.name,
            "memory_mib": info.memory_mib,
            "sm_count": info.sm_count,
            "mig": info.mig,
            "mig_pending": info.mig_pending,
        }
        for info in infos
    ]
    parts = [f"{trial.label(i.uuid)}: {i.name}, MIG {_mode(i.mig)}" for i in infos]
    parts += [f"{trial.label(uuid)}: {reason}" for uuid, reason in trial.unread.items()]
    parts += [f"{trial.label(i.uuid)}: MIG {_mode(i.mig_pending)} is pending" for i in pending]
    holds = bool(facts) and not trial.unread and not pending
    yield LineAnswer.judged(
        "gpus", holds, "; ".join(parts) or "there is no GPU", facts={"gpus": facts}
    )


def _mode(is_on: bool | None) -> str:
    return "unknown" if is_on is None else "on" if is_on else "off"


def check_geometry(trial: Trial) -> Iterator[LineAnswer]:
    """Check that each GPU has the geometry of its simulated model."""
    differences: dict[str, list[str]] = {}
    unknown = []
    for info in trial.infos.values():
        simulated = _simulated_geometry(info)
        if simulated is None:
            unknown.append(info.name)
        else:
            differences[trial.label(info.uuid)] = different_profiles(info.geometry, simulated)
    facts = {trial.label(i.uuid): asdict(i.geometry) for i in trial.infos.values()}
    if not differences:
        raise CannotTry(f"no simulated card is called {' or '.join(unknown) or 'so'}")
    wrong = [
        f"{gpu}: {'; '.join(clauses[:SHOWN])}" for gpu, clauses in differences.items() if clauses
    ]
    result = "; ".join(wrong) or "every profile and placement is that of the simulated card"
    yield LineAnswer.judged(
        "geometry", not wrong, result, facts={"read": facts, "differences": differences}
    )


def _simulated_geometry(info: GpuInfo) -> Geometry | None:
    try:
        return simulated_geometry(info.name)
    except ImportError as error:
        raise CannotTry(f"the simulated cards' tables need {error.name}") from error


def different_profiles(real: Geometry, simulated: Geometry) -> list[str]:
    """Return how a GPU's profiles differ from the simulated model's, a clause each.  Pure."""
    names = sorted({*real.by_name, *simulated.by_name})
    differences = []
    for name in names:
        if name not in simulated.by_name:
            differences.append(f"{name} is not simulated")
        elif name not in real.by_name:
            differences.append(f"{name} is simulated, and the GPU lacks it")
        else:
            differences += _different_fields(real.by_name[name], simulated.by_name[name])
    return differences


def _different_fields(real: Profile, simulated: Profile) -> Iterator[str]:
    expected = asdict(simulated)
    for key, value in asdict(real).items():
        if value != expected[key]:
            yield f"{real.name}: {key} is {value}, simulated as {expected[key]}"


def check_health(trial: Trial) -> Iterator[LineAnswer]:
    """Check that each GPU reports its health, and is healthy."""
    reports: dict[str, dict[str, Any]] = {}
    for uuid in trial.infos:
        reading = trial.driver.health(uuid)
        reports[trial.label(uuid)] = {
            "ok": reading.ok,
            "ecc_errors": reading.ecc_errors,
            "tells_xids": reading.xids is not None,
            "tells_temperature": reading.temperature_c is not None,
            "tells_power": reading.power_w is not None,
            "lost": reading.lost,
            "reason": reading.reason,
        }
    _check_any(trial)
    silent = [gpu for gpu, report in reports.items() if not report["tells_xids"]]
    unwell = [f"{gpu}: {r['reason'] or 'unknown'}" for gpu, r in reports.items() if not r["ok"]]
    parts = unwell + [f"{gpu} tells no Xid events" for gpu in silent]
    result = "; ".join(parts) or "every GPU is well and tells Xid events"
    yield LineAnswer.judged("health", not parts, result, facts={"gpus": reports})


def check_recovery_action(trial: Trial) -> Iterator[LineAnswer]:
    """Check that each GPU reports its recovery action, and needs none."""
    needs = {trial.label(uuid): trial.needs(uuid) for uuid in trial.infos}
    _check_any(trial)
    if None in needs.values():
        raise CannotTry("this GPU or driver does not tell field 230")
    result = ", ".join(f"{gpu}: {need or 'nothing'}" for gpu, need in needs.items())
    yield LineAnswer.judged(
        "recovery-action", not any(needs.values()), result, facts={"needs": needs}
    )


def time_lookup(trial: Trial) -> Iterator[LineAnswer]:
    """Measure how long finding a GPU takes, one by one and all at once."""
    _check_any(trial)
    times = [time for uuid in trial.infos for time in _look_up(trial, uuid)]
    yield _lookup_answer(trial, "lookup", times)
    if len(trial.infos) < 2:
        raise CannotTry("there is only one GPU")
    with ThreadPoolExecutor(len(trial.infos)) as threads:
        series = threads.map(lambda uuid: _look_up(trial, uuid), trial.infos)
        yield _lookup_answer(
            trial, "lookup-at-once", [time for of_gpu in series for time in of_gpu]
        )


def _look_up(trial: Trial, uuid: str) -> list[CallTimes]:
    return [trial.driver.ask(uuid, lambda d: d.look_up(uuid)) for _ in trial.pace.lookups]


def _lookup_answer(trial: Trial, line: str, times: list[CallTimes]) -> LineAnswer:
    figures = milliseconds(times)
    longest_s = max(time.total_s for time in times)
    result = f"{len(times)} times on {len(trial.infos)} GPU, at most {1000 * longest_s:.1f} ms"
    return LineAnswer.judged(line, longest_s < SLOW_S, result, figures)


def milliseconds(times: list[CallTimes]) -> dict[str, list[float]]:
    """Return the series of a report, by kind of call."""
    names = sorted({name for time in times for name in time.parts_s})
    series = {f"{n}_ms": [1000 * t.parts_s[n] for t in times if n in t.parts_s] for n in names}
    return {**series, "total_ms": [1000 * time.total_s for time in times]}


def _check_any(trial: Trial) -> None:
    if not trial.infos:
        raise CannotTry("no GPU answers")


def clause_of(error: GpuError) -> str:
    """Return an error as a clause, with NVML's own name for it."""
    return f"{error_name(error)}: {error}"
