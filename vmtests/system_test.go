//go:build vm

package vmtests

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"svcproxy.dev/svcproxy/vmtests/guest"
)

// Addresses of the service web on node, which setup.sh routes to node.
const vip4, vip6 = "10.96.0.10:80", "[fd00:96::10]:80"

// webWith is the service web with other endpoints than web.toml has.
func webWith(endpoints ...string) string {
	whole := string(bothBackends)
	begin := strings.Index(whole, "endpoints")
	return whole[:begin] + "endpoints = [\"" + strings.Join(endpoints, `", "`) + "\"]\n"
}

// bothBackends is the file of the service web, siteSetup what makes machines a site.
var (
	//go:embed web.toml
	bothBackends []byte

	//go:embed setup.sh
	siteSetup string
)

// setup returns the commands that make a guest one of a site.
func setup(role string) string { return "set -- " + role + " eth0\n" + siteSetup }

// A site is three guests on one network: client -> node -> backend. svcproxy is
// installed on node, as a user would.
type site struct {
	client, node, backend *guest.Guest

	// powerCut ends node at once, and boots it with other files.
	powerCut func(t *testing.T, files ...guest.File)

	ctx     context.Context // of the guests
	network guest.Network
	config  guest.Config // of node
}

// patience is how long anything that a test waits for may take. A guest boots in a quarter of a
// minute on an idle machine, and in almost two on one that is busy.
const patience = 5 * time.Minute

// sitePatience ends all guests of a test. It is five times what the longest takes.
const sitePatience = 20 * time.Minute

// newSite boots the guests of a site. prepare may change how node is made.
func newSite(t *testing.T, mode string, prepare func(*guest.Config)) *site {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sitePatience)
	t.Cleanup(cancel)
	s := &site{ctx: ctx}
	s.powerCut = s.bootAgain
	s.config = s.nodeConfig(t, mode)
	if prepare != nil {
		prepare(&s.config)
	}
	peer, err := guest.Build(ctx, "svcproxy.dev/svcproxy/vmtests/cmd/peer")
	if err != nil {
		t.Fatal(err)
	}
	files := []guest.File{{Path: "/usr/bin/peer", Mode: 0o755, Data: peer}}
	s.config.Files = append(s.config.Files, files...)
	var g errgroup.Group
	boot := func(to **guest.Guest, cfg guest.Config) {
		g.Go(func() (err error) {
			cfg.Again = tried.again(t.Name())
			*to, err = guest.Boot(ctx, cfg)
			return err
		})
	}
	boot(&s.node, s.config)
	boot(&s.client, guest.Config{Name: "client", Memory: 512, CPUs: 1, Files: files, Networks: s.networks(),
		Setup: setup("client")})
	boot(&s.backend, guest.Config{Name: "backend", Memory: 512, CPUs: 1, Files: files, Networks: s.networks(), Setup: setup("backend")})
	t.Cleanup(func() { s.close(t) })
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) bootAgain(t *testing.T, files ...guest.File) {
	t.Helper()
	if err := s.node.Close(); err != nil {
		t.Fatal(err)
	}
	s.config.Files = append(s.config.Files, files...)
	var err error
	if s.node, err = guest.Boot(s.ctx, s.config); err != nil {
		t.Fatal(err)
	}
}

func (s *site) networks() []*guest.Network { return []*guest.Network{&s.network} }

func (s *site) close(t *testing.T) {
	for _, g := range []*guest.Guest{s.client, s.node, s.backend} {
		if g == nil {
			continue
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
}

// nodeConfig is a guest under systemd with svcproxy installed and enabled, and two services.
func (s *site) nodeConfig(t *testing.T, mode string) guest.Config {
	t.Helper()
	return guest.Config{
		Name: "node", Again: tried.again(t.Name()), System: true, Networks: s.networks(),
		Setup: setup("node") + "systemctl enable svcproxy\n",
		Files: append(install(t),
			guest.File{Path: "/etc/svcproxy/svcproxy.toml", Mode: 0o644, Data: fmt.Appendf(nil, "mode = %q\n", mode)},
			guest.File{Path: "/etc/svcproxy/web.toml", Mode: 0o644, Data: bothBackends}),
	}
}

// install returns what make install installs.
func install(t *testing.T) []guest.File {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "make", "-C", "..", "install", "DESTDIR="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make install: %v\n%s", err, out)
	}
	files, err := guest.AppendTree(nil, dir, "/")
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// disk returns an empty file system for what must outlive a guest.
func disk(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 512<<20); err != nil { // a sparse file
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", path).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	return path
}
