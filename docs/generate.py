"""The pages that are made from the code when the site is built; none of them is committed."""

import ast
import dataclasses
import inspect
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import typer
from fastapi import APIRouter
from fastapi.routing import APIRoute
from traitlets import Undefined

import labkit
from labkit import records
from labkit.evidence import evidence, published
from labkit_authoring import cli as labkit_cli
from labkit_authoring import gallery
from miglab_hub import cli
from miglab_hub.settings.keys import reference
from miglab_hub.settings.lab_toml import settings_model
from miglab_pool.applications import management_app, student_app
from miglab_pool.applications.metrics import Metrics
from miglab_pool.http.access.dependencies import Needs
from miglab_pool.http.access.principal import RIGHT_PHRASES, Reach, Right, Role, reach
from miglab_pool.http.errors import REASONS
from miglab_pool.refused import REASONS as POOL_REASONS
from miglab_spawner import refusals as spawner_refusals

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def security_tests() -> str:
    """The tests that show what the page on security says, by its sections."""
    sections = tomllib.loads((DOCS / "security_tests.toml").read_text())
    lines = ["# The tests behind the page on security", ""]
    lines += ["[The page](security.md) says what is defended; these tests show it.", ""]
    for section, tests in sections.items():
        lines += [f"## {section}", "", "| test | what it shows |", "|---|---|"]
        lines += [f"| `{test}` | {sentence(test)} |" for test in tests]
        lines.append("")
    return "\n".join(lines)


def sentence(test: str) -> str:
    """The first sentence of a test's docstring.

    Args:
        test: a test's id, such as ``tests/unit/test_docs.py::test_links``.

    Raises:
        LookupError: there is no such test.
    """
    file, *names = test.split("::")
    body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    for name in names:
        (definition,) = (node for node in body if getattr(node, "name", None) == name)
        assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        body = definition.body
    text = ast.get_docstring(definition) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


SAID_ONCE = {"json", "as_json", "install_completion", "show_completion"}


def commands() -> str:
    """Every command of `miglab` that ships, with its arguments and options."""
    lines = ["# Commands and options", ""]
    lines += ["What [the command line](cli.md) takes, as `--help` says it.", ""]
    root_command: Any = typer.main.get_command(cli.app)
    context: Any = typer.Context(root_command)
    for name in cli.COMMANDS:
        for path, command in leaves(("miglab", name), root_command.get_command(context, name)):
            lines += [f"## {' '.join(path)}", "", " ".join((command.help or "").split()), ""]
            lines += parameters(command)
    return "\n".join(lines)


