package healthz

import (
	"fmt"
	"net/http"
	"strconv"

	"svcproxy.dev/svcproxy/proxier"
)

// serviceBody is what kube-proxy answers, to the tab.
const serviceBody = `{
	"service": {
		"namespace": %q,
		"name": %q
	},
	"localEndpoints": %d,
	"serviceProxyHealthy": %v
}`

// serveService answers for one service, on any path, as asked over one family.
func (s *Server) serveService(w http.ResponseWriter, port uint16, fam proxier.Family) {
	s.mu.Lock()
	check, ok := s.checks[port]
	s.mu.Unlock()
	if !ok { // between the removal of the service and that of its listener
		check = proxier.HealthCheck{Port: port}
	}
	local, healthy := check.LocalEndpoints.Of(fam), s.health.Healthy()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(local))
	if local == 0 || !healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	// The load balancer may be gone; there is nobody else to tell.
	_, _ = fmt.Fprintf(w, serviceBody, check.Key.Namespace, check.Key.Name, local, healthy)
}
