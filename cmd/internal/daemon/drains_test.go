package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/conditions"
)

// oneOfTwo is a service of which one endpoint passes its check, the other does not, and a
// third is drained. The program of a check begins as this one, which under the race detector
// takes a busy machine seconds.
const oneOfTwo = `[[services]]
name = "web"
vips = ["10.96.0.10"]
ports = [{ port = 80 }]
endpoints = ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
health_check = { type = "exec", command = ["/bin/sh", "-c", "test $SVCPROXY_ADDRESS != 192.0.2.2"], interval = "100ms", timeout = "1m", rise = 1, fall = 1 }
`

// What checks and drains make of endpoints is in status, metrics and what systemd is told.
func TestConditionsAreTold(t *testing.T) {
	addr := freePort(t)
	r := launch(t, "http_address = \""+addr+"\"\n")
	r.ready()
	fatal.If(t, r.stop())
	r.told = new(logged)
	state := filepath.Join(r.dir, "state", conditions.StateName)
	const drains = `{"format": 1, "services": {}, "drains": [
{"target": "node", "reason": "disk", "by": "alice", "since": "2026-01-01T00:00:00Z"},
{"target": "default/web/192.0.2.3", "by": "root", "since": "2026-01-02T00:00:00Z"}]}`
	fatal.If(t, os.WriteFile(state, []byte(drains), 0o600))
	r.write("web.toml", oneOfTwo)
	r.start()
	r.ready()
	var st control.Status
	r.eventually("checked", func() bool {
		st = r.status()
		return states(st) == "up down draining"
	})
	if e := st.Loop.Services[0].Endpoints; e[1].Check == nil || e[1].Check.Error == "" || e[1].Since.IsZero() || e[2].Drain == nil || e[2].Drain.By != "root" {
		t.Errorf("endpoints: %+v", e)
	}
	if len(st.Drains) != 2 || !st.Drains[0].Target.Node || st.Drains[0].Reason != "disk" {
		t.Errorf("drains: %+v", st.Drains)
	}
	r.eventually("in metrics", func() bool {
		_, body := get(t, addr, "/metrics")
		for _, want := range []string{
			`svcproxy_endpoints{state="up"} 1`, `svcproxy_endpoints{state="down"} 1`, `svcproxy_endpoints{state="draining"} 1`,
			`svcproxy_drains{kind="node"} 1`, `svcproxy_drains_oldest_timestamp_seconds{kind="node"} 1.7672256e+09`, `svcproxy_drains{kind="endpoint"} 1`, `svcproxy_services_all_failed{all_failed="use_all"} 0`,
			`svcproxy_endpoint_check_duration_seconds_count{outcome="timeout",type="grpc"} 0`,
		} {
			if !strings.Contains(body, want+"\n") {
				return false
			}
		}
		return !strings.Contains(body, `svcproxy_endpoint_check_duration_seconds_count{outcome="passed",type="exec"} 0`)
	})
}

// states are the states of the endpoints of the first service.
func states(st control.Status) string {
	var words []string
	for _, e := range st.Loop.Services[0].Endpoints {
		words = append(words, e.State)
	}
	return strings.Join(words, " ")
}
