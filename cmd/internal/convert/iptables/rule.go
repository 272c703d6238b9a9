package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// A rule is a line of iptables-save, as far as it decides where new connections go.
type rule struct {
	at          reader.Position
	chain, text string
	dst, src    side
	protocol    source.Protocol // 0: any, or one that no service has
	ports       []uint16        // nil: any
	in          string          // an interface; empty: any
	notIn       bool
	chance      float64 // that it matches; 1: always
	affinity    uint64  // it is for clients that came within so many seconds; 0: for all
	comment     string
	target      string
	goesTo      bool     // the target, with nothing behind it
	destination string   // of DNAT
	persistent  bool     // a client gets the same address of a range
	other       []string // matches that we do not know
}

// A side is what a rule asks of where packets are from, or of where they go.
type side struct {
	netip.Prefix // invalid: any
	not          bool
	local        bool // this host itself, or one of its addresses
}

// A ruleset is what iptables-save prints of the tables that matter.
type ruleset struct {
	nat, filter map[string][]rule // by chain
	order       []rule            // of nat
}

// readRules reads what iptables-save prints.
func readRules(in reader.Input) (*ruleset, error) {
	rs := &ruleset{nat: map[string][]rule{}, filter: map[string][]rule{}}
	var table map[string][]rule
	inNAT := false
	for at, line := range in.Lines() {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") { // counters
			_, line, _ = strings.Cut(line, "] ")
		}
		switch {
		case line == "" || line[0] == '#' || line == "COMMIT" || line[0] == ':':
		case line[0] == '*':
			table, inNAT = map[string]map[string][]rule{"*nat": rs.nat, "*filter": rs.filter}[line], line == "*nat"
			if table == nil {
				table = map[string][]rule{} // of no interest
			}
		case table == nil:
			return nil, reader.ErrorAt(at, "the line is in no table: want what iptables-save prints")
		default:
			words, err := reader.OfIPTables.Split(line)
			if err == nil && (len(words) < 2 || words[0] != "-A") {
				err = fmt.Errorf("it is no rule: want -A and a chain")
			}
			if err != nil {
				return nil, reader.ErrorAt(at, "%s", err)
			}
			r := parseRule(at, words[1], words[2:])
			if table[r.chain] = append(table[r.chain], r); inNAT {
				rs.order = append(rs.order, r)
			}
		}
	}
	return rs, nil
}

// plainWords are matches whose names say nothing more, and options that change no choice.
var plainWords = []string{"tcp", "udp", "sctp", "comment", "addrtype", "statistic", "multiport", "recent", "state", "conntrack"}

// parseRule reads the options of a rule. What cannot be read is among other.
func parseRule(at reader.Position, chain string, words []string) rule {
	r := rule{at: at, chain: chain, text: strings.Join(words, " "), chance: 1}
	not, seconds := false, uint64(0)
	rcheck := false
	for i := 0; i < len(words); i++ {
		word, value := words[i], ""
		if word == "!" {
			not = true
			continue
		}
		if i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") && words[i+1] != "!" {
			i++
			value = words[i]
		}
		switch word {
		case "-m", "--match":
			if !slices.Contains(plainWords, value) {
				r.other = append(r.other, "-m "+value)
			}
		case "--seconds":
			seconds, _ = strconv.ParseUint(value, 10, 31)
		case "--rcheck", "--update":
			rcheck = true
			if not {
				r.other = append(r.other, "! "+word)
			}
		default:
			r.option(word, value, not)
		}
		not = false
	}
	switch {
	case rcheck && strings.HasPrefix(r.target, "KUBE-SEP-"):
		r.affinity = max(1, seconds)
	case rcheck:
		r.other = append(r.other, "-m recent")
	}
	return r
}

// name describes a rule that rewrites destinations, for messages.
func (r rule) name(m match) string {
	text := r.target
	if m.dst.IsValid() {
		text += " of " + m.dst.String()
	}
	switch n := len(r.ports); {
	case n == 1:
		text += fmt.Sprintf(" port %d", r.ports[0])
	case n > 1:
		text += fmt.Sprintf(" port %d and %d more", r.ports[0], n-1)
	}
	if r.destination != "" {
		text += " to " + source.Excerpt(r.destination)
	}
	return text
}

