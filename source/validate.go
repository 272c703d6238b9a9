package source

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The range of Service.Affinity; Kubernetes has the same.
const (
	MinAffinity = time.Second
	MaxAffinity = 24 * time.Hour
)

// MaxTier is the highest Endpoint.Tier.
const MaxTier = 9

// Validate returns what is wrong with a service, whatever source it is from, as
// far as the service alone can tell. Zero values of addresses and numbers are
// passed over: the source has already said that it could not read them. A
// service without problems other than warnings has no string that could change
// the meaning of a rule, a command or a log line.
func Validate(s *Service) []Problem { return ValidateWritten(s, nil) }

// ValidateWritten is Validate of a service one element of whose ports may say several of them. written has
// the index of the element for each of Ports, in their order: paths and messages name that one. Nil: each
// port is an element.
func ValidateWritten(s *Service, written []int) []Problem {
	v := validator{Service: s, written: written}
	v.names()
	v.ports()
	v.healthCheck()
	v.addresses()
	if len(s.LoadBalancerSourceRanges) > 0 && len(s.LoadBalancerIPs) == 0 {
		v.warn(At("load_balancer_source_ranges"), "load_balancer_source_ranges without load_balancer_ips does nothing", "")
	}
	v.ranges("source_ranges", s.SourceRanges)
	v.ranges("load_balancer_source_ranges", s.LoadBalancerSourceRanges)
	v.endpoints()
	v.forwarding()
	v.check()
	v.hashing()
	v.notes()
	v.schedulerFlags()
	v.onePacket()
	if s.Announce != 0 && len(s.AnnouncedAddrs()) == 0 {
		v.fault(At("announce"), "announce is for addresses, and the service has none", "node ports are not announced: leave it out")
	}
	if s.Affinity != 0 && (s.Affinity < MinAffinity || s.Affinity > MaxAffinity) {
		v.fault(At("session_affinity_timeout"), fmt.Sprintf("session_affinity_timeout is %s", s.Affinity), "want 1s to 24h")
	}
	return v.problems
}

const (
	wantLabel = "want 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"
	wantName  = "want 1 to 253 of a-z, A-Z, 0-9, -, _ and ., beginning and ending with a letter or digit"
)

func (v *validator) names() {
	if !IsLabel(v.Name) {
		v.fault(At("name"), "the name "+Excerpt(v.Name)+" is not a DNS label", wantLabel)
	}
	if !IsLabel(v.Namespace) {
		v.fault(At("namespace"), "the namespace "+Excerpt(v.Namespace)+" is not a DNS label", wantLabel)
	}
	if v.Scheduler != "" && !IsScheduler(v.Scheduler) {
		v.fault(At("scheduler"), Excerpt(v.Scheduler)+" is not the name of a scheduler", "want 1 to 15 of a-z and 0-9, such as wrr")
	}
}

func (v *validator) ports() {
	if len(v.Ports) == 0 {
		v.fault(At("ports"), "the service has no ports", "")
	}
	names := make(map[string]int, len(v.Ports))
	v.served, v.named = make(map[PortAddr]int, len(v.Ports)), make(map[string]bool, len(v.Ports))
	nodePorts := map[PortAddr]int{}
	for i, p := range v.Ports {
		v.portName(i, names)
		v.named[p.Name] = true
		if first, twice := seen(v.served, PortAddr{p.Protocol, portOnly(p.Port)}, v.portAt(i)); twice && p.Port != 0 {
			v.fault(At("ports", v.portAt(i)), fmt.Sprintf("port %d/%s is already ports[%d]", p.Port, p.Protocol, first), "")
		}
		if p.NodePort == 0 {
			continue
		}
		if first, twice := seen(nodePorts, PortAddr{p.Protocol, portOnly(p.NodePort)}, v.portAt(i)); twice {
			v.fault(At("ports", v.portAt(i), "node_port"), fmt.Sprintf("node port %d/%s is already that of ports[%d]", p.NodePort, p.Protocol, first), "")
		}
	}
}

