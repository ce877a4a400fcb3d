# The race detector needs a C compiler on Linux and Windows; "make test RACE=" does
# without both. It leaves out gopher-lua, the interpreter of the Redis servers in memory, which
# runs while its server is locked and would take half the time of the tests.
RACE ?= -race -gcflags=github.com/yuin/gopher-lua/...=-race=false

# PURE tests arithmetic in one goroutine, and presets, which hold no lock but those of what they have
# learned: "make test" runs it without the race detector, which takes six times as long, and "make
# soak" with it. So do the tests of ALONE, which have one goroutine each, beside that of a server.
PURE  = ./algorithms ./internal/fakeapi/rules ./providers
ALONE = TestTwins|TestConvertTwins|TestTraces|TestNumbers|TestForeignValues|TestBundleLaw|$\
	TestReleasesEstimate|TestReleasesSideBySide|TestReleaseThatEnds|TestGroupParkingChangesNothing

# A program with the race detector sleeps before it exits, by default for a second: that is a
# second for each package, and for each process that a test starts.
GORACE ?= atexit_sleep_ms=50
export GORACE

# The collector of garbage runs less often than by default, which saves a tenth of the tests' time.
test soak: export GOGC ?= 400

# How many admissions "make laws" checks, and how long each fuzz test runs: a
# duration, or a number of runs such as 20000x.
LAWS     ?= 2000000
FUZZTIME ?= 30s

STATICCHECK = go tool "-modfile=$(CURDIR)/tools/go.mod" staticcheck

# The modules that are published beside the library. Each has a workspace with the library of this
# tree, where -modfile can't be used, so lint runs staticcheck by its path.
BESIDE = awsthrottle cmd/throttle grpcthrottle otelthrottle

.PHONY: all test test32 valkey soak stress redis lint dist dist-check bench fidelity laws fuzz example suites page

all: lint test

# test runs every test, the benchmarks' own too. THROTTLE_REQUIRE_REDIS=1 makes it
# fail where there is no redis-server and none can be installed; without it, the
# tests that were skipped are listed at the end. Four packages run at once, because some wait for
# real servers.
test: redis
	go test $(PURE)
	@echo go test -p 4 $(RACE) ./...; \
	THROTTLE_SKIPPED=$$(mktemp); export THROTTLE_SKIPPED; \
	go test -run '^($(ALONE))$$' . ./distributed && \
	go test -p 4 $(RACE) -skip '^($(ALONE))$$' $$(go list ./... | grep -vxF "$$(go list $(PURE))"); status=$$?; \
	if [ -s "$$THROTTLE_SKIPPED" ]; then echo "skipped:"; sort "$$THROTTLE_SKIPPED"; fi; \
	rm -f "$$THROTTLE_SKIPPED"; exit $$status
	$(MAKE) --no-print-directory -j 4 $(MODULES)

# MODULES test a module each, such as test/cmd/throttle. Their tests wait much, so they run side by side.
MODULES = $(addprefix test/,bench sdktest $(BESIDE))
.PHONY: $(MODULES)
$(MODULES): test/%:
	cd $* && go vet ./... && go test -parallel 16 ./...

# test32 runs the tests where int has 32 bits, and of package distributed those with the most numbers.
test32:
	CGO_ENABLED=0 GOARCH=386 go vet ./...
	CGO_ENABLED=0 GOARCH=386 go test $$(go list ./... | grep -Ev '/(distributed|internal/redistest)$$')
	CGO_ENABLED=0 GOARCH=386 go test -run '^Test(Twins|Traces|Numbers|Store|Peek.*|NestedFleets|Bundle(Law|Fleets|Accounts)|CalledOnce)$$' ./distributed

# valkey runs what servers may differ in on a valkey-server, if there is one or apt-get
# has one: the faults, the contract of a store, scripts and functions, rights, and nested quotas.
valkey:
	@sh tools/redis.sh valkey-server
	@if ! command -v valkey-server; then echo "no valkey-server: nothing runs on it"; exit 0; fi; \
	valkey-server --version && THROTTLE_REDIS_SERVER=valkey-server \
		go test $(RACE) -count=1 -run '^Test(Faults|Store|Function|Input|BundleServers)' ./distributed