// ends reports whether a rule ends its chain for what it matches, with the destination as it is.
func (r rule) ends() bool {
	return slices.Contains([]string{"RETURN", "ACCEPT", "DROP", "QUEUE", "NFQUEUE"}, r.target)
}

// rewrites reports whether a rule changes the destination.
func (r rule) rewrites() bool {
	return slices.Contains([]string{"DNAT", "REDIRECT", "NETMAP"}, r.target)
}

// always reports whether a rule matches everything.
func (r rule) always() bool {
	return !r.dst.IsValid() && !r.src.IsValid() && r.protocol == 0 && r.ports == nil && r.in == "" && !r.dst.local && !r.src.local && r.chance == 1 && r.affinity == 0 && len(r.other) == 0
}

// ofDocker reports whether a rule keeps containers from published ports, of which they have no need.
func (r rule) ofDocker() bool { return r.chain == "DOCKER" && r.in != "" && (r.notIn || r.ends()) }

// shortcut reports whether by a rule of kube-proxy pods, or this host, get to all endpoints of a
// service that has the traffic policy local. It says nothing of who may use the service.
func (r rule) shortcut() bool {
	return strings.HasPrefix(r.chain, "KUBE-EXT-") && !r.src.not && !r.notIn && (r.src.IsValid() || r.src.local || r.in != "")
}

// option reads an option and its value.
func (r *rule) option(word, value string, not bool) {
	ok := true
	switch word {
	case "-d", "--destination":
		r.dst.Prefix, ok = prefixOf(value)
		r.dst.not = not
	case "-s", "--source":
		r.src.Prefix, ok = prefixOf(value)
		r.src.not = not
	case "-p", "--protocol":
		r.protocol = reader.Protocols[value]
		ok = r.protocol != 0 && !not
	case "-i", "--in-interface":
		r.in, r.notIn = value, not
	case "--dport", "--dports", "--destination-port", "--destination-ports":
		if r.ports, ok = portList(value); not {
			r.ports, ok = nil, false
		}
	case "--dst-type":
		r.dst.local, ok = value == "LOCAL", value == "LOCAL" && !not
	case "--state", "--ctstate": // only packets that begin a connection get to table nat
		ok = !not && slices.Contains(strings.Split(value, ","), "NEW")
	case "--src-type":
		r.src.local, ok = value == "LOCAL" && !not, value == "LOCAL" && !not
	case "--probability":
		r.chance, ok = chanceOf(value)
	case "--every":
		n, err := strconv.ParseUint(value, 10, 16)
		if ok = err == nil && n > 0; ok {
			r.chance = 1 / float64(n)
		}
	case "--comment":
		r.comment = value
	case "-j", "-g", "--jump", "--goto":
		r.target, r.goesTo = value, strings.HasPrefix(word, "-g") || word == "--goto"
	case "--to-destination", "--to":
		r.destination = value
	case "--persistent":
		r.persistent = true
	case "--mode", "--packet", "--random", "--reap", "--rttl", "--name", "--mask", "--rsource", "--rdest", "--set", "--set-xmark", "--set-mark", "--random-fully",
		"--or-mark", "--to-ports", "--to-source", "--log-prefix", "--log-level":
	default:
		ok = false
	}
	if !ok {
		if text := strings.TrimSpace(word + " " + value); text != "" {
			if not {
				text = "! " + text
			}
			r.other = append(r.other, text)
		}
	}
}

func chanceOf(text string) (float64, bool) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f > 0 && f <= 1) {
		return 1, false
	}
	return f, true
}

// prefixOf reads an address, or a range with a length or a mask.
func prefixOf(text string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(text)
	return p, err == nil
}

// portList reads ports and ranges of them, with commas between them.
func portList(text string) (list []uint16, ok bool) {
	for part := range strings.SplitSeq(text, ",") {
		ports, err := reader.PortRange(part, ":")
		if err != nil {
			return nil, false
		}
		if list = append(list, ports...); len(list) > reader.MaxPorts {
			return nil, false
		}
	}
	return list, true
}
