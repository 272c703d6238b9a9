package modeswitch

import (
	"log/slog"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A Config is what a Switch is made of.
type Config struct {
	Log      *slog.Logger
	StateDir string
	Fixed    configs.Settings        // as they were at start
	Settings func() configs.Settings // in use
	Tell     func(modes string)      // shows in systemctl status which modes are in use
	Changed  func()                  // another mode is in use
	Foreign  func(policy.Family)     // another program has changed what is ours

	// Loop returns what uses the backends. It is not called before Follow.
	Loop func() *loop.Loop
}

func (c Config) openConfig(s configs.Settings) modes.OpenConfig {
	return modes.OpenConfig{Settings: s, StateDir: c.StateDir, Log: c.Log}
}

// warnOfFlowtable has the log say that a mode has no flow table, where settings ask for one.
func (c Config) warnOfFlowtable(am *Active) {
	if len(c.Fixed.WarnOfMode(am.Mode.Mode)) > 0 {
		c.Log.Warn("the settings ask for a flowtable, which this mode does not have", "mode", am.Name)
	}
}

// holdsAll reports whether everything of a family is in the kernel by am, which is in
// use. A family that its mode cannot have waits for the others.
func (c Config) holdsAll(am *Active, fam policy.Family) bool {
	if b := am.Backends[fam]; b != nil {
		return c.Loop().Holds(fam, b)
	}
	if am.opening[fam] != nil || len(am.Backends) == 0 {
		return false
	}
	for fam, b := range am.Backends {
		if !c.Loop().Holds(fam, b) {
			return false
		}
	}
	return true
}

func (c Config) closeMode(am *Active) {
	if err := am.Close(); err != nil {
		c.Log.Warn("closing a mode", "mode", am.Name, "err", err)
	}
}
