# Two commands: `make demo` shows Nuri working on this machine, `make test` proves it.
.PHONY: demo test bench
demo:
	@bash scripts/setup
	@bash scripts/demo
test:
	@bash scripts/setup --test
	@. scripts/env && cargo xtask ci
bench:
	@bash scripts/setup --test
	@. scripts/env && cargo xtask bench