# soak plays the random storms of the tests SOAK times as long as test does.
SOAK   ?= 10
STORMS = $(ALONE)|TestFleetLaws|TestFleetClocks|TestFleetOfProcesses|TestDefinition|TestProcesses|$\
	TestManyLeases|TestFleetToldReset|TestNestedFleets|TestSteppedServerNeverStalls|TestLaws|TestExtremes|TestForecastIsNeverLate|TestRecall|TestReserverCancelsOnce|$\
	TestStormOfEverything|TestCancelStorm|TestCloseRaces|TestQueueOfMixedCosts|TestSetPolicyNested|$\
	TestClassesByRank|TestClassesDeadlinesByRank|TestClassesStormAtAFarStore
soak: redis
	THROTTLE_SOAK=$(SOAK) go test $(RACE) -count=1 -timeout 60m \
		-run '^($(STORMS))$$' . ./algorithms ./distributed ./host ./internal/queue ./store ./throttletest
	THROTTLE_SOAK=$(SOAK) go test $(RACE) -count=1 -timeout 60m ./providers ./internal/fakeapi/rules ./examples/coinbase

# stress runs the tests of PACKAGES RUNS times beside 8 busy goroutines. All runs must pass.
PACKAGES ?= ./...
RUNS     ?= 20
stress: redis
	go run ./internal/load -runs $(RUNS) -- go test $(RACE) -count=1 $(PACKAGES)

# redis installs a redis-server if there is none and apt-get can. A server that
# THROTTLE_REDIS_SERVER names must be there.
redis:
	@sh tools/redis.sh

lint:
	@files=$$(gofmt -l .) || exit 1; \
	if [ -n "$$files" ]; then echo "not formatted by gofmt:"; echo "$$files"; exit 1; fi
	go vet ./...
	$(STATICCHECK) ./...
	cd bench && go vet ./... && $(STATICCHECK) ./...
	cd sdktest && go vet ./... && $(STATICCHECK) ./...
	cd page/pagetest && go vet ./... && $(STATICCHECK) ./...
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
# others take, and the ratios. BENCHFLAGS="-count 10" is slower and steadier.
bench:
	@cd bench && go run ./cmd/table $(BENCHFLAGS)

# fidelity shows how well this library and others keep a provider's limit, and how much
# of it they use: FIDELITYFLAGS="-svg charts" runs everything in full length.
FIDELITYFLAGS ?= -quick
fidelity:
	@cd bench && go run ./fidelity $(FIDELITYFLAGS)

# laws checks the laws for far longer than the tests do.
laws:
	go test -run Law -timeout 60m ./algorithms/... -args -laws=$(LAWS)
	go test -run '^$$' -fuzz '^FuzzLaws$$' -fuzztime $(FUZZTIME) ./algorithms

# fuzz runs every fuzz test there is.
fuzz:
	@set -e; for package in $$(go list ./...); do \
		for test in $$(go test -list '^Fuzz' $$package | grep '^Fuzz'); do \
			echo "$$test in $$package"; \
			go test -run '^$$' -fuzz "^$$test\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

# suites runs the test suites of other people's packages over a Transport: "quick" ones, which
# take a minute, "all", or names such as httputil,connect.
SUITES ?= all
suites:
	cd suites && go vet ./... && go test -v -count=1 -timeout 30m . -args -suites=$(SUITES)

# page looks at the live page with a real browser. THROTTLE_REQUIRE_CHROMIUM=1 makes it fail where there
# is no chromium or no npm, and none can be installed; without it, the tests that were skipped are listed
# at the end. PAGEFLAGS="-screenshots /tmp/page" writes what the page looks like.
page:
	@sh tools/chromium.sh
	@cd page/pagetest && go vet ./... || exit 1; \
	THROTTLE_SKIPPED=$$(mktemp); export THROTTLE_SKIPPED; \
	go test -count=1 -parallel 8 . -args $(PAGEFLAGS); status=$$?; \
	if [ -s "$$THROTTLE_SKIPPED" ]; then echo "skipped:"; sort "$$THROTTLE_SKIPPED"; fi; \
	rm -f "$$THROTTLE_SKIPPED"; exit $$status

# example sends a batch to a copy of a provider that runs in the same process.
example:
	go run ./examples/coinbase $(EXAMPLEFLAGS)
