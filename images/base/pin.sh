# Runs in a container of the base: NAME.in in /wanted becomes NAME.txt in /wheels, pinned by the image's
# own Python, with the hashes of all files of each release.
python3 -m venv /tmp/pip
/tmp/pip/bin/pip install --quiet --disable-pip-version-check pip-tools==7.6.2
# The lab's own pins hold here as well; as a constraint a pin cannot name an extra.
mkdir /tmp/pins
for file in /pins/*.txt; do
    sed -E 's/^([a-z0-9-]+)\[[a-z0-9,-]+\]==/\1==/' "$file" > "/tmp/pins/$(basename "$file")"
done
for file in /wanted/*.in; do
    CUSTOM_COMPILE_COMMAND="images/build pin" /tmp/pip/bin/pip-compile --quiet --strip-extras --allow-unsafe \
        --generate-hashes --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
        --pip-args "--only-binary :all:" --output-file="/wheels/$(basename "$file" .in).txt" "$file"
done
# As in requirements/compile: the pin that Jupyter's events ask for names its extra.
sed -i 's/^jsonschema==/jsonschema[format-nongpl]==/' /wheels/libraries.txt
