//go:build vm

package vmtests

import (
	"strings"
	"testing"
)

// programFile is a service whose check runs a program that says with which rights it runs.
const programFile = `cat >/etc/svcproxy/program.toml <<'END'
[[services]]
name = "program"
vips = ["10.96.0.99"]
ports = [{ port = 80 }]
endpoints = ["192.168.7.3"]
  [services.health_check]
  type = "exec"
  interval = "5s"
  timeout = "5s"
  command = ["/bin/sh", "-c", "grep -E '^(Uid|CapPrm|CapEff|CapAmb|NoNewPrivs):' /proc/self/status | tr -s '[:space:]' ' '; exit 1"]
END`

// testPrograms: programs of checks have no capability of the unit, and are of the user that settings name.
func (s *site) testPrograms(t *testing.T) {
	s.must(t, "sh", "-ec", "cp -p /etc/svcproxy/svcproxy.toml /root/before.toml; "+programFile)
	defer s.must(t, "sh", "-ec", "mv /root/before.toml /etc/svcproxy/svcproxy.toml; rm /etc/svcproxy/program.toml; systemctl restart svcproxy")
	s.programSays(t, "0")
	s.must(t, "sh", "-ec", `printf '[health]\nexec_user = "nobody"\n' >>/etc/svcproxy/svcproxy.toml; systemctl restart svcproxy`)
	s.programSays(t, s.must(t, "id", "-u", "nobody"))
}

// programSays waits until the program has said that it is of a user and has no capability.
func (s *site) programSays(t *testing.T, user string) {
	t.Helper()
	const none = "0000000000000000"
	want := "Uid: " + strings.Repeat(user+" ", 4) + "CapPrm: " + none + " CapEff: " + none + " CapAmb: " + none + " NoNewPrivs: 1"
	eventually(t, "a program says "+want, func() bool {
		out, err := s.node.Output(t.Context(), "svcproxy", "status", "-o", "json")
		return err == nil && strings.Contains(out, want)
	})
}
