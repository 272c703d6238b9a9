package ipvs

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// Read reads what ipvsadm-save prints: a line of ipvsadm's options for each virtual
// server and each destination.
func Read(in reader.Input) (*reader.Result, error) {
	p := ipvsadm{Result: &reader.Result{}, servers: map[string]*VirtualServer{}}
	for at, line := range in.Lines() {
		p.at = at
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if path.Base(words[0]) == "ipvsadm" { // of a script
			words = words[1:]
		}
		if err := p.line(words); err != nil {
			return nil, reader.ErrorAt(p.at, "%s", err)
		}
	}
	for _, v := range p.order {
		AddServer(p.Result, v, reader.FrontendName(v.Addrs[0], v.Port, v.Protocol))
	}
	p.KeepsClients(in.Name)
	return p.Result, nil
}

type ipvsadm struct {
	*reader.Result
	at      reader.Position
	servers map[string]*VirtualServer // by what -t, -u or --sctp-service names; nil: it is no service
	order   []*VirtualServer
}

// options are the values of one line, by long name; "" for one without value.
type options map[string]string

// longNames are what options are called in the end, and whether a value follows.
var longNames = map[string]struct {
	long     string
	hasValue bool
}{
	"-A": {"add-service", false}, "--add-service": {"add-service", false},
	"-a": {"add-server", false}, "--add-server": {"add-server", false},
	"-t": {"tcp", true}, "--tcp-service": {"tcp", true},
	"-u": {"udp", true}, "--udp-service": {"udp", true},
	"--sctp-service": {"sctp", true},
	"-f":             {"fwmark", true}, "--fwmark-service": {"fwmark", true},
	"-s": {"scheduler", true}, "--scheduler": {"scheduler", true},
	"-p": {"persistent", true}, "--persistent": {"persistent", true},
	"-M": {"netmask", true}, "--netmask": {"netmask", true},
	"-b": {"flags", true}, "--sched-flags": {"flags", true},
	"-o": {"ops", false}, "--ops": {"ops", false},
	"--pe": {"pe", true},
	"-6":   {"ipv6", false}, "--ipv6": {"ipv6", false},
	"-r": {"server", true}, "--real-server": {"server", true},
	"-g": {"direct", false}, "--gatewaying": {"direct", false},
	"-i": {"tunnel", false}, "--ipip": {"tunnel", false},
	"-m": {"nat", false}, "--masquerading": {"nat", false},
	"-w": {"weight", true}, "--weight": {"weight", true},
	"-x": {"upper", true}, "--u-threshold": {"upper", true},
	"-y": {"lower", true}, "--l-threshold": {"lower", true},
	"--tun-type": {"tun-type", true}, "--tun-port": {"tun-port", true},
	"--tun-nocsum": {"tun-nocsum", false}, "--tun-csum": {"tun-csum", false}, "--tun-remcsum": {"tun-remcsum", false},
	"-n": {"numeric", false}, "--numeric": {"numeric", false},
}

// parseOptions reads the options of a line. The value of persistent may be left out.
func parseOptions(words []string) (options, error) {
	o := options{}
	words = unbundled(words)
	for i := 0; i < len(words); i++ {
		word, value, joined := strings.Cut(words[i], "=")
		name, known := longNames[word]
		switch {
		case !known:
			return nil, fmt.Errorf("%s is no option of a line of ipvsadm-save", source.Excerpt(words[i]))
		case !name.hasValue || joined:
		case i+1 < len(words) && !strings.HasPrefix(words[i+1], "-"):
			i++
			value = words[i]
		case name.long != "persistent":
			return nil, fmt.Errorf("%s has no value", word)
		}
		o[name.long] = value
	}
	return o, nil
}

