# `tenure serve` on the CPU, or on a GPU whose driver the container runtime brings:
#
#   docker build --tag tenure .
#   docker run --publish 8000:8000 --volume "$PWD/models:/models:ro" tenure

FROM rust:1-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential cmake libclang-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /tenure
COPY Cargo.toml Cargo.lock rustfmt.toml clippy.toml LICENSE-APACHE LICENSE-MIT README.md ./
COPY .cargo .cargo
COPY crates crates
COPY python python
COPY bench bench
COPY examples examples
COPY tests tests
RUN cargo build --locked --release --package tenure-cli --features milp

FROM debian:bookworm-slim
# Another user than root; models are only read.
RUN useradd --system --no-create-home --uid 10001 tenure
COPY --from=build /tenure/target/release/tenure /usr/local/bin/tenure
COPY LICENSE-APACHE LICENSE-MIT /usr/share/doc/tenure/
# By number, so that Kubernetes sees that it is not root.
USER 10001
EXPOSE 8000 8001
# Bash has connections of its own, and the image no other client.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["bash", "-c", \
    "exec 3<>/dev/tcp/127.0.0.1/8000; printf 'GET /v2/health/ready HTTP/1.0\\r\\n\\r\\n' >&3; read -r line <&3; [[ $line == *' 200 '* ]]"]
# Ctrl-C's and `docker stop`'s: what has begun is answered.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tenure", "serve"]
CMD ["/models", "--listen", "0.0.0.0:8000", "--grpc-port", "8001"]
