package daemon

import (
	"net"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// Status and log warn of a service that takes the packets of a process of this host.
func TestListenersAreWarnedOf(t *testing.T) {
	freely := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_FREEBIND, 1) })
		if err == nil {
			err = failed
		}
		return err
	}}
	l, err := freely.Listen(t.Context(), "tcp4", "10.96.0.99:0")
	fatal.If(t, err)
	defer l.Close()
	r := launch(t, "http_address = \"\"\n")
	r.ready()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	r.write("taken.toml", "[[services]]\nname = \"taken\"\nvips = [\"10.96.0.99\"]\nports = [{ port = "+port+" }]\nendpoints = []\n")
	want := "listens on " + l.Addr().String() + "/tcp, and becomes unreachable at " + l.Addr().String() + "/tcp"
	r.eventually("warned of in the log", func() bool { return strings.Contains(r.log.String(), want) })
	var warnings []string
	for _, s := range r.status().Loop.Services {
		warnings = append(warnings, s.Warnings...)
	}
	if all := strings.Join(warnings, "\n"); !strings.Contains(all, want) {
		t.Errorf("status warns of %q", all)
	}
}
