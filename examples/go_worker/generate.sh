#!/bin/sh
# Generates the Go code of proto/jobq/v1. Needs Go, and Python with grpcio-tools for protoc.
# `./generate.sh tools` only installs the generators.
set -e
cd "$(dirname "$0")"
tools=${GOBIN:-$PWD/build/bin}
mkdir -p "$tools"
export GOBIN="$tools"
[ -x "$tools/protoc-gen-go" ] || go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
[ -x "$tools/protoc-gen-go-grpc" ] ||
    go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
[ "$1" != tools ] || exit 0
"${PYTHON:-python3}" -m grpc_tools.protoc -I ../../proto \
    --plugin="$tools/protoc-gen-go" --plugin="$tools/protoc-gen-go-grpc" \
    --go_out=. --go_opt=module=jobq.example --go-grpc_out=. --go-grpc_opt=module=jobq.example \
    jobq/v1/common.proto jobq/v1/workers.proto
