package check

import (
	"fmt"

	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/source"
)

// Held is what a daemon would hold of the configuration directory.
type Held struct {
	claims.Snapshot // without Node and Families before Look
	Settings        configs.Settings
	Faults          []source.Fault // of the settings and the files
}

// Held returns what a daemon would hold: of each file what can be used, or was last accepted.
func (c *Checker) Held() (Held, error) {
	var r Report
	in := c.setting(c.ConfigDir, &r)
	files, err := c.readDir(&in, c.ConfigDir)
	if err != nil {
		return Held{}, fmt.Errorf("reading the configuration directory: %w", err)
	}
	r.add(files...)
	return Held{in.tracker(files).Snapshot(), in.settings, r.Faults}, nil
}

// Look adds what a daemon with these settings finds on this host.
func (h *Held) Look() error {
	around, err := node.Surroundings(h.Settings)
	if err != nil {
		return fmt.Errorf("looking at this host: %w", err)
	}
	h.Node, h.Families = around.Node, around.Families
	return nil
}
