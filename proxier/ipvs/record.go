package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/bootrecord"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A record holds which virtual servers are ours, which the kernel does not store, and
// since when destinations drain. A server is recorded before it is added and until
// after it is removed, so whenever the process ends, all of ours are recorded. What
// exists and is not recorded belongs to another program.
//
// It is valid for one boot and one network namespace: elsewhere the same key is another server.
type record struct {
	file bootrecord.File // one for each family

	owned  map[lvs.Key]struct{}
	drains drains
	live   int // number of servers and drains
}

// drains hold since when destinations have had weight 0 because they were removed.
type drains map[lvs.Key]map[netip.AddrPort]time.Time

// A drainChange is the beginning of a drain or, if since is zero, its end.
type drainChange struct {
	key   lvs.Key
	at    netip.AddrPort
	since time.Time
}

func newRecord() *record { return &record{owned: map[lvs.Key]struct{}{}, drains: drains{}} }

func (r *record) owns(k lvs.Key) bool {
	_, ok := r.owned[k]
	return ok
}

// own notes that a server is about to be added.
func (r *record) own(k lvs.Key) {
	if r.owns(k) {
		return
	}
	r.owned[k] = struct{}{}
	r.live++
	r.file.Note(lineOf(wordOwn, k)...)
}

// disown notes that a server, with its drains, was removed or never added.
func (r *record) disown(k lvs.Key) {
	if !r.owns(k) {
		return
	}
	r.live -= 1 + len(r.drains[k])
	delete(r.owned, k)
	delete(r.drains, k)
	r.file.Note(lineOf(wordGone, k)...)
}

// drained notes the beginning or the end of a drain. Only our servers have drains.
func (r *record) drained(c drainChange) {
	had, draining := r.drains[c.key][c.at]
	switch {
	case !r.owns(c.key), c.since.Equal(had), c.since.IsZero() && !draining:
		return
	case c.since.IsZero():
		if delete(r.drains[c.key], c.at); len(r.drains[c.key]) == 0 {
			delete(r.drains, c.key)
		}
		r.live--
		r.file.Note(lineOf(wordDrained, c.key, c.at)...)
		return
	case r.drains[c.key] == nil:
		r.drains[c.key] = map[netip.AddrPort]time.Time{}
	}
	if !draining {
		r.live++
	}
	r.drains[c.key][c.at] = c.since
	r.file.Note(lineOf(wordDrain, c.key, c.at, c.since.UTC().Format(time.RFC3339Nano))...)
}

// flush writes everything noted since the last flush, at once.
func (r *record) flush() error {
	if err := r.file.Write(r.live, r.lines); err != nil {
		return fmt.Errorf("recording which virtual servers are ours: %w", err)
	}
	return nil
}

// lines returns the whole record, in order.
func (r *record) lines() (out []byte) {
	for _, k := range slices.SortedFunc(maps.Keys(r.owned), compareKeys) {
		out = bootrecord.AppendLine(out, lineOf(wordOwn, k)...)
		for _, at := range slices.SortedFunc(maps.Keys(r.drains[k]), netip.AddrPort.Compare) {
			out = bootrecord.AppendLine(out, lineOf(wordDrain, k, at, r.drains[k][at].UTC().Format(time.RFC3339Nano))...)
		}
	}
	return out
}

// replay applies a line of the file.
func (r *record) replay(text string) error {
	words := strings.Fields(text)
	if len(words) == 0 || fields[words[0]] != len(words) {
		return fmt.Errorf("%q: wrong number of words: %d", text, len(words))
	}
	protocol, ok := protocols[words[1]]
	if !ok {
		return fmt.Errorf("unknown protocol %q", words[1])
	}
	server, err := netip.ParseAddrPort(words[2])
	c := drainChange{key: lvs.Key{Addr: server.Addr(), Protocol: uint8(protocol), Port: server.Port()}}
	if err == nil && len(words) > 3 {
		c.at, err = netip.ParseAddrPort(words[3])
	}
	if err == nil && len(words) > 4 {
		c.since, err = time.Parse(time.RFC3339Nano, words[4])
	}
	switch {
	case err != nil:
		return err
	case words[0] == wordOwn:
		r.own(c.key)
	case words[0] == wordGone:
		r.disown(c.key)
	default:
		r.drained(c)
	}
	return nil
}

// clear empties the record, and removes the file.
func (r *record) clear() error {
	r.owned, r.drains, r.live = map[lvs.Key]struct{}{}, drains{}, 0
	if err := r.file.Clear(); err != nil {
		return fmt.Errorf("removing the record of our virtual servers: %w", err)
	}
	return nil
}

// readRecord reads the record of a family; an empty dir has none. damaged is how many of
// its lines are invalid. It writes nothing.
func readRecord(dir string, fam policy.Family, s bootrecord.Scope) (r *record, damaged int, err error) {
	r = newRecord()
	if dir == "" {
		return r, 0, nil
	}
	r.file, damaged, err = bootrecord.Read(filepath.Join(dir, "ipvs-"+fam.String()+".journal"), "svcproxy ipvs", s, r.replay)
	if err != nil {
		return nil, 0, fmt.Errorf("reading which virtual servers are ours: %w", err)
	}
	return r, damaged, nil
}

// forgetDrains drops the drains of destinations that a server no longer has.
func (r *record) forgetDrains(key lvs.Key, now *server) {
	for at := range r.drains[key] {
		if !slices.ContainsFunc(now.dests, func(d lvs.Destination) bool { return d.AddrPort == at }) {
			r.drained(drainChange{key: key, at: at})
		}
	}
}

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

// fields is the number of words in a line.
var fields = map[string]int{wordOwn: 3, wordGone: 3, wordDrained: 4, wordDrain: 5}

// protocols are the protocols of services by name.
var protocols = map[string]source.Protocol{
	source.TCP.String(): source.TCP, source.UDP.String(): source.UDP, source.SCTP.String(): source.SCTP,
}

// lineOf returns the words of a line about a server.
func lineOf(word string, k lvs.Key, more ...any) []any {
	return append([]any{word, source.Protocol(k.Protocol), netip.AddrPortFrom(k.Addr, k.Port)}, more...)
}
