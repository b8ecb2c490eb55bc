"""Layouts as a file would say them, for tests that want none."""

from miglab_pool.layouts.file import FilePosition, GroupDraft, LayoutDraft


def names(partition: str) -> tuple[str, ...]:
    """The profiles of ``4g.20gb + 3x1g.5gb``; of an empty text none."""
    profiles: list[str] = []
    for part in partition.split(" + ") if partition else ():
        count, _, name = part.rpartition("x")
        profiles += [name] * int(count or 1)
    return tuple(profiles)


def draft(partition: str, *indexes: int, name: str = "practical") -> LayoutDraft:
    """A layout of the GPUs with these indexes; without any of all."""
    group = GroupDraft(FilePosition("layout", 1, ""), indexes or None, names(partition))
    return LayoutDraft(name, (group,))
