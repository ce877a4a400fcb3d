# The race detector needs a C compiler on Linux and Windows; "make check RACE=" does
# without both. It leaves out gopher-lua, the interpreter of the Redis servers in memory, which
# runs while its server is locked and would take half the time of the tests.
RACE ?= -race -gcflags=github.com/yuin/gopher-lua/...=-race=false

# A program with the race detector sleeps before it exits, by default for a second: that is a
# second for each package, and for each process that a test starts.
GORACE ?= atexit_sleep_ms=50
export GORACE

# The collector of garbage runs less often than by default, which saves a tenth of the tests' time.
test test-library test-command race soak test32: export GOGC ?= 400

# How many admissions "make laws" checks, and how long each fuzz test runs: a
# duration, or a number of runs such as 20000x.
LAWS     ?= 2000000
FUZZTIME ?= 30s

STATICCHECK = go tool "-modfile=$(CURDIR)/tools/go.mod" staticcheck

# The modules that are published beside the library. Each has a workspace with the library of this
# tree, where -modfile can't be used, so lint runs staticcheck by its path. They are published in this
# order, because the command requires postgres.
BESIDE = awsthrottle grpcthrottle otelthrottle postgres cmd/throttle

# The other modules, except suites and page/pagetest, which have targets of their own.
MODULES = $(BESIDE) sdktest examples/river examples/asynq bench

.PHONY: all test test-library test-command check race soak valkey modules test32 stress redis postgres lint dist dist-check bench fidelity laws fuzz example suites page soak-hour workflows vulnerabilities

all: lint test

# skips runs a command, and at its end lists the tests that it skipped for lack of a server. Tests that
# -short leaves out are none of them: check runs those.
skips = @THROTTLE_SKIPPED=$$(mktemp); export THROTTLE_SKIPPED; ($(1)); status=$$?; \
	if [ -s "$$THROTTLE_SKIPPED" ]; then echo "skipped:"; sort "$$THROTTLE_SKIPPED"; fi; \
	rm -f "$$THROTTLE_SKIPPED"; exit $$status

# test is for each edit: the tests of the library and of the command, side by side, without the race
# detector, with few seeds, and with one redis-server at most. Package internal/soak decides what -short
# leaves out; check runs all of it. Each package has one processor, because goroutines in virtual time
# wake each other too often to gain from a second, and several packages run at once, because some wait
# for real servers. THROTTLE_REQUIRE_REDIS=1 makes the tests fail where there is no redis-server and none
# can be installed; without it, the tests that were skipped are listed at the end.
SHORT = go test -vet=off -short -cpu 1
test: redis
	$(call skips,$(MAKE) --no-print-directory -j 2 test-library test-command)

test-library:
	@$(SHORT) -p 3 ./...

test-command:
	@cd cmd/throttle && $(SHORT) -p 2 -parallel 8 ./...

# check runs everything else that must hold before a change lands, one after the other, and each module
# in itself. The commands of README.md, and so the example, run in the tests of cmd/throttle. Fuzz
# tests run their known inputs in "make test", and .github/workflows/fuzz.yml looks for new ones each night.
check: lint
	$(MAKE) --no-print-directory race
	$(MAKE) --no-print-directory soak SOAK=1
	$(MAKE) --no-print-directory valkey
	$(MAKE) --no-print-directory modules
	$(MAKE) --no-print-directory suites SUITES=quick
	$(MAKE) --no-print-directory page
	$(MAKE) --no-print-directory test32
	$(MAKE) --no-print-directory dist-check

# race runs the tests of "make test" with the race detector, except those that need a redis-server: they
# measure real time, and the race detector takes six times as long. Nor does it run those of one preset against
# its stand-in, in which the same code serves each preset. soak runs everything without it. On one processor,
# too, the detector sees what goroutines share without a lock. "make race RACECPU=2" also plays what several
# processors do at the same instant, after which a law that counts or orders requests may fail by chance.
RACECPU ?= 1
race:
	THROTTLE_REQUIRE_REDIS= go test -vet=off -short $(RACE) -cpu $(RACECPU) -timeout 30m -p 3 -skip 'StandIn$$' ./...

# soak runs every test of the library without the race detector and without -short, and plays its random
# storms SOAK times: 1 is their full number. Those on real servers measure real time, so they come last, alone.
SOAK ?= 10
soak: redis
	$(call skips,THROTTLE_SOAK=$(SOAK) go test -vet=off -count=1 -cpu 1 -timeout 60m -p 3 -skip '^TestServer' ./... && \
		THROTTLE_SOAK=$(SOAK) go test -vet=off -count=1 -timeout 60m -p 1 -run '^TestServer' ./distributed ./internal/redistest ./internal/fakeapi)

# valkey runs what servers may differ in on a valkey-server, if there is one or apt-get has one: the
# tests whose names begin with TestServer, which have the faults, the contract of a store, scripts and
# functions, rights, and nested quotas.
valkey:
	@sh tools/redis.sh valkey-server
	@if ! command -v valkey-server; then echo "no valkey-server: nothing runs on it"; exit 0; fi; \
	valkey-server --version && THROTTLE_REDIS_SERVER=valkey-server \
		go test -vet=off -count=1 -run '^TestServer' ./distributed

