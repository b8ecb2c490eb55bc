"""Of what kind a pause is, so that nothing is known by its words."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

BY_RECLAIMER = (
    "SELECT \"by\" = 'reclaimer' FROM transitions WHERE what = 'pool' ORDER BY id DESC LIMIT 1"
)


def upgrade() -> None:
    op.add_column("desk", sa.Column("pause_kind", sa.String, nullable=False, server_default=""))
    # What paused before has no kind: the reclaimer did so for maintenance alone.
    op.execute(
        f"UPDATE desk SET pause_kind = CASE WHEN ({BY_RECLAIMER}) THEN 'maintenance' "  # noqa: S608
        "ELSE 'staff' END WHERE paused != ''"
    )
