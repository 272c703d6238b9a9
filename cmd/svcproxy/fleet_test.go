package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	storehttp "svcproxy.dev/svcproxy/source/http"
	"svcproxy.dev/svcproxy/source/remote"
)

const fleetExamples = "../../configs/examples/fleet"

// shell runs a script that finds the program as svcproxy, and git without what is set on this host.
func shell(t *testing.T, dir, script string) (out string, err error) {
	t.Helper()
	self, err := os.Executable()
	fatal.If(t, err)
	examples, err := filepath.Abs(fleetExamples)
	fatal.If(t, err)
	bin := filepath.Join(dir, "bin")
	fatal.If(t, os.MkdirAll(bin, 0o755))
	fatal.If(t, os.WriteFile(filepath.Join(bin, "svcproxy"), []byte("#!/bin/sh\n"+asProgram+"=1 exec '"+self+"' \"$@\"\n"), 0o755))
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "EXAMPLES="+examples, "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
	text, err := cmd.CombinedOutput()
	return string(text), err
}

func mustShell(t *testing.T, dir, script string) string {
	t.Helper()
	out, err := shell(t, dir, script)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// serviceText is a service file with one service.
func serviceText(name string, last int) string {
	return fmt.Sprintf("[[services]]\nname = %q\nvips = [\"10.0.0.%d\"]\nports = [{ port = 80 }]\nendpoints = [\"192.0.2.%d\"]\n", name, last, last)
}

// A host takes a commit that passes the check, and no other. Its settings stay, and hosts of another branch are first.
func TestPull(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		fatal.If(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	mustShell(t, dir, `git config --global init.defaultBranch main
git init -q --bare origin; git clone -q origin work 2>/dev/null; printf 'svcproxy.toml\n*.secret\n' >work/.gitignore`)
	commit := func(message, name, text string) {
		t.Helper()
		write("work/"+name, text)
		mustShell(t, dir, "cd work; git add -A; git commit -q -m '"+message+"'; git push -q origin HEAD")
	}
	commit("first", "web.toml", serviceText("web", 1))
	mustShell(t, dir, "git clone -q origin host; git -C work push -q origin main:canary; git clone -q -b canary origin canary")
	settings := "[limits]\nservices = 2\n"
	write("host/svcproxy.toml", settings)
	has := func(host, name string, want string) {
		t.Helper()
		got, err := os.ReadFile(filepath.Join(dir, host, name))
		if err != nil && want != "" || string(got) != want {
			t.Errorf("%s/%s is %q, %v; want %q", host, name, got, err, want)
		}
	}
	pull := func(host string) {
		t.Helper()
		mustShell(t, dir, "sh -eu $EXAMPLES/pull "+host)
	}

	commit("second", "web.toml", serviceText("web", 2))
	pull("host")
	pull("canary")
	has("host", "web.toml", serviceText("web", 2))
	has("host", "svcproxy.toml", settings)
	has("canary", "web.toml", serviceText("web", 1))

	commit("a slip", "web.toml", serviceText("web", 3)+"prots = [80]\n")
	out, err := shell(t, dir, "sh -eu $EXAMPLES/pull host")
	if err == nil || !strings.Contains(out, "web.toml:6:1: unknown key") {
		t.Errorf("%v: %s", err, out)
	}
	has("host", "web.toml", serviceText("web", 2))
	commit("more than the limit of the host", "web.toml", serviceText("web", 3)+serviceText("b", 4)+serviceText("c", 5))
	if out, err := shell(t, dir, "sh -eu $EXAMPLES/pull host"); err == nil {
		t.Errorf("it was taken beside the settings of the host: %s", out)
	}
	has("host", "web.toml", serviceText("web", 2))

	mustShell(t, dir, "cd work; git reset -q --hard HEAD~2; git push -q -f origin HEAD")
	commit("third", "mail.toml", serviceText("mail", 9))
	pull("host")
	has("host", "mail.toml", serviceText("mail", 9))
	mustShell(t, dir, "cd work; git revert --no-edit HEAD >/dev/null; git push -q origin HEAD main:canary")
	pull("host")
	pull("canary")
	has("host", "mail.toml", "")
	has("canary", "web.toml", serviceText("web", 2))
	has("host", "svcproxy.toml", settings)

	before := mustShell(t, dir, "mv origin away; git -C host rev-parse HEAD")
	if _, err := shell(t, dir, "sh -eu $EXAMPLES/pull host"); err == nil {
		t.Error("no error without the repository")
	}
	if after := mustShell(t, dir, "git -C host rev-parse HEAD"); after != before {
		t.Error("the host changed without the repository")
	}
}

// follow returns the texts that a host of a name gets from an index once they are as many as wanted, by name.
func follow(t *testing.T, o storehttp.Options, want int) map[string]string {
	t.Helper()
	ctx, cancel := pace.Context(20 * time.Second)
	defer cancel()
	got, last := map[string]string{}, error(nil)
	o.Interval, o.Timeout, o.MaxSize = 100*time.Millisecond, 5*time.Second, 1<<20
	err := storehttp.New(o).Run(ctx, func(s remote.Set) {
		for _, text := range s.Texts {
			if text.Signed != (o.PublicKey != "") {
				t.Errorf("%s: signed %v", text.Name, text.Signed)
			}
			got[text.Name[strings.LastIndex(text.Name, "/svc/")+1:]] = string(text.Data)
		}
		if len(got) >= want {
			cancel()
		}
	}, func(err error) { last = err })
	if err != nil || len(got) < want {
		t.Fatalf("%v, %v; got %v", err, last, got)
	}
	return got
}

// newSite serves a directory, svc in dir has two service files and another one. It returns the URL of the index.
func newSite(t *testing.T) (dir, url string) {
	t.Helper()
	dir = t.TempDir()
	fatal.If(t, os.MkdirAll(filepath.Join(dir, "svc", "team-a"), 0o755))
	for name, text := range map[string]string{"web.toml": serviceText("web", 1), "team-a/mail.json": `{"services": []}`, "README.md": "not a service file"} {
		fatal.If(t, os.WriteFile(filepath.Join(dir, "svc", name), []byte(text), 0o644))
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	return dir, server.URL + "/svc/index.json"
}

// What publish writes is an index that svcproxy follows, with a version that rises and with shares of hosts.
func TestPublish(t *testing.T) {
	dir, url := newSite(t)
	options := func(host string) storehttp.Options {
		return storehttp.Options{URLs: []string{url}, Host: host, StateDir: t.TempDir()}
	}

	mustShell(t, dir, "sh -eu $EXAMPLES/publish svc")
	if got := follow(t, options("a"), 2); len(got) != 2 || got["svc/web.toml"] != serviceText("web", 1) || got["svc/team-a/mail.json"] == "" {
		t.Errorf("got %v", got)
	}

	fatal.If(t, os.WriteFile(filepath.Join(dir, "svc", "web.toml"), []byte(serviceText("web", 2)), 0o644))
	mustShell(t, dir, "sh -eu $EXAMPLES/publish --canary 50% svc")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := 0
	for i := range 20 { // with one host in 2^20 sets of hosts all or none are first
		o, texts := options(fmt.Sprint("host-", i)), 0
		o.Interval, o.Timeout, o.MaxSize = time.Second, 5*time.Second, 1<<20
		ctx, cancel := context.WithTimeout(ctx, pace.Scale(20*time.Second))
		fatal.If(t, storehttp.New(o).Run(ctx, func(s remote.Set) {
			texts = len(s.Texts)
			cancel()
		}, func(error) {}))
		cancel()
		if texts == 2 {
			first++
		} else if texts != 1 {
			t.Fatalf("%d texts", texts)
		}
	}
	if first == 0 || first == 20 {
		t.Errorf("%d of 20 hosts are first", first)
	}
	mustShell(t, dir, "sh -eu $EXAMPLES/publish svc")
	if got := follow(t, options("a"), 2); got["svc/web.toml"] != serviceText("web", 2) {
		t.Errorf("got %v", got)
	}
}
