//go:build netns

package daemon

import (
	"path/filepath"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/disktest"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/logtest"
	"svcproxy.dev/svcproxy/source/disk"
)

// A configuration directory that does not answer keeps a daemon that starts neither from its settings nor from its services,
// nor from ending.
func TestStartWithDeadDirectory(t *testing.T) {
	if !disktest.Isolated(t) {
		return
	}
	r := launch(t, "http_address = \"\"\nlocal_cidrs = [\"10.244.0.0/16\"]\n")
	fatal.If(t, r.stop())
	r.toSubdirectory()
	r.start()
	r.ready()
	kept := func(name string) func() bool {
		return func() bool {
			found, _ := filepath.Glob(filepath.Join(r.dir, "state", name))
			return len(found) > 0
		}
	}
	r.eventually("the settings are kept", kept("svcproxy.toml"))
	r.eventually("the services are kept", kept("lastgood/web.*"))
	fatal.If(t, r.stop())

	answer := disktest.Dead(t, filepath.Join(r.dir, "conf"))
	r.kernel.names, r.kernel.cidrs, r.told = nil, "", new(logtest.Text)
	r.start()
	r.ready()
	if names, cidrs, _ := r.kernel.seen(); names != "default/web" || cidrs != "[10.244.0.0/16]" {
		t.Errorf("kernel holds %q, for %s", names, cidrs)
	}
	if st := r.status(); len(st.Faults) != 1 || !strings.Contains(st.Faults[0].Msg, disk.ErrNoAnswer.Error()) {
		t.Errorf("faults of svcproxy.toml: %v", st.Faults)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	answer()
	r.start()
	r.ready()
	r.write("conf/web.toml", strings.ReplaceAll(web, `"web"`, `"shop"`))
	r.eventually("read again", func() bool { names, _, _ := r.kernel.seen(); return names == "default/shop" })
	r.eventually("without faults", func() bool { return len(r.status().Faults) == 0 })
}
