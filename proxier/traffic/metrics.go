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

// A metric is one figure of services and of endpoints.
type metric struct {
	service, endpoint *prometheus.Desc
	kind              prometheus.ValueType
	value             func(*Figures) uint64
	packets           bool // only where packets are counted
}

func newMetric(name, help string, kind prometheus.ValueType, packets bool, value func(*Figures) uint64) metric {
	desc := func(of, article string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("svcproxy_"+of+"_"+name, help+" of "+article+" "+of+".", labels, nil)
	}
	return metric{
		desc("service", "a", "namespace", "service"), desc("endpoint", "an", "namespace", "service", "endpoint"),
		kind, value, packets,
	}
}

var metrics = []metric{
	newMetric("connections", "Connections that go on,", prometheus.GaugeValue, false, func(f *Figures) uint64 { return f.Active }),
	newMetric("connections_total", "Connections that have begun,", prometheus.CounterValue, false, func(f *Figures) uint64 { return f.Connections }),
	newMetric("packets_total", "Packets in both directions,", prometheus.CounterValue, true, func(f *Figures) uint64 { return f.Packets }),
	newMetric("bytes_total", "Bytes in both directions,", prometheus.CounterValue, true, func(f *Figures) uint64 { return f.Bytes }),
}

var (
	servicesLeftOut  = prometheus.NewDesc("svcproxy_traffic_services_left_out", "Services without metrics of their traffic: there are more than max_services.", nil, nil)
	endpointsLeftOut = prometheus.NewDesc("svcproxy_traffic_endpoints_left_out", "Endpoints without metrics of their traffic, of services that have them.", nil, nil)
	lostDesc         = prometheus.NewDesc("svcproxy_traffic_lost_total", "How often the kernel told of connections faster than they were counted.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range metrics {
		ch <- m.service
		ch <- m.endpoint
	}
	ch <- servicesLeftOut
	ch <- endpointsLeftOut
	ch <- lostDesc
}

// Collect implements prometheus.Collector. There is nothing unless it is always wanted.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), metricTimeout)
	defer cancel()
	r, err := c.ask(ctx, ask{age: metricAge, always: true})
	if err != nil || r.Time.IsZero() {
		return
	}
	left := 0
	for i := range r.Services {
		s := &r.Services[i]
		left += s.More
		s.collect(ch, r.Packets)
	}
	for desc, v := range map[*prometheus.Desc]float64{servicesLeftOut: float64(r.More), endpointsLeftOut: float64(left)} {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v)
	}
	ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(r.Lost))
}

func (s *Service) collect(ch chan<- prometheus.Metric, packets bool) {
	for _, m := range metrics {
		if m.packets && !packets {
			continue
		}
		ch <- prometheus.MustNewConstMetric(m.service, m.kind, float64(m.value(&s.Figures)), s.Namespace, s.Name)
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			ch <- prometheus.MustNewConstMetric(m.endpoint, m.kind, float64(m.value(&e.Figures)), s.Namespace, s.Name, e.Address.String())
		}
	}
}
