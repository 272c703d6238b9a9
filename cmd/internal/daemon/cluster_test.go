//go:build !nokubernetes

package daemon

import (
	"strings"
	"testing"
)

// Files are served though the API server cannot be reached and nothing is known
// of the cluster: one of them may be how it is reached.
func TestFilesWithoutCluster(t *testing.T) {
	r := launch(t, "sources = [\"file\", \"kubernetes\"]\nhttp_address = \"\"\n[kubernetes]\napi_server = \"http://127.0.0.1:1\"\n")
	r.ready()
	if names, _, _ := r.kernel.seen(); names != "default/web" {
		t.Errorf("kernel holds %q", names)
	}
	st := r.status()
	if s := st.Sources[1]; s.Synced || s.Connection.Connected || !strings.Contains(s.Connection.Error, "refused") {
		t.Errorf("source %+v, connection %+v", s, s.Connection)
	}
}

// Alone, a cluster of which nothing is known is waited for, and status claims nothing.
func TestClusterUnknown(t *testing.T) {
	r := launch(t, "sources = [\"kubernetes\"]\nhttp_address = \"\"\n[kubernetes]\napi_server = \"http://127.0.0.1:1\"\n")
	r.eventually("failed", func() bool { return strings.Contains(r.log.String(), "refused") })
	st := r.status()
	if st.Ready || st.Loop.Families[0].Waiting != "kubernetes" {
		t.Errorf("ready %v, families %+v", st.Ready, st.Loop.Families)
	}
}
