//go:build bench

package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source/read"
	"svcproxy.dev/svcproxy/test/lab"
)

const (
	wholePatience = 20 * time.Minute // until all that the limits allow is in the kernel
	portsEach     = 1000
	servicesEach  = 10
)

// TestLimits starts svcproxy with all frontends and endpoints that its limits allow, within the memory of its unit, and once
// more while the kernel has all of them. It fails where that takes MemoryHigh, above which the kernel slows the unit down.
func TestLimits(t *testing.T) {
	logMachine(t)
	unit := readUnit(t)
	t.Setenv("GOMEMLIMIT", fmt.Sprint(unit["GOMEMLIMIT"]))
	for _, v := range []variant{nftables, nft, legacy} {
		t.Run(v.tables(), func(t *testing.T) {
			d := &daemon{node: mustNode(t, v)}
			for _, when := range []string{"first start", "second start"} {
				g := mustGroup(t, unit["MemoryMax"])
				t.Cleanup(func() { // before the group is removed
					if d != nil && d.Daemon != nil {
						_ = d.Kill()
					}
				})
				start := time.Now()
				err := g.within(func() (err error) {
					if d.Daemon != nil {
						return d.run()
					}
					d, err = startDaemon(t, d.node, atLimits(), lone(v))
					return err
				})
				if err == nil {
					err = d.awaitAll()
				}
				took := time.Since(start)
				peak, readErr := g.peak()
				if err := errors.Join(err, readErr); err != nil {
					t.Fatalf("%s: %v\n%s", when, err, d.LogTail(logLines))
				}
				_, own, err := d.resident()
				t.Logf("%s: %v, %d MB at most, of them svcproxy itself %d MiB", when, round(took), peak>>20, own)
				if err != nil || own == 0 || peak >= unit["MemoryHigh"] {
					t.Errorf("%s: %d bytes of memory, want less than %d (%v)", when, peak, unit["MemoryHigh"], err)
				}
				if err := d.Stop(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// atLimits returns services with as many frontends and endpoints of them as the limits allow by default.
func atLimits() (all []lab.Service) {
	limits := read.DefaultLimits
	ports := make([]lab.Port, portsEach)
	for i := range ports {
		ports[i] = lab.Port{Name: fmt.Sprint("p", i), Port: uint16(1 + i), TargetPort: lab.EndpointPorts[0]}
	}
	vips := limits.Frontends / portsEach / servicesEach
	for i := range servicesEach {
		s := lab.Service{Name: fmt.Sprint("service-", i), Ports: ports}
		for j := range vips {
			s.VIPs = append(s.VIPs, offset(firstVIP, i*vips+j))
		}
		for j := range limits.FrontendEndpoints / limits.Frontends {
			s.Endpoints = append(s.Endpoints, lab.Endpoint{Address: offset(endpointRange.Addr(), 1+i*servicesEach+j)})
		}
		all = append(all, s)
	}
	return all
}

// awaitAll waits until everything is in the kernel, for which READY=1 does not wait where it takes long.
func (d *daemon) awaitAll() error {
	if !pace.Within(wholePatience, func() bool {
		time.Sleep(time.Second)
		m, err := d.metrics()
		return err == nil && m[fullSyncs+"_count"] > 0
	}) {
		return fmt.Errorf("not all is in the kernel after %v", wholePatience)
	}
	return nil
}

// readUnit returns the bounds of memory that the unit sets, in bytes.
func readUnit(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile("../../systemd/svcproxy.service")
	if err != nil {
		t.Fatal(err)
	}
	bounds := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^(?:Environment=)?(GOMEMLIMIT|MemoryHigh|MemoryMax)=([0-9]+)G(?:iB)?$`).FindAllStringSubmatch(string(text), -1) {
		gib, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		bounds[m[1]] = gib << 30
	}
	if len(bounds) != 3 {
		t.Fatalf("svcproxy.service has %v", bounds)
	}
	return bounds
}

// A group is a control group that bounds memory, of the first or second version of control groups.
type group struct {
	dir  string
	home string // the file that takes this process back to where it was
	most string // the file with the most memory that was used
}

// mustGroup makes a group of at most limit bytes of memory, which is removed with the test.
func mustGroup(t *testing.T, limit int) *group {
	t.Helper()
	root, own, bound, most := "/sys/fs/cgroup", "0::", "memory.max", "memory.peak"
	if _, err := os.Stat(root + "/cgroup.controllers"); err != nil {
		root, own, bound, most = root+"/memory", ":memory:", "memory.limit_in_bytes", "memory.max_usage_in_bytes"
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	_, path, _ := strings.Cut(string(text), own)
	path, _, _ = strings.Cut(path, "\n")
	dir, err := os.MkdirTemp(root, "svcproxy-bench-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, bound), []byte(strconv.Itoa(limit)), 0); err != nil {
		t.Fatal(err)
	}
	return &group{dir: dir, home: filepath.Join(root, path, "cgroup.procs"), most: filepath.Join(dir, most)}
}

// within calls f while this process is in the group, where the processes that it starts stay.
func (g *group) within(f func() error) error {
	pid := []byte(strconv.Itoa(os.Getpid()))
	if err := os.WriteFile(filepath.Join(g.dir, "cgroup.procs"), pid, 0); err != nil {
		return err
	}
	return errors.Join(f(), os.WriteFile(g.home, pid, 0))
}

// peak returns the most bytes that the processes of the group, and the kernel for them, have used.
func (g *group) peak() (int, error) {
	text, err := os.ReadFile(g.most)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
