package daemon

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"svcproxy.dev/svcproxy/cmd/internal/control"
)

// locks are what only one daemon can have.
type locks struct {
	namespace *control.NamespaceClaim
	state     *os.File // the lock of the state directory; nil: not claimed
	socket    *control.Server
}

// claim takes network namespace and state directory. The socket comes once it can be answered.
func claim(o Options, log *slog.Logger) (c *locks, err error) {
	c = new(locks)
	if c.namespace, err = claimNamespace(o); err != nil {
		return nil, err
	}
	if c.state, err = control.ClaimState(o.StateDir); errors.Is(err, control.ErrClaimed) {
		return nil, errors.Join(err, c.namespace.Close())
	} else if err != nil { // read-only, say, or full: services matter more
		log.Warn("cannot lock the state directory; a second svcproxy would not be refused", "err", err)
	}
	return c, nil
}

// close gives up what outlives the socket, when all is done that can fail.
func (c *locks) close() { _, _ = c.namespace.Close(), c.state.Close() }

// claimNamespace makes this the one daemon of the network namespace, before
// anything of its kernel is looked at. Two would undo each other's work forever.
func claimNamespace(o Options) (*control.NamespaceClaim, error) {
	self := control.Holder{PID: os.Getpid(), Version: o.Version, ConfigDir: o.ConfigDir, StateDir: o.StateDir, RunDir: o.RunDir}
	for _, dir := range []*string{&self.ConfigDir, &self.StateDir, &self.RunDir} {
		if abs, err := filepath.Abs(*dir); err == nil {
			*dir = abs
		}
	}
	return control.ClaimNamespace(o.Namespace, self)
}
