//go:build netns

// Package systemd_test holds the unit to what was promised of it.
package systemd_test

import (
	"os/exec"
	"testing"
)

// The exposure of the unit, 0 to 10, is 2.5 at most.
func TestUnitIsHardened(t *testing.T) {
	out, err := exec.Command("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=25", "svcproxy.service").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
