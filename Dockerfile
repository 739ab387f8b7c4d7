# attnd as a container. Targets:
#   server        GPU server with the fused kernels (the default); serves on the CPU where it is given no GPU
#   server-naive  the same with what ALGORITHM_NAIVE needs, to compare: cuBLAS, and OpenBLAS and oneDNN for the CPU
#   cpu           server without any CUDA code
#   cpu-naive     the same with OpenBLAS and oneDNN
#   loadtest      attnload, its scenarios, attnctl
#
#   docker build -t attnd .                                      docker run --gpus all -p 8001:8001 -p 8002:8002 attnd
#   docker build -t attnd:cpu --target cpu .                     docker run --read-only -p 8001:8001 -p 8002:8002 attnd:cpu --threads=8
#
# What scripts/setup.sh installs is Debian 12's, with its security updates; CUDA comes from NVIDIA's wheels, at the versions that
# scripts/cuda_toolkit.sh pins. The driver's libraries are mounted by NVIDIA's container toolkit when a container starts.
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BASE} AS toolchain
WORKDIR /src
COPY scripts/setup.sh scripts/cuda_toolkit.sh scripts/
RUN scripts/setup.sh
ENV CCACHE_DIR=/ccache

FROM toolchain AS build-cpu
COPY . .
ARG COMMIT=unknown
RUN --mount=type=cache,id=attnd-ccache,target=/ccache \
    cmake --preset release -DATTND_BUILD_TESTS=OFF -DATTND_CUDA=off "-DATTND_COMMIT=${COMMIT}" && \
    cmake --build --preset release && \
    cmake --install build/release --prefix /opt/attnd --component attnd --strip && \
    cmake --install build/release --prefix /opt/attnd-naive --component naive --strip

FROM toolchain AS build-cuda
RUN scripts/setup.sh --capture && scripts/cuda_toolkit.sh --always
COPY . .
ARG COMMIT=unknown
RUN --mount=type=cache,id=attnd-ccache,target=/ccache \
    cmake --preset release -DATTND_BUILD_TESTS=OFF -DATTND_CUDA=on "-DATTND_COMMIT=${COMMIT}" && \
    cmake --build --preset release && \
    cmake --install build/release --prefix /opt/attnd --component attnd --strip && \
    cmake --install build/release --prefix /opt/attnd-naive --component naive --strip

# Only what a running container needs: no package is added to the base.
FROM ${BASE} AS runtime
RUN groupadd --system --gid 65532 attnd && \
    useradd --system --uid 65532 --gid attnd --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin attnd
COPY deploy/container/attnd-admin /usr/local/bin/
ENV PATH=/opt/attnd/bin:/usr/local/bin:/usr/bin:/bin
USER 65532:65532
WORKDIR /
ARG COMMIT=unknown
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="attnd" \
      org.opencontainers.image.description="Transformer attention as a service" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"

FROM runtime AS serving
EXPOSE 8001 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["attnd-admin", "ready"]
# The binary listens on the loopback address unless told otherwise, which nothing outside a container reaches. Flags after the image's name
# are added; the last of two wins.
ENTRYPOINT ["attnd", "--listen=0.0.0.0:8001", "--admin_listen=0.0.0.0:8002"]

FROM serving AS cpu
COPY --from=build-cpu /opt/attnd/lib /opt/attnd/lib
COPY --from=build-cpu /opt/attnd/share /opt/attnd/share
COPY --from=build-cpu /opt/attnd/bin/attnd /opt/attnd/bin/attnctl /opt/attnd/bin/

FROM cpu AS cpu-naive
COPY --from=build-cpu /opt/attnd-naive/lib /opt/attnd/lib

FROM runtime AS loadtest
COPY --from=build-cpu /opt/attnd/lib /opt/attnd/lib
COPY --from=build-cpu /opt/attnd/bin/attnload /opt/attnd/bin/attnctl /opt/attnd/bin/
COPY loadtest/scenarios /opt/attnd/scenarios
ENTRYPOINT ["attnload"]
CMD ["--help"]

FROM serving AS server-cuda
# For NVIDIA's container toolkit: which GPUs, which of the driver's libraries, and the oldest driver that runs this code.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA=cuda>=13.0
COPY --from=build-cuda /opt/attnd/lib /opt/attnd/lib
COPY --from=build-cuda /opt/attnd/share /opt/attnd/share
COPY --from=build-cuda /opt/attnd/bin/attnd /opt/attnd/bin/attnctl /opt/attnd/bin/

FROM server-cuda AS server-naive
COPY --from=build-cuda /opt/attnd-naive/lib /opt/attnd/lib
COPY --from=build-cuda /src/build/cuda-toolkit/lib/libcublas.so.13 /src/build/cuda-toolkit/lib/libcublasLt.so.13 /opt/attnd/lib/

# Last, so that it is what `docker build` makes without --target.
FROM server-cuda AS server
