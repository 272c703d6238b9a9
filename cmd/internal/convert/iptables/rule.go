package iptables

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// A rule is a line of iptables-save, as far as it decides where new connections go.
type rule struct {
	at                 reader.Position
	table, chain, text string
	wants
	comment     string
	target      string
	goesTo      bool   // the target, with nothing behind it
	destination string // of DNAT
	persistent  bool   // a client gets the same address of a range
}

// Wants are what a rule matches.
type wants struct {
	dst, src side
	protocol source.Protocol // 0: any, or one that no service has
	ports    []uint16        // nil: any
	in       string          // an interface; empty: any
	notIn    bool
	chance   float64  // that it matches; 1: always
	affinity uint64   // it is for clients that came within so many seconds; 0: for all
	other    []string // matches that we do not know
}

// A side is what a rule asks of where packets are from, or of where they go.
type side struct {
	netip.Prefix // invalid: any
	not          bool
	local        bool // this host itself, or one of its addresses
}

// set reads an address, or a range with a length or a mask.
func (s *side) set(text string, not bool) bool {
	p, err := netip.ParsePrefix(text)
	if a, addrErr := netip.ParseAddr(text); addrErr == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	s.Prefix, s.not = p, not
	return err == nil
}

// setLocal reads a type of addresses.
func (s *side) setLocal(kind string, not bool) bool {
	s.local = kind == "LOCAL" && !not
	return s.local
}

// A ruleset is what iptables-save prints of the tables that matter.
type ruleset struct {
	nat, filter map[string][]rule // by chain
	order       []rule            // of nat
	elsewhere   []rule            // about sources, of other tables
}

// bySource reports whether a rule of another table than nat may keep sources from what is forwarded.
func (r *rule) bySource() bool {
	return !strings.HasPrefix(r.chain, "KUBE-") && !localChains[r.chain] && (r.src.IsValid() || strings.Contains(r.text, "src"))
}

// localChains are chains that packets to endpoints do not get to, or when it is decided where they go.
var localChains = reader.WordSet("INPUT OUTPUT POSTROUTING")

// readRules reads what iptables-save prints.
func readRules(in reader.Input) *ruleset {
	rs := &ruleset{nat: map[string][]rule{}, filter: map[string][]rule{}}
	var table map[string][]rule
	name := ""
	for at, line := range in.Lines() {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") { // counters
			_, line, _ = strings.Cut(line, "] ")
		}
		switch {
		case line == "" || line[0] == '#' || line == "COMMIT" || line[0] == ':':
		case line[0] == '*':
			name = line[1:]
			if table = map[string]map[string][]rule{"nat": rs.nat, "filter": rs.filter}[name]; table == nil {
				table = map[string][]rule{} // of no interest
			}
		case table == nil:
			reader.Fail(at, "the line is in no table: want what iptables-save prints")
		default:
			words, err := reader.OfIPTables.Split(line)
			if err != nil {
				reader.Fail(at, "%s", err)
			}
			if len(words) < 2 || words[0] != "-A" {
				reader.Fail(at, "it is no rule: want -A and a chain")
			}
			r := parseRule(at, words[1], words[2:])
			r.table = name
			if table[r.chain] = append(table[r.chain], r); name == "nat" {
				rs.order = append(rs.order, r)
			} else if r.bySource() {
				rs.elsewhere = append(rs.elsewhere, r)
			}
		}
	}
	return rs
}

// parseRule reads the options of a rule. What cannot be read is among other.
func parseRule(at reader.Position, chain string, words []string) rule {
	r := rule{at: at, chain: chain, text: strings.Join(words, " "), wants: wants{chance: 1}}
	not, recent := "", false
	for i := 0; i < len(words); i++ {
		word, value := words[i], ""
		if word == "!" {
			not = "! "
			continue
		}
		if i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") && words[i+1] != "!" {
			i++
			value = words[i]
		}
		recent = recent || word == "--rcheck" || word == "--update"
		if text := strings.TrimSpace(word + " " + value); !r.option(word, value, not != "") && text != "" {
			r.other = append(r.other, not+text)
		}
		not = ""
	}
	if ofKube := strings.HasPrefix(r.target, "KUBE-SEP-"); recent && ofKube {
		r.affinity = max(1, r.affinity)
	} else if r.affinity = 0; recent {
		r.other = append(r.other, "-m recent")
	}
	return r
}

