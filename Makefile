# Thin on purpose: each goal is a script of scripts/, which can be run by itself.

.PHONY: all build demo test sanitize fuzz lint bench clean

all: build

build:            ## Set up (system packages, .venv) and build build/bin/trireme
	@scripts/setup.sh
	@TARGETS=bin/trireme scripts/build.sh

demo: build       ## Train a small model on the Python standard library's own sources
	@examples/demo/run.sh

test:             ## Set up, build everything and run all tests
	@scripts/setup.sh
	@scripts/build.sh
	@scripts/test.sh

sanitize:         ## The tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/setup.sh
	@scripts/sanitize.sh

fuzz:             ## Fuzz the file parsers under the sanitizers
	@scripts/setup.sh clang libclang-rt-14-dev
	@tests/fuzz/run.sh

lint:             ## clang-format and clang-tidy over the sources
	@scripts/setup.sh clang-format clang-tidy-16
	@scripts/lint.sh

bench: build      ## Side by side with DeepSpeed + Transformers
	@bench/peer.sh

clean:
	rm -rf build build-sanitize build-fuzz build-lint
