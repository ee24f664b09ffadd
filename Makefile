# Grapevine. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.SHELLFLAGS := -euo pipefail -c

GO       ?= go
BIN      := bin
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X main.version=$(VERSION)
FUZZTIME ?= 30s
BENCHCOUNT ?= 10
ARGS     ?=
ENGINE   ?= emulated

# go-nvml's own header marks calls as deprecated; nothing else may warn.
export CGO_CFLAGS := $(CGO_CFLAGS) -O2 -g -Wno-deprecated-declarations
export GOFLAGS    := $(GOFLAGS) -buildvcs=false

.PHONY: help
help: ## this list
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install what the build lacks (gcc, libzmq headers, pkg-config); needs root only if something is missing
	@scripts/deps.sh

.PHONY: build
build: deps ## build the binaries into bin/
	@mkdir -p $(BIN)
	@echo "building (the first time takes one to three minutes)"
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/agent ./cmd/grapevine
	CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/gateway ./cmd/injector

.PHONY: test
test: deps ## all tests (no GPU, no cluster, no engine needed)
	$(GO) test ./...

.PHONY: race
race: deps ## the tests under the race detector (not test/e2e: its processes are built without; nor test/sim: one goroutine)
	$(GO) test -race $$($(GO) list ./... | grep -v -e /test/e2e -e /test/sim)

.PHONY: fuzz
fuzz: deps ## each fuzz target for FUZZTIME (30s)
	@scripts/fuzz.sh $(FUZZTIME)

.PHONY: lint
lint: deps ## gofmt, go vet, staticcheck
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "not gofmt'd (run gofmt -w):"; echo "$$bad"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

.PHONY: bench
bench: deps ## benchmarks, BENCHCOUNT (10) runs each, summed up by benchstat
	@scripts/bench.sh $(BENCHCOUNT)

.PHONY: demo
demo: build ## the main job on three emulated fleets side by side (ENGINE=vllm: two real CPU engines; ARGS="..." passes flags)
	@if [ "$(ENGINE)" = vllm ]; then scripts/demo-vllm.sh $(ARGS); else $(BIN)/grapevine demo $(ARGS); fi

.PHONY: test-engine
test-engine: build ## end-to-end tests against two real vLLM engines on the CPU (installs them into a cache outside the tree: about 3 GB)
	@scripts/test-engine.sh

.PHONY: test-kube
test-kube: build ## the chart, the injector and the pools on a real Kubernetes API server (needs root; builds its parts into a cache outside the tree: ten minutes, 0.5 GB)
	@scripts/test-kube.sh

.PHONY: test-envoy
test-envoy: deps ## tests with a real Envoy, what our picker adds to a request included (installs it into a cache outside the tree: 110 MB; ARGS="-run ...")
	@scripts/test-envoy.sh $(ARGS)

.PHONY: parity
parity: deps ## tokenizers and chat templates against the Python libraries that engines use, on real models' files (downloads them)
	@scripts/parity.sh

.PHONY: overhead
overhead: build ## what the gateway adds to a request, beside round robin and a bare nginx
	@scripts/overhead.sh $(ARGS)

.PHONY: sim
sim: build ## our policy and other routers' on simulated fleets, at most 20 minutes (TRACES=folder plays your traces; else made-up loads)
	@scripts/sim.sh $(ARGS)

.PHONY: sim-full
sim-full: build ## the same for all fleets, engines, arrivals and policies: hours; goes on where it was stopped (TRACES=folder)
	@scripts/sim.sh full $(ARGS)

.PHONY: sim-check
sim-check: ## a part of an agents' trace (TRACES=folder with cc-traces) through the simulator and through real processes, side by side: six minutes
	@GRAPEVINE_TRACES="$(TRACES)" $(GO) test ./test/e2e -run TestFleetAsSimulated -count=1 -v -timeout 15m

.PHONY: images
images: ## container images, with docker, podman or buildah (ARGS="--registry R --tag T --push"); without a builder see test-images
	@scripts/images.sh $(ARGS)

.PHONY: test-images
test-images: deps ## the images' contents without a builder: made in bin/images, each started alone there (needs root)
	@scripts/images.sh --rootfs $(BIN)/images $(ARGS)

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN)