// plainMatches are matches whose names say nothing more.
var plainMatches = reader.WordSet("tcp udp sctp comment addrtype statistic multiport recent state conntrack")

// plainOptions are options that change no choice.
var plainOptions = reader.WordSet(`--mode --packet --random --reap --rttl --name --mask --rsource --rdest --set --set-xmark --set-mark --random-fully
	--or-mark --to-ports --to-source --log-prefix --log-level`)

// option reads an option and its value. It reports whether all of it is known.
func (r *rule) option(word, value string, not bool) bool {
	number, err := strconv.ParseUint(value, 10, 31)
	switch word {
	case "-d", "--destination":
		return r.dst.set(value, not)
	case "-s", "--source":
		return r.src.set(value, not)
	case "--dst-type":
		return r.dst.setLocal(value, not)
	case "--src-type":
		return r.src.setLocal(value, not)
	case "-p", "--protocol":
		r.protocol = reader.Protocols[value]
		return r.protocol != 0 && !not
	case "-i", "--in-interface":
		r.in, r.notIn = value, not
	case "--dport", "--dports", "--destination-port", "--destination-ports":
		if r.ports = portList(value); not {
			r.ports = nil
		}
		return r.ports != nil
	case "--state", "--ctstate": // only packets that begin a connection get to table nat
		return !not && slices.Contains(strings.Split(value, ","), "NEW")
	case "--probability":
		f, err := strconv.ParseFloat(value, 64)
		if r.chance = 1; err != nil || !(f > 0 && f <= 1) {
			return false
		}
		r.chance = f
	case "--every":
		if err != nil || number == 0 || number > 65535 {
			return false
		}
		r.chance = 1 / float64(number)
	case "--seconds": // of clients that have come
		r.affinity = number
	case "--rcheck", "--update":
		return !not
	case "--comment":
		r.comment = value
	case "-j", "-g", "--jump", "--goto":
		r.target, r.goesTo = value, strings.HasPrefix(word, "-g") || word == "--goto"
	case "--to-destination", "--to":
		r.destination = value
	case "--persistent":
		r.persistent = true
	case "-m", "--match":
		return plainMatches[value]
	default:
		return plainOptions[word]
	}
	return true
}

// ends reports whether a rule ends its chain for what it matches, with the destination as it is.
func (r *rule) ends() bool { return endings[r.target] }

var endings = reader.WordSet("RETURN ACCEPT DROP QUEUE NFQUEUE")

// otherTargets rewrite destinations, as DNAT does, and make no service.
var otherTargets = map[string]reader.Left{
	"REDIRECT": {Why: "a process of this host is no endpoint", Hint: "have it listen on the port itself"},
	"NETMAP":   {Why: "no service is of a whole range", Hint: "write a service with the addresses that are used"},
}

// rewrites reports whether a rule changes the destination.
func (r *rule) rewrites() bool { return r.target == "DNAT" || otherTargets[r.target].Why != "" }

// always reports whether a rule matches everything.
func (r *rule) always() bool {
	return !r.dst.IsValid() && !r.src.IsValid() && r.protocol == 0 && r.ports == nil && r.in == "" && !r.dst.local && !r.src.local && r.chance == 1 && r.affinity == 0 && len(r.other) == 0
}

// ofDocker reports whether a rule keeps containers from published ports, of which they have no need.
func (r *rule) ofDocker() bool { return r.chain == "DOCKER" && r.in != "" && (r.notIn || r.ends()) }

// shortcut reports whether by a rule of kube-proxy pods, or this host, get to all endpoints of a
// service that has the traffic policy local. It says nothing of who may use the service.
func (r *rule) shortcut() bool {
	return strings.HasPrefix(r.chain, "KUBE-EXT-") && !r.src.not && !r.notIn && (r.src.IsValid() || r.src.local || r.in != "")
}

// portList reads ports and ranges of them, with commas between them; nil: it is none.
func portList(text string) (list []uint16) {
	for part := range strings.SplitSeq(text, ",") {
		ports, err := reader.PortRange(part, ":")
		if list = append(list, ports...); err != nil || len(list) > reader.MaxPorts {
			return nil
		}
	}
	return list
}
