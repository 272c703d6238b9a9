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
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// maxNamed is how many endpoints, or changes of them, a log line names before it only
// counts them.
const maxNamed = 5

// An Edit is a key that changed, in the words of service files. Its
// texts are of bounded length, and none of them can steer a terminal.
type Edit struct {
	What string
	Old  string // of a long list only what is not in New
	New  string // of a long list only what is not in Old
}

// String returns an edit as a log line has it: "external_traffic_policy cluster -> local".
func (e Edit) String() string {
	return fmt.Sprintf("%s %s -> %s", e.What, cmp.Or(e.Old, "none"), cmp.Or(e.New, "none"))
}

// editsOf returns what differs between two services, except for their endpoints, or between two endpoints.
func editsOf(differences []source.Difference) (list []Edit) {
	value := func(what, a, b string) {
		if a != b {
			list = append(list, Edit{what, word(a), word(b)})
		}
	}
	compare := func(what string, a, b []string) {
		if !slices.Equal(a, b) {
			list = append(list, editOfLists(what, a, b))
		}
	}
	for _, d := range differences {
		switch old := d.Old.(type) {
		case []source.Endpoint:
		case []netip.Addr:
			compare(d.Key, texts(old, netip.Addr.String), texts(d.New.([]netip.Addr), netip.Addr.String))
		case []netip.Prefix:
			compare(d.Key, texts(old, netip.Prefix.String), texts(d.New.([]netip.Prefix), netip.Prefix.String))
		case []source.Port:
			compare(d.Key, texts(old, portText), texts(d.New.([]source.Port), portText))
		case []source.PortAddr:
			compare(d.Key, texts(old, addrText), texts(d.New.([]source.PortAddr), addrText))
		case *source.NodeAddresses:
			compare(d.Key, old.Words(), d.New.(*source.NodeAddresses).Words())
		case *source.Hints:
			was, is := cmp.Or(old, new(source.Hints)), cmp.Or(d.New.(*source.Hints), new(source.Hints))
			compare("hinted nodes", was.Nodes, is.Nodes)
			compare("hinted zones", was.Zones, is.Zones)
		case *source.HealthCheck:
			for _, c := range CheckEdits(old, d.New.(*source.HealthCheck)) {
				value("health_check."+c.What, c.Old, c.New)
			}
		default:
			value(d.Key, valueText(d.Key, d.Old), valueText(d.Key, d.New))
		}
	}
	return list
}

// editOfLists tells of long lists that differ in more than their order by what is in one of them only.
func editOfLists(what string, a, b []string) Edit {
	gone, came := missing(a, b), missing(b, a)
	if max(len(a), len(b)) > maxNamed && len(gone)+len(came) > 0 {
		a, b = gone, came
	}
	return Edit{what, listText(a), listText(b)}
}

// valueText returns a value of a key that is no list.
func valueText(key string, v any) string {
	switch v := v.(type) {
	case map[string]uint16:
		return portsText(v)
	case time.Duration:
		switch {
		case key == "session_affinity" && v == 0:
			return "none"
		case key == "session_affinity":
			return "client_ip for " + v.String()
		}
	}
	return fmt.Sprint(v)
}

// CheckEdits returns what differs between two health checks, with whole values. Either may be nil.
func CheckEdits(a, b *source.HealthCheck) (list []Edit) {
	for _, d := range a.Differences(b) {
		e := Edit{What: d.Key, Old: checkText(d.Old), New: checkText(d.New)}
		switch d.Key {
		case "command", "barred": // which says why that one does not run
			e = Edit{What: "command", Old: commandText(a), New: commandText(b)}
		case "all_failed":
			e.Old, e.New = policy.AllFailed(a), policy.AllFailed(b)
		}
		if n := len(list); n == 0 || list[n-1] != e {
			list = append(list, e)
		}
	}
	return list
}

func checkText(v any) string {
	switch v := v.(type) {
	case []source.StatusRange:
		return strings.Join(texts(v, source.StatusRange.String), " ")
	case netip.Addr:
		if !v.IsValid() {
			return ""
		}
	}
	return fmt.Sprint(v)
}

// commandText returns the program and its arguments, and why it does not run.
func commandText(c *source.HealthCheck) string {
	text := fmt.Sprintf("%q", c.Command)
	if c.Barred != "" {
		text += " (does not run: " + c.Barred + ")"
	}
	return text
}

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
