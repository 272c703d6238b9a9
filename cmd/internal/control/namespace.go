package control

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// NamespaceName is the abstract unix socket that the daemon of a network
// namespace has. The kernel keeps such names for each network namespace, and
// gives them free when their holder dies, unix(7).
const NamespaceName = "@svcproxy"

const (
	// answerPatience is how long a holder may take to say who it is.
	answerPatience = time.Second

	// maxHolder is more than a Holder takes, in bytes: three paths of PATH_MAX.
	maxHolder = 16 << 10
)

// A Holder is the daemon of a network namespace, as it tells of itself.
type Holder struct {
	PID       int    `json:"pid"`
	Version   string `json:"version"`
	ConfigDir string `json:"config_dir"`
	StateDir  string `json:"state_dir"`
	RunDir    string `json:"run_dir"`
}

// A HeldError says who works in this network namespace already.
type HeldError struct {
	Holder
	Process  string // what the kernel calls the process; empty: not known
	Answered bool   // it has told all of Holder, not only the kernel its PID

	name string
	uid  uint32 // of who listens there, by the kernel
}

func (e *HeldError) Error() string {
	if !e.Answered {
		return fmt.Sprintf("process %d (%s) has the socket %s of this network namespace, and does not say that it is svcproxy: one daemon works in a namespace, end that process first",
			e.PID, e.Process, e.name)
	}
	return fmt.Sprintf("another svcproxy (pid %d, version %s, --config-dir %s, --state-dir %s, --run-dir %s) works in this network namespace: stop it first",
		e.PID, e.Version, e.ConfigDir, e.StateDir, e.RunDir)
}

// counts reports whether the holder can be a daemon. Any local user can take any
// name, and must not be able to keep svcproxy from starting.
func (e *HeldError) counts() bool { return e.uid == 0 || int(e.uid) == os.Geteuid() }

// A NamespaceClaim makes this process the one daemon of its network namespace.
type NamespaceClaim struct {
	warning  string       // why it is not known to be the only one; empty: it is
	listener net.Listener // nil: a process that is no daemon has the name
	answered chan struct{}
}

// ClaimNamespace takes the name of the daemon in this network namespace, and
// tells who asks that self has it. The error is a *HeldError when another has.
func ClaimNamespace(name string, self Holder) (*NamespaceClaim, error) {
	answer, err := json.Marshal(self)
	if err != nil {
		return nil, fmt.Errorf("claiming the network namespace: %w", err)
	}
	var l net.Listener
	patiently(lockPatience, func() bool {
		l, err = net.Listen("unix", name)
		return !errors.Is(err, unix.EADDRINUSE)
	})
	var held *HeldError
	var unknown error
	if errors.Is(err, unix.EADDRINUSE) {
		held, unknown = askHolder(name)
		l, err = net.Listen("unix", name) // it may have ended meanwhile
	}
	switch {
	case err == nil:
		c := &NamespaceClaim{listener: l, answered: make(chan struct{})}
		go c.answer(append(answer, '\n'))
		return c, nil
	case !errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("claiming the network namespace: %w", err)
	case held != nil && held.counts():
		return nil, fmt.Errorf("claiming the network namespace: %w", held)
	}
	return &NamespaceClaim{warning: warning(name, held, unknown)}, nil
}

// warning says who has name although it is no daemon.
func warning(name string, held *HeldError, err error) string {
	const cannot = "another svcproxy that starts in this network namespace will not be refused"
	if held == nil {
		return fmt.Sprintf("it is not known who has the socket %s (%v): %s", name, cmp.Or(err, errors.New("nobody listens there")), cannot)
	}
	return fmt.Sprintf("process %d (%s) of user %d has the socket %s: %s", held.PID, held.Process, held.uid, name, cannot)
}

// answer writes a line to everybody who connects, until the listener is closed.
func (c *NamespaceClaim) answer(line []byte) {
	defer close(c.answered)
	for {
		conn, err := c.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no file is left, say: the one who asks sees at least our PID
			time.Sleep(100 * time.Millisecond)
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(answerPatience))
		_, _ = conn.Write(line) // who asked may be gone
		conn.Close()
	}
}

// Warnings returns why this process is not known to be the only one, or nothing.
func (c *NamespaceClaim) Warnings() []string {
	if c.warning == "" {
		return nil
	}
	return []string{c.warning}
}

// Close gives the name free.
func (c *NamespaceClaim) Close() error {
	if c.listener == nil {
		return nil
	}
	err := c.listener.Close()
	<-c.answered
	return err
}

// CheckNamespace returns a *HeldError when a daemon works in this network namespace,
// and another error when the holder cannot be identified.
func CheckNamespace(name string) error {
	var held *HeldError
	var err error
	patiently(lockPatience, func() bool { // one that was killed may seem to have it for a moment, and does not answer
		held, err = askHolder(name)
		return err != nil || held == nil || held.Answered
	})
	if err == nil && held != nil && held.counts() {
		err = held
	}
	return err
}

// askHolder returns who has name; nil: nobody.
func askHolder(name string) (*HeldError, error) {
	conn, err := net.DialTimeout("unix", name, answerPatience)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("asking who works in this network namespace: %w", err)
	}
	defer conn.Close()
	cred, err := credentials(conn.(*net.UnixConn))
	if err != nil {
		return nil, fmt.Errorf("asking who works in this network namespace: %w", err)
	}
	held := &HeldError{Holder: Holder{PID: int(cred.Pid)}, Process: "name not known", name: name, uid: cred.Uid}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cred.Pid)); err == nil {
		held.Process = strings.TrimSpace(string(comm))
	}
	_ = conn.SetReadDeadline(time.Now().Add(answerPatience))
	var said Holder
	if err := json.NewDecoder(io.LimitReader(conn, maxHolder)).Decode(&said); err != nil || said.PID == 0 {
		return held, nil
	}
	if held.PID != 0 { // 0: it is in a PID namespace that this process does not see
		said.PID = held.PID
	}
	held.Holder, held.Answered = said, true
	return held, nil
}
