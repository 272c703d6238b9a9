package daemon

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/settings"
	"svcproxy.dev/svcproxy/internal/fatal"
)

// What is in use stays while the directory is gone, and when svcproxy starts
// without it, or with a file that is broken, empty or no file.
func TestLastGoodSettings(t *testing.T) {
	const good = "http_address = \"\"\nlocal_cidrs = [\"10.1.0.0/16\"]\n"
	tests := []struct {
		name   string
		change func(r *running)
		fault  string
		cidrs  string // at the next start
	}{
		{"broken", func(r *running) { r.write("conf/svcproxy.toml", "local_cidrs = 1\n") }, "local_cidrs", "[10.1.0.0/16]"},
		{"empty", func(r *running) { r.write("conf/svcproxy.toml", "") }, "cannot be read: it says nothing", "[10.1.0.0/16]"},
		{"pipe", func(r *running) {
			_ = os.Remove(r.dir + "/conf/svcproxy.toml")
			if err := unix.Mkfifo(r.dir+"/conf/svcproxy.toml", 0o600); err != nil {
				r.t.Fatal(err)
			}
		}, "cannot be read: it is not a regular file", "[10.1.0.0/16]"},
		{"directory gone", func(r *running) { r.moveAway() }, "no such file or directory", "[10.1.0.0/16]"},
		{"removed", func(r *running) { _ = os.Remove(r.dir + "/conf/svcproxy.toml") }, "", "[]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := launch(t, good)
			fatal.If(t, r.stop())
			r.toSubdirectory()
			r.start()
			r.ready()
			tt.change(r)
			time.Sleep(4 * settings.Poll)
			if _, got, _ := r.kernel.seen(); tt.fault != "" && got != "[10.1.0.0/16]" {
				t.Errorf("while it runs local_cidrs became %s", got)
			}
			for range 2 {
				fatal.If(t, r.stop())
				r.told = new(logged)
				r.start()
				r.ready()
				if _, got, _ := r.kernel.seen(); got != tt.cidrs {
					t.Errorf("after a start local_cidrs is %s; want %s", got, tt.cidrs)
				}
				st := r.status()
				if got := len(st.Faults); tt.fault == "" && got > 0 || tt.fault != "" && (got != 1 || !strings.Contains(st.Faults[0].String(), tt.fault)) {
					t.Errorf("faults: %v; want %q", st.Faults, tt.fault)
				}
			}
		})
	}
}

// A svcproxy.toml that comes back after a moment, as by rm and cp, changes nothing.
func TestSettingsGoneForAMoment(t *testing.T) {
	const text = "http_address = \"\"\nlocal_cidrs = [\"10.1.0.0/16\"]\n"
	for range 10 {
		r := launch(t, text)
		r.ready()
		began := time.Now()
		fatal.If(t, os.Remove(r.dir+"/svcproxy.toml"))
		time.Sleep(3 * settings.Poll)
		r.write("svcproxy.toml", text)
		took := time.Since(began)
		time.Sleep(2 * settings.Poll)
		fatal.If(t, r.stop())
		if took > (settings.GoneAfter-1)*settings.Poll {
			continue // that was no moment: the machine is busy
		}
		if strings.Contains(r.log.String(), "settings changed") {
			t.Errorf("gone for %v:\n%s", took, r.log)
		}
		return
	}
	t.Error("the machine is too busy for a moment of 1.2 s")
}

// A host without svcproxy.toml starts as before when the directory has gone.
func TestDirectoryGoneWithoutSettings(t *testing.T) {
	r := launch(t, "http_address = \"\"\n")
	restart := func(change func()) {
		t.Helper()
		fatal.If(t, r.stop())
		change()
		r.told = new(logged)
		r.start()
		r.ready()
	}
	restart(func() {
		r.toSubdirectory()
		fatal.If(t, os.Remove(r.dir+"/conf/svcproxy.toml"))
	})
	restart(r.moveAway)
	if st := r.status(); len(st.Faults) != 1 || !strings.Contains(st.Faults[0].String(), "cannot be read") {
		t.Errorf("faults: %v", st.Faults)
	}
}

// toSubdirectory moves the files to a directory that can be moved away itself.
func (r *running) toSubdirectory() {
	r.t.Helper()
	if err := os.Mkdir(r.dir+"/conf", 0o755); err != nil {
		r.t.Fatal(err)
	}
	for _, name := range []string{"svcproxy.toml", "web.toml"} {
		if err := os.Rename(r.dir+"/"+name, r.dir+"/conf/"+name); err != nil {
			r.t.Fatal(err)
		}
	}
	r.config, r.told = "conf", new(logged)
}

func (r *running) moveAway() {
	r.t.Helper()
	if err := os.Rename(r.dir+"/conf", r.dir+"/away"); err != nil {
		r.t.Fatal(err)
	}
}
