//go:build !nokubernetes

package kubernetes

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"svcproxy.dev/svcproxy/source"
)

// Manifests makes services of objects that a file has, as a Source makes them of those
// of an API server, except that they are not in a cluster: their endpoints answer this host.
type Manifests struct {
	services []manifest
	slices   map[source.Key][]*slice // by the service that they are of
	older    map[source.Key][]*slice // of Endpoints, which have no meaning beside slices
	lists    []endpointList
	words    *words
}

// An endpointList is an EndpointSlice or Endpoints object.
type endpointList struct {
	kind, name string
	service    source.Key // that it is of; without name: of none
	id         int
}

// A manifest is a Service object, with a number that its reader chose.
type manifest struct {
	*core.Service
	id int
}

// A Converted is a service of Manifests, and what of it is not carried over.
type Converted struct {
	*source.Service // nil: it has nothing to serve, and Notes say why
	Key             source.Key
	ID              int // of its Service object
	Notes           []string
}

// An Orphan is an EndpointSlice or Endpoints object without a Service.
type Orphan struct {
	ID   int
	Note string
}

// maxManifestPorts is as many ports as a service of a file may have.
const maxManifestPorts = 1000

// NewManifests returns none.
func NewManifests() *Manifests {
	return &Manifests{slices: map[source.Key][]*slice{}, older: map[source.Key][]*slice{}, words: newWords()}
}

// Add takes up an object of JSON: a Service, an EndpointSlice or Endpoints. The id is that of
// Converted and Orphan. An object of another kind is not known.
func (m *Manifests) Add(kind string, object []byte, id int) (known bool, err error) {
	switch kind {
	case "Service":
		s := &core.Service{}
		if err = json.Unmarshal(object, s); err == nil {
			s.Namespace = cmp.Or(s.Namespace, "default")
			m.services = append(m.services, manifest{s, id})
		}
	case "EndpointSlice":
		s := &discovery.EndpointSlice{}
		if err = json.Unmarshal(object, s); err == nil {
			m.addSlice(m.slices, s)
			key := source.Key{Namespace: s.Namespace, Name: s.Labels[discovery.LabelServiceName]}
			m.lists = append(m.lists, endpointList{kind, s.Name, key, id})
		}
	case "Endpoints":
		e := &endpointsObject{}
		if err = json.Unmarshal(object, e); err == nil {
			for i := range e.Subsets {
				m.addSlice(m.older, e.slice(i))
			}
			key := source.Key{Namespace: cmp.Or(e.Metadata.Namespace, "default"), Name: e.Metadata.Name}
			m.lists = append(m.lists, endpointList{kind, e.Metadata.Name, key, id})
		}
	default:
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("reading an object of kind %s: %w", kind, err)
	}
	return true, nil
}

func (m *Manifests) addSlice(to map[source.Key][]*slice, s *discovery.EndpointSlice) {
	s.Namespace = cmp.Or(s.Namespace, "default")
	if out := parseSlice(s, m.words); out != nil {
		to[out.service] = append(to[out.service], out)
	}
}

// Orphans returns the EndpointSlices and Endpoints without a Service, in the order in which they were added.
func (m *Manifests) Orphans() (out []Orphan) {
	known := map[source.Key]bool{}
	for _, s := range m.services {
		known[source.Key{Namespace: s.Namespace, Name: s.Name}] = true
	}
	for _, l := range m.lists {
		what := fmt.Sprintf("%s %s of namespace %s", l.kind, source.Excerpt(l.name), source.Excerpt(l.service.Namespace))
		switch {
		case l.service.Name == "":
			out = append(out, Orphan{l.id, what + " is left out: it has no label " + discovery.LabelServiceName})
		case !known[l.service]:
			out = append(out, Orphan{l.id, what + " is left out: there is no service " + source.Excerpt(l.service.Name)})
		}
	}
	return out
}

// Services returns the services of all objects, in the order in which they were added.
func (m *Manifests) Services() []Converted {
	out := make([]Converted, len(m.services))
	for i, s := range m.services {
		out[i] = m.service(s)
	}
	return out
}