// unbundled takes short options apart that are written together, also with a value, such as -mw3.
func unbundled(words []string) (out []string) {
	for _, word := range words {
		letters, short := strings.CutPrefix(word, "-")
		if !short || letters == "" || letters[0] == '-' {
			out = append(out, word)
			continue
		}
		for i := range len(letters) {
			name, known := longNames["-"+letters[i:i+1]]
			if !known {
				out = append(out, word)
				break
			}
			out = append(out, "-"+letters[i:i+1])
			if value := strings.TrimPrefix(letters[i+1:], "="); name.hasValue && value != "" {
				out = append(out, value)
				break
			}
		}
	}
	return out
}

func (o options) has(name string) bool { _, ok := o[name]; return ok }

// ofList are the first words of lines that ipvsadm -L prints.
var ofList = []string{"IP", "Prot", "->", "TCP", "UDP", "SCTP", "FWM"}

// commands are other commands of scripts, and what to do about them.
var commands = map[string]string{
	"-C": "", "--clear": "", "-Z": "", "--zero": "", "--stop-daemon": "",
	"--set":          "set tcp_timeout, tcp_fin_timeout and udp_timeout in [ipvs] of svcproxy.toml",
	"--start-daemon": `with scheduler = "maglev" every host chooses the same endpoint: see docs/maglev.md`,
}

func (p *ipvsadm) line(words reader.Words) error {
	if len(words) > 0 && slices.Contains(ofList, words[0]) {
		return fmt.Errorf("this is a list for people; convert what ipvsadm -Sn prints")
	}
	if !strings.HasPrefix(words.Arg(0), "-") || strings.ContainsAny(strings.Join(words, " "), "$;|&`") {
		return fmt.Errorf("this is a line for a shell; run the script, then convert what ipvsadm -Sn prints")
	}
	if hint, known := commands[words.Arg(0)]; known {
		p.Note(p.at, source.Excerpt(strings.Join(words, " "))+" is left out: it adds no service", hint)
		return nil
	}
	o, err := parseOptions(words)
	if err != nil {
		return err
	}
	key, protocol := o.frontend()
	switch {
	case key == "":
		return fmt.Errorf("the line names no service: want -t, -u, --sctp-service or -f")
	case o.has("add-service"):
		return p.server(key, protocol, o)
	case o.has("add-server"):
		return p.destination(key, o)
	}
	return fmt.Errorf("the line neither adds a service (-A) nor a server (-a)")
}

// frontend returns what names the virtual server of a line.
func (o options) frontend() (key string, protocol source.Protocol) {
	for name, p := range reader.Protocols {
		if o.has(name) {
			return name + " " + o[name], p
		}
	}
	if o.has("fwmark") {
		return "fwmark " + o["fwmark"], 0
	}
	return "", 0
}

func (p *ipvsadm) server(key string, protocol source.Protocol, o options) error {
	if _, twice := p.servers[key]; twice {
		return fmt.Errorf("the service %s is there already", source.Printable(key))
	}
	p.servers[key] = nil
	if protocol == 0 {
		p.Note(p.at, "firewall mark "+source.Excerpt(o["fwmark"])+" is left out, with its servers: no service is chosen by a mark", "write a service with the addresses and ports that are marked")
		return nil
	}
	name, text, _ := strings.Cut(key, " ")
	addr, err := addrPort(name, text)
	if err != nil {
		return err
	}
	if addr.Port() == 0 {
		p.Note(p.at, fmt.Sprintf("the service of all ports of %s is left out, with its servers", addr.Addr()), "write one with the ports that are used")
		return nil
	}
	v := &VirtualServer{
		At: p.at, Protocol: protocol, Addrs: []netip.Addr{addr.Addr()}, Port: addr.Port(),
		Scheduler: cmp.Or(o["scheduler"], "wlc"), // of ipvsadm(8)
		OnePacket: o.has("ops"),
	}
	if o["flags"] != "" {
		v.Flags = strings.Split(o["flags"], ",")
	}
	if err := v.setPersistence(o); err != nil {
		return err
	}
	if o.has("pe") {
		p.Note(p.at, "the persistence engine "+source.Excerpt(o["pe"])+" is left out", "clients are told apart by address")
	}
	p.servers[key], p.order = v, append(p.order, v)
	return nil
}

