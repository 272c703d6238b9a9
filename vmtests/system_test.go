//go:build vm

package vmtests

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"svcproxy/vmtests/guest"
)

// Addresses of the guests. Two servers are on backend, and the VIPs are routed to node.
const (
	nodeAddrs    = "192.168.7.1/24 fd07::1/64"
	clientAddrs  = "192.168.7.2/24 fd07::2/64"
	backendAddrs = "192.168.7.3/24 fd07::3/64 192.168.7.4/24 fd07::4/64"

	vip4, vip6 = "10.96.0.10:80", "[fd00:96::10]:80"
)

// webServices are the services of node, with endpoints.
func webServices(endpoints ...string) string {
	return fmt.Sprintf(`[[services]]
name = "web"
vips = ["10.96.0.10", "fd00:96::10"]
ports = [{ port = 80, target_port = 8080 }]
endpoints = ["%s"]
`, strings.Join(endpoints, `", "`))
}

var bothBackends = webServices("192.168.7.3", "192.168.7.4", "fd07::3", "fd07::4")

// A site is three guests on one network: client -> node -> backend. svcproxy is
// installed on node, as a user would.
type site struct {
	client, node, backend *guest.Guest

	ctx     context.Context // of the guests
	network guest.Network
	config  guest.Config // of node
}

// sitePatience ends all guests of a test. It is five times what the longest takes.
const sitePatience = 10 * time.Minute

// newSite boots the guests of a site. prepare may change how node is made.
func newSite(t *testing.T, mode string, prepare func(*guest.Config)) *site {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sitePatience)
	t.Cleanup(cancel)
	s := &site{ctx: ctx}
	s.config = s.nodeConfig(t, mode)
	if prepare != nil {
		prepare(&s.config)
	}
	peer, err := guest.Build(ctx, "svcproxy/vmtests/cmd/peer")
	if err != nil {
		t.Fatal(err)
	}
	files := []guest.File{{Path: "/usr/bin/peer", Mode: 0o755, Data: peer}}
	s.config.Files = append(s.config.Files, files...)
	var g errgroup.Group
	boot := func(to **guest.Guest, cfg guest.Config) {
		g.Go(func() (err error) {
			*to, err = guest.Boot(ctx, cfg)
			return err
		})
	}
	boot(&s.node, s.config)
	boot(&s.client, guest.Config{Name: "client", Memory: 512, CPUs: 1, Files: files, Networks: s.networks(),
		Setup: setAddrs(clientAddrs) + "ip route add 10.96.0.0/16 via 192.168.7.1\nip route add fd00:96::/64 via fd07::1\n"})
	boot(&s.backend, guest.Config{Name: "backend", Memory: 512, CPUs: 1, Files: files, Networks: s.networks(), Setup: setAddrs(backendAddrs)})
	t.Cleanup(func() { s.close(t) })
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return s
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

// setAddrs returns commands that give eth0 addresses.
func setAddrs(addrs string) string {
	commands := "ip link set lo up\nip link set eth0 up\n"
	for a := range strings.FieldsSeq(addrs) {
		commands += "ip address add " + a + " dev eth0"
		if strings.Contains(a, ":") {
			commands += " nodad"
		}
		commands += "\n"
	}
	return commands
}

// nodeConfig is a guest under systemd with svcproxy installed and enabled, and two services.
func (s *site) nodeConfig(t *testing.T, mode string) guest.Config {
	t.Helper()
	return guest.Config{
		Name: "node", System: true, Networks: s.networks(),
		Setup: setAddrs(nodeAddrs) + "ip route add default via 192.168.7.2\nip route add default via fd07::2\nsystemctl enable svcproxy\n",
		Files: append(install(t),
			guest.File{Path: "/etc/svcproxy/svcproxy.toml", Mode: 0o644, Data: fmt.Appendf(nil, "mode = %q\n", mode)},
			guest.File{Path: "/etc/svcproxy/web.toml", Mode: 0o644, Data: []byte(bothBackends)}),
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
