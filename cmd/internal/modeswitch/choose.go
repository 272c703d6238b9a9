package modeswitch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
)

// Choose opens the mode that settings ask for, or the first that works, and waits for no family longer than DecidePatience.
func Choose(ctx context.Context, c modes.OpenConfig) (*Active, error) {
	if c.Mode != configs.Auto {
		m, err := modes.Named(c.Mode)
		if err != nil {
			return nil, err
		}
		return openAll(ctx, m, c, DecidePatience)
	}
	var passed []string
	for _, m := range modes.All {
		am, err := suits(ctx, m, c)
		if err == nil {
			am.Why = strings.Join(append(passed, m.Name+" works"), "; ")
			return am, nil
		}
		passed = append(passed, err.Error())
	}
	return nil, fmt.Errorf("no mode works on this host: %s", strings.Join(passed, "; "))
}

// SameChoice reports whether Choose has the same modes to try under both settings,
// which differ only in what can change at run time.
func SameChoice(a, b configs.Settings) bool {
	if a.Mode != b.Mode || a.Mode != configs.Auto {
		return a.Mode == b.Mode
	}
	for _, m := range modes.All {
		a.Mode, b.Mode = m.Name, m.Name
		if (a.Check() == nil) != (b.Check() == nil) {
			return false
		}
	}
	return true
}

// suits opens a mode for auto, which takes none that would leave out what another may have.
func suits(ctx context.Context, m modes.Mode, c modes.OpenConfig) (*Active, error) {
	c.Mode = m.Name
	if err := c.Check(); err != nil {
		return nil, err
	}
	am, err := openAll(ctx, m, c, DecidePatience)
	if err != nil {
		return nil, err
	}
	for _, fam := range node.Families(c.Settings) {
		if am.Backends[fam] == nil && supported(fam) == nil {
			return nil, errors.Join(fmt.Errorf("%s: %s", m.Name, strings.Join(am.Missing(), "; ")), am.Close())
		}
	}
	return am, nil
}

// WouldUse returns the mode that a daemon would take. What it opens for that it closes again.
func WouldUse(ctx context.Context, s configs.Settings) (modes.Mode, error) {
	if s.Mode != configs.Auto {
		return modes.Named(s.Mode)
	}
	in, err := Choose(ctx, modes.OpenConfig{Settings: s, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return modes.Mode{}, err
	}
	return in.Mode, in.Close()
}
