"""The audit: what students do in their own servers does not push out what staff did."""

from miglab_pool.staff.log import Question, read

from .conftest import World


def test_students_actions_are_told_by_name_or_with_everything(world: World) -> None:
    """440 newest entries of which 438 were one student's were no audit."""
    world.pool.staff.pause("Repairs.", "person:ina")
    world.pool.staff.resume("person:ina")
    for _ in range(20):
        world.ask("mallory")
        world.pool.tickets.cancel_of_server("mallory", "", "server:mallory/")
    path = world.ledger.path

    def who(**asked: object) -> set[str]:
        return {one.by for one in read(path, Question(**asked))}  # type: ignore[arg-type]

    assert who() == {"person:ina"}
    assert who(by="mallory") == {"server:mallory/"}
    assert who(is_all=True) >= {"person:ina", "server:mallory/"}


def test_an_entry_says_whose_lease_or_ticket_it_was(world: World) -> None:
    """A number alone leads nowhere; what is nobody's names nobody."""
    world.ask("ada")
    world.pool.staff.pause("Repairs.", "person:ina")
    found = read(world.ledger.path, Question(is_all=True))
    assert {one.user for one in found if one.kind == "ticket"} == {"ada"}
    assert {one.user for one in found if one.kind == "pool"} == {""}
