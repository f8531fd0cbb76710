# Two commands: `make demo` shows Nuri working on this machine, `make test` proves it.
.PHONY: demo test setup
setup:
	@bash scripts/setup
test: setup
	@. scripts/env && cargo test --workspace -q
demo: setup
	@bash scripts/demo
