//go:build vm && vagrant

package vmtests

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/vmtests/guest"
)

// A cluster is the machines of the Vagrantfile, which run: make test-vagrant.
type cluster struct {
	site
	sshConfig string // a file
}

// The steps of whole systems, in machines of Vagrant.
func TestVagrant(t *testing.T) {
	for _, mode := range systemModes {
		t.Run(mode, func(t *testing.T) {
			c := newCluster(t)
			c.put(t, guest.File{Path: "/etc/svcproxy/svcproxy.toml", Mode: 0o644, Data: fmt.Appendf(nil, "mode = %q\n", mode)},
				guest.File{Path: "/etc/svcproxy/web.toml", Mode: 0o644, Data: bothBackends})
			c.must(t, "rm", "-f", "/etc/svcproxy/other.toml")
			c.must(t, "systemctl", "restart", "svcproxy")
			c.must(t, "journalctl", "--rotate")
			c.must(t, "journalctl", "--vacuum-time=1s", "-u", "svcproxy") // faults of earlier runs
			c.takeSteps(t, slices.Concat(steps, modelessSteps)...)
		})
	}
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sitePatience)
	t.Cleanup(cancel)
	c := &cluster{site: site{ctx: ctx}, sshConfig: filepath.Join(t.TempDir(), "ssh-config")}
	c.powerCut = c.reload
	c.readSSHConfig(t)
	c.node, c.client, c.backend = c.attach(t, "node"), c.attach(t, "client"), c.attach(t, "backend")
	t.Cleanup(func() { c.close(t) })
	return c
}

// readSSHConfig asks Vagrant how to reach its machines.
func (c *cluster) readSSHConfig(t *testing.T) {
	t.Helper()
	out, err := exec.CommandContext(c.ctx, "vagrant", "ssh-config").Output()
	if err != nil {
		t.Fatalf("vagrant ssh-config: %v", err)
	}
	if err := os.WriteFile(c.sshConfig, out, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) attach(t *testing.T, name string) *guest.Guest {
	t.Helper()
	g, err := guest.Attach(c.ctx, name, "ssh", "-T", "-F", c.sshConfig, name, "sudo", "peer", "agent")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (c *cluster) put(t *testing.T, files ...guest.File) {
	t.Helper()
	for _, f := range files {
		if err := c.node.WriteFile(t.Context(), f.Path, f.Data, f.Mode); err != nil {
			t.Fatal(err)
		}
	}
}

// reload is the power cut of Vagrant.
func (c *cluster) reload(t *testing.T, files ...guest.File) {
	t.Helper()
	c.put(t, files...)
	c.must(t, "sync")
	if err := c.node.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(c.ctx, "vagrant", "reload", "--force", "node")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", cmd.Args, err, out)
	}
	c.readSSHConfig(t)
	c.node = c.attach(t, "node")
}
