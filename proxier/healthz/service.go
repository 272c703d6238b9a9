package healthz

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// serviceBody is what kube-proxy answers, to the tab.
const serviceBody = `{
	"service": {
		"namespace": %q,
		"name": %q
	},
	"localEndpoints": %d,
	"serviceProxyHealthy": %v%s
}`

// drainedBody is in it while the host is drained.
const drainedBody = `,
	"drained": %s`

// serveService answers for one service, on any path, as asked over one family.
func (s *Server) serveService(w http.ResponseWriter, port uint16, fam policy.Family) {
	s.mu.Lock()
	check, ok := s.checks[port]
	s.mu.Unlock()
	if !ok { // between the removal of the service and that of its listener
		check = loop.NodeHealth{Port: port}
	}
	local, healthy := check.LocalEndpoints.Of(fam), s.health.Healthy()
	weight, drained := local, ""
	if _, why := s.health.node(); why != nil {
		body, _ := json.Marshal(why) // has nothing that cannot be written
		weight, drained = 0, fmt.Sprintf(drainedBody, body)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(weight))
	if weight == 0 || !healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	// The load balancer may be gone; there is nobody else to tell.
	_, _ = fmt.Fprintf(w, serviceBody, check.Key.Namespace, check.Key.Name, local, healthy, drained)
}
