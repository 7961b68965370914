#!/usr/bin/env bash
# Builds the documents into a site, in an environment of its own. Prints each link that leads nowhere, and then fails.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p .ackline/docs
home=$(readlink -f .ackline/docs) # venv makes no environment through a link
lock=$(sha256sum scripts/docs/requirements.txt)
if [ "$(cat "$home/lock" 2>/dev/null)" != "$lock" ]; then
    .venv/bin/python -m venv --clear "$home"
    "$home/bin/python" -m pip --disable-pip-version-check install --quiet --no-input --no-deps --require-hashes \
        -r scripts/docs/requirements.txt
    echo "$lock" >"$home/lock"
fi
NO_MKDOCS_2_WARNING=1 "$home/bin/mkdocs" build --config-file mkdocs.yml "$@"
echo "the documents are in .ackline/site/index.html"
