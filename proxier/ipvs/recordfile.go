package ipvs

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/bootrecord"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// The first words of lines, as in
//
//	own tcp 10.96.0.10:80
//	drain tcp 10.96.0.10:80 192.168.10.11:8080 2026-11-22T03:40:31.5Z
//	drained tcp 10.96.0.10:80 192.168.10.11:8080
//	gone tcp 10.96.0.10:80
const (
	wordOwn     = "own"
	wordGone    = "gone"
	wordDrain   = "drain"
	wordDrained = "drained"
)

// readRecord reads the record of a family; an empty dir has none. damaged is how many of
// its lines are invalid. It writes nothing.
func readRecord(dir string, fam policy.Family, s bootrecord.Scope) (r *record, damaged int, err error) {
	r = newRecord()
	if dir == "" {
		return r, 0, nil
	}
	file, damaged, err := bootrecord.Read(filepath.Join(dir, "ipvs-"+fam.String()+".journal"), "svcproxy ipvs", s, func(text string) error {
		l, err := parseLine(text)
		if err == nil {
			r.replay(l)
		}
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("reading which virtual servers are ours: %w", err)
	}
	r.file = file
	return r, damaged, nil
}

// A line is one change of a virtual server.
type line struct {
	word  string
	key   lvs.Key
	at    netip.AddrPort // for drains
	since time.Time      // for the beginning of a drain
}

// fields is the number of words in a line.
var fields = map[string]int{wordOwn: 3, wordGone: 3, wordDrained: 4, wordDrain: 5}

func parseLine(text string) (l line, err error) {
	words := strings.Fields(text)
	if len(words) == 0 || fields[words[0]] != len(words) {
		return l, fmt.Errorf("%q: wrong number of words: %d", text, len(words))
	}
	l.word = words[0]
	protocol, ok := protocols[words[1]]
	if !ok {
		return l, fmt.Errorf("unknown protocol %q", words[1])
	}
	server, err := netip.ParseAddrPort(words[2])
	l.key = lvs.Key{Addr: server.Addr(), Protocol: uint8(protocol), Port: server.Port()}
	if err == nil && len(words) > 3 {
		l.at, err = netip.ParseAddrPort(words[3])
	}
	if err == nil && len(words) > 4 {
		l.since, err = time.Parse(time.RFC3339Nano, words[4])
	}
	return l, err
}

// protocols are the protocols of services by name.
var protocols = map[string]source.Protocol{
	source.TCP.String(): source.TCP, source.UDP.String(): source.UDP, source.SCTP.String(): source.SCTP,
}

// lineOf returns the words of a line about a server.
func lineOf(word string, k lvs.Key, more ...any) []any {
	return append([]any{word, source.Protocol(k.Protocol), netip.AddrPortFrom(k.Addr, k.Port)}, more...)
}
