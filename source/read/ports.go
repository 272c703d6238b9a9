package read

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A writtenPort is an element of ports: one port of a service, or as many as it has numbers and protocols.
type writtenPort struct {
	source.Port
	numbers   numbers
	protocols []source.Protocol
}

// numbers are port numbers in a row, from 1.
type numbers struct{ first, last uint16 }

func (n numbers) one() bool { return n.first == n.last }

// portFields are the keys of a port.
var portFields = []decode.Field[writtenPort]{
	decode.Key("name", decode.Text.As(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$`), func(p *writtenPort) *string { return &p.Name }),
	decode.Key("protocol", protocols.Or([]source.Protocol{source.TCP}), func(p *writtenPort) *[]source.Protocol { return &p.protocols }),
	decode.Need(decode.Key("port", portNumbers, func(p *writtenPort) *numbers { return &p.numbers })),
	decode.Key("target_port", portNumber, func(p *writtenPort) *uint16 { return &p.TargetPort }),
	decode.Key("node_port", orNoNumber, func(p *writtenPort) *uint16 { return &p.NodePort }),
}

var protocol = decode.Values("protocol", source.TCP, source.UDP, source.SCTP)

// orNoNumber is a port, or 0 for none.
var orNoNumber = decode.Number[uint16](0, 65535)

// protocols are one or a list of them.
var protocols = (decode.Kind[[]source.Protocol]{
	Schema: decode.Schema{AnyOf: []decode.Schema{protocol.Schema, protocolList.Schema}},
	Read: func(r *decode.Reader, v any) ([]source.Protocol, bool) {
		if _, ok := v.([]any); !ok {
			p, ok := protocol.Read(r, v)
			return []source.Protocol{p}, ok
		}
		list, _ := protocolList.Read(r, v)
		list = slices.DeleteFunc(list, func(p source.Protocol) bool { return p == 0 }) // at fault
		return list, len(list) > 0
	},
}).Instead(protocolHint)

var protocolList = someProtocols(decode.Unique(protocol).And(func(r *decode.Reader, list []source.Protocol) bool {
	if len(list) == 0 {
		r.Fault("protocol is empty", `want "tcp", "udp" or "sctp", or a list of them`)
	}
	return len(list) > 0
}))

// someProtocols has the schema of a list say that it is not empty.
func someProtocols(k decode.Kind[[]source.Protocol]) decode.Kind[[]source.Protocol] {
	k.Schema.MinItems = 1
	return k
}

// portNumbers are one number, or the first and the last of many: "8000-8100".
var portNumbers = decode.Kind[numbers]{
	Schema: decode.Schema{AnyOf: []decode.Schema{portNumber.Schema, {Type: "string", Pattern: `^[0-9]{1,5}-[0-9]{1,5}$`}}},
	Read: func(r *decode.Reader, v any) (numbers, bool) {
		text, ok := v.(string)
		from, to, isRange := strings.Cut(text, "-")
		if !ok || !isRange {
			n, ok := portNumber.Read(r, v)
			return numbers{n, n}, ok
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, err2 := strconv.ParseUint(to, 10, 16)
		if err != nil || err2 != nil || first == 0 || first > last {
			r.Fault("port is "+source.Excerpt(text), `want a number from 1 to 65535, or two of them, the lower one first, as in "8000-8100"`)
			return numbers{}, false
		}
		return numbers{uint16(first), uint16(last)}, true
	},
}

// onePort reads one element of ports.
var onePort = decode.TableOf(portFields, decode.Standard(portFields)).Instead(portHint)

// portList reads the ports of a service. A number is what people try first.
var portList = decode.List(onePort).Instead(portsHint)

// writtenPorts are ports of a service as they are written.
type writtenPorts struct {
	list []writtenPort
	at   []int // which of list says each port of the service; nil: each one
	over bool  // they are more than the limit of a service
}

// readPorts reads the elements of ports. The ports that they stand for are counted first, and made by ports.
func readPorts(r *decode.Reader, v any) (w writtenPorts) {
	w.list, _ = portList.Read(r, v)
	for i := range w.list {
		if p := &w.list[i]; p.protocols == nil { // it could not be read at all
			p.protocols = make([]source.Protocol, 1)
		}
	}
	n, _ := w.count()
	w.over = !r.Within(n)
	return w
}

// count counts the ports that the elements stand for, and the node ports among them.
func (w *writtenPorts) count() (all, node int) {
	for i := range w.list {
		p := &w.list[i]
		all += p.count()
		if p.NodePort != 0 {
			node += p.count()
		}
	}
	return all, node
}

// ports makes the ports that the elements stand for.
func (w *writtenPorts) ports(r *decode.Reader) (ports []source.Port) {
	if n, _ := w.count(); !w.over && n > len(w.list) {
		r.In("ports", func() {
			w.checkNames(r)
			ports = w.expand(r, make([]source.Port, 0, n))
		})
		return ports
	}
	for i := range w.list { // one of each: all there is, or of too many what names them
		p := &w.list[i]
		port := p.at(p.numbers.first, p.protocols[0])
		port.Name = p.Name
		ports = append(ports, port)
	}
	return ports
}

// any reports whether an element is like that.
func (w *writtenPorts) any(is func(*writtenPort) bool) bool {
	return slices.ContainsFunc(w.list, func(p writtenPort) bool { return is(&p) })
}

// checkNames reports names that two elements have, and those that are too long for the ports made of one.
// All other names are for Validate.
func (w *writtenPorts) checkNames(r *decode.Reader) {
	first := make(map[string]int, len(w.list))
	for i := range w.list {
		p := &w.list[i]
		k, twice := first[p.Name]
		if !twice {
			first[p.Name] = i
		}
		switch more := p.longest()[len(p.Name):]; {
		case p.Name == "":
		case twice && (p.many() || w.list[k].many()):
			r.FaultAt(source.At(i, "name"), fmt.Sprintf("the port name %s is already that of ports[%d]", source.Excerpt(p.Name), k), "")
		case source.IsLabel(p.Name) && len(p.Name)+len(more) > source.MaxLabel:
			r.FaultAt(source.At(i, "name"), fmt.Sprintf("the port name and %q have %d characters, and each port has such a name", more, len(p.Name)+len(more)),
				fmt.Sprintf("want %d at most, %d of them here", source.MaxLabel, source.MaxLabel-len(more)))
		}
	}
}

// longest returns the longest name of its ports.
func (p *writtenPort) longest() string {
	return p.name(p.numbers.last, slices.MaxFunc(p.protocols, func(a, b source.Protocol) int { return cmp.Compare(len(a.String()), len(b.String())) }))
}

// expand appends the ports of elements of which one at least is many.
func (w *writtenPorts) expand(r *decode.Reader, ports []source.Port) []source.Port {
	have := make(map[servedPort]int, cap(ports))
	for i := range w.list {
		p := &w.list[i]
		p.check(r, i)
		for port := range p.each {
			k := servedPort{port.Protocol, port.Port}
			if first, twice := have[k]; twice && first != i && (p.many() || w.list[first].many()) {
				r.Problem(source.Problem{Path: source.At(i), Msg: fmt.Sprintf("port %d/%s is already one of ports[%d]", port.Port, port.Protocol, first)})
				break // the others of a range would be the same
			}
			have[k] = i
			ports, w.at = append(ports, port), append(w.at, i)
		}
	}
	return ports
}

// A servedPort is what two ports of a service cannot have in common.
type servedPort struct {
	protocol source.Protocol
	port     uint16
}

func (p *writtenPort) count() int {
	return (int(p.numbers.last) - int(p.numbers.first) + 1) * len(p.protocols)
}

// many reports whether it is more than one port.
func (p *writtenPort) many() bool { return p.count() > 1 }

// check reports keys that a range cannot have, and leaves them out.
func (p *writtenPort) check(r *decode.Reader, i int) {
	if p.numbers.one() {
		return
	}
	if p.TargetPort != 0 {
		r.Problem(source.Problem{Path: source.At(i, "target_port"), Msg: "a range of ports has a target_port", Hint: "leave it out: endpoints serve each port by its own number"})
	}
	if p.NodePort != 0 {
		r.Problem(source.Problem{Path: source.At(i, "node_port"), Msg: "a range of ports has a node_port", Hint: "write a port of its own for each node port"})
	}
	p.TargetPort, p.NodePort = 0, 0
}

// each yields the ports that it is.
func (p *writtenPort) each(yield func(source.Port) bool) {
	for n := int(p.numbers.first); n <= int(p.numbers.last); n++ {
		for _, protocol := range p.protocols {
			if !yield(p.at(uint16(n), protocol)) {
				return
			}
		}
	}
}

// at returns its port of a number and a protocol.
func (p *writtenPort) at(n uint16, protocol source.Protocol) source.Port {
	port := p.Port
	port.Name, port.Protocol, port.Port = p.name(n, protocol), protocol, n
	port.TargetPort = cmp.Or(p.TargetPort, n)
	return port
}

// name returns the name of one of its ports: "rtp", of a range "rtp-8000", of several protocols "dns-udp".
func (p *writtenPort) name(n uint16, protocol source.Protocol) string {
	if !p.many() {
		return p.Name
	}
	var parts []string
	if p.Name != "" {
		parts = append(parts, p.Name)
	}
	if !p.numbers.one() {
		parts = append(parts, strconv.Itoa(int(n)))
	}
	if len(p.protocols) > 1 {
		parts = append(parts, protocol.String())
	}
	return strings.Join(parts, "-")
}

// asWritten returns the path of a port by the element that says it, of those that writtenAt has for each.
func asWritten(path source.Path, writtenAt []int) source.Path {
	if len(path) > 1 && path[0].Key == "ports" && path[1].Index >= 0 && path[1].Index < len(writtenAt) {
		path[1].Index = writtenAt[path[1].Index]
	}
	return path
}

// of returns the ports of an endpoint, written by the names of elements of ports, by the names of ports.
func (w *writtenPorts) of(r *decode.Reader, i int, written map[string]uint16) map[string]uint16 {
	if written == nil || w.at == nil {
		return written
	}
	all := maps.Clone(written)
	for k := range w.list {
		p := &w.list[k]
		n, ok := written[p.Name]
		switch {
		case !ok || !p.many() || p.Name == "":
		case !p.numbers.one():
			r.Problem(source.Problem{Path: source.At("endpoints", i, "ports", p.Name), Msg: "the port " + source.Excerpt(p.Name) + " is a range", Hint: "leave it out: endpoints serve each port by its own number"})
			delete(all, p.Name)
		default:
			delete(all, p.Name)
			for _, protocol := range p.protocols {
				name := p.name(n, protocol)
				if _, own := written[name]; !own { // of one protocol only
					all[name] = n
				}
			}
		}
	}
	return all
}

// save saves the ports as written, so that list endpoints can refer to them later.
func (w *writtenPorts) save() []source.WrittenPort {
	list := make([]source.WrittenPort, len(w.list))
	for i := range w.list {
		p := &w.list[i]
		list[i] = source.WrittenPort{Name: p.Name, First: p.numbers.first, Last: p.numbers.last, Protocols: p.protocols}
	}
	return list
}

// fromSaved returns the ports that save was given, as far as endpoints can refer to them.
func fromSaved(list []source.WrittenPort) (w writtenPorts) {
	w.list = make([]writtenPort, len(list))
	many := false
	for i, p := range list {
		w.list[i] = writtenPort{Port: source.Port{Name: p.Name}, numbers: numbers{p.First, p.Last}, protocols: p.Protocols}
		many = many || w.list[i].many()
	}
	for i := range w.list {
		for n := 0; many && n < w.list[i].count(); n++ {
			w.at = append(w.at, i)
		}
	}
	return w
}
