# An image that trains: docker build --tag tandem:cuda . or, without a GPU, docker build --build-arg TORCH=cpu --tag tandem:cpu .
# docs/kubernetes.md says how the demo runs in it. The window, which needs a display, is not meant to.
FROM python:3.11-slim

# cuda: the build of PyTorch on PyPI. cpu, or one such as cu126 for an older driver: that of PyTorch's own index.
ARG TORCH=cuda

ENV PYTHONSAFEPATH=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# The packages come before the code, so that a change of the code installs none again; torch, by far the largest, is first.
COPY requirements.lock /tmp/
RUN set -eu; \
    if [ "$TORCH" = cuda ]; then set --; else set -- --index-url "https://download.pytorch.org/whl/$TORCH"; fi; \
    pip install "$@" "$(grep '^torch==' /tmp/requirements.lock)"
RUN pip install -r /tmp/requirements.lock

RUN useradd --uid 1000 --create-home tandem && mkdir /work && chown tandem /work
COPY app /opt/tandem/app
COPY modules /opt/tandem/modules
COPY presets /opt/tandem/presets
COPY scripts /opt/tandem/scripts
COPY tandem /opt/tandem/tandem
COPY LICENSE README.md pyproject.toml requirements.lock /opt/tandem/
# Read by everybody, written by nobody: pods may have any user.
RUN chmod -R a+rX,go-w /opt/tandem \
    && echo /opt/tandem > "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tandem.pth" \
    && python -m compileall -q /opt/tandem

LABEL org.opencontainers.image.title="Tandem" \
    org.opencontainers.image.description="Trains image models on one GPU, on every GPU of the machine, or on several machines" \
    org.opencontainers.image.licenses="MIT" \
    org.opencontainers.image.version="0.4.0"

USER 1000:1000
WORKDIR /work
ENTRYPOINT ["python", "-m", "tandem"]
CMD ["--help"]
