"""Which start of a server a lease was attached to, in the hub's words."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    column = sa.Column("server_started", sa.String, nullable=False, server_default="")
    op.add_column("leases", column)
