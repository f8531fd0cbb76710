# Two commands: `make demo` shows Nuri working on this machine, `make test` proves it. A third one,
# `make install PREFIX=/usr/local`, puts it where other programs find it.
.PHONY: demo test bench install
PREFIX ?= /usr/local
demo:
	@bash scripts/setup
	@bash scripts/demo
test:
	@bash scripts/setup --test
	@bash scripts/test
bench:
	@bash scripts/setup --test
	@. scripts/env && cargo xtask bench
install:
	@bash scripts/setup
	@. scripts/env && cargo xtask install --prefix $(PREFIX)
