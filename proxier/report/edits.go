package report

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/source"
)

// An Edit is one thing of a service that changed, in the words of service files. Its
// texts are of bounded length, and none of them can steer a terminal.
type Edit struct {
	Endpoint string `json:"endpoint,omitempty"` // whose; empty: of the service itself
	What     string `json:"what,omitempty"`     // the key; empty: the endpoint as a whole, which was added or removed
	Old      string `json:"old,omitempty"`      // of a long list only what is not in New
	New      string `json:"new,omitempty"`      // of a long list only what is not in Old
}

// String returns an edit as a log line has it: "external_traffic_policy cluster -> local".
func (e Edit) String() string {
	words := []string{e.Endpoint, e.What}
	switch {
	case e.What == "" && e.New == "":
		words = append(words, "removed")
	case e.What == "":
		words = append(words, "added")
	default:
		words = append(words, cmp.Or(e.Old, "none"), "->", cmp.Or(e.New, "none"))
	}
	return strings.TrimSpace(strings.Join(words, " "))
}

// EditsOf returns what differs between two services of one name: keys of the service in
// the order of the model, then its endpoints as New has them, then those that are gone.
// Old and New must not be nil. It is empty if the two mean the same.
func EditsOf(tr claims.Transition) []Edit {
	var e editing
	for _, d := range tr.Old.Differences(tr.New) {
		e.difference(d)
	}
	e.endpoints(tr.Old.Endpoints, tr.New.Endpoints)
	return e.list
}

// editing collects the edits of one endpoint, or of the service itself.
type editing struct {
	endpoint string
	list     []Edit
}

// difference adds what differs in a key. Endpoints have edits of their own.
func (e *editing) difference(d source.Difference) {
	switch old := d.Old.(type) {
	case []source.Endpoint:
	case []netip.Addr:
		e.lists(d.Key, texts(old, netip.Addr.String), texts(d.New.([]netip.Addr), netip.Addr.String))
	case []netip.Prefix:
		e.lists(d.Key, texts(old, netip.Prefix.String), texts(d.New.([]netip.Prefix), netip.Prefix.String))
	case []source.Port:
		e.lists(d.Key, texts(old, portText), texts(d.New.([]source.Port), portText))
	case []source.PortAddr:
		e.lists(d.Key, texts(old, addrText), texts(d.New.([]source.PortAddr), addrText))
	case *source.NodeAddresses:
		e.lists(d.Key, old.Words(), d.New.(*source.NodeAddresses).Words())
	case *source.Hints:
		was, is := cmp.Or(old, new(source.Hints)), cmp.Or(d.New.(*source.Hints), new(source.Hints))
		e.lists("hinted nodes", was.Nodes, is.Nodes)
		e.lists("hinted zones", was.Zones, is.Zones)
	case *source.HealthCheck:
		for _, c := range CheckEdits(old, d.New.(*source.HealthCheck)) {
			e.value("health_check."+c.What, c.Old, c.New)
		}
	default:
		e.value(d.Key, valueText(d.Key, d.Old), valueText(d.Key, d.New))
	}
}

// valueText returns a value of a key that is no list.
func valueText(key string, v any) string {
	switch v := v.(type) {
	case map[string]uint16:
		return portsText(v)
	case time.Duration:
		if key == "session_affinity" {
			return affinityText(v)
		}
	}
	return fmt.Sprint(v)
}

func (e *editing) value(what, a, b string) {
	if a != b {
		e.list = append(e.list, Edit{Endpoint: e.endpoint, What: what, Old: word(a), New: word(b)})
	}
}

// lists compares two lists. Long ones that differ in more than their order are told by
// what is in one of them only.
func (e *editing) lists(what string, a, b []string) {
	if slices.Equal(a, b) {
		return
	}
	gone, came := missing(a, b), missing(b, a)
	if max(len(a), len(b)) > maxNamed && len(gone)+len(came) > 0 {
		a, b = gone, came
	}
	e.list = append(e.list, Edit{Endpoint: e.endpoint, What: what, Old: listText(a), New: listText(b)})
}

