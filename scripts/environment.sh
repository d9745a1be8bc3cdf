# Sourced by the other scripts. `make_environment EXTRAS` makes .venv with tfdist and its extras, and
# puts it on PATH; of no cost where it is there already and nothing that it is made from has changed.

make_environment() {
    local extras=$1 python=${PYTHON:-python3.11} stamp wanted
    stamp=".venv/.made-of"
    wanted="$extras $(cat pyproject.toml constraints/tf-2.15.txt | cksum)"
    if [ ! -x .venv/bin/python ]; then
        if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            echo "PYTHON: received '$python'; accepted: a Python 3.11. Install it, or set PYTHON to its path." >&2
            exit 2
        fi
        "$python" -m venv .venv
    fi
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        echo "Installing tfdist[$extras] into .venv (TensorFlow is about 500 MB)"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check \
            --constraint constraints/tf-2.15.txt --editable ".[$extras]"
        echo "$wanted" > "$stamp"
    fi
    export PATH="$PWD/.venv/bin:$PATH"
}
