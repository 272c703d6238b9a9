package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// self is who claims in these tests.
var self = Holder{PID: os.Getpid(), Version: "v1", ConfigDir: "/etc/a", StateDir: "/var/a", RunDir: "/run/a"}

// uniqueName returns a name that no other test and no daemon has.
func uniqueName(t *testing.T) string {
	return fmt.Sprintf("@svcproxy-test-%d-%s", os.Getpid(), t.Name())
}

// claimed is ClaimNamespace, or the end of the test.
func claimed(t *testing.T, name string) *NamespaceClaim {
	t.Helper()
	c, err := ClaimNamespace(name, self)
	fatal.If(t, err)
	return c
}

func TestOneDaemonOfANetworkNamespace(t *testing.T) {
	t.Parallel()
	name := uniqueName(t)
	first := claimed(t, name)
	if w := first.Warnings(); w != nil {
		t.Errorf("the first is warned: %q", w)
	}
	const want = "another svcproxy (pid %d, version v1, --config-dir /etc/a, --state-dir /var/a, --run-dir /run/a) works in this network namespace: stop it first"
	refusal := fmt.Sprintf(want, os.Getpid())
	other := self
	other.RunDir = "/run/b"
	if _, err := ClaimNamespace(name, other); err == nil || err.Error() != "claiming the network namespace: "+refusal {
		t.Errorf("second claim: %v\n        want: %s", err, refusal)
	}
	if err := CheckNamespace(name); err == nil || err.Error() != refusal {
		t.Errorf("check: %v\n want: %s", err, refusal)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if err := CheckNamespace(name); err != nil {
		t.Errorf("check after the end of the first: %v", err)
	}
	claimed(t, name).Close()
}

// A daemon that was killed may hold its name a little longer.
func TestClaimIsPatient(t *testing.T) {
	t.Parallel()
	name := uniqueName(t)
	first := claimed(t, name)
	time.AfterFunc(lockPatience/4, func() { first.Close() })
	second := claimed(t, name)
	defer second.Close()
	if w := second.Warnings(); w != nil {
		t.Errorf("the second is warned: %q", w)
	}
}

// A holder that is stopped or no daemon at all is named by what the kernel says.
func TestHolderThatDoesNotAnswer(t *testing.T) {
	answers := map[string]string{"silent": "", "garbage": "HTTP/1.1 400\r\n", "endless": strings.Repeat(" ", 2*maxHolder), "empty": "{}\n"}
	for what, answer := range answers {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := uniqueName(t)
			squat(t, name, answer)
			var held *HeldError
			err := CheckNamespace(name)
			if !errors.As(err, &held) || held.Answered || !strings.HasPrefix(err.Error(), fmt.Sprintf("process %d (", os.Getpid())) {
				t.Errorf("check: %v", err)
			}
		})
	}
}

// squat listens at name and gives everybody the same answer.
func squat(t *testing.T, name, answer string) {
	t.Helper()
	l, err := net.Listen("unix", name)
	fatal.If(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var open []net.Conn
		for {
			conn, err := l.Accept()
			if err != nil {
				break
			}
			go conn.Write([]byte(answer))
			open = append(open, conn)
		}
		for _, conn := range open {
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
}

// A daemon that stands still, whom so many have asked that no more can, is not
// taken for one that has ended.
func TestHolderThatCannotBeAsked(t *testing.T) {
	t.Parallel()
	name := uniqueName(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	fatal.If(t, err)
	defer unix.Close(fd)
	fatal.If(t, errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: name}), unix.Listen(fd, 0)))
	for range 10 { // there is room for one
		conn, err := net.DialTimeout("unix", name, answerPatience)
		if err != nil {
			break
		}
		defer conn.Close()
	}
	var held *HeldError
	if err := CheckNamespace(name); err == nil || errors.As(err, &held) {
		t.Errorf("check: %v", err)
	}
}
