//go:build vm

package vmtests

import (
	"testing"

	"svcproxy.dev/svcproxy/vmtests/guest"
)

// rpmSteps follow those of the deb. Debian's rpm installs beside dpkg: with a database of its own, in which no other package is.
var rpmSteps = []step{
	{"rpm: install", (*site).testInstallRPM},
	{"rpm: upgrade under traffic", (*site).testUpgradeRPM},
	{"rpm: downgrade under traffic", (*site).testDowngradeRPM},
	{"rpm: erase", (*site).testErase},
}

// testInstallRPM: presets of the host decide whether the unit is enabled, and the administrator starts it.
func (s *site) testInstallRPM(t *testing.T) {
	s.must(t, "rpm", "--nodeps", "-i", guest.Home+"/"+oldVersion+".rpm")
	if state := s.property(t, "ActiveState"); state != "inactive" {
		t.Errorf("the unit is %s", state)
	}
	s.must(t, "systemctl", "is-enabled", "svcproxy") // Debian has no preset that says otherwise
	s.must(t, "systemctl", "start", "svcproxy")
	s.runs(t, oldVersion)
	s.reaches(t, "one", "two")
}

func (s *site) testUpgradeRPM(t *testing.T) {
	s.change(t, newVersion, ".rpm", "rpm", "--nodeps", "-U") // refuses what rpm takes for older
}

func (s *site) testDowngradeRPM(t *testing.T) {
	s.change(t, oldVersion, ".rpm", "rpm", "--nodeps", "-U", "--oldpackage")
}

// testErase: without the package, traffic goes on. There is no purge.
func (s *site) testErase(t *testing.T) {
	s.must(t, "rpm", "-e", "svcproxy")
	s.gone(t, "/etc/svcproxy", "/run/svcproxy", "/var/lib/svcproxy")
	s.reaches(t, "one", "two")
}
