package healthz

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A namer sends the metrics of single services. It keeps those of their endpoints for the next time: most stay as they are,
// and making one costs several times what sending it does.
type namer struct {
	mu     sync.Mutex
	labels []string // keys of labels that the metrics have
	made   map[source.Key]made

	endpointsDesc, problemDesc *prometheus.Desc
}

// made are the metrics of a service.
type made struct {
	endpoints report.StateCounts
	always    policy.EndpointState
	labels    []string // values
	metrics   []prometheus.Metric
}

// stateWords are the label values of states.
var stateWords = func() (words []string) {
	for _, s := range policy.EndpointStates() {
		words = append(words, word(s))
	}
	return words
}()

func (n *namer) collect(ch chan<- prometheus.Metric, named *report.Named, labels []string) {
	for _, m := range n.metrics(named, labels) {
		ch <- m
	}
	number(ch, named.LeftOut, "service_endpoints_left_out", "Services without svcproxy_service_endpoints: there are more than max_services.")
}

// metrics returns those of these services, and forgets those of all others.
func (n *namer) metrics(named *report.Named, labels []string) (all []prometheus.Metric) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.use(labels)
	was := n.made
	n.made = make(map[source.Key]made, len(named.Services))
	for i := range named.Services {
		s := &named.Services[i]
		m, always := was[s.Key], alwaysSent(s.Service)
		if m.metrics == nil || m.endpoints != s.Endpoints || m.always != always || !n.labelled(s.Service, m.labels) {
			m = n.endpoints(s, always)
		}
		n.made[s.Key] = m
		all = append(all, m.metrics...)
	}
	for _, p := range named.Problems {
		all = append(all, metric(n.problemDesc, 1, p.Service, word(p.Problem), n.values(p.Service)))
	}
	none := &source.Service{}
	for _, p := range report.ServiceProblems() {
		all = append(all, metric(n.problemDesc, named.More[p], none, word(p), n.values(none)))
	}
	return all
}

// use has the metrics have these labels of services.
func (n *namer) use(keys []string) {
	if n.problemDesc != nil && slices.Equal(n.labels, keys) {
		return
	}
	desc := func(name, help, word string) *prometheus.Desc {
		labels := []string{"namespace", "service", word}
		for _, key := range keys {
			labels = append(labels, source.MetricLabel(key))
		}
		return prometheus.NewDesc("svcproxy_"+name, help, labels, nil)
	}
	n.labels, n.made = keys, nil
	n.endpointsDesc = desc("service_endpoints", "Endpoints of a service, by state.", "state")
	n.problemDesc = desc("service_problem", "1 for a service that does not serve as it should, by what is wrong; without a name how many more there are.", "problem")
}

// labelled reports whether these are the values of the labels of a service.
func (n *namer) labelled(s *source.Service, values []string) bool {
	for i, key := range n.labels {
		if s.Labels[key] != values[i] {
			return false
		}
	}
	return true
}

// values returns the values of the labels of a service; empty where it has none such, which Prometheus takes for no label.
func (n *namer) values(s *source.Service) (values []string) {
	for _, key := range n.labels {
		values = append(values, s.Labels[key])
	}
	return values
}

// endpoints makes the metrics of the endpoints of a service, which may be none.
func (n *namer) endpoints(s *report.ServiceCounts, always policy.EndpointState) made {
	m := made{s.Endpoints, always, n.values(s.Service), make([]prometheus.Metric, 0, 1)}
	for state, count := range s.Endpoints {
		if count > 0 || policy.EndpointState(state) == always {
			m.metrics = append(m.metrics, metric(n.endpointsDesc, count, s.Service, stateWords[state], m.labels))
		}
	}
	return m
}

func metric(desc *prometheus.Desc, n int, s *source.Service, word string, labels []string) prometheus.Metric {
	values := append([]string{s.Namespace, s.Name, word}, labels...)
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), values...)
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
