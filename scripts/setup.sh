#!/usr/bin/env bash
# Set-up: the virtual environment from the hash-pinned lock, the project in it (editable), and the JARs. `make setup` runs
# it. If everything is there, it prints nothing and takes a fraction of a second. It repeats an interrupted part.
set -euo pipefail
cd "$(dirname "$0")/.."

need() {
    echo "Ackline needs $1" >&2
    exit 2
}

recent_java() {
    local java=java
    [ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java
    command -v "$java" >/dev/null || return 1
    local version
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${version:-0}" -ge 17 ]
}

python_with() { # prints the first Python that Ackline runs on and that can import these modules
    local python
    for python in "${PYTHON:-python3}" python3 python3.13 python3.12 python3.11 python3.14; do
        "$python" -c "import sys, $1
(3, 11) <= sys.version_info < (3, 15) or sys.exit(1)
print(sys.executable)" 2>/dev/null && return
    done
    return 1
}

locked() { # the lock's lines for one package
    awk -v name="$1==" '/^[^ #]/ { on = index($1, name) == 1 } on' requirements.lock
}

# pip first, from the lock; then uv, which is several times as fast and knows the same hashes. Where pip has been told of
# an index of its own, or where uv fails, pip does it all.
install() {
    local pip=(.venv/bin/python -m pip --disable-pip-version-check install --quiet --no-input --no-deps)
    "${pip[@]}" --require-hashes -r <(locked uv; locked setuptools)
    if ! .venv/bin/python -m pip config list | grep -E 'index-url|no-index' >/dev/null; then
        .venv/bin/uv pip install --python .venv/bin/python --quiet --no-deps --no-build-isolation \
            --compile-bytecode --require-hashes -r requirements.lock && return
        echo "uv could not install everything; pip tries now" >&2
    fi
    "${pip[@]}" --no-build-isolation --require-hashes -r requirements.lock
}

there() { # whether a stamp of the environment holds this text
    [ "$(cat ".venv/$1" 2>/dev/null)" = "$2" ]
}

# The environment is made by a Python from outside it, also where it is the first on PATH.
PATH=:$PATH:
PATH=${PATH//":$PWD/.venv/bin:"/:}

command -v git >/dev/null || need "git: install it (Debian, Ubuntu: apt install git)"
recent_java || need "Java 17 or later: install it (Debian, Ubuntu: apt install openjdk-17-jre-headless)"

# A folder that was moved counts too: the environment's scripts hold its name.
lock="$PWD $(sha256sum <requirements.lock)"
project="$PWD $(awk '/^\[/ { on = /^\[(build-system|project|tool\.setuptools)/ } on' pyproject.toml | sha256sum)"
if ! there locked "$lock" || ! there project "$project" || ! .venv/bin/python -c '' 2>/dev/null; then
    mkdir -p .ackline
    exec 9>.ackline/setup.lock
    ! command -v flock >/dev/null || flock 9 # two set-ups at once: the second finds the first one's work
    if ! there locked "$lock" || ! .venv/bin/python -c '' 2>/dev/null; then
        [ ! -L .venv ] || need "a .venv of its own: this one is a link to that of another checkout, which set-up would empty"
        python_with sys >/dev/null ||
            need "Python 3.11 to 3.14: install it (Debian, Ubuntu: apt install python3 python3-venv)"
        python=$(python_with venv,ensurepip) ||
            need "the venv module of $(python_with sys): install it (Debian, Ubuntu: apt install python3-venv)"
        echo "setting up .venv with $python"
        rm -f .venv/locked .venv/project
        "$python" -m venv --clear .venv
        install
        echo "$lock" >.venv/locked
    fi
    if ! there project "$project"; then
        .venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
        echo "$project" >.venv/project
    fi
fi
exec 9>&-
.venv/bin/python -m ackline.spark.jars fetch
.venv/bin/python -m ackline.spark.jvm || true # without the archive Spark starts as well, in twice the time