# modules tests the other modules, one after the other. Their tests wait much, so many run side by side,
# except those of bench, which compute, and those of postgres, which have many servers. The latter run
# once more with the race detector, without those that measure. "make modules MODULES=sdktest" tests one.
# THROTTLE_REQUIRE_POSTGRES=1 makes the tests fail where there is no PostgreSQL server and none can be
# installed.
modules: redis postgres
	$(call skips,for module in $(MODULES); do \
		many=16; case $$module in (bench) many=2;; (postgres) many=6;; esac; \
		echo "$$module"; (cd $$module && go test -vet=off -parallel $$many ./...) || exit 1; \
		[ $$module != postgres ] || (cd $$module && go test -vet=off -short $(RACE) -parallel $$many .) || exit 1; \
	done)

# test32 runs the tests of "make test" where int has 32 bits.
test32:
	CGO_ENABLED=0 GOARCH=386 go vet ./...
	CGO_ENABLED=0 GOARCH=386 $(SHORT) -p 3 ./...

# stress runs the tests of PACKAGES RUNS times beside 8 busy goroutines. All runs must pass.
PACKAGES ?= ./...
RUNS     ?= 20
stress: redis
	go run ./internal/load -runs $(RUNS) -- go test -count=1 $(PACKAGES)

# redis installs a redis-server if there is none and apt-get can. A server that
# THROTTLE_REDIS_SERVER names must be there.
redis:
	@sh tools/redis.sh

# postgres installs a PostgreSQL server and a PgBouncer if there is none and apt-get can.
postgres:
	@sh tools/postgres.sh

lint: workflows
	@files=$$(gofmt -l .) || exit 1; \
	if [ -n "$$files" ]; then echo "not formatted by gofmt:"; echo "$$files"; exit 1; fi
	go vet ./...
	$(STATICCHECK) ./...
	cd bench && go vet ./... && $(STATICCHECK) ./...
	cd sdktest && go vet ./... && $(STATICCHECK) ./...
	cd examples/river && go vet ./... && $(STATICCHECK) ./...
	cd examples/asynq && go vet ./... && $(STATICCHECK) ./...
	cd page/pagetest && go vet ./... && $(STATICCHECK) ./...
	cd suites && go vet ./...
	check=$$($(STATICCHECK:staticcheck=-n staticcheck)) || exit 1; \
	for module in $(BESIDE); do (cd $$module && go vet ./... && "$$check" ./...) || exit 1; done

# dist builds the command for six platforms into DIST, with SHA-256 sums. Use one Go version for a
# release: the programs are then the same on every machine. dist-check builds the last commit in two
# directories and compares.
DIST ?= dist
dist:
	@sh tools/dist.sh "$(DIST)"

dist-check:
	@sh tools/dist.sh -check

# bench prints the tables of the README: what the calls of this library and of
# others take, and the ratios. BENCHFLAGS="-count 10" is slower and steadier. Then it
# compares the store on PostgreSQL with pgbench.
bench:
	@cd bench && go run ./cmd/table $(BENCHFLAGS)
	@cd postgres && go test -run '^$$' -bench 'Saturated|BusyQuota' -count 3 .

# fidelity shows how well this library and others keep a provider's limit, and how much
# of it they use: FIDELITYFLAGS="-svg charts" runs everything in full length.
FIDELITYFLAGS ?= -quick
fidelity:
	@cd bench && go run ./fidelity $(FIDELITYFLAGS)

# laws checks the laws for far longer than the tests do.
laws:
	go test -run Law -timeout 60m ./algorithms/... -args -laws=$(LAWS)
	go test -run '^$$' -fuzz '^FuzzLaws$$' -fuzztime $(FUZZTIME) ./algorithms

# fuzz runs every fuzz test there is in FUZZMODULES, also after one has failed.
FUZZMODULES ?= . cmd/throttle
fuzz:
	@failed=; for module in $(FUZZMODULES); do for package in $$(go -C $$module list ./...); do \
		for test in $$(go -C $$module test -list '^Fuzz' $$package | grep '^Fuzz'); do \
			echo "$$test in $$package"; \
			go -C $$module test -run '^$$' -fuzz "^$$test\$$" -fuzztime $(FUZZTIME) $$package || failed="$$failed $$test"; \
		done; \
	done; done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

# suites runs the test suites of other people's packages over a Transport: "quick" ones, which
# take a minute, "all", or names such as httputil,connect.
SUITES ?= all
suites:
	cd suites && go test -v -count=1 -timeout 30m . -args -suites=$(SUITES)

# page looks at the live page with a real browser. THROTTLE_REQUIRE_CHROMIUM=1 makes it fail where there
# is no chromium or no npm, and none can be installed; without it, the tests that were skipped are listed
# at the end. PAGEFLAGS="-screenshots /tmp/page" writes what the page looks like.
page:
	@sh tools/chromium.sh
	$(call skips,cd page/pagetest && go test -vet=off -count=1 -parallel 8 . -args $(PAGEFLAGS))

# example sends a batch to a copy of a provider that runs in the same process.
example:
	go run ./examples/coinbase $(EXAMPLEFLAGS)

# soak-hour plays an hour of faults in real time: processes, a redis-server and a provider of its own.
# SOAKHOURFLAGS="-for 3m -every 6s" is shorter and busier.
soak-hour: redis
	go run ./internal/soakhour $(SOAKHOURFLAGS)

# workflows checks those of GitHub, and the scripts, with shellcheck if it is installed.
workflows:
	go tool "-modfile=$(CURDIR)/tools/go.mod" actionlint
	@! command -v shellcheck >/dev/null || shellcheck -x -P tools -s sh -e SC1007 -S warning tools/*.sh

# vulnerabilities looks for known ones in every module and in the programs. It needs https://vuln.go.dev.
vulnerabilities:
	@sh tools/vulnerabilities.sh
