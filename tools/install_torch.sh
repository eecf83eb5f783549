#!/bin/sh
# Install the CPU build of torch into the environment of the Python given, never the CUDA one (docs/decisions/0004).
# usage: install_torch.sh PYTHON. Ends with 0 also when no CPU build can be had: the bundled model needs none.
set -u
python=$1
version=2.13.0

"$python" -c "import importlib.metadata as m, sys; sys.exit(m.version('torch').split('+')[0] != '$version')" 2>/dev/null && exit 0

if [ "$(uname -s)" = Linux ]; then
    # First what this machine's pip finds by itself, then the PyTorch project's own index of CPU builds.
    "$python" -m pip install --quiet --no-deps "torch==$version+cpu" 2>/dev/null && exit 0
    "$python" -m pip install --quiet --no-deps --retries 1 --timeout 20 \
        --index-url https://download.pytorch.org/whl/cpu "torch==$version+cpu" && exit 0
else
    "$python" -m pip install --quiet --no-deps "torch==$version" && exit 0  # elsewhere the plain build is the CPU build
fi
echo "No CPU build of torch $version can be had here, so recalld is installed without it: the bundled embedding model works," \
    "other models (RECALLD_EMBEDDER) do not." >&2
exit 0
