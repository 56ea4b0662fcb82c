# Needs Python 3.11+ and make; everything else is installed into .venv from pyproject.toml.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
WORKERS ?= 2
PROTOS := $(wildcard protos/psframework/proto/v1/*.proto)

.PHONY: help demo test check protos bench soak clean
help:
	@echo "make demo    train a small convolutional network on real digits through a local cluster (ARGS=--help for more)"
	@echo "make test    install the development extras and run the whole suite (ARGS='-k wire' to choose)"
	@echo "make check   ruff, mypy --strict, import-linter, codespell, buf lint, regeneration of the protos"
	@echo "make protos  regenerate psframework/proto"
	@echo "make bench   measure the performance budget against peers (ARGS=rpc, mlp, cnn, ...: psf bench --list)"
	@echo "make soak    the long tests, at full count"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: psframework needs Python 3.11 or newer; say which with PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml
	$(PIP) install -e '.[plot]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml
	$(PIP) install -e '.[dev,plot]'
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/psf demo $(ARGS)

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not soak" $(ARGS)

soak: $(VENV)/.dev
	PSF_SOAK=1 $(BIN)/python -m pytest -m soak --timeout 1800 $(ARGS)

bench: $(VENV)/.dev
	$(BIN)/psf bench $(ARGS)

protos: $(VENV)/.dev
	$(BIN)/python -m grpc_tools.protoc -Iprotos \
	  --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	  --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. $(PROTOS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell psframework services tests docs examples benchmarks protos *.md
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/buf lint protos
	$(BIN)/buf format --diff --exit-code protos
	$(MAKE) --no-print-directory protos
	git diff --exit-code -- psframework/proto

clean:
	rm -rf $(VENV) runs dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
