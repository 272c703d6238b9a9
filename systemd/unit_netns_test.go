//go:build netns

// Package systemd_test holds the unit to what was promised of it.
package systemd_test

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source/read"
)

// The exposure of the unit, 0 to 10, is 2.6 at most. CAP_KILL, which ends programs of checks that run as exec_user, is the
// last tenth. The rest is what the daemon does: it runs as root in the network and the directories of the host, with netlink,
// packet sockets and all addresses, reads /proc/sys, and becomes exec_user (CAP_SETUID, CAP_SETGID, capset).
func TestUnitIsHardened(t *testing.T) {
	out, err := exec.Command("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=26", "svcproxy.service").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A program that the kernel kills in place of the daemon does not end the unit, as systemd has it by default.
func TestUnitOutlivesItsPrograms(t *testing.T) {
	text, err := os.ReadFile("svcproxy.service")
	fatal.If(t, err)
	if !strings.Contains(string(text), "\nOOMPolicy=continue\n") {
		t.Error("the unit ends when a program of a health check is killed for want of memory")
	}
}

// On a busy host the daemon has more than the usual share of the processors, which is 100.
func TestUnitHasWeight(t *testing.T) {
	text, err := os.ReadFile("svcproxy.service")
	fatal.If(t, err)
	m := regexp.MustCompile(`(?m)^CPUWeight=([0-9]+)$`).FindSubmatch(text)
	if m == nil {
		t.Fatal("the unit has no CPUWeight")
	}
	if weight, _ := strconv.Atoi(string(m[1])); weight <= 100 {
		t.Errorf("CPUWeight is %d, want more than the usual 100", weight)
	}
}

// What the limits allow by default fits into the memory of the unit, with room for the kernel's part and for programs. A
// frontend takes 1,240 bytes at a start, and an endpoint of one 170.
func TestUnitHasMemoryForLimits(t *testing.T) {
	text, err := os.ReadFile("svcproxy.service")
	fatal.If(t, err)
	sizes := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^(?:Environment=)?(GOMEMLIMIT|MemoryHigh|MemoryMax)=([0-9]+)G(?:iB)?$`).FindAllStringSubmatch(string(text), -1) {
		n, _ := strconv.Atoi(m[2])
		sizes[m[1]] = n << 30
	}
	heap := 1240*read.DefaultLimits.Frontends + 170*read.DefaultLimits.FrontendEndpoints + 15*read.DefaultLimits.FileSize
	if sizes["GOMEMLIMIT"] < heap || sizes["MemoryHigh"] < 2*sizes["GOMEMLIMIT"] || sizes["MemoryMax"] <= sizes["MemoryHigh"] {
		t.Errorf("the limits allow a heap of %d bytes, and the unit has %v", heap, sizes)
	}
}
