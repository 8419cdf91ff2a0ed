# `dice serve` in a container, as an ordinary user. docs/serve.md says what verification needs of the host.
#   CPU: docker build -t dice .
#   GPU: docker build -t dice --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 \
#          --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
ARG BASE=ubuntu:24.04
FROM ${BASE}

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# g++ compiles for the emulated backend; the CUDA images of NVIDIA named "devel" bring nvcc.
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ python3 python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 10001 dice
WORKDIR /opt/dice
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY dice ./dice

# PyTorch first, from its own index: the same version, for CPUs or for CUDA.
RUN python3 -m venv /opt/venv \
 && torch=$(grep '^torch==' constraints.txt) \
 && /opt/venv/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" "$torch" \
 && grep -v '^torch==' constraints.txt > /tmp/constraints.txt \
 && /opt/venv/bin/pip install --no-cache-dir -c /tmp/constraints.txt '.[serve]' \
 && rm -rf /opt/dice /tmp/constraints.txt

USER dice
WORKDIR /home/dice
ENV PATH=/opt/venv/bin:$PATH DICE_CACHE=/home/dice/.cache/dice PYTHONUNBUFFERED=1
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --start-period=60s \
  CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]

# An address that others reach needs a key: set DICE_API_KEY, or mount a file and add --api-key-file.
ENTRYPOINT ["dice", "serve", "--host", "0.0.0.0", "--port", "8000"]