func (v *validator) portName(i int, names map[string]int) {
	name, at := v.Ports[i].Name, v.portAt(i)
	switch {
	case name == "" && len(v.Ports) > 1:
		v.fault(At("ports", at, "name"), fmt.Sprintf("ports[%d] has no name", at), "every port needs one where a service has several")
	case name != "" && !IsLabel(name) && i > 0 && at == v.portAt(i-1) && !IsLabel(v.Ports[i-1].Name): // said of the one before
	case name != "" && !IsLabel(name):
		v.fault(At("ports", at, "name"), "the port name "+Excerpt(name)+" is not a DNS label", wantLabel)
	case name != "":
		if first, twice := seen(names, name, at); twice {
			v.fault(At("ports", at, "name"), fmt.Sprintf("the port name %q is already that of ports[%d]", name, first), "")
		}
	}
}

func (v *validator) healthCheck() {
	port := v.HealthCheckNodePort
	if port == 0 {
		return
	}
	if v.ExternalTrafficPolicy != Local {
		v.fault(At("health_check_node_port"), fmt.Sprintf("health_check_node_port %d has nothing to tell", port),
			`it needs external_traffic_policy = "local"`)
	}
	for i, p := range v.Ports {
		if p.NodePort == port && p.Protocol == TCP {
			v.fault(At("health_check_node_port"), fmt.Sprintf("health_check_node_port %d is already the node port of ports[%d]", port, v.portAt(i)), "")
		}
	}
}

func (v *validator) addresses() {
	v.where = map[netip.Addr]Path{}
	count := 0
	for _, list := range v.AddressLists() {
		count += len(list.Addrs)
		for i, a := range list.Addrs {
			if !a.IsValid() {
				continue
			}
			at := At(list.Key, i)
			if why := Unusable(a); why != "" {
				v.fault(at, fmt.Sprintf("%s is %s", a, why), "want an address that can be routed to this host")
			}
			if where, twice := v.where[a]; twice {
				v.fault(at, fmt.Sprintf("%s is already %s", a, where), "")
				continue
			}
			v.where[a] = at
			if v.full() {
				return
			}
		}
	}
	if count == 0 && !v.HasNodePort() {
		v.warn(nil, fmt.Sprintf("service %s has no address and no node port", Excerpt(v.Name)), "nothing can reach it")
	}
}

// ranges looks at a list of ranges of addresses, by its key.
func (v *validator) ranges(key string, ranges []netip.Prefix) {
	first := make(map[netip.Prefix]int, len(ranges))
	for i, p := range ranges {
		at := At(key, i)
		switch {
		case !p.IsValid():
		case p.Addr().Is4In6() || p != p.Masked():
			v.fault(at, fmt.Sprintf("%s is not a range in its shortest form", p), "")
		default:
			if j, twice := seen(first, p, i); twice {
				v.warn(at, fmt.Sprintf("%s is already %s[%d]", p, key, j), "")
			}
		}
	}
}

// notes finds what cannot be shown.
func (v *validator) notes() {
	at := At("description")
	if n := len(v.Description); n > MaxDescription {
		v.fault(at, fmt.Sprintf("the description has %d bytes", n), fmt.Sprintf("want %d at most", MaxDescription))
	}
	if i := strings.IndexFunc(v.Description, func(r rune) bool { return !strconv.IsPrint(r) }); i >= 0 {
		v.fault(at, "the description is no line of plain text: "+Excerpt(v.Description), "")
	}
	for _, key := range slices.Sorted(maps.Keys(v.Labels)) {
		if v.full() {
			return
		}
		if !IsLabelKey(key) {
			v.fault(At("labels", key), Excerpt(key)+" is not the key of a label", `want 1 to 63 of a-z, A-Z, 0-9, -, _ and ., beginning and ending with a letter or digit, such as team or example.com/team`)
		}
		if value := v.Labels[key]; !IsLabelValue(value) {
			v.fault(At("labels", key), "the label "+Excerpt(key)+" is "+Excerpt(value), `want 0 to 63 of a-z, A-Z, 0-9, -, _ and ., beginning and ending with a letter or digit`)
		}
	}
}
