# Hawser. `make help` lists the targets; each does one thing and says what it does.
SHELL := /bin/bash -euo pipefail
.DEFAULT_GOAL := help

NAME     ?= demo
NODES    ?= 2
# The cluster of `make cluster`, and further flags for it, such as --dual-stack.
CLUSTER       ?= kube
CLUSTER_FLAGS ?=
E2E_FLAGS     ?=
BAD_DAYS      ?=
ORACLE        ?=
SOAK          ?=
MESH          ?=
ATTACK        ?=
PACKAGES ?= ./...
FUZZTIME ?= 3s
BENCH    ?=
CHART    ?=
SCALE    ?=
# What `make test` builds to test with. The tests of whole clusters are skipped without kube-programs:
# ten more programs, 5 minutes the first time.
SERVERS  ?= bin/etcd bin/consul kube-apiserver
BINARIES := hawser hawser-agent hawser-cni hawser-operator hawser-relay
# What a sandbox starts. The operator takes as long to compile as the rest: it links clients of clouds.
SANDBOX_BINARIES := hawser hawser-agent hawser-cni hawser-relay
# Nothing that is compiled names the directory of the sources, so all clones share what one compiled.
export GOFLAGS := -trimpath $(filter-out -trimpath,$(GOFLAGS))
# The servers that tests run as programs.
export HAWSER_ETCD := $(CURDIR)/bin/etcd
export HAWSER_CONSUL := $(CURDIR)/bin/consul
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.PHONY: help sandbox sandbox-down cluster cluster-down cluster-status chart-test build kube-apiserver kube-programs test test-long fuzz e2e e2e-smoke e2e-conformance bad-days oracle soak soak-short mesh clouds attack bench scale verify lint fmt generate web pictures clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

sandbox: ## build what it needs, start two nodes with a demo on this machine and show who reaches whom (root)
	@$(MAKE) --no-print-directory build BINARIES='$(SANDBOX_BINARIES)'
	@bin/hawser sandbox up --name $(NAME) --nodes $(NODES) --demo

sandbox-down: ## remove the sandbox again, whatever state it is in (root)
	@if [ -x bin/hawser ]; then bin/hawser sandbox down --name $(NAME); else go run ./cmd/hawser sandbox down --name $(NAME); fi

cluster: build ## a real Kubernetes cluster on this machine; the first time builds Kubernetes (root)
	@bin/hawser sandbox up --kubernetes --yes --name $(CLUSTER) --nodes $(NODES) $(CLUSTER_FLAGS)

cluster-down: ## remove the cluster again, whatever state it is in (root)
	@if [ -x bin/hawser ]; then bin/hawser sandbox down --name $(CLUSTER); else go run ./cmd/hawser sandbox down --name $(CLUSTER); fi

cluster-status: ## show the cluster; fails if something of it does not run (root)
	@bin/hawser sandbox status --name $(CLUSTER)

build: ## compile the programs into bin/
	@hack/need.sh go
	@$(MAKE) --no-print-directory web || echo "going on without the page: hawser ui will say so"
	@mkdir -p bin
	@for b in $(BINARIES); do \
	  start=$$(date +%s); \
	  flags=; [ $$b = hawser-cni ] && flags="-s -w "; \
	  CGO_ENABLED=0 go build -ldflags "$${flags}-X main.version=$(VERSION)" -o bin/$$b ./cmd/$$b; \
	  echo "built bin/$$b in $$(( $$(date +%s) - start )) s"; \
	done

web: internal/ui/dist/index.html ## build the page of `hawser ui`, seconds

