"""Derives a GPU's row and its reasons from what the GPU reports.  Pure."""

from dataclasses import replace

from miglab_pool.gpu.readings import GpuInfo, Health
from miglab_pool.ledger.rows import GPU_UNKNOWN, GpuRow
from miglab_pool.worker.health_findings import wrong_mode

NO_NAME = "not known yet"


def unread_row(uuid: str, index: int) -> GpuRow:
    """The row of a GPU that was not read yet."""
    return GpuRow(uuid, index, NO_NAME, 0, 0, None, None, GPU_UNKNOWN, "it was not looked at yet")


def updated_row(info: GpuInfo, before: GpuRow | None) -> GpuRow:
    """Return the GPU's row with the facts that it reports; what staff did with it stays."""
    row = before or unread_row(info.uuid, info.index)
    return replace(
        row,
        idx=info.index,
        name=info.name,
        memory_mib=info.memory_mib,
        memory_slices=info.geometry.memory_slices,
        sm_count=info.sm_count,
        mig=row.mig if info.mig is None else info.mig,
    )


def row_after_boot(row: GpuRow, boot: str) -> GpuRow:
    """Return the row with the host's boot id; a reboot resets every GPU, so it ends a fault."""
    fault = "" if boot and row.boot and boot != row.boot else row.fault
    return replace(row, boot=boot or row.boot, fault=fault)


def missing_reason(before: GpuRow | None, boot: str) -> str:
    """Why earlier slices are gone, as far as the host tells."""
    if before is None or not boot or not before.boot:
        return "NVML does not show it any more; was the host rebooted?"
    if boot != before.boot:
        return "The host was rebooted, which destroys every slice."
    return (
        "NVML does not show it any more, and the host was not rebooted: the driver was reloaded, "
        "the GPU was reset, or somebody destroyed it by hand."
    )


def is_unpartitioned(info: GpuInfo) -> bool:
    """Whether it has no slices to be read, as MIG is off or it cannot do MIG."""
    return info.mig is False or not info.geometry.profiles


def unfit_reason(row: GpuRow, info: GpuInfo, health: Health, *, is_whole: bool) -> str:
    """Why a GPU that answers takes no new lease; empty if it does.

    Args:
        row: its row.
        info: what it is.
        health: how it is.
        is_whole: whether lab.toml wants it whole.
    """
    if health.needs:
        return health.reason
    if row.fault:
        return f"{row.fault} Then: miglab pool undrain gpu {info.uuid}"
    mode = wrong_mode(info, is_whole=is_whole)
    return f"{mode.problem}. {mode.remedy[:1].upper()}{mode.remedy[1:]}." if mode else ""
