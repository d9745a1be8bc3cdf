# Sourced by the other scripts.
#
#   find_python "3.13 3.12"          # prints the first of these Pythons on this machine, or nothing
#   pythons_of 2.18                  # prints the Pythons that have this TensorFlow, newest first
#   make_environment 2.18 python3.11 test,digits     # creates .venv-2.18-py3.11 and activates it

# Each process would compile TensorFlow's modules again, which takes six seconds.
unset PYTHONDONTWRITEBYTECODE

all_pythons="3.13 3.12 3.11"

pythons_of() {
    case $1 in
        2.15) echo 3.11 ;;
        2.18) echo 3.12 3.11 ;;
        2.21) echo "$all_pythons" ;;
    esac
}

# Prints `3.12` for a Python that can create virtual environments.
version_of() {
    "$1" -c 'import ensurepip, sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# The Pythons that could be of a version: on PATH, or in a pyenv. Only PYTHON, if it is set.
candidates_for() {
    if [ -n "${PYTHON:-}" ]; then
        echo "$PYTHON"
        return
    fi
    printf '%s\n' "python$1" python3
    if command -v pyenv >/dev/null; then
        pyenv whence "python$1" 2>/dev/null | sed "s#.*#$(pyenv root)/versions/&/bin/python$1#"
    fi
}

find_python() {
    local version candidate
    for version in $1; do
        while read -r candidate; do
            if [ "$(version_of "$candidate")" = "$version" ]; then
                echo "$candidate"
                return
            fi
        done < <(candidates_for "$version")
    done
}

# Why `find_python "$1"` prints nothing.
no_python() {
    local found=${PYTHON:-} version
    for version in $all_pythons; do
        [ -n "${PYTHON:-}" ] || [ -z "$(find_python "$version")" ] || found+="${found:+, }$version"
    done
    echo "PYTHON: received ${found:-none}; accepted: Python ${1// / or }, with venv and ensurepip." \
        "Install it (Debian: python${1%% *} and python${1%% *}-venv), or set PYTHON to its path."
}

# Installs tfdist, its extras and the versions in constraints/tf-TENSORFLOW.txt. Does nothing if the
# environment is up to date.
make_environment() {
    local tensorflow=$1 python=$2 extras=$3 constraints venv stamp missing="" extra
    constraints=constraints/tf-$tensorflow.txt
    venv=.venv-$tensorflow-py$(version_of "$python")
    stamp="$venv/.made-of-$(cat pyproject.toml "$constraints" | cksum | tr -d ' ')"
    [ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"
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
