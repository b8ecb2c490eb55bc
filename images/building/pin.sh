# Runs in a container of the base: NAME.in in /wanted becomes the pinned NAME.txt in /wheels.
python3 -m venv /tmp/pip
for file in /wanted/*.in; do
    name=$(basename "$file" .in)
    /tmp/pip/bin/pip install --quiet --disable-pip-version-check --dry-run --ignore-installed \
        --only-binary :all: --report /tmp/report.json -r "$file"
    python3 - /tmp/report.json "$name" > "/wheels/$name.txt" <<'END'
import json, sys
report, name = sys.argv[1:]
print(f"# Pinned from {name}.in by `images/build pin`, with the image's own Python.")
found = [one["metadata"] for one in json.load(open(report))["install"]]
for one in sorted(found, key=lambda one: one["name"].lower()):
    print(f"{one['name'].lower()}=={one['version']}")
END
done
