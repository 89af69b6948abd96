#!/usr/bin/env bash
# Runs every benchmark of the module, one package at a time so that they do not disturb each other.
# The table goes to the terminal, the same as JSON (one test2json event a line) to bin/bench.json.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p bin
packages=$(git grep -lE --untracked '^func Benchmark' -- '*_test.go' | xargs -rn1 dirname | sort -u | sed 's|^|./|' || true)
[ -n "$packages" ] || { echo "there are no benchmarks"; exit 0; }
# shellcheck disable=SC2086 # one word a package
go test -json -p 1 -run '^$' -bench . -benchmem $packages >bin/bench.json || {
  echo "failed, see bin/bench.json" >&2
  exit 1
}
# A benchmark's name and its figures come as two events.
sed -n 's/.*"Output":"\(.*\)"}$/\1/p' bin/bench.json | tr -d '\n' | sed 's/\\n/\n/g; s/\\t/\t/g' | grep '/op' | column -ts $'\t'
echo "the same as JSON: bin/bench.json"
