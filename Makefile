# make lists its targets.

GO         ?= go
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
NFPM        = github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.1
MISSPELL    = github.com/golangci/misspell/cmd/misspell@v0.7.0
SOAK        = (TestCases|TestLegal)/.*/(same source port|held connections|rewriting|moving|restarts|kills|affinity under a flood|health|uplink|large service)|TestStops|TestWays
GUEST       = $(GO) run ./vmtests/cmd/guest -timeout 4h -cpus 2 -memory 2048 -file bin/svcproxy -env SVCPROXY_LAB_BINARY=/root/svcproxy -env SVCPROXY_LAB_SLOW=5
TAGS       ?=
IMAGE      ?= dist/svcproxy-$(VERSION).tar
BINARY     ?= bin/svcproxy
ARCHS      ?= amd64 arm64
SHARE       = $(DESTDIR)/usr/share/svcproxy
DOC         = $(DESTDIR)/usr/share/doc/svcproxy
LDFLAGS     = -s -w -X main.version=$(VERSION)

# Everything is compiled as what is released, which a host without C can run: tests try the same code, and nothing is
# compiled twice. The race detector is the exception. lint vets all code once; go test would all that it depends on, with
# and without the race detector.
export CGO_ENABLED = 0
export GOFLAGS    := $(shell $(GO) env GOFLAGS) -trimpath -vet=off

.PHONY: help build sizes install packages release check-release image manual demo test costs test-netns test-packages test-lab test-vm vagrant test-vagrant worlds judge judge-soak judge-vm judge-faults test-nokubernetes test-templates test-kubernetes kubernetes-programs judge-keepalived judge-kubeproxy bench-kubernetes bench-peers bench-peers-vm stress soak soak-vm bench fuzz lint fmt clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## bin/svcproxy
	$(GO) build -buildvcs=false -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o '$(BINARY)' ./cmd/svcproxy

sizes: ## bytes of the program with and without the Kubernetes source
	@for tags in '' nokubernetes; do $(MAKE) -s build TAGS=$$tags && printf '%12s bytes %s\n' $$(stat -c %s bin/svcproxy) "$$tags"; done; $(MAKE) -s build

