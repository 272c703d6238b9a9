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
func Read(in reader.Input) *reader.Result {
	p := ipvsadm{Result: &reader.Result{}, servers: map[string]*VirtualServer{}}
	for at, line := range in.Lines() {
		l := reader.Line{At: at, Words: strings.Fields(line)}
		if len(l.Words) == 0 || strings.HasPrefix(l.Words[0], "#") {
			continue
		}
		if path.Base(l.Words[0]) == "ipvsadm" { // of a script
			l.Words = l.Words[1:]
		}
		p.At = at
		p.line(l)
	}
	for _, v := range p.order {
		v.Serve(p.Add(v.At, "default", reader.FrontendName(v.Addrs[0], v.Port, v.Protocol)))
	}
	p.KeepsClients(in.Name)
	return p.Result
}

type ipvsadm struct {
	*reader.Result
	servers map[string]*VirtualServer // by what -t, -u or --sctp-service names; nil: it is no service
	order   []*VirtualServer
}

// options are the values of one line, by long name; "" for one without value.
type options map[string]string

// longNames are what options are called in the end, with = where a value follows.
var longNames = func() map[string]string {
	names := map[string]string{}
	for option := range strings.SplitSeq(`add-service -A --add-service, add-server -a --add-server, tcp= -t --tcp-service, udp= -u --udp-service, sctp= --sctp-service,
		fwmark= -f --fwmark-service, scheduler= -s --scheduler, persistent= -p --persistent, netmask= -M --netmask, flags= -b --sched-flags, ops -o --ops, pe= --pe,
		ipv6 -6 --ipv6, server= -r --real-server, direct -g --gatewaying, tunnel -i --ipip, nat -m --masquerading, weight= -w --weight, upper= -x --u-threshold,
		lower= -y --l-threshold, tun-type= --tun-type, tun-port= --tun-port, tun-nocsum --tun-nocsum, tun-csum --tun-csum, tun-remcsum --tun-remcsum,
		numeric -n --numeric`, ",") {
		spellings := strings.Fields(option)
		for _, word := range spellings[1:] {
			names[word] = spellings[0]
		}
	}
	return names
}()

