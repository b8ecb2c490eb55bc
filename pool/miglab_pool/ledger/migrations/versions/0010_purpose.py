"""What slices are for: a server that keeps them, or measurements that borrow them."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    for table in ("tickets", "leases"):
        column = sa.Column("purpose", sa.String, nullable=False, server_default="server")
        op.add_column(table, column)