install: build ## all that packages have (DESTDIR is honoured)
	install -D -m 0755 '$(BINARY)' $(DESTDIR)/usr/sbin/svcproxy
	install -D -m 0644 systemd/svcproxy.service $(DESTDIR)/usr/lib/systemd/system/svcproxy.service
	install -D -m 0644 systemd/modules-load.d/svcproxy.conf $(DESTDIR)/usr/lib/modules-load.d/svcproxy.conf
	install -D -m 0644 systemd/modprobe.d/svcproxy.conf $(DESTDIR)/usr/lib/modprobe.d/svcproxy.conf
	install -D -m 0644 systemd/sysctl.d/*.conf -t $(DESTDIR)/usr/lib/sysctl.d
	install -D -m 0644 systemd/sysusers.d/svcproxy.conf $(DESTDIR)/usr/lib/sysusers.d/svcproxy.conf
	install -D -m 0755 systemd/netfilter-persistent/05-svcproxy $(DESTDIR)/usr/share/netfilter-persistent/plugins.d/05-svcproxy
	set -e; for f in $$(find configs -type f -not -name '*.go' -not -name '*.test.yml' -printf '%P '); do install -D -m 0644 "configs/$$f" "$(SHARE)/$$f"; done
	install -D -m 0644 LICENSE $(DOC)/copyright
	install -D -m 0644 README.md CHANGELOG.md -t $(DOC)
	install -D -m 0644 docs/*.* -t $(DOC)/docs
	ln -sfn ../../svcproxy $(DOC)/configs
	set -e; dir=$$(mktemp -d); $(GO) run -buildvcs=false -tags manual ./cmd/svcproxy manual "$$dir"; gzip -9n "$$dir"/man/*/*; \
	install -D -m 0644 "$$dir"/man/man5/* -t $(DESTDIR)/usr/share/man/man5; \
	install -D -m 0644 "$$dir"/man/man8/* -t $(DESTDIR)/usr/share/man/man8; \
	install -D -m 0644 "$$dir/completions/bash/svcproxy" -t $(DESTDIR)/usr/share/bash-completion/completions; \
	install -D -m 0644 "$$dir/completions/fish/svcproxy.fish" -t $(DESTDIR)/usr/share/fish/vendor_completions.d; \
	for d in vendor-completions site-functions; do install -D -m 0644 "$$dir/completions/zsh/_svcproxy" -t $(DESTDIR)/usr/share/zsh/$$d; done; \
	install -D -m 0644 "$$dir/index.html" -t $(DOC); rm -r "$$dir"
	test -n '$(DESTDIR)' || install -d -m 0755 /etc/svcproxy

packages: ## .deb and .rpm for ARCHS, and the programs in them, in dist/
	packaging/build '$(VERSION)' dist $(ARCHS)

release: ## programs, packages, images, bills of materials and checksums, all that dist/ has then (root)
	packaging/release '$(VERSION)' dist

check-release: ## make it once more, from a copy in another folder, and compare (root)
	packaging/check '$(VERSION)'

image: build ## an image for containers, as an OCI archive in IMAGE (root)
	scripts/image '$(VERSION)' '$(IMAGE)'

manual: ## the manual as one page of HTML, manual pages and completions, in dist/manual
	$(GO) run -tags manual ./cmd/svcproxy manual dist/manual

demo: ## two endpoints behind one VIP, in namespaces of its own (root)
	scripts/demo

# Folders of these tests are in memory where it has room: those of source/file alone wait two minutes for a slow
# disk. Tests of tag netns use the disk. Most packages wait most of the time, so more of them run than there are processors.
MEMORY = $(shell d=/dev/shm; test -w $$d && test $$(df -k --output=avail $$d | tail -n 1) -gt 2000000 && ! grep -q " $$d .*noexec" /proc/mounts && echo $$d || echo $${TMPDIR:-/tmp})

test: costs ## unit, golden and property tests under the race detector, and costs (no root)
	CGO_ENABLED=1 GOTMPDIR=$${TMPDIR:-/tmp} TMPDIR=$(MEMORY) $(GO) test -race -p 4 ./...

costs: ## allocations, bytes, and what is sent to the kernel, of a change, a start and a status, beside test/costs/testdata (no root)
	$(GO) test -count=1 ./test/costs

test-netns: test-packages test-lab ## packet tests in network namespaces (root; iptables, nftables, ipset, iproute2, frr, bird2, keepalived, etcd-server, etcd-client, minisign)

# What a tag adds: packages with a test or a file of code that is not there without it, and the names of its tests.
PACKAGES = {{.ImportPath}} {{.GoFiles}} {{.TestGoFiles}} {{.XTestGoFiles}}
PACKAGES_OF = $$({ $(GO) list -f '$(PACKAGES)' ./...; $(GO) list -tags $(1) -f '$(PACKAGES)' ./...; } | sort | uniq -u | cut -d ' ' -f 1 | sort -u)
TESTS_OF = ^($$(grep -rl --include='*_test.go' '^//go:build $(1)' . | xargs sed -n 's/^func \(Test[A-Za-z0-9_]*\|Example[A-Za-z0-9_]*\)(.*/\1/p' | sort -u | paste -sd '|'))\$$

test-packages: ## those of packages (root)
	$(GO) test -tags netns -count=1 -p 2 -timeout 20m -run "$(call TESTS_OF,netns)" $$(echo "$(call PACKAGES_OF,netns)" | grep -vE '/test/(lab|history)$$')

test-lab: ## those of the real binary, in every mode (root)
	$(GO) test -tags netns -count=1 -timeout 30m ./test/lab

worlds: ## random services and packets, 100,000 of them, and 40 simulated hours, judged by an independent model
	$(GO) test -count=1 -v -run TestResolve ./test/policy -worlds 100000
	$(GO) test -count=1 -v -run TestHours ./test/simulate -hours 40

# An episode that has begun is finished, so it takes a little longer.
judge: worlds ## clients under random faults, judged by that model; JUDGE (9m) in each mode, beside each other (root)
	$(GO) test -tags netns -count=1 -v -timeout 24h -parallel 3 -run TestHistory ./test/history -for $(or $(JUDGE),9m)

judge-soak: ## the same for eight hours, or for JUDGE (root)
	$(MAKE) judge JUDGE=$(or $(JUDGE),8h)

judge-vm: build ## histories of ipvs mode, for JUDGE (30m), in a guest (as test-vm)
	$(GO) test -c -tags netns,vm -o bin/history.test ./test/history
	$(GUEST) -- bin/history.test -test.v -test.timeout 4h -test.run '^TestHistory$$' -for $(or $(JUDGE),30m)

judge-faults: ## faults of the past, put back one by one: which do histories find within JUDGE (30m) each? Up to hours (root)
	$(GO) run ./test/mutate -list test/history/faults.json -- $(GO) test -tags netns -count=1 -timeout 4h -run 'TestHistory/MODE$$' ./test/history -for $(or $(JUDGE),30m) -shrink 0