func (v *VirtualServer) setPersistence(o options) error {
	if !o.has("persistent") {
		return nil
	}
	v.Persistence = 300 * time.Second // of ipvsadm(8)
	if text := o["persistent"]; text != "" {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil || n == 0 {
			return fmt.Errorf("-p %s is no number of seconds", source.Excerpt(text))
		}
		v.Persistence = time.Duration(n) * time.Second
	}
	if m := o["netmask"]; m != "" && m != "255.255.255.255" && m != "128" {
		v.Granularity = source.Excerpt(m)
	}
	return nil
}

func (p *ipvsadm) destination(key string, o options) error {
	v, known := p.servers[key]
	if !known {
		return fmt.Errorf("the service %s has not been added", source.Printable(key))
	}
	if v == nil {
		return nil // a note says why
	}
	name, _, _ := strings.Cut(key, " ")
	addr, err := addrPort(name, o["server"])
	if err != nil {
		return err
	}
	d := Destination{At: p.at, Addr: addr, Weight: 1}
	if d.Way, d.checksum, err = o.way(); err != nil {
		return err
	}
	for _, n := range []struct {
		name string
		set  func(uint32)
	}{{"weight", func(n uint32) { d.Weight = int(n) }}, {"upper", func(n uint32) { d.Upper = n }}, {"lower", func(n uint32) { d.Lower = n }}} {
		if !o.has(n.name) {
			continue
		}
		number, err := strconv.ParseUint(o[n.name], 10, 31)
		if err != nil {
			return fmt.Errorf("%s %s is no number", n.name, source.Excerpt(o[n.name]))
		}
		n.set(uint32(number))
	}
	v.Dests = append(v.Dests, d)
	return nil
}

// way returns how packets get to a destination, and what of a tunnel is not carried over.
func (o options) way() (way source.Forwarding, checksum string, err error) {
	switch {
	case o.has("nat"):
		return way, "", nil
	case !o.has("tunnel"):
		return source.Forwarding{Method: source.ForwardDirect}, "", nil
	}
	if o.has("tun-csum") || o.has("tun-remcsum") {
		checksum = "the checksum"
	}
	way, err = TunnelOf(o["tun-type"], o["tun-port"])
	return way, checksum, err
}

// TunnelOf returns the way of a tunnel. Without a type it is ipip.
func TunnelOf(kind, port string) (source.Forwarding, error) {
	way := source.Forwarding{Method: source.ForwardTunnel, Tunnel: source.IPIP}
	switch kind {
	case "", "ipip":
	case "gre":
		way.Tunnel = source.GRE
	case "gue":
		way.Tunnel, way.Port = source.GUE, source.GUEPort
	default:
		return way, fmt.Errorf("unknown type of a tunnel %s", source.Excerpt(kind))
	}
	if port == "" || way.Tunnel != source.GUE {
		return way, nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return way, fmt.Errorf("port %s of a tunnel is none", source.Excerpt(port))
	}
	way.Port = uint16(n)
	return way, nil
}

// addrPort reads ADDRESS:PORT as ipvsadm prints it. Names of hosts are not looked up, those of
// ports are, in /etc/services.
func addrPort(network, text string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return netip.AddrPortFrom(a, 0), nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%s is no address and port", source.Excerpt(text))
	}
	a, err := netip.ParseAddr(host)
	if host == "" {
		return netip.AddrPort{}, fmt.Errorf("%s has no address", source.Excerpt(text))
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%s is no address; print with ipvsadm -Sn, which looks up no names", source.Excerpt(host))
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil && network != "sctp" {
		named, err := net.LookupPort(network, port)
		if err != nil || port == "" {
			return netip.AddrPort{}, fmt.Errorf("%s is no port; print with ipvsadm -Sn, which looks up no names", source.Excerpt(port))
		}
		n = uint64(named)
	} else if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%s is no port", source.Excerpt(port))
	}
	return netip.AddrPortFrom(a, uint16(n)), nil
}
