package daemon

import (
	"sync/atomic"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// A hungDisk hangs as long as a test wants.
type hungDisk struct {
	hangs         atomic.Bool
	hung, release chan struct{}
}

// read waits for a disk that hangs.
func (d *hungDisk) read() {
	if d.hangs.Swap(false) {
		close(d.hung)
		<-d.release
	}
}

// expectEnd stops r while the disk hangs.
func (d *hungDisk) expectEnd(r *running) {
	r.t.Helper()
	defer close(d.release)
	<-d.hung
	r.expectStop("a disk")
}

// expectStop stops r, which nothing may keep from it.
func (r *running) expectStop(why string) {
	r.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- r.stop() }()
	select {
	case err := <-ended:
		if err != nil {
			r.t.Errorf("Run: %v", err)
		}
	case <-time.After(pace.Scale(30 * time.Second)):
		r.t.Error("30 s after it was told to end it still waits for " + why)
	}
}

func newHungDisk() *hungDisk {
	return &hungDisk{hung: make(chan struct{}), release: make(chan struct{})}
}

// Settings that cannot be read keep svcproxy from nothing that it is told, to end among that.
func TestEndWhileSettingsHang(t *testing.T) {
	r := launch(t, "http_address = \"\"\n")
	r.ready()
	fatal.If(t, r.stop())
	d := newHungDisk()
	r.load = func(path string) (configs.Settings, []source.Fault, error) {
		d.read()
		return configs.Load(path)
	}
	r.told = new(logged)
	r.start()
	r.ready()
	d.hangs.Store(true)
	r.write("svcproxy.toml", "http_address = \"\"\nzone = \"z\"\n")
	d.expectEnd(r)
}

// Nor does a source that does not come back.
func TestEndWhileASourceHangs(t *testing.T) {
	f, d := withCluster(t), newHungDisk()
	r := launch(t, "http_address = \"\"\nsources = [\"file\", \"kubernetes\"]\n")
	d.hangs.Store(true)
	f.steps <- func(source.Sink) { d.read() }
	d.expectEnd(r)
}