# -v, because second tries are to be seen also where all passed.
test-vm: ## tests in virtual machines: IPVS, another kernel, the unit (qemu-system-x86, mmdebstrap, squashfs-tools, kmod, e2fsprogs)
	$(GO) test -tags vm -count=1 -p 1 -timeout 1h ./vmtests/cmd/... ./vmtests/guest/... ./vmtests/internal/...
	$(GO) test -tags vm -count=1 -timeout 1h -v ./vmtests

vagrant: build ## the machines of the whole-system tests, to try svcproxy by hand (Vagrant with libvirt or VirtualBox)
	$(GO) build -buildvcs=false -o bin/peer ./vmtests/cmd/peer
	cd vmtests && vagrant up

test-vagrant: vagrant ## the whole-system tests in these machines
	$(GO) test -tags vm,vagrant -count=1 -v -timeout 1h -run TestVagrant ./vmtests

test-nokubernetes: ## vet and test what differs without the Kubernetes source
	$(GO) vet -tags nokubernetes ./...
	$(GO) test -tags nokubernetes ./internal/repocheck ./cmd/svcproxy $$(echo "$(call PACKAGES_OF,nokubernetes)" | grep /cmd/)

test-templates: ## the templates of configs/examples/templates, by consul-template; builds it, which takes half a minute
	cd test/templates && $(GO) vet ./... && $(GO) test -count=1 ./...

test-kubernetes: ## against a real API server in namespaces, and against kube-proxy (root); builds them the first time, which takes 10 minutes
	cd test/kubernetes && $(GO) vet -tags netns ./... && $(GO) test -tags netns -count=1 -p 1 -v -timeout 1h -run TestKubernetes ./...

kubernetes-programs: ## the API server, etcd and kube-proxy for that, ahead of it
	cd test/kubernetes && $(GO) test -tags netns -count=1 -v -timeout 1h -run TestPrograms ./...

judge-keepalived: build bin/keepalived.tar ## keepalived under the same judge, for JUDGE (10m), in a guest (as test-vm, and keepalived)
	$(GO) test -c -tags netns,vm -o bin/history.test ./test/history
	$(GUEST) -file bin/keepalived.tar -env SVCPROXY_PEERS_KEEPALIVED=/root/keepalived.tar -- bin/history.test -test.v -test.timeout 4h -test.run '^TestJudgeKeepalived$$' -for $(or $(JUDGE),10m) -go-on -shrink 0

# keepalived of this host, with its libraries, for guests.
bin/keepalived.tar:
	tar -chPf $@ --transform 's,^/,,' $$(command -v keepalived) $$(ldd $$(command -v keepalived) | grep -o '/[^ ]*')

judge-kubeproxy: ## kube-proxy under the same judge, JUDGE (10m) in each mode (root; builds kube-proxy)
	cd test/kubernetes && $(GO) test -tags netns -count=1 -v -timeout 24h -run TestJudgeKubeProxy . -for $(or $(JUDGE),10m) -go-on -shrink 0

bench-kubernetes: ## memory and first sync of 10,000 services by API, beside kube-proxy (root)
	cd test/kubernetes && $(GO) test -tags netns -count=1 -v -timeout 1h -run TestBench .

PEERS ?= TestBenchPeers
bench-peers: ## svcproxy beside kube-proxy in all modes, into docs/bench-peers.md; some two hours, goes on where it was ended (root; builds kube-proxy)
	cd test/kubernetes && $(GO) test -tags netns -count=1 -v -timeout 24h -run '$(PEERS)' ./peers

bench-peers-vm: build bin/keepalived.tar ## keepalived beside svcproxy in ipvs mode, in a guest, as a table (as test-vm, and keepalived); an hour
	$(GO) test -c -tags bench,vm -o bin/bench.test ./test/bench
	$(GUEST) -file bin/keepalived.tar -env SVCPROXY_PEERS_KEEPALIVED=/root/keepalived.tar -env SVCPROXY_PEERS_IPVS=$(SVCPROXY_PEERS_IPVS) -env SVCPROXY_PEERS_ROUNDS=$(SVCPROXY_PEERS_ROUNDS) -- bin/bench.test -test.v -test.timeout 4h -test.run '^TestPeersIPVS$$'

stress: ## how long a change takes while tables are full and others write rules, in one table; three minutes of it, or of STRESS (nftables, iptables-nft, iptables-legacy) alone (root)
	$(GO) test -tags bench -count=1 -v -timeout 30m -run 'TestStress/$(STRESS)' ./test/bench

