package ipvs

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
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
