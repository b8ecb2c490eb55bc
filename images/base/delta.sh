#!/bin/sh -eu
# delta.sh STAMP FOLDER TARGET: copy to TARGET, with its path, what changed below FOLDER after STAMP.
# So one installation can be laid over another as an image layer of its own.
mkdir -p "$3"
find "$2" -cnewer "$1" ! -type d -print0 | tar --null -T - -c | tar -C "$3" -x
