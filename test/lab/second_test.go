//go:build netns

package lab

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/pace"
)

// One daemon works in a network namespace: a second one, with directories of its
// own, is refused by the name of the first, and so is cleanup. After kill -9 the
// second starts at once. Daemons in other namespaces do not matter.
func TestSecondDaemon(t *testing.T) {
	m := nftablesMode()
	e := &env{Lab: newLab(t), mode: m, number: 1}
	e.daemon = newDaemon(t, e.Lab, m)
	if err := errors.Join(e.daemon.Settings("mode = \"nftables\"\n"), e.daemon.Start()); err != nil {
		t.Fatal(err)
	}
	e.apply(t, e.service(at(e.Local[0])...))
	served := check{from: e.Client, to: e.vip(1), want: by(e.Local[0])}
	second := newDaemon(t, e.Lab, m)
	if err := second.Settings("mode = \"iptables\"\nhttp_address = \"\"\n"); err != nil {
		t.Fatal(err)
	}

	named := fmt.Sprintf("another svcproxy (pid %d, version ", e.daemon.Pid())
	directories := strings.Join(e.daemon.directories(), " ")
	if text := refusal(t, second); !strings.Contains(text, named) || !strings.Contains(text, strings.ReplaceAll(directories, " --", ", --")) {
		t.Errorf("the second says %q, want %q and %q", text, named, directories)
	}
	if _, err := second.Command("cleanup"); err == nil || !strings.Contains(err.Error(), named) {
		t.Errorf("cleanup with other directories: %v, want %q", err, named)
	}
	e.expect(t, served)
	if log := e.daemon.LogTail(logLines); strings.Contains(log, "another program changed our table; repairing it") {
		t.Errorf("the first was disturbed:\n%s", log)
	}

	aside := &env{Lab: newLab(t), mode: m, number: 1}
	aside.daemon = newDaemon(t, aside.Lab, m)
	if err := errors.Join(aside.daemon.Settings("mode = \"nftables\"\n"), aside.daemon.Start()); err != nil {
		t.Fatal("in another namespace: ", err)
	}
	aside.apply(t, aside.service(at(aside.Local[1])...))
	aside.expect(t, check{from: aside.Client, to: aside.vip(1), want: by(aside.Local[1])})
	e.expect(t, served)

	if err := errors.Join(e.daemon.Kill(), second.Settings("mode = \"nftables\"\n"), second.Start()); err != nil {
		t.Errorf("after kill -9 of the first: %v\n%s", err, second.LogTail(logLines))
	}
}

// refusal starts a daemon that must end by itself, and returns what it says.
func refusal(t *testing.T, d *Daemon) string {
	t.Helper()
	if err := d.Launch(); err != nil {
		t.Fatal(err)
	}
	if err := d.Wait(pace.Scale(startPatience)); !errors.As(err, new(*exec.ExitError)) {
		t.Errorf("the second daemon must end by itself, with a failure: %v", err)
	}
	return d.LogTail(logLines)
}