// options reads the options of a line. The value of persistent may be left out.
func (p *ipvsadm) options(words []string) options {
	o := options{}
	words = unbundled(words)
	for i := 0; i < len(words); i++ {
		word, value, joined := strings.Cut(words[i], "=")
		name, hasValue := strings.CutSuffix(longNames[word], "=")
		switch {
		case name == "":
			p.Fail("%s is no option of a line of ipvsadm-save", source.Excerpt(words[i]))
		case !hasValue || joined:
		case i+1 < len(words) && !strings.HasPrefix(words[i+1], "-"):
			i++
			value = words[i]
		case name != "persistent":
			p.Fail("%s has no value", word)
		}
		o[name] = value
	}
	return o
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
			name := longNames["-"+letters[i:i+1]]
			if name == "" {
				out = append(out, word)
				break
			}
			out = append(out, "-"+letters[i:i+1])
			if value := strings.TrimPrefix(letters[i+1:], "="); strings.HasSuffix(name, "=") && value != "" {
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

func (p *ipvsadm) line(l reader.Line) {
	if slices.Contains(ofList, l.Arg(0)) {
		p.Fail("this is a list for people; convert what ipvsadm -Sn prints")
	}
	if !strings.HasPrefix(l.Arg(0), "-") || strings.ContainsAny(strings.Join(l.Words, " "), "$;|&`") {
		p.Fail("this is a line for a shell; run the script, then convert what ipvsadm -Sn prints")
	}
	if hint, known := commands[l.Arg(0)]; known {
		p.Note(l.At, l.Text(0)+" is left out: it adds no service", hint)
		return
	}
	o := p.options(l.Words)
	i := slices.IndexFunc(networks, o.has)
	switch {
	case i < 0:
		p.Fail("the line names no service: want -t, -u, --sctp-service or -f")
	case o.has("add-service"):
		p.server(networks[i], o)
	case o.has("add-server"):
		p.destination(networks[i], o)
	default:
		p.Fail("the line neither adds a service (-A) nor a server (-a)")
	}
}

// networks are the options that name the virtual server of a line.
var networks = []string{"tcp", "udp", "sctp", "fwmark"}

func (p *ipvsadm) server(network string, o options) {
	key := network + " " + o[network]
	if _, twice := p.servers[key]; twice {
		p.Fail("the service %s is there already", source.Printable(key))
	}
	p.servers[key] = nil
	if network == "fwmark" {
		p.Note(p.At, "firewall mark "+source.Excerpt(o["fwmark"])+" is left out, with its servers: no service is chosen by a mark", "write a service with the addresses and ports that are marked")
		return
	}
	addr := p.addrPort(network, o[network])
	if addr.Port() == 0 {
		p.Note(p.At, fmt.Sprintf("the service of all ports of %s is left out, with its servers", addr.Addr()), "write one with the ports that are used")
		return
	}
	v := &VirtualServer{
		At: p.At, Protocol: reader.Protocols[network], Addrs: []netip.Addr{addr.Addr()}, Port: addr.Port(),
		Scheduler: cmp.Or(o["scheduler"], "wlc"), // of ipvsadm(8)
		OnePacket: o.has("ops"),
	}
	if o["flags"] != "" {
		v.Flags = strings.Split(o["flags"], ",")
	}
	if text, persists := o["persistent"]; persists {
		n, err := strconv.ParseUint(cmp.Or(text, "300"), 10, 31) // of ipvsadm(8)
		if err != nil || n == 0 {
			p.Fail("-p %s is no number of seconds", source.Excerpt(text))
		}
		v.Persistence = time.Duration(n) * time.Second
		if m := o["netmask"]; m != "" && m != "255.255.255.255" && m != "128" {
			v.Granularity = source.Excerpt(m)
		}
	}
	if o.has("pe") {
		p.Note(p.At, "the persistence engine "+source.Excerpt(o["pe"])+" is left out", "clients are told apart by address")
	}
	p.servers[key], p.order = v, append(p.order, v)
}

func (p *ipvsadm) destination(network string, o options) {
	key := network + " " + o[network]
	v, known := p.servers[key]
	if !known {
		p.Fail("the service %s has not been added", source.Printable(key))
	}
	if v == nil {
		return // a note says why
	}
	d := Destination{At: p.At, Addr: p.addrPort(network, o["server"])}
	var err error
	if d.Way, d.checksum, err = o.way(); err != nil {
		p.Fail("%s", err)
	}
	d.Weight, d.Upper, d.Lower = p.number(o, "weight", 1), p.number(o, "upper", 0), p.number(o, "lower", 0)
	v.Dests = append(v.Dests, d)
}

// number returns the number of an option, which is a standard one where the option is not written.
func (p *ipvsadm) number(o options, name string, standard int) int {
	if !o.has(name) {
		return standard
	}
	n, err := strconv.ParseUint(o[name], 10, 31)
	if err != nil {
		p.Fail("%s %s is no number", name, source.Excerpt(o[name]))
	}
	return int(n)
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
	n, err := reader.PortOf(port)
	if err != nil || n == 0 {
		return way, fmt.Errorf("port %s of a tunnel is none", source.Excerpt(port))
	}
	way.Port = n
	return way, nil
}

// addrPort reads ADDRESS:PORT as ipvsadm prints it. Names of hosts are not looked up, those of
// ports are, in /etc/services.
func (p *ipvsadm) addrPort(network, text string) netip.AddrPort {
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return netip.AddrPortFrom(a, 0)
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		p.Fail("%s is no address and port", source.Excerpt(text))
	}
	a, err := netip.ParseAddr(host)
	if host == "" {
		p.Fail("%s has no address", source.Excerpt(text))
	}
	if err != nil {
		p.Fail("%s is no address; print with ipvsadm -Sn, which looks up no names", source.Excerpt(host))
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil && network == "sctp" {
		p.Fail("%s is no port", source.Excerpt(port))
	}
	if err != nil {
		named, err := net.LookupPort(network, port)
		if err != nil || port == "" {
			p.Fail("%s is no port; print with ipvsadm -Sn, which looks up no names", source.Excerpt(port))
		}
		n = uint64(named)
	}
	return netip.AddrPortFrom(a, uint16(n))
}
