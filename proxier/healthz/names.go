package healthz

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A namer sends the metrics of single services. It keeps those of their endpoints for the next time: most stay as they are,
// and making one costs several times what sending it does.
type namer struct {
	mu   sync.Mutex
	made map[source.Key]made
}

// made are the metrics of a service.
type made struct {
	endpoints report.StateCounts
	always    policy.EndpointState
	metrics   []prometheus.Metric
}

var (
	endpointsDesc = prometheus.NewDesc("svcproxy_service_endpoints", "Endpoints of a service, by state.", []string{"namespace", "service", "state"}, nil)
	problemDesc   = prometheus.NewDesc("svcproxy_service_problem", "1 for a service that does not serve as it should, by what is wrong; "+
		"without a name how many more there are.", []string{"namespace", "service", "problem"}, nil)

	// stateWords are the label values of states.
	stateWords = func() (words []string) {
		for _, s := range policy.EndpointStates() {
			words = append(words, word(s))
		}
		return words
	}()
)

func (n *namer) collect(ch chan<- prometheus.Metric, named *report.Named) {
	for _, m := range n.endpoints(named.Services) {
		ch <- m
	}
	number(ch, named.LeftOut, "service_endpoints_left_out", "Services without svcproxy_service_endpoints: there are more than max_services.")
	for _, p := range named.Problems {
		ch <- prometheus.MustNewConstMetric(problemDesc, prometheus.GaugeValue, 1, p.Namespace, p.Name, word(p.Problem))
	}
	for _, p := range report.ServiceProblems() {
		ch <- prometheus.MustNewConstMetric(problemDesc, prometheus.GaugeValue, float64(named.More[p]), "", "", word(p))
	}
}

// endpoints returns the metrics of the endpoints of these services, and forgets those of all others.
func (n *namer) endpoints(list []report.ServiceCounts) (all []prometheus.Metric) {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.made
	n.made = make(map[source.Key]made, len(list))
	for i := range list {
		s := &list[i]
		m, always := was[s.Key], alwaysSent(s.Service)
		if m.metrics == nil || m.endpoints != s.Endpoints || m.always != always {
			m = made{s.Endpoints, always, metricsOf(s, always)}
		}
		n.made[s.Key] = m
		all = append(all, m.metrics...)
	}
	return all
}

// alwaysSent returns the state whose number is sent also where it is 0, so that an alert and a graph see it fall to 0: that of
// an endpoint without fault. policy.Gone: none, as nobody expects endpoints of a disabled service to be up.
func alwaysSent(s *source.Service) policy.EndpointState {
	switch {
	case s.Disabled:
		return policy.Gone
	case s.HealthCheck != nil:
		return policy.Up
	}
	return policy.Ready
}

// metricsOf makes the metrics of the endpoints of a service, which may be none.
func metricsOf(s *report.ServiceCounts, always policy.EndpointState) []prometheus.Metric {
	list := make([]prometheus.Metric, 0, 1)
	for state, n := range s.Endpoints {
		if n > 0 || policy.EndpointState(state) == always {
			list = append(list, prometheus.MustNewConstMetric(endpointsDesc, prometheus.GaugeValue, float64(n), s.Namespace, s.Name, stateWords[state]))
		}
	}
	return list
}