# What npm fetches is checked against the sums in package-lock.json. The page is the last file that is written.
internal/ui/dist/index.html: $(wildcard internal/ui/web/src/*) $(wildcard internal/ui/web/*.json)
	@hack/need.sh npm
	@echo "building the page of hawser ui"
	@cd internal/ui/web && npm ci --silent --ignore-scripts --prefer-offline && npm run --silent check && \
	  npm run --silent build

pictures: web ## take the pictures of docs/user/observe.md anew
	@hack/need.sh go chromium
	HAWSER_PICTURES=$(CURDIR)/docs/user go test ./internal/ui -run TestManual -count=1

bin/consul: test/consul/go.mod $(wildcard test/consul/discover/go.mod test/consul/discover/*.go test/consul/discover/provider/*/*.go)
	@hack/need.sh go
	@mkdir -p bin
	@echo "building a Consul server, without clients of clouds, for the tests of its driver: about 3 minutes on two cores the first time, then cached"
	@start=$$(date +%s); cd test/consul && GOFLAGS='-trimpath -mod=mod' CGO_ENABLED=0 go build -ldflags '-s -w' -o ../../bin/consul github.com/hashicorp/consul; \
	  echo "built bin/consul in $$(( $$(date +%s) - start )) s"

# Inside of a test the race detector would watch it, too: most of what the tests take would be etcd.
bin/etcd: pkg/go.mod $(wildcard pkg/kvstore/kvstoretest/*.go pkg/kvstore/kvstoretest/etcd/*.go)
	@hack/need.sh go
	@mkdir -p bin
	@echo "building the etcd of the tests: half a minute the first time, then cached"
	@cd pkg && CGO_ENABLED=0 go build -ldflags '-s -w' -o ../bin/etcd ./kvstore/kvstoretest/etcd

kube-apiserver: ## build the kube-apiserver that tests run, once, minutes
	@hack/need.sh go
	@go run ./hack/kubebuild kube-apiserver

kube-programs: ## build every program of a Kubernetes cluster, once, minutes
	@hack/need.sh go
	@go run ./hack/kubebuild kube-apiserver kubectl kube-controller-manager kube-scheduler kubelet kube-proxy agnhost containerd containerd-shim-runc-v2 ctr coredns

# In CI `make verify` vets all there is; here it would be done once more, as the race detector has code of its own.
# Tests take a fifth less processor time when memory is collected less often.
test: export GOGC ?= 400
test: ## tests with the race detector; while servers are built, those that need none (root for all; SERVERS='bin/etcd bin/consul kube-programs' for clusters, too)
	@$(MAKE) --no-print-directory web && hack/need.sh chromium || echo "the tests of the page will be skipped"
	@hack/need.sh go gcc runc iptables conntrack nft busybox /usr/lib/cni/ptp
	@go run ./hack/gotest $(if $(CI),-again) -servers '$(MAKE) --no-print-directory $(SERVERS)' -- -race $(if $(CI),-vet=off) -p 3 -parallel 3 -timeout 45m $(PACKAGES)

test-long: bin/etcd bin/consul kube-programs ## the same tests at full size: minutes become hours
	@$(MAKE) --no-print-directory web && hack/need.sh chromium || echo "the tests of the page will be skipped"
	@hack/need.sh go gcc runc iptables conntrack nft busybox /usr/lib/cni/ptp
	@HAWSER_LONG=1 go run ./hack/gotest -fuzztime 5m -- -race -p 2 -count=1 -timeout 6h $(PACKAGES)

fuzz: ## run every fuzz target for FUZZTIME (3s); Go compiles everything anew for it, minutes the first time
	@hack/need.sh go
	@go run ./hack/gotest -fuzztime $(FUZZTIME) $(FUZZFLAGS)

e2e: build ## upstream NetworkPolicy tests on a cluster of their own; E2E_FLAGS='-focus ... -- --cni ptp' for others (root)
	@go run ./hack/e2e $(E2E_FLAGS)

e2e-smoke: build ## a few of them, 2 min, as CI does; E2E_FLAGS='-- --cloud aws' in a cloud of this machine (root)
	@go run ./hack/e2e -suite smoke -timeout 10m $(E2E_FLAGS)

e2e-conformance: build ## upstream's Conformance tests of the network, 6 min (root)
	@go run ./hack/e2e -suite conformance $(E2E_FLAGS)

bad-days: build bin/render ## kill, restart and remove what a cluster is made of, under traffic, 10 min; BAD_DAYS='-run node' for some, '-identities operator' for other modes (root)
	@go build -o bin/chaos ./test/cluster/chaos && bin/chaos $(BAD_DAYS)

oracle: build bin/render ## random policies on a cluster against the oracle, 10 min; ORACLE='-for 1h' or '-seed N -rounds 1' (root)
	@go build -o bin/oracle ./test/cluster/oracle && bin/oracle $(ORACLE)

bin/render: deploy/render/go.mod deploy/render/main.go
	@hack/need.sh go
	@mkdir -p bin
	@echo "building the program that renders the chart: a minute the first time, then cached"
	@cd deploy/render && go build -o ../../bin/render .

soak: build bin/render ## change, kill and freeze a cluster all the time, beside the oracle, 10 min; SOAK='-identities operator -for 1h' (root)
	@go build -o bin/soak ./test/cluster/soak && bin/soak $(SOAK)

soak-short: build bin/render ## the first steps of two soaks, 4 min, the same each time (root)
	@go build -o bin/soak ./test/cluster/soak
	@bin/soak -identities agent -seed 1 -for 45s
	@bin/soak -identities operator -endpoints slim -seed 2 -for 45s

mesh: build ## connect two clusters of their own, and see whether pods reach each other by policy, 4 min; MESH='-keep' (root)
	@go build -o bin/meshtest ./test/cluster/mesh && bin/meshtest $(MESH)

clouds: build ## a cluster in a cloud of this machine: bursts, a dry subnet, throttling, 200 pods at once, the end of an instance, 12 min; CLOUDS='-cloud azure,alibaba -short' (root)
	@go build -o bin/cloudtest ./test/cluster/clouds && bin/cloudtest $(CLOUDS)

attack: build ## adversaries in pods, on nodes and beside them against a sandbox, 4 min; ATTACK='-run vxlan -modes tunnel' for some (root)
	@go build -o bin/attack ./test/attack && bin/attack $(ATTACK)

bin/helm: test/helm/go.mod
	@hack/need.sh go
	@mkdir -p bin
	@echo "building Helm for the test of the chart: minutes the first time, then cached"
	@cd test/helm && go build -o ../../bin/helm helm.sh/helm/v4/cmd/helm

chart-test: build bin/helm ## install, upgrade and uninstall the chart with helm on a cluster of its own, 8 min; CHART='-replace' instead of kube-proxy, CHART=-kvstore on an etcd with TLS (root)
	@go run ./hack/chart $(CHART)

bench: build ## measure against baselines of this machine, 15 min; BENCH=--quick for three, or BENCH='--rows rr,bpf' (root)
	@CGO_ENABLED=0 go build -trimpath -o bin/hawser-bench ./bench/hawser-bench
	@bin/hawser-bench --json bin/bench.json $(BENCH)
	@echo "the same as JSON: bin/bench.json"

scale: build kube-apiserver ## the control plane at the size of a data centre, 25 min; SCALE=--full for hours, SCALE='--scenarios ipam --full' for one of them (root)
	@CGO_ENABLED=0 go build -o bin/hawser-scale ./bench/hawser-scale
	@bin/hawser-scale --out bin/scale $(SCALE)

verify: ## generated code, formatting, vet, staticcheck and the layer rules
	@hack/need.sh go clang-19 llvm-strip-19
	@hack/verify.sh

lint: ## vet and staticcheck only
	@go vet ./... && go -C pkg vet ./...
	@check=$$(go tool -n staticcheck) && $$check ./... && cd pkg && $$check ./...

fmt: ## format the Go code
	@gofmt -s -w $$(git ls-files -co --exclude-standard '*.go')

generate: ## regenerate the BPF objects, the REST code, deep copies and definitions of custom resources (committed)
	@hack/need.sh go clang-19 llvm-strip-19
	go generate ./... && go -C pkg generate ./...

clean: ## remove what was built
	rm -rf bin internal/ui/web/node_modules
	find internal/ui/dist -type f ! -name .gitignore -delete
