# Sourced by the other scripts. `make_environment EXTRAS [TENSORFLOW]` creates a virtual environment
# with tfdist, its extras and the versions in constraints/tf-TENSORFLOW.txt, and adds it to PATH:
# .venv for 2.15 (the default), otherwise .venv-tf-TENSORFLOW. Does nothing if the environment is
# up to date.

make_environment() {
    local extras=$1 tensorflow=${2:-2.15} python=${PYTHON:-python3.11} venv=.venv constraints stamp
    [ "$tensorflow" = 2.15 ] || venv=.venv-tf-$tensorflow
    constraints=constraints/tf-$tensorflow.txt
    stamp="$venv/.made-of-$(cat pyproject.toml "$constraints" | cksum | tr -d ' ')"
    if [ ! -x "$venv/bin/pip" ]; then
        if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            echo "PYTHON: received '$python'; accepted: a Python 3.11. Install it, or set PYTHON to its path." >&2
            exit 2
        fi
        "$python" -m venv "$venv"
    fi
    local missing="" extra
    for extra in ${extras//,/ }; do
        grep -qx "$extra" "$stamp" 2>/dev/null || missing=yes
    done
    if [ -n "$missing" ]; then
        echo "Installing tfdist[$extras] into $venv (TensorFlow is about 500 MB)"
        # Do not compile: most of TensorFlow's modules are never imported.
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
            --constraint "$constraints" --editable ".[$extras]"
        tr ',' '\n' <<< "$extras" >> "$stamp"
    fi
    export PATH="$PWD/$venv/bin:$PATH"
}
