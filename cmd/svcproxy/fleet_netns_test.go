//go:build netns

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source/etcd"
	storehttp "svcproxy.dev/svcproxy/source/http"
	"svcproxy.dev/svcproxy/source/remote"
)

// freeURL returns a URL of a port of this host that nothing uses.
func freeURL(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer l.Close()
	return "http://" + l.Addr().String()
}

// startEtcd starts an etcd until the test ends, and returns its URL.
func startEtcd(t *testing.T, dir string) string {
	t.Helper()
	client, peer := freeURL(t), freeURL(t)
	cmd := exec.Command("etcd", "--data-dir", filepath.Join(dir, "data"), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--unsafe-no-fsync")
	fatal.If(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return client
}

// What put writes is followed: each run is one step, a directory with a fault changes nothing, and a file that is gone removes
// its key.
func TestPut(t *testing.T) {
	dir := t.TempDir()
	url := startEtcd(t, dir)
	t.Setenv("ETCDCTL_ENDPOINTS", url)
	t.Setenv("ETCDCTL_API", "3")
	pace.Until(t, "etcd", func() bool { return exec.CommandContext(t.Context(), "etcdctl", "endpoint", "health").Run() == nil })
	sets := make(chan remote.Set, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- etcd.New(etcd.Options{Endpoints: []string{url}, Prefix: "/svcproxy/services/", MaxSize: 1 << 20}).
			Run(ctx, func(s remote.Set) { sets <- s }, func(error) {})
	}()
	defer func() {
		cancel()
		fatal.If(t, <-ended)
	}()
	put := func(files map[string]string) (string, error) {
		t.Helper()
		fatal.If(t, os.RemoveAll(filepath.Join(dir, "svc")))
		fatal.If(t, os.Mkdir(filepath.Join(dir, "svc"), 0o755))
		for name, text := range files {
			fatal.If(t, os.WriteFile(filepath.Join(dir, "svc", name), []byte(text), 0o644))
		}
		return shell(t, dir, "sh -eu $EXAMPLES/put svc")
	}
	next := func(files map[string]string) { // one set more, which has these
		t.Helper()
		var set remote.Set
		select {
		case set = <-sets:
		case <-time.After(pace.Scale(20 * time.Second)):
			t.Fatal("no set")
		}
		var got, want []string
		for _, text := range set.Texts {
			got = append(got, fmt.Sprintf("%s=%s", text.Name, text.Data))
		}
		for name, text := range files {
			want = append(want, fmt.Sprintf("etcd:/svcproxy/services/%s=%s", name, text))
		}
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	step := func(files map[string]string) {
		t.Helper()
		if out, err := put(files); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		next(files)
	}

	next(nil)
	odd := serviceText("odd", 3) + "# \t\"quoted\" \\n 'é' $HOME `id` %s\n"
	step(map[string]string{"web.toml": serviceText("web", 1), "mail.json": `{"services": []}` + "\n", "odd.toml": odd})
	step(map[string]string{"web.toml": serviceText("web", 2), "new.toml": serviceText("new", 1), "odd.toml": odd})
	now := map[string]string{"web.toml": serviceText("web", 4)}
	if out, err := put(map[string]string{"web.toml": "prots = 1\n"}); err == nil || !strings.Contains(out, "web.toml:1:1") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := put(nil); err == nil {
		t.Errorf("a directory without files was put: %s", out)
	}
	step(now)
	if out, err := put(now); err != nil {
		t.Errorf("without a change: %v: %s", err, out)
	}
	if len(sets) > 0 {
		t.Errorf("%d sets more", len(sets))
	}
}

// The fetcher accepts a signed index, and then a newer signed one.
func TestPublishSigned(t *testing.T) {
	dir, url := newSite(t)
	o := storehttp.Options{URLs: []string{url}, Host: "a", StateDir: t.TempDir()}
	o.PublicKey = strings.TrimSpace(mustShell(t, dir, "minisign -G -W -p key.pub -s key.sec >/dev/null; sed -n 2p key.pub"))
	for last := range 2 {
		fatal.If(t, os.WriteFile(filepath.Join(dir, "svc", "web.toml"), []byte(serviceText("web", 1+last)), 0o644))
		mustShell(t, dir, "sh -eu $EXAMPLES/publish --key key.sec svc </dev/null")
		if got := follow(t, o, 2); got["svc/web.toml"] != serviceText("web", 1+last) {
			t.Errorf("got %v", got)
		}
	}
}