func (m *Manifests) service(s manifest) Converted {
	out := Converted{Key: source.Key{Namespace: s.Namespace, Name: s.Name}, ID: s.id}
	borrowed := lendClusterIPs(s.Service)
	if len(s.Spec.Ports) > maxManifestPorts {
		out.Notes = []string{fmt.Sprintf("it has more than %d ports: left out", maxManifestPorts)}
		return out
	}
	svc := parseService(s.Service, m.words)
	if svc == nil {
		out.Notes = []string{whyNothing(s.Service)}
		return out
	}
	list, beside := m.slices[out.Key], m.older[out.Key]
	if len(list) == 0 {
		list = beside
	}
	slices.SortStableFunc(list, func(a, b *slice) int { return strings.Compare(a.name, b.name) })
	merged, more := merge(svc.Service, list)
	merged.InCluster, merged.TrafficDistribution = false, distribution(s.Spec.TrafficDistribution)
	for i := range merged.Endpoints {
		x := merged.Endpoints[i].Extras()
		x.Hints = nil
		merged.Endpoints[i] = merged.Endpoints[i].With(x)
	}
	if borrowed {
		merged.VIPs = nil
	}
	out.Service = merged
	out.Notes = append(svc.notes.all(), more.all()...)
	for _, l := range list {
		out.Notes = append(out.Notes, l.notes.all()...)
	}
	return out
}

// lendClusterIPs gives a service without cluster IP, which has other addresses or node ports, some
// of their families, so that its other addresses and endpoints are looked at.
func lendClusterIPs(s *core.Service) bool {
	if s.Spec.ClusterIP != "" || len(s.Spec.ClusterIPs) > 0 || s.Spec.Type == core.ServiceTypeExternalName {
		return false
	}
	var texts []string
	for _, in := range s.Status.LoadBalancer.Ingress {
		texts = append(texts, in.IP)
	}
	texts = append(texts, s.Spec.ExternalIPs...)
	if slices.ContainsFunc(s.Spec.Ports, func(p core.ServicePort) bool { return p.NodePort != 0 }) {
		texts = append(texts, lent4, lent6)
	}
	for _, lent := range []string{lent4, lent6} {
		if slices.ContainsFunc(texts, func(text string) bool { return sameFamily(text, lent) }) {
			s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, lent)
		}
	}
	if len(s.Spec.ClusterIPs) == 0 {
		return false
	}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	return true
}

// lent4 and lent6 stand for addresses that a service does not have; no service has them: the first is
// the last one of a block for documentation, RFC 5737, the second of the prefix for discarding, RFC 6666.
const lent4, lent6 = "192.0.2.255", "100::ffff"

func sameFamily(a, b string) bool {
	x, err := netip.ParseAddr(a)
	y, err2 := netip.ParseAddr(b)
	return err == nil && err2 == nil && x.Is4() == y.Is4()
}

// whyNothing says why a Service object serves nothing by an address of its own.
func whyNothing(s *core.Service) string {
	switch {
	case s.Spec.Type == core.ServiceTypeExternalName:
		return "it is another name of something outside, which has no address of its own: left out"
	case s.Spec.ClusterIP == core.ClusterIPNone:
		return "it is headless, so it has no address of its own: left out"
	}
	return "it has no cluster IP, which the API server gives it: left out; print it with kubectl get services,endpointslices -A -o yaml"
}

// distribution returns whom a service prefers, as files say it.
func distribution(p *string) source.TrafficDistribution {
	switch ptr.Deref(p, "") {
	case core.ServiceTrafficDistributionPreferClose, core.ServiceTrafficDistributionPreferSameZone:
		return source.PreferSameZone
	case core.ServiceTrafficDistributionPreferSameNode:
		return source.PreferSameNode
	}
	return source.Evenly
}

// An endpointsObject is what we read of the old kind Endpoints.
type endpointsObject struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Subsets []struct {
		Addresses         []endpointsAddress `json:"addresses"`
		NotReadyAddresses []endpointsAddress `json:"notReadyAddresses"`
		Ports             []struct {
			Name     string        `json:"name"`
			Port     int32         `json:"port"`
			Protocol core.Protocol `json:"protocol"`
		} `json:"ports"`
	} `json:"subsets"`
}

type endpointsAddress struct {
	IP       string  `json:"ip"`
	NodeName *string `json:"nodeName"`
}

// slice returns a subset as the slice that the control plane would mirror it in.
func (e *endpointsObject) slice(i int) *discovery.EndpointSlice {
	out := &discovery.EndpointSlice{}
	out.Name, out.Namespace = fmt.Sprintf("%s-%06d", e.Metadata.Name, i), e.Metadata.Namespace
	out.Labels = map[string]string{discovery.LabelServiceName: e.Metadata.Name}
	sub := &e.Subsets[i]
	for j := range sub.Ports {
		p := &sub.Ports[j]
		out.Ports = append(out.Ports, discovery.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
	}
	add := func(list []endpointsAddress, ready bool) {
		for _, a := range list {
			out.Endpoints = append(out.Endpoints, discovery.Endpoint{
				Addresses: []string{a.IP}, NodeName: a.NodeName, Conditions: discovery.EndpointConditions{Ready: &ready, Serving: &ready},
			})
		}
	}
	add(sub.Addresses, true)
	add(sub.NotReadyAddresses, false)
	return out
}
