#!/bin/sh
# fuzz/run.sh SECONDS: builds the fuzz targets on stable Rust and runs each for a share of the time.
# Fails on the first crash; what caused it lies in fuzz/artifacts.
set -eu
seconds=${1:-40}
cd "$(dirname "$0")"
targets="frame layout kv_log target_log nbd nfs"
share=$((seconds / 6))
[ "$share" -gt 0 ] || share=1
# The instrumentation that libFuzzer needs is in stable rustc; only cargo-fuzz asks for nightly.
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-../target}
cargo build --release --target x86_64-unknown-linux-gnu
mkdir -p artifacts
for target in $targets; do
    # What is found goes to a scratch corpus, so that a run leaves the repository as it was.
    scratch=$(mktemp -d)
    "$CARGO_TARGET_DIR/x86_64-unknown-linux-gnu/release/$target" "$scratch" "corpus/$target" \
        -max_total_time="$share" -max_len=65536 -rss_limit_mb=1024 -timeout=10 \
        -artifact_prefix=artifacts/ -verbosity=0 2>artifacts/$target.log || {
        tail -n 40 "artifacts/$target.log" >&2
        echo "fuzz: $target failed, see fuzz/artifacts" >&2
        exit 1
    }
    rm -r "$scratch"
    echo "fuzz: $target ran $share s without a crash"
done
