"""The ledger's words are those of the glossary."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

TABLES = {"desk": "pool_state", "notes": "messages"}
COLUMNS = {
    "gpus": {"why": "reason"},
    "slices": {"why": "reason"},
    "leases": {"warn_why": "warn_reason", "stays": "keepalives", "stay_until": "keepalive_until"},
    "transitions": {"what": "kind", "thing": "target", "act": "action"},
    "layouts": {"cuts": "partitions"},
}


def upgrade() -> None:
    for name in ("notes_state", "transitions_thing", "transitions_acts"):
        op.drop_index(name)
    for old, new in TABLES.items():
        op.rename_table(old, new)
    for table, columns in COLUMNS.items():
        for old, new in columns.items():
            op.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
    _rename_words()
    op.create_index("messages_state", "messages", ["state"])
    op.create_index("transitions_target", "transitions", ["kind", "target"])
    op.create_index(
        "transitions_actions", "transitions", ["id"], sqlite_where=sa.text("action != ''")
    )


def _rename_words() -> None:
    op.execute("UPDATE reservations SET state = 'reserved' WHERE state = 'kept'")
    op.execute("UPDATE transitions SET kind = 'message' WHERE kind = 'note'")
    op.execute("UPDATE transitions SET action = 'keepalive' WHERE action = 'stay'")
    op.execute(
        "UPDATE transitions SET action = CASE to_state WHEN 'removed' THEN 'remove' "
        "WHEN 'replaced' THEN 'replace' ELSE 'apply' END WHERE kind = 'layout' AND action = 'cut'"
    )
    for state in ("from_state", "to_state"):
        op.execute(
            f"UPDATE transitions SET {state} = 'reserved' "  # noqa: S608
            f"WHERE kind = 'reservation' AND {state} = 'kept'"
        )
