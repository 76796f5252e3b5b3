#!/usr/bin/env bash
# deploy/quickstart on a few characters: to the end, interrupted half way, resumed; nothing may stay behind.
# usage: quickstart_test.sh BUILD_DIR
set -euo pipefail
build="$1"
quickstart="$(dirname "$0")/../../deploy/quickstart"
data="$(mktemp -d)"
trap 'rm -rf "$data"' EXIT
port=$((20000 + $$ % 20000))

fail() {
  echo "FAILED: $*" >&2
  tail -n 30 "$data"/*.txt "$data"/run/shard-*.log >&2 || true
  exit 1
}
run() {
  "$quickstart" --build="$build" --no-build --classes=200 --data="$data/run" --port="$port" "$@"
}
expect_nothing_left() {
  if pgrep -f "$data/run"; then fail "processes are left after $1"; fi
}

run --epochs=1 >"$data/whole.txt" 2>&1 || fail "a whole run exits with $?"
grep -q "against the class centres" "$data/whole.txt" || fail "a whole run reports no accuracy"
expect_nothing_left "a whole run"

# Job control gives the background job the SIGINT disposition of a terminal's foreground job.
set -m
run --epochs=60 -- --checkpoint_every=5 >"$data/interrupted.txt" 2>&1 &
job=$!
set +m
for _ in $(seq 600); do
  compgen -G "$data/run/checkpoints/*/*-5-*/MANIFEST.json" >/dev/null && break
  kill -0 "$job" 2>/dev/null || fail "the run ended before it was interrupted"
  sleep 0.1
done
kill -INT "-$job"
status=0
wait "$job" || status=$?
[ "$status" -eq 130 ] || fail "an interrupted run exits with $status, not 130"
expect_nothing_left "an interrupted run"

run --epochs=60 --resume -- --checkpoint_every=5 >"$data/resumed.txt" 2>&1 || fail "a resumed run exits with $?"
grep -q "resuming after step" "$data/resumed.txt" || fail "a resumed run does not say so"
expect_nothing_left "a resumed run"