soak: ## what is random, many times: files, services and faults while svcproxy runs and is killed, power failures, plans, and all of stress; hours of it (root)
	SVCPROXY_SOAK=1 $(GO) test -tags netns -count=1 -v -timeout 4h -run '$(SOAK)' ./test/lab
	SVCPROXY_SOAK=1 $(GO) test -tags netns -count=1 -v -timeout 1h ./test/hosts
	SVCPROXY_SOAK=1 $(GO) test -tags bench -count=1 -v -timeout 2h -run 'TestStress|TestRepair|TestFlush|TestLimits' ./test/bench
	SVCPROXY_SOAK=1 $(GO) test -tags netns -count=1 -v -timeout 1h -run TestPowerFailure ./source/file
	SVCPROXY_TRANSITIONS=500 $(GO) test -tags netns -count=1 -v -timeout 2h -run 'TestConformance/transitions' ./proxier/nftables ./proxier/iptables
	SVCPROXY_SOAK=1 $(GO) test -tags bench -count=1 -v -timeout 2h -run TestHour ./proxier/healthcheck
	cd test/kubernetes && SVCPROXY_SOAK=1 $(GO) test -tags netns -count=1 -v -timeout 1h ./kubeproxy

soak-vm: build ## the stops of ipvs mode at random moments, its changes under stress, the flow table's worth, and the whole life of packages, in guests; an hour and more (as test-vm)
	$(GO) test -c -tags bench,vm -o bin/bench.test ./test/bench
	$(GUEST) -- bin/bench.test -test.v -test.run '^TestStress$$/^ipvs'
	$(GUEST) -env SVCPROXY_SOAK=1 -- bin/bench.test -test.v -test.timeout 4h -test.run '^TestFlush$$'
	$(GO) test -c -tags netns,vm -o bin/lab.test ./test/lab
	$(GUEST) -env SVCPROXY_SOAK=1 -- bin/lab.test -test.v -test.run '^(TestCases|TestLegal)$$/^ipvs/^(explain|trace|files|limits|restarts|rewriting|same source port|large service|mode change to iptables|firewall)$$'
	$(GUEST) -env SVCPROXY_SOAK=1 -file bin/lab.test -- sh -c 'modprobe br_netfilter && ./lab.test -test.v -test.run "^TestCases$$/^(nftables$$|ipvs)/^explain$$/^one bridge$$"'
	$(GUEST) -env SVCPROXY_SOAK=1 -- bin/lab.test -test.v -test.run '^TestStops$$/^ipvs'
	$(GO) test -c -tags vm -o bin/ipvs.test ./proxier/ipvs
	$(GUEST) -env SVCPROXY_SOAK=1 -env SVCPROXY_TRANSITIONS=100 -- bin/ipvs.test -test.v -test.run '^TestConformance$$'
	$(GUEST) -env SVCPROXY_SOAK=1 -- bin/ipvs.test -test.v -test.run '^TestForward$$'
	$(GO) test -c -tags bench,netns,vm -o bin/nftables.test ./proxier/nftables
	$(GUEST) -- bin/nftables.test -test.v -test.run '^TestFlowtableRate$$'
	$(GO) test -c -tags vm -o bin/convert.test ./cmd/internal/convert
	$(GUEST) -file cmd/internal/convert/testdata -env SVCPROXY_SOAK=1 -- bin/convert.test -test.v -test.run 'AsKeepalived$$'
	SVCPROXY_SOAK=1 $(GO) test -tags vm -count=1 -timeout 1h -v -run '^TestSystem$$/^auto$$' ./vmtests

bench: build ## compare with kube-proxy's layouts in one run; prints ratios (root)
	$(GO) test -tags bench -count=1 -run 'TestBench|TestTraffic|TestHeard|TestStart' -v -timeout 1h ./test/bench
	$(GO) test -tags bench -count=1 -run TestBenchFiles -v ./source/file

fuzz: ## each fuzz test for FUZZTIME (30s)
	scripts/fuzz $(or $(FUZZTIME),30s)

# No file is left out by these tags, except for what test-nokubernetes vets.
lint: ## gofmt, go vet, staticcheck, spelling and wording
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo 'gofmt would change these'; exit 1; }
	$(GO) vet -tags netns,bench,vm,vagrant,manual ./...
	$(GO) run $(STATICCHECK) -tags netns,bench,vm,vagrant,manual ./...
	find . -regex '.*\.\(go\|md\|toml\|sh\|service\)' -not -path '*/testdata/*' -not -path '*/.*/*' | xargs $(GO) run $(MISSPELL) -error -i nmae
	$(GO) test ./internal/wording

fmt: ## gofmt -w
	gofmt -w .

clean: ## remove what build and release made
	rm -rf bin dist