// endpoints compares endpoints by name. Of those that have one name, each is compared
// with the one at its place among them.
func (e *editing) endpoints(a, b []source.Endpoint) {
	was := make(map[string][]int, len(a)) // places in a that are not compared yet
	for i := range a {
		name := endpointName(a[i])
		was[name] = append(was[name], i)
	}
	for i := range b {
		name := endpointName(b[i])
		if len(was[name]) == 0 {
			e.list = append(e.list, Edit{Endpoint: word(name), New: word(name)})
			continue
		}
		one := editing{endpoint: word(name)}
		for _, d := range a[was[name][0]].Differences(&b[i]) {
			one.difference(d)
		}
		e.list, was[name] = append(e.list, one.list...), was[name][1:]
	}
	gone := slices.Concat(slices.Collect(maps.Values(was))...)
	slices.Sort(gone)
	for _, i := range gone {
		name := word(endpointName(a[i]))
		e.list = append(e.list, Edit{Endpoint: name, Old: name})
	}
	if len(e.list) == 0 && !slices.EqualFunc(a, b, sameName) {
		e.list = append(e.list, Edit{What: "endpoints", Old: listText(texts(a, endpointName)), New: listText(texts(b, endpointName))})
	}
}

func sameName(a, b source.Endpoint) bool { return endpointName(a) == endpointName(b) }

// missing returns what of a is not in b.
func missing(a, b []string) []string {
	in := make(map[string]bool, len(b))
	for _, s := range b {
		in[s] = true
	}
	return lists.Keep(a, func(s string) bool { return !in[s] })
}

func texts[T any](list []T, text func(T) string) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = text(v)
	}
	return out
}

// listText has the first of a list, and counts the others.
func listText(list []string) string {
	words := texts(list[:min(len(list), maxNamed)], word)
	if more := len(list) - len(words); more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, " ")
}

// maxWord is how many bytes of one value are told. Labels, addresses and ports fit;
// only an API has longer ones.
const maxWord = 120

// word returns a value as it may stand in a log or on a terminal.
func word(s string) string {
	if len(s) > maxWord {
		s = strings.ToValidUTF8(s[:maxWord], "") + "..."
	}
	return source.Quote(s)
}

// endpointName returns the address of an endpoint, with the ports that are its own.
func endpointName(e source.Endpoint) string {
	switch len(e.Ports) {
	case 0:
		return e.Addr.String()
	case 1:
		for _, p := range e.Ports {
			return netip.AddrPortFrom(e.Addr, p).String()
		}
	}
	return fmt.Sprintf("%s{%s}", e.Addr, portsText(e.Ports))
}

// portsText returns the ports that an endpoint replaces: "http=80,https=443".
func portsText(ports map[string]uint16) string {
	words := make([]string, 0, len(ports))
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		words = append(words, fmt.Sprintf("%s=%d", name, ports[name]))
	}
	return strings.Join(words, ",")
}

// portText returns a port as one word: "http=80/tcp,target_port=8080,node_port=30080".
func portText(p source.Port) string {
	text := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
	if p.Name != "" {
		text = p.Name + "=" + text
	}
	if p.TargetPort != p.Port {
		text += fmt.Sprintf(",target_port=%d", p.TargetPort)
	}
	if p.NodePort != 0 {
		text += fmt.Sprintf(",node_port=%d", p.NodePort)
	}
	return text
}

// addrText returns an address and port, or a port of the node.
func addrText(a source.PortAddr) string {
	if !a.Addr().IsValid() {
		return fmt.Sprintf("node port %d/%s", a.Port(), a.Protocol)
	}
	return a.AddrPort.String() + "/" + a.Protocol.String()
}

func affinityText(d time.Duration) string {
	if d == 0 {
		return "none"
	}
	return "client_ip for " + d.String()
}
