"""Each action of the table of staff actions, through its route, its form and its command."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from tests.pool_settings import changed
from tests.unit.pool.applications.conftest import LAB, as_, foreign_slice, free_slice, visiting
from tests.unit.pool.applications.full_lab import apps
from tests.unit.pool.applications.test_rights import rights_of, routes
from tests.unit.pool.conftest import World

from miglab_api.staff import STAFF_ACTIONS, StaffAction
from miglab_hub.cli import pool as pool_cli
from miglab_pool.http.access.dependencies import Needs
from miglab_pool.http.access.principal import Right

TOKENS = {
    "root": "admin-token",
    "an instructor of its course": "instructor-token",
    "an assistant of its course": "assistant-token",
    "an instructor of another course": "vision-token",
    "a student": "alice-token",
}
TARGETS = [(action, kind) for action in STAFF_ACTIONS for kind in action.kinds]
each_action = pytest.mark.parametrize(
    ("action", "kind"), TARGETS, ids=[f"{action.key} {kind}" for action, kind in TARGETS]
)


@dataclass(frozen=True)
class LabOfMl:
    """A GPU that is assigned to ml, with a free slice.

    Attributes:
        client: of the management listener.
    """

    world: World
    client: httpx.AsyncClient

    def prepare(self, action: StaffAction, kind: str) -> str:
        """Bring a slice or the GPU into the state in which the action is possible; its name."""
        if action.key == "adopt":
            return str(foreign_slice(self.world))
        target = self.world.driver.uuids[0] if kind == "gpu" else free_slice(self.world)
        before = {"undrain": "drain", "clear": "quarantine"}.get(action.key)
        if before:
            getattr(self.world.pool.staff, before)(target, reason="dust", actor="person:root")
        return str(target)

    async def form(self, action: StaffAction, kind: str, target: str, token: str) -> str:
        """The HTML of the action's form in the details of the target; empty if there is none."""
        page = await self.client.get(f"/details/{kind}/{target}", headers=as_(token))
        forms = re.findall(r"<form .*?</form>", page.text, re.DOTALL)
        path = f'data-path="{kind}s/{target}/{action.key}"'
        return next((form for form in forms if path in form), "")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LabOfMl]:
    world = World(tmp_path, changed(LAB, assigned={"0": "ml"}))
    world.end(world.run("carol", course="ml"))
    yield LabOfMl(world, visiting(apps(world.pool)[0]))
    world.close()


def fields_of(action: StaffAction) -> dict[str, bool]:
    """What a person gives besides the target, and whether they must."""
    fields = action.request_model.model_fields.items()
    return {name: field.is_required() for name, field in fields if name != "expected"}


@each_action
def test_its_route_has_its_right_and_its_request(
    lab: LabOfMl, action: StaffAction, kind: str
) -> None:
    """There is one route for each kind of target."""
    (route,) = (route for route in routes(lab.client) if route.name == action.route_name(kind))
    assert re.fullmatch(rf"/api/{kind}s/{{\w+}}/{action.key}", route.path)
    assert (route.methods, rights_of(route)) == ({"POST"}, [Needs(Right(action.right))])
    assert route.body_field is not None
    assert route.body_field.field_info.annotation is action.request_model


@each_action
async def test_its_form_has_the_fields_of_its_request(
    lab: LabOfMl, action: StaffAction, kind: str
) -> None:
    """A field that the request needs is required; the way on is hidden until a refusal names it."""
    form = await lab.form(action, kind, lab.prepare(action, kind), "admin-token")
    inputs = re.findall(r'<p class="field"( hidden)?>.*?<input [^>]*name="(\w+)"(.*?)>', form, re.S)
    shown = {name: " required" in marks for hidden, name, marks in inputs if not hidden}
    ways_on = {name for hidden, name, marks in inputs if hidden and " disabled" in marks}
    assert shown == {"reason": not action.needs_no_reason}
    assert shown.keys() | ways_on == fields_of(action).keys()


@each_action
def test_its_command_has_the_fields_of_its_request(action: StaffAction, kind: str) -> None:
    """With the help of the table; a GPU or slice is named first."""
    command: Any = typer.main.get_command(pool_cli.app)
    parameters = {parameter.name: parameter for parameter in command.commands[action.key].params}
    asked = {name: parameters[name].required for name in parameters.keys() & {"reason", "anyway"}}
    assert asked == fields_of(action)
    targets = {"kind", "which"} if "gpu" in action.kinds else {"slice_id"}
    assert targets < parameters.keys()
    assert command.commands[action.key].help == action.summary


@each_action
async def test_its_form_is_offered_to_whom_its_route_obeys(
    lab: LabOfMl, action: StaffAction, kind: str
) -> None:
    """Where the form is missing the route says that one may not, and only there."""
    target = lab.prepare(action, kind)
    path = f"/api/{kind}s/{target}/{action.key}"
    body = {"reason": "dust", "expected": "another state"}  # so that nothing is done to it
    offered, allowed = set(), set()
    for name, token in TOKENS.items():
        answer = await lab.client.post(path, json=body, headers=as_(token))
        assert answer.json()["reason"] in ("forbidden", "changed-meanwhile")
        allowed |= {name} if answer.status_code == 409 else set()
        offered |= {name} if await lab.form(action, kind, target, token) else set()
    assert offered == allowed
    assert "root" in allowed and "a student" not in allowed