def leaves(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands below one, each with the words that call it."""
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield path, command
    for name, subcommand in below.items():
        yield from leaves((*path, name), subcommand)


def parameters(command: Any) -> list[str]:
    """A table of a command's arguments and options; nothing where it has none of its own."""
    options = [item for item in command.params if not item.hidden and "--help" not in item.opts]
    own_options = [item for item in options if item.name not in SAID_ONCE]
    if not own_options:
        return []
    rows = [f"| `{option(item)}` | {meaning(item)} |" for item in own_options]
    return ["| argument or option | meaning |", "|---|---|", *rows, ""]


def meaning(item: Any) -> str:
    """A parameter's help, with its default unless that is nothing or a flag's."""
    text = " ".join((item.help or "").split())
    default = "" if isinstance(item.default, bool) or callable(item.default) else item.default
    return f"{text} Default: `{default}`." if default else text


def option(item: Any) -> str:
    """How a parameter is written on the command line."""
    if item.param_type_name == "argument":
        return str(item.metavar or item.name).upper()
    return ", ".join([*item.opts, *item.secondary_opts])


def routes() -> str:
    """Every route of the pool's two listeners, with the right that it needs."""
    lines = ["# Routes of the API", ""]
    lines += ["[The API](api.md) says how to sign in, and what a refusal looks like.", ""]
    lines += ["## Management listener", "", "| route | right | does |", "|---|---|---|"]
    lines += [row(route, right(route)) for route in routes_of(management_app.ROUTERS)]
    lines += ["", "## Student listener", "", "| route | does |", "|---|---|"]
    lines += [row(route) for route in routes_of([student_app.api])]
    return "\n".join(lines)


def routes_of(routers: Iterable[APIRouter]) -> Iterator[APIRoute]:
    """The routes of routers."""
    for router in routers:
        yield from (route for route in router.routes if isinstance(route, APIRoute))


def row(route: APIRoute, *cells: str) -> str:
    """A route's row: its method and path, what is given, and its description's first paragraph."""
    description = route.description or route.summary or ""
    summary = " ".join(description.split("\n\n")[0].split())
    summary = summary.replace("|", "\\|").replace("``", "`")
    address = f"`{' '.join(sorted(route.methods))} {route.path}`"
    return f"| {' | '.join([address, *cells, summary])} |"


def right(route: APIRoute) -> str:
    """The right that a route needs."""
    needs = [dependency.call for dependency in route.dependant.dependencies]
    return next((f"`{need.right.value}`" for need in needs if isinstance(need, Needs)), "")


SPAWNERS = ("mig-docker", "mig-local", "mig-slurm")


def traits() -> str:
    """The spawners' own settings, class by class, each below a heading of its own."""
    points = entry_points(group="jupyterhub.spawners")
    lines = ["# Traits of the spawners", ""]
    lines += ["[The spawner](spawner.md) says what it does with them.", ""]
    listed: set[type] = set()
    for name in SPAWNERS:
        classes = [
            kind for kind in points[name].load().__mro__ if kind.__module__.startswith("miglab_")
        ]
        new = [kind for kind in classes if kind not in listed and hasattr(kind, "class_own_traits")]
        listed.update(new)
        traits = [item for kind in new for item in kind.class_own_traits(config=True).items()]
        lines += [f"## New with {name}", ""]
        lines += [part for key, trait in sorted(traits) for part in described(key, trait)]
    return "\n".join(lines)


def described(name: str, trait: Any) -> list[str]:
    """A trait's heading, default and help."""
    default = "" if trait.default_value is Undefined else f"Default `{trait.default_value!r}`. "
    return [f"### {name}", "", default + " ".join((trait.help or "").split()), ""]


def refusals() -> str:
    """The reasons that the spawner, the pool and the service give for a refusal."""
    lines = ["# Refusals", ""]
    lines += ["A refusal has a code for programs and a sentence for people.", ""]
    for title, reasons in (
        ("The spawner's", spawner_refusals.REASONS),
        ("The pool's", POOL_REASONS),
        ("The service's", REASONS),
    ):
        lines += [f"## {title}", "", "| reason | when |", "|---|---|"]
        lines += [f"| `{reason}` | {occasion} |" for reason, occasion in sorted(reasons.items())]
        lines.append("")
    return "\n".join(lines)


SIGNS = {
    Reach.SITE: "",
    Reach.COURSE: ", in own courses",
    Reach.ASSIGNED: ", on own courses' GPUs",
    Reach.OWN: ", what is their own",
}


def rights() -> str:
    """Every right with what it allows, and who has it, how far; site admins have nearly all."""
    lines = ["| right | to | who |", "|---|---|---|"]
    for right in Right:
        reaches = {role: role_reach for role in Role if (role_reach := reach(right, role))}
        roles = "; ".join(
            f"{role.value}{SIGNS[role_reach]}" for role, role_reach in reaches.items()
        )
        lines.append(
            f"| `{right.value}` | {RIGHT_PHRASES[right]} | {roles or 'the spawner alone'} |"
        )
    return "\n".join(lines)


def metrics() -> str:
    """Every metric of the service, with its labels, as Prometheus is told."""
    lines = ["| metric and its labels | meaning |", "|---|---|"]
    for metric in sorted(Metrics().registry._collector_to_names, key=lambda metric: metric._name):  # type: ignore[attr-defined]
        names = " ".join(f"`{name}`" for name in (metric._name, *metric._labelnames))  # type: ignore[attr-defined]
        lines.append(f"| {names} | {metric._documentation} |")  # type: ignore[attr-defined]
    return "\n".join(lines)


def labkit_commands() -> str:
    """Every command of `labkit` with its options, as `--help` says it."""
    lines = []
    for path, command in leaves(("labkit",), typer.main.get_command(labkit_cli.app)):
        lines += [f"### {' '.join(path)}", "", command.help, "", *parameters(command)]
    return "\n".join(lines)


def labkit_names() -> str:
    """What `labkit` exports: the beginning of each docstring."""
    names = [name for name in labkit.__all__ if not name.startswith("__")]
    docstrings = {name: inspect.getdoc(getattr(labkit, name)) or "" for name in names}
    lines = [
        f"- `labkit.{name}`: {' '.join(text.split(chr(10) * 2)[0].split())}"
        for name, text in docstrings.items()
    ]
    return "\n".join(lines)


RECORDS = (
    evidence.Evidence,
    evidence.Point,
    evidence.Prediction,
    evidence.Judgement,
    records.Measurement,
    records.Comparison,
    records.InterimLook,
    records.Device,
)


def evidence_fields() -> str:
    """The fields of each record of the evidence, in their order."""
    lines = ["| record | fields |", "|---|---|"]
    for record in RECORDS:
        names = " ".join(f"`{part.name}`" for part in dataclasses.fields(record))
        lines.append(f"| `{record.__name__}` | {names} |")
    return "\n".join(lines)


def published_figures() -> str:
    """Where each published figure is drawn or printed, or why not, section by section."""
    lines = ["---", "nosearch: true", "---", "# The published figures, one by one", ""]
    lines += ["A number before a colon is a notebook, a key is a panel.", ""]
    kinds: dict[tuple[str, str], dict[tuple[Any, str], list[str]]] = {}
    places_of = gallery.shown_in()
    for figure in published.figures().values():
        said_by = published.SHORT[figure.id.split(".")[0]]
        section = kinds.setdefault((said_by, figure.source.section), {})
        places = tuple(dict.fromkeys(places_of.get(figure.id, ())))
        section.setdefault((places, figure.left_out_because), []).append(figure.id)
    for (said_by, title), rows in kinds.items():
        lines += [f"**{said_by}, {title}**", ""]
        for (places, reason), names in rows.items():
            placement = f"shown in {', '.join(places)}" if places else f"left out: {reason}"
            lines.append(f"- {', '.join(f'`{name}`' for name in names)}: {placement}")
        lines.append("")
    return "\n".join(lines)


PAGES: dict[str, Callable[[], str]] = {
    "reference/refusals.md": refusals,
    "reference/traits.md": traits,
    "reference/settings.md": partial(reference, settings_model()),
    "reference/routes.md": routes,
    "reference/commands.md": commands,
    "reference/_rights.md": rights,
    "reference/_metrics.md": metrics,
    "reference/_labkit_names.md": labkit_names,
    "reference/_labkit_commands.md": labkit_commands,
    "reference/_evidence.md": evidence_fields,
    "explanation/security-tests.md": security_tests,
    "explanation/seeds.md": published_figures,
}
for machine in sorted(DOCS.glob("gallery/*/machine.toml")):
    PAGES[f"gallery/{machine.parent.name}/README.md"] = partial(gallery.page, machine.parent)


def write() -> None:
    """Write every generated page into docs/."""
    for page, make in PAGES.items():
        (DOCS / page).write_text(make() + "\n", encoding="utf-8")
