#!/usr/bin/env bash
# Everything that must hold of the sources without running the product. All checks run, so one
# round shows all faults.
set -euo pipefail
cd "$(dirname "$0")/.."
# As the programs are built, so that what is compiled for one serves the other: no file here differs with cgo.
export CGO_ENABLED=0
failed=0
step() { # step NAME COMMAND...
  local start=$SECONDS name=$1
  shift
  if "$@"; then
    echo "ok    $name ($((SECONDS - start)) s)"
  else
    echo "FAIL  $name"
    failed=1
  fi
}

formatted() {
  local bad
  bad=$(git ls-files -co --exclude-standard '*.go' | while read -r f; do [ -e "$f" ] && echo "$f"; done | xargs gofmt -s -l)
  [ -z "$bad" ] || { echo "not formatted (make fmt):"; echo "$bad"; return 1; }
}

# What comes of C goes on beside what comes of definitions of the API. The manual pages come from the programs, with both.
generate() {
  local rest c
  rest=$(go list ./... | grep -v "^$(go list -m)/\(api\|cmd\)\(/\|$\)") || return 1
  # shellcheck disable=SC2086 # packages
  go generate $rest &
  c=$!
  go generate ./api/... || { wait "$c"; return 1; }
  wait "$c" && go generate ./cmd/... && go -C pkg generate ./...
}

# The generators run in a copy, so a dirty working tree is neither needed clean nor touched.
generated() {
  local copy rc=0
  copy=$(mktemp -d)
  git ls-files -co --exclude-standard -z | while IFS= read -r -d '' f; do [ -e "$f" ] && printf '%s\0' "$f"; done |
    tar --null -T - -cf - | tar -xf - -C "$copy"
  # A git of its own shows what the generators changed or added.
  (cd "$copy" && git init -q . && git add -A && generate && git diff --quiet &&
    [ -z "$(git ls-files -o --exclude-standard)" ]) >/dev/null 2>"$copy.err" || rc=1
  rm -rf "$copy/.git"
  if [ $rc != 0 ]; then
    cat "$copy.err"
    echo "generated files are not up to date (make generate):"
    diff -rq --exclude=.git --exclude=bin . "$copy" || true
  fi
  rm -rf "$copy" "$copy.err"
  return $rc
}

# The libraries are a module of their own.
each() { # each COMMAND...: in both modules
  local rc=0
  "$@" || rc=1
  (cd pkg && "$@") || rc=1
  return $rc
}

# The program is the one that this module names; the libraries have no use for its dependencies.
checked() { each "$(go tool -n staticcheck)" ./...; }

step "generated code" generated
step "gofmt" formatted
step "go vet" each go vet ./...
step "staticcheck" checked
step "chart" go -C deploy/render test ./...
step "layer and house rules" go test -count=1 ./internal/archtest/
exit $failed
