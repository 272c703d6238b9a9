package traffic

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"svcproxy.dev/svcproxy/source"
)

const (
	metricAge     = 5 * time.Second // how old may be what is counted always
	metricTimeout = 5 * time.Second // after which they are left out

	// endpointsEach is how many endpoints metrics are of, for each service that they may be of.
	endpointsEach = 10
)

// metrics fills in all of the first services by name: the same ones each time, as a
// series that comes and goes is no use.
func (b *book) metrics(services int, r *Report) {
	r.Time, r.Over = b.at, b.over.Seconds()
	keys := slices.SortedFunc(maps.Keys(b.services), source.Key.Compare)
	r.More = max(0, len(keys)-services)
	for _, key := range keys[:len(keys)-r.More] {
		r.Services = append(r.Services, Service{Namespace: key.Namespace, Name: key.Name, Figures: b.services[key].figures})
	}
	b.addEndpoints(r.Services, endpointsEach*services)
}

// metrics are the figures of services and of endpoints.
var metrics = []struct {
	name, help string
	kind       prometheus.ValueType
	packets    bool // only where packets are counted
	value      func(*Figures) uint64
}{
	{"connections", "Connections that go on,", prometheus.GaugeValue, false, func(f *Figures) uint64 { return f.Active }},
	{"connections_total", "Connections that have begun,", prometheus.CounterValue, false, func(f *Figures) uint64 { return f.Connections }},
	{"packets_total", "Packets in both directions,", prometheus.CounterValue, true, func(f *Figures) uint64 { return f.Packets }},
	{"bytes_total", "Bytes in both directions,", prometheus.CounterValue, true, func(f *Figures) uint64 { return f.Bytes }},
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("svcproxy_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector. The registry checks what Collect sends.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. There is nothing unless it is always wanted.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), metricTimeout)
	defer cancel()
	r, err := c.ask(ctx, ask{age: metricAge, always: true})
	if err != nil || r.Time.IsZero() {
		return
	}
	for _, m := range metrics {
		if m.packets && !r.Packets {
			continue
		}
		ofService := desc("service_"+m.name, m.help+" of a service.", "namespace", "service")
		ofEndpoint := desc("endpoint_"+m.name, m.help+" of an endpoint.", "namespace", "service", "endpoint")
		for i := range r.Services {
			s := &r.Services[i]
			ch <- prometheus.MustNewConstMetric(ofService, m.kind, float64(m.value(&s.Figures)), s.Namespace, s.Name)
			for j := range s.Endpoints {
				e := &s.Endpoints[j]
				ch <- prometheus.MustNewConstMetric(ofEndpoint, m.kind, float64(m.value(&e.Figures)), s.Namespace, s.Name, e.Address.String())
			}
		}
	}
	left := 0
	for _, s := range r.Services {
		left += s.More
	}
	ch <- prometheus.MustNewConstMetric(desc("traffic_services_left_out", "Services without metrics of their traffic: there are more than max_services."),
		prometheus.GaugeValue, float64(r.More))
	ch <- prometheus.MustNewConstMetric(desc("traffic_endpoints_left_out", "Endpoints without metrics of their traffic, of services that have them."),
		prometheus.GaugeValue, float64(left))
	ch <- prometheus.MustNewConstMetric(desc("traffic_lost_total", "How often the kernel told of connections faster than they were counted."),
		prometheus.CounterValue, float64(r.Lost))
}
