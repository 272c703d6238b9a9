//go:build netns

// Package systemd_test holds the unit to what was promised of it.
package systemd_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The exposure of the unit, 0 to 10, is 2.5 at most.
func TestUnitIsHardened(t *testing.T) {
	out, err := exec.Command("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=25", "svcproxy.service").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A program that the kernel kills in place of the daemon does not end the unit, as systemd has it by default.
func TestUnitOutlivesItsPrograms(t *testing.T) {
	text, err := os.ReadFile("svcproxy.service")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\nOOMPolicy=continue\n") {
		t.Error("the unit ends when a program of a health check is killed for want of memory")
	}
}
