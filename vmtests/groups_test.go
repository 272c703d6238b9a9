//go:build vm

package vmtests

import "testing"

// testGroups: members of the group svcproxy may ask the daemon of the hardened unit, which may not change
// groups itself; those of svcproxy-admin may tell it something, too; nobody else may do either.
func (s *site) testGroups(t *testing.T) {
	s.must(t, "sh", "-ec", `systemd-sysusers svcproxy.conf; useradd stranger
		useradd -G svcproxy reader; useradd -G svcproxy,svcproxy-admin admin`)
	s.must(t, "systemctl", "restart", "svcproxy")
	for _, tt := range []struct {
		user       string
		asks, says bool
	}{{"stranger", false, false}, {"reader", true, false}, {"admin", true, true}} {
		s.mayRun(t, tt.user, tt.asks, "status")
		s.mayRun(t, tt.user, tt.says, "drain", "192.168.7.4", "--reason", "a test")
	}
	s.mayRun(t, "reader", false, "undrain", "192.168.7.4")
	s.mayRun(t, "admin", true, "undrain", "192.168.7.4")
}

// mayRun checks whether a user may run a command of svcproxy.
func (s *site) mayRun(t *testing.T, user string, may bool, args ...string) {
	t.Helper()
	out, err := s.node.Output(t.Context(), append([]string{"runuser", "-u", user, "--", "svcproxy"}, args...)...)
	if (err == nil) != may {
		t.Errorf("%s: svcproxy %q: %v, want that to be allowed: %t\n%s", user, args, err, may, out)
	}
}
